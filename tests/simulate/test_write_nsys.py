"""Written Nsight Systems exports, read back with nothing but SQL, against the recordings."""

from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from jitter.core.errors import UsageError
from jitter.simulate import Job, RankRecording, simulate, write
from jitter.simulate.formats.nsys import SECRET
from tests.support.databases import open_database
from tests.support.partial_captures import PartialCapture

JOB = Job(ranks=3, steps=2, kernels=40, seed=4, gpus_per_node=2, first_step=7)
RUN = simulate(JOB)

ACTIVITIES = """
select a.start, a.end, a.streamId, a.deviceId, a.what, r.start, r.end, r.globalTid & 0xffffff, n.value
from (select start, end, streamId, deviceId, correlationId, globalPid, d.value as what
      from CUPTI_ACTIVITY_KIND_KERNEL join StringIds d on d.id = demangledName
      union all select start, end, streamId, deviceId, correlationId, globalPid, 'copy'
      from CUPTI_ACTIVITY_KIND_MEMCPY
      union all select start, end, streamId, deviceId, correlationId, globalPid, 'fill'
      from CUPTI_ACTIVITY_KIND_MEMSET) a
left join CUPTI_ACTIVITY_KIND_RUNTIME r on r.correlationId = a.correlationId and r.eventClass in (0, 1)
      and r.globalTid >> 24 = a.globalPid >> 24
left join StringIds n on n.id = r.nameId
where (a.globalPid >> 24) & 0xffffff = ? order by r.start, a.start
"""
NAMES = {"h2d": "copy", "d2h": "copy", "memset": "fill"}


def rows(path: Path, sql: str, *values: object) -> list[tuple]:
    with open_database(path) as file:
        return file.execute(sql, values).fetchall()


def expected(own: RankRecording) -> list[tuple]:
    calls = {"cudaLaunchKernel": "_v7000", "cudaLaunchKernelExC": "_v11060"}
    times = zip(own.start_ns, own.end_ns, own.launch_start_ns, own.launch_end_ns, own.ops(), strict=True)
    return [
        (s, e, op.stream, own.device, NAMES.get(op.copy or "", op.name), ls, le, own.threads[op.thread],
         op.call + calls.get(op.call, "_v3020"))
        for s, e, ls, le, op in times
    ]  # fmt: skip


@pytest.mark.parametrize("layout", ["2020.3", "2022.4", "2026.2"])
@pytest.mark.parametrize("more", [{}, {"shuffle": True, "text_ids": True}])
def test_each_rank_reads_back(tmp_path: Path, layout: str, more: dict[str, object]):
    done: list[int] = []
    paths = write(RUN, tmp_path / "new", "nsys", done.append, layout=layout, **more)
    assert [p.name for p in paths] == ["rank0.sqlite", "rank1.sqlite", "rank2.sqlite"]
    assert done == [1, 1, 1]
    for path, own in zip(paths, RUN.ranks(), strict=True):
        assert rows(path, ACTIVITIES, own.pid) == expected(own)
        ranges = rows(
            path,
            "select n.start, n.end, coalesce(text, s.value), globalTid & 0xffffff, n.text is null "
            "from NVTX_EVENTS n left join StringIds s on s.id = textId where domainId = 0 order by 1",
        )
        assert ranges == [
            (r.start_ns, r.end_ns, r.text, own.threads[r.thread], int("text_ids" in more))
            for r in sorted(own.ranges, key=lambda r: r.start_ns)
        ]


def test_shuffled_rows_come_in_no_order(tmp_path: Path):
    (first, *_) = write(RUN, tmp_path, "nsys", shuffle=True)
    starts = [s for (s,) in rows(first, "select start from CUPTI_ACTIVITY_KIND_KERNEL")]
    assert starts != sorted(starts)


def test_the_environment_and_the_session(tmp_path: Path):
    (old, *_) = write(RUN, tmp_path, "nsys", layout="2020.3")
    tables = {name for (name,) in rows(old, "select name from sqlite_master")}
    assert not tables & {"TARGET_INFO_SESSION_START_TIME", "TARGET_INFO_SYSTEM_ENV"}
    for layout, separator in (("2022.4", "\0"), ("2026.2", ";")):
        paths = write(RUN, tmp_path, "nsys", layout=layout)
        facts = dict(rows(paths[2], "select name, value from TARGET_INFO_SYSTEM_ENV"))
        assert facts["Hostname"] == "node0001"
        variables = facts["DeviceEnvironment"].split(separator)
        assert {SECRET, "RANK=2", "SLURM_PROCID=2", "WORLD_SIZE=3", "LOCAL_RANK=0"} < set(variables)
        own = list(RUN.ranks())[2]
        assert rows(paths[2], "select utcEpochNs from TARGET_INFO_SESSION_START_TIME") == [(own.clock.utc_epoch_ns,)]
    captured = rows(paths[2], "select value from META_DATA_CAPTURE where name = 'PROCESS_0:ENVIRONMENT_VARIABLE'")
    assert ('RANK="2"',) in captured


