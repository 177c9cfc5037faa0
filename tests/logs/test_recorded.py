"""Recorded collectives: Inspector, profiler plug-in, Flight Recorder in JSON and pickles; nothing is executed."""

import json
import pickle
import time
from typing import Any

import pytest
from log_reading import parsed, rows

from jitter.logs import bandwidth, parse, sniff
from tests.support.real_recordings import EVIDENCE, needs_evidence

COLUMNS = ("rank", "group_name", "sequence", "collective", "size_bytes", "duration_ns", "timing")


def _bandwidths(log) -> list[tuple[float, float]]:
    """Bandwidths of the records, with the ranks that the communicators state."""
    ranks = dict(rows(log, "communicators", "comm", "ranks"))
    records = rows(log, "recorded", "collective", "size_bytes", "duration_ns", "group_name")
    found = [bandwidth(collective, size, time, ranks[group]) for collective, size, time, group in records]
    return [tuple(round(value, 6) for value in pair) for pair in found]


@needs_evidence
def test_documented_records_of_the_inspector():
    path = EVIDENCE / "inspector/readme_v4.0.json"
    log = parse(path)
    assert sniff(path) == "nccl-inspector"
    assert log.problems == []
    assert rows(log, "recorded", *COLUMNS) == [
        (2, "0x7f8c496ae9f661", 1407, "all_reduce", 17_179_869_184, 61_974_000, None),
        (4, "0xe62dedaa97644a", 1231, "reduce_scatter", 8 * 2_147_483_648, 41_057_000, "kernel_gpu"),
    ]
    assert rows(log, "recorded", "start_ns") == [None, 1752867229235059000]
    assert _bandwidths(log) == [(277.210914, 485.119099), (418.439467, 366.134533)]
    small = parse(EVIDENCE / "inspector/exporter_readme_v4.0.json")
    assert rows(small, "recorded", "size_bytes", "duration_ns") == [(32 * 65_536, 110_000)]
    assert _bandwidths(small) == [(19.065018, 18.469236)]


def _record(**changes: object) -> dict:
    measured = {"coll": "AllToAll", "coll_sn": 7, "coll_msg_size_bytes": 1 << 20, "coll_exec_time_us": 100,
                "coll_timing_source": "kernel_gpu", "coll_algobw_gbs": 0.0, "coll_busbw_gbs": 0.0}  # fmt: skip
    return {
        "header": {"id": "0xa", "rank": 0, "n_ranks": 8, "nnodes": 1},
        "metadata": {"inspector_output_format_version": "v4.0", "hostname": "node"},
        "coll_perf": measured,
    } | changes


def test_all_to_all_without_a_printed_bandwidth_is_computed():
    assert _bandwidths(parsed(json.dumps(_record()))) == [(83.88608, 73.40032)]


def test_inspector_records_one_a_line_among_others():
    p2p = {"p2p": "Send", "p2p_sn": 3, "p2p_peer": 1, "p2p_msg_size_bytes": 524288, "p2p_exec_time_us": 50,
           "p2p_timing_source": "kernel_gpu"}  # fmt: skip
    sent = {key: value for key, value in _record(p2p_perf=p2p).items() if key != "coll_perf"}
    tuned = _record(coll_perf=_record()["coll_perf"] | {"coll_algo": "RING", "coll_proto": "LL"})
    stats = {"header": {"id": "0xa"}, "dump_stats": {"dropped_total": 3}}
    lines = [_record(), sent, {"unrelated": 1}, stats, tuned]
    text = "\n".join(json.dumps(line) for line in lines)
    one = json.dumps(_record())
    log = parsed(f"{text}\n{one}{one}\n{one[:-40]}\n0: {one}")
    assert rows(log, "recorded", "collective") == ["all_to_all", "send_recv", *["all_to_all"] * 4]
    assert rows(log, "recorded", "size_bytes")[1] == 524288
    assert rows(log, "recorded", "algorithm", "protocol")[2] == ("RING", "LL")
    assert rows(log, "communicators", "comm", "rank", "ranks", "host") == [("0xa", 0, 8, "node")]
    assert [(problem.count, problem.lines) for problem in log.problems] == [(1, (7,))]
    newer = parsed(json.dumps(_record(metadata={"inspector_output_format_version": "v9.1"})))
    assert len(rows(newer, "recorded", "rank")) == 1
    assert "v9.1" in str(newer.problems[0])


def test_broken_pretty_printed_record_loses_itself():
    good = json.dumps(_record(), indent=2)
    log = parsed(f"{good}\n{good.replace('AllToAll', 'AllTo' + chr(34))}\n{good}\n{good[:200]}\n{good}\n")
    assert len(rows(log, "recorded", "rank")) == 3
    height = good.count("\n") + 1
    assert [(problem.count, problem.lines) for problem in log.problems] == [(2, (1 + height, 1 + 3 * height))]


def test_profiler_plugin():
    args = {"SeqNum": 4, "CommHash": 673864846479792718, "Rank": 1, "Count": 262144, "Datatype": "ncclFloat32",
            "Algorithm": "RING", "Protocol": "SIMPLE", "nChannels": 4}  # fmt: skip
    common = {"name": "AllReduce", "cat": "COLL", "id": 0, "pid": 9, "tid": 1}
    sent = {"name": "Send", "cat": "P2P", "ph": "b", "id": 0, "pid": 9, "tid": 1, "ts": 9.0,
            "args": {"CommHash": 5, "Rank": 1, "Peer": 2, "Count": 16, "Datatype": "ncclBfloat16"}}  # fmt: skip
    events = [
        {"name": "Group", "cat": "GROUP", "ph": "b", "id": 0, "pid": 9, "tid": 1, "ts": 1.0, "args": {"groupId": 3}},
        common | {"ph": "b", "ts": 10.5, "args": args},
        sent,
        common | {"ph": "e", "ts": 31.25},
    ]
    content = "[\n" + "".join(json.dumps(event) + ",\n" for event in events) + "{}]\n"
    log = parsed(content)
    assert sniff(content.encode()) == "nccl-profiler"
    assert log.problems == []
    assert rows(log, "recorded", *COLUMNS, "algorithm", "protocol", "state", "start_ns") == [
        (1, "673864846479792718", 4, "all_reduce", 1 << 20, 20_750, "host", "RING", "SIMPLE", "completed", 10_500),
        (1, "5", None, "send_recv", 32, None, None, None, None, "started", 9_000),
    ]


def test_proxies_and_kernels_of_a_collective():
    """Sends from 10 to 14 and 12 to 20 µs cover 10 µs, the longest kernel 18; the idle proxy works for nothing."""
    common = {"pid": 9, "tid": 1}

    def event(cat: str, name: str, number: int, phase: str, ts: float) -> dict[str, Any]:
        args = {"SeqNum": 4, "CommHash": 5, "Rank": 1, "Count": 4, "Datatype": "ncclFloat32"} if cat == "COLL" else {}
        return common | {"cat": cat, "name": name, "id": number, "ph": phase, "ts": ts, "args": args}

    events = [
        event("COLL", "AllReduce", 0, "b", 10.0),
        *(event("PROXY", "Send", 0, phase, ts) for phase, ts in (("b", 10.0), ("e", 14.0))),
        *(event("PROXY", "Recv", 1, phase, ts) for phase, ts in (("b", 12.0), ("e", 20.0))),
        *(event("PROXY", "Sleep", 1, phase, ts) for phase, ts in (("b", 20.0), ("e", 29.0))),
        *(event("GPU", "KernelCh", 0, phase, ts) for phase, ts in (("b", 11.0), ("e", 29.0))),
        *(event("GPU", "KernelCh", 1, phase, ts) for phase, ts in (("b", 12.0), ("e", 28.0))),
        event("COLL", "AllReduce", 0, "e", 30.0),
    ]
    log = parsed("[\n" + "".join(json.dumps(one) + ",\n" for one in events))
    assert rows(log, "recorded", "duration_ns", "proxy_ns", "kernel_ns") == [(20_000, 10_000, 18_000)]