def test_several_ranks_in_a_report_share_its_clock(tmp_path: Path):
    paths = write(RUN, tmp_path, "nsys", ranks_per_report=2)
    assert [p.name for p in paths] == ["node0000-1.sqlite", "node0001-2.sqlite"]
    first, second, _ = RUN.ranks()
    moved = second.moved(first.clock.offset_ns - second.clock.offset_ns)
    assert rows(paths[0], ACTIVITIES, first.pid) == expected(first)
    assert rows(paths[0], ACTIVITIES, second.pid) == expected(moved)
    (repeated,) = rows(paths[0], "select count(*) - count(distinct correlationId) from CUPTI_ACTIVITY_KIND_RUNTIME")
    assert repeated[0] == len(first) + len(first.calls)
    environment = rows(paths[1], "select value from TARGET_INFO_SYSTEM_ENV where name = 'DeviceEnvironment'")[0][0]
    assert environment.split("\0")[-1] == "SLURM_PROCID=1"  # the launcher's number, and no RANK


def test_graphs(tmp_path: Path):
    forward = [
        at for at, op in enumerate(next(iter(RUN.ranks())).ops()) if op.phase == "forward" and op.kind == "compute"
    ]
    own = next(iter(RUN.ranks()))
    (nodes, *_) = write(RUN, tmp_path / "node", "nsys", graphs="node")
    found = rows(nodes, ACTIVITIES, own.pid)
    assert Counter(name for *_, name in found)["cudaGraphLaunch_v10000"] == len(forward)
    assert sorted(r[:2] for r in found) == sorted(r[:2] for r in expected(own))
    graph_calls = [r for r in found if r[-1] == "cudaGraphLaunch_v10000"]
    assert {r[5] for r in graph_calls} == {own.launch_start_ns[at] for at in (forward[0], forward[len(forward) // 2])}

    (whole, *_) = write(RUN, tmp_path / "graph", "nsys", graphs="graph", layout="2026.2")
    half = len(forward) // 2
    spans = [(own.start_ns[f[0]], own.end_ns[f[-1]], 7) for f in (forward[:half], forward[half:])]
    assert rows(whole, "select start, end, streamId from CUPTI_ACTIVITY_KIND_GRAPH_TRACE order by 1") == spans
    assert len(rows(whole, ACTIVITIES, own.pid)) == len(own) - len(forward)
    with pytest.raises(UsageError, match="could not record whole graphs"):
        write(RUN, tmp_path, "nsys", graphs="graph", layout="2020.3")


def test_what_a_capture_loses(tmp_path: Path):
    own = next(iter(RUN.ranks()))
    lost = PartialCapture(RUN, unlaunched=10, cut_kernels=5, early=3, open_last=True)
    (path, *_) = write(lost, tmp_path, "nsys")  # type: ignore[arg-type]
    kept = rows(path, ACTIVITIES, own.pid)
    assert len(kept) == len(own) - 5
    unknown = set(range(9, len(own), 10)) | {0, 1, 2}
    gone = sorted(range(len(own)), key=lambda at: own.start_ns[at])[-5:]
    assert sum(r[5] is None for r in kept) == len(unknown - set(gone))
    calls = rows(path, "select count(*) from CUPTI_ACTIVITY_KIND_RUNTIME")[0][0]
    assert calls == len(own) + len(own.calls) - len(unknown)
    ends = [e for (e,) in rows(path, "select end from NVTX_EVENTS where text like '%step%' order by start")]
    assert [e is None for e in ends] == [False, True]


def test_parquet(tmp_path: Path):
    (first, *_) = write(RUN, tmp_path, "nsys", container="parquet", layout="2026.2")
    assert first.name == "rank0_pqtdir"
    (same, *_) = write(RUN, tmp_path, "nsys", layout="2026.2")
    for table in ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS", "StringIds"):
        stored = pq.read_table(first / f"{table}.parquet")
        assert [tuple(r.values()) for r in stored.to_pylist()] == rows(same, f"select * from {table}")
    assert str(pq.read_schema(first / "CUPTI_ACTIVITY_KIND_RUNTIME.parquet").field("globalTid").type) == "uint64"
    assert str(pq.read_schema(first / "StringIds.parquet").field("id").type) == "int32"


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"layout": "2019.1"}, "no nsys layout '2019.1'"),
        ({"shuffle": "perhaps"}, "is not yes or no"),
        ({"ranks_per_report": "few"}, "not a whole number"),
        ({"ranks_per_report": "0"}, "at least one rank"),
        ({"graphs": "some"}, "graphs=some"),
        ({"colour": "red"}, "no option 'colour'"),
    ],
)
def test_wrong_options(tmp_path: Path, options: dict[str, object], complaint: str):
    with pytest.raises(UsageError) as raised:
        write(RUN, tmp_path, "nsys", **options)
    assert complaint in raised.value.message
    with pytest.raises(UsageError, match="cannot be written as 'hdf'"):
        write(RUN, tmp_path, "hdf")