ENTRY = {
    "frames": [{"name": "f", "filename": "/job/train.py", "line": 3}],
    "record_id": 0, "pg_id": 0, "process_group": ("0", "default_pg"), "collective_seq_id": 1, "p2p_seq_id": 0,
    "op_id": 1, "profiling_name": "nccl:all_reduce", "time_created_ns": 1724779239936775119, "input_sizes": [[3, 4]],
    "input_dtypes": ["Float"], "output_sizes": [[3, 4]], "output_dtypes": ["Float"], "state": "completed",
    "time_discovered_started_ns": None, "time_discovered_completed_ns": 1724779239975811724, "retired": True,
    "timeout_ms": 600000, "is_p2p": False,
}  # fmt: skip
GATHER = ENTRY | {"record_id": 1, "profiling_name": "nccl:_all_gather_base", "collective_seq_id": 2, "duration_ms": 1.5,
                  "input_dtypes": ["BFloat16"], "output_sizes": [[6, 4]]}  # fmt: skip
SEND = ENTRY | {
    "record_id": 2,
    "profiling_name": "nccl:send 0->1",
    "is_p2p": True,
    "p2p_seq_id": 5,
    "state": "scheduled",
}
DUMP = {
    "version": "2.9",
    "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}},
    "pg_status": {},
    "entries": [ENTRY, GATHER, SEND],
}
EXPECTED = [
    (1, "0", 1, "all_reduce", 48, None, None),
    (1, "0", 2, "all_gather", 48, 1_500_000, "cuda_event"),
    (1, "0", 5, "send_recv", 48, None, None),
]


@pytest.mark.parametrize(
    "dumped", [lambda d: json.dumps(d).encode(), *(lambda d, p=p: pickle.dumps(d, p) for p in (2, 4, 5))]
)
def test_flight_recorder(dumped):
    content = dumped(DUMP)
    log = parsed(content, "traces/nccl_trace_rank_1")
    assert sniff(content) == "flight-recorder"
    assert log.problems == []
    assert rows(log, "recorded", *COLUMNS) == EXPECTED
    assert rows(log, "recorded", "state", "start_ns") == [
        ("completed", 1724779239936775119), ("completed", 1724779239936775119), ("scheduled", 1724779239936775119)
    ]  # fmt: skip
    assert rows(log, "communicators", "comm", "rank", "ranks") == [("0", 1, 2)]
    facts = ("operation", "is_p2p", "input_elements", "dtype", "timeout_ns", "source_line")
    assert rows(log, "recorded", *facts)[::2] == [
        ("nccl:all_reduce", False, 12, "Float", 600_000_000_000, "/job/train.py(3): f"),
        ("nccl:send 0->1", True, 12, "Float", 600_000_000_000, "/job/train.py(3): f"),
    ]
    facts = ("rank", "group_name", "group_description", "members", "last_enqueued", "is_whole")
    assert rows(log, "process_groups", *facts) == [(1, "0", "default_pg", "0-1", None, True)]


class _Bomb:
    """An object that runs a command when it is unpickled."""

    def __reduce__(self):
        return exec, ("raise SystemExit('executed')",)


def test_pickled_code_is_not_run():
    log = parsed(pickle.dumps(DUMP | {"comm_lib_version": _Bomb(), "entries": [ENTRY, _Bomb(), GATHER]}, 2), "trace_1")
    assert rows(log, "recorded", *COLUMNS) == EXPECTED[:2]
    assert [problem.count for problem in log.problems] == [1]


def _text(value):
    return b"X" + len(value).to_bytes(4, "little") + value


_HEAD = b"\x80\x02}(" + _text(b"pg_config") + b"}" + _text(b"entries") + b"]" + _text(b"version")
_SQUARED = b")q\x00" + b"".join(b"h%ch%c\x86q%c" % (at, at, at + 1) for at in range(60))


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(_SQUARED, id="a tuple that holds 2 to the 60 tuples"),
        pytest.param(b"]q\x00h\x00a", id="a list that holds itself"),
        pytest.param(b"}(" + b")" + b"\x85" * 400_000 + b"K\x01u", id="a key of 400,000 levels"),
        pytest.param(b")" + b"\x85" * 400_000, id="400,000 levels"),
        pytest.param(b"}(\x8b\xd0\x07\x00\x00" + b"\x01" * 2000 + b"K\x01u", id="a key of 4,800 digits"),
        pytest.param(b"(K\x01\x91", id="a frozen set"),
    ],
)
def test_what_a_pickle_holds_can_be_printed_and_walked(value):
    """Hashing or printing such a value does not end, or ends the process."""
    log = parsed(_HEAD + value + b"u.", "trace_1")
    assert log.tables == {}
    assert [problem.reason for problem in log.problems] == [
        "the file is damaged or cut off; the rest of it was not read"
    ]


def test_tags_of_torchs_pickler_are_seen_through():
    """`restore_type_tag(data, "Dict[str, Any]")`, as the C++ pickler writes around containers."""
    plain = pickle.dumps(DUMP["entries"], 2)[2:-1]
    content = (
        b"\x80\x02}(X\x07\x00\x00\x00entriesctorch.jit._pickle\nrestore_type_tag\n(" + plain
        + b"X\x09\x00\x00\x00List[Any]tRX\x07\x00\x00\x00versionX\x03\x00\x00\x002.9u."
    )  # fmt: skip
    log = parsed(content, "trace_1")
    assert [row[2] for row in rows(log, "recorded", *COLUMNS)] == [1, 2, 5]


def test_cut_and_damaged_dumps_keep_their_whole_entries():
    content = json.dumps(DUMP).encode()
    cut = parsed(content[: content.index(b'"nccl:send')], "trace_1")
    assert [row[3] for row in rows(cut, "recorded", *COLUMNS)] == ["all_reduce", "all_gather"]
    assert "cut off" in str(cut.problems[0])
    broken = parsed(pickle.dumps(DUMP)[:300], "trace_1")
    assert broken.tables == {}
    assert len(broken.problems) == 1
    newer = parsed(json.dumps(DUMP | {"version": "11.0"}).encode(), "trace_1")
    assert rows(newer, "recorded", *COLUMNS)[0][3] == "all_reduce"
    assert "11.0" in str(newer.problems[0])


def test_a_damaged_dump_takes_linear_time():
    """Of objects in objects only the innermost with a name may be an entry; sizes without bound are no sizes."""
    start = time.process_time()
    entry = json.dumps(ENTRY)
    nested = parsed(('{"entries": [' + '{"a":' * 100_000 + entry + "}" * 100_000).encode(), "trace_1")
    assert rows(nested, "recorded", *COLUMNS) == EXPECTED[:1]
    huge = parsed(
        json.dumps(DUMP | {"entries": [ENTRY | {"input_sizes": [[1 << 62] * 20_000]}, ENTRY]}).encode(), "trace_1"
    )
    assert rows(huge, "recorded", *COLUMNS) == EXPECTED[:1]
    assert [problem.count for problem in huge.problems] == [1]
    assert time.process_time() - start < 5


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("bind.log", b"3 -- GPUS 99999999999 -- pid 12's current affinity mask: ff\n"),
        (
            "plugin.json",
            b'{"name": "AllReduce", "cat": "COLL", "ph": "b", "id": 1, "ts": 1e308, "args": {"Rank": 0}}\n',
        ),
        ("mpi_profile.1.3", b"Data for MPI rank 3 of 8\ntotal communication time = " + b"9" * 400 + b".0 seconds\n"),
    ],
)
def test_a_number_that_no_column_holds_loses_its_record(name: str, content: bytes):
    log = parsed(content, name)
    assert log.tables == {}
    assert [problem.count for problem in log.problems] == [1]


def test_an_entry_that_quotes_its_own_key():
    entry = ENTRY | {"frames": [{"name": "profiling_name"}]}
    cut = parsed(json.dumps(DUMP | {"entries": [entry]}).encode()[:-2], "trace_1")
    assert rows(cut, "recorded", *COLUMNS) == EXPECTED[:1]
