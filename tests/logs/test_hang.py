"""The hang that Flight Recorder dumps and watchdog lines show: who did not enter what, hand-made for a known hang."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from log_reading import rows

from jitter.cli import main
from jitter.lake.integrity.checksums import seal_json
from jitter.lake.log_records import intact_log_records
from jitter.logs import parse
from jitter.simulate import simulate, write
from tests.support.printed import json_of, output_of
from tests.support.real_recordings import EVIDENCE, needs_evidence
from tests.support.simulated import small

BASE_NS = 1_724_779_239_000_000_000
WORLD = {"0": ("default_pg", range(8))}


def call(
    number: int, *, group: str = "0", op: str = "nccl:all_reduce", done: bool = True, **given: Any
) -> dict[str, Any]:
    """An entry of a dump, without what `dump` fills in."""
    shape = given.pop("shape", [1024])
    return {
        "process_group": [group, ""], "collective_seq_id": number, "p2p_seq_id": 0, "profiling_name": op,
        "input_sizes": [shape], "input_dtypes": [given.pop("dtype", "Float")], "output_sizes": [shape],
        "output_dtypes": ["Float"], "state": given.pop("state", "completed" if done else "scheduled"),
        "time_discovered_completed_ns": 1 if done else None, "timeout_ms": 600_000, "is_p2p": False, **given,
    }  # fmt: skip


def exchange(number: int, peers: str, *, done: bool = True, **given: Any) -> dict[str, Any]:
    return call(1, op=f"nccl:{peers}", done=done, **given) | {"is_p2p": True, "p2p_seq_id": number}


def dump(
    folder: Path, rank: int, calls: Iterable[dict[str, Any]], groups: Any = WORLD, first: int = 0, **more: Any
) -> None:
    """Write a rank's dump; its k-th call is made k seconds after the base time."""
    entries = []
    for at, one in enumerate(calls):
        name = one["process_group"][0]
        entry = {
            "record_id": first + at,
            "pg_id": list(groups).index(name),
            "time_created_ns": BASE_NS + at * 10**9 + rank,
        }
        entries.append(
            one
            | entry
            | {"process_group": [name, groups[name][0]]}
            | {"time_created_ns": one.get("at", entry["time_created_ns"])}
        )
    config = {
        name: {"name": name, "desc": desc, "ranks": str(list(ranks))}
        for name, (desc, ranks) in groups.items()
        if rank in ranks
    }
    folder.mkdir(exist_ok=True)
    content = {"version": "2.9", "pg_config": config, "pg_status": {}, "entries": entries, **more}
    (folder / f"nccl_trace_rank_{rank}.json").write_text(json.dumps(content))


def report(folder: Path, capsys: pytest.CaptureFixture[str], *options: str) -> Any:
    assert main(["ingest", str(folder), "-o", str(folder.parent / "lake")]) == 0
    printed = output_of(capsys, "report", folder.parent / "lake", *(options or ("--json",)))
    return printed if options else json.loads(printed)


@pytest.fixture
def dumps(tmp_path: Path) -> Path:
    return tmp_path / "dumps"


def up_to(last: int, completed: int = 18, **given: Any) -> list[dict[str, Any]]:
    """All-reduces 1 to `last`, of which those up to `completed` completed."""
    return [call(number, done=number <= completed, **given) for number in range(1, last + 1)]


def test_rank_that_stopped_is_named_with_its_last_call(dumps, capsys):
    def frames(line: int) -> dict[str, Any]:
        library = {
            "name": "all_reduce",
            "filename": "/x/site-packages/torch/distributed/distributed_c10d.py",
            "line": 9,
        }
        return {"frames": [library, {"name": "train", "filename": "/job/train.py", "line": line}]}

    for rank in range(8):
        last = 18 if rank == 3 else 20
        calls = up_to(last)
        calls[-1].update(frames(40 + last))
        calls[18:19] = [one | frames(77) for one in calls[18:19]]
        dump(dumps, rank, calls)
    document = report(dumps, capsys)
    hang = document["hang"]
    assert (hang["kind"], hang["group"], hang["collective"], hang["sequence"]) == ("not_entered", "0", "all_reduce", 19)
    assert (hang["missing_ranks"], hang["waiting_ranks"]) == ([3], [0, 1, 2, 4, 5, 6, 7])
    assert (hang["elements"], hang["size_bytes"], hang["source_line"]) == (1024, 4096, "/job/train.py(77): train")
    assert hang["since_ns"] == BASE_NS + 18 * 10**9
    (last,) = hang["last_calls"]
    assert (last["rank"], last["sequence"], last["source_line"]) == (3, 18, "/job/train.py(58): train")
    assert document["verdict"].startswith("Hang: rank 3 did not enter all_reduce 19 of process group 0 (default_pg)")
    for form in ([], ["-v"], ["--markdown"]):
        told = " ".join(report(dumps, capsys, *(form or ["--quiet"])).replace("\\", "").split())
        assert "rank 3 did not enter" in told
        assert "Unknown" not in told


def test_members_without_a_dump_are_neither_blamed_nor_cleared(dumps, capsys):
    for rank in set(range(8)) - {3, 5}:
        dump(dumps, rank, up_to(19))
    hang = report(dumps, capsys)["hang"]
    assert (hang["kind"], hang["missing_ranks"], hang["unrecorded_ranks"]) == ("undecided", [], [3, 5])
    assert "ranks 3,5 left no dump or line" in hang["headline"]
    dump(dumps, 3, up_to(18))
    hang = report(dumps, capsys)["hang"]
    assert (hang["kind"], hang["missing_ranks"], hang["unrecorded_ranks"]) == ("not_entered", [3], [5])
    assert "rank 5 left no dump or line and is neither blamed nor cleared" in hang["evidence"]


def test_dump_without_calls_is_a_dump(dumps, capsys):
    for rank in range(8):
        dump(dumps, rank, [] if rank == 2 else up_to(19))
    hang = report(dumps, capsys)["hang"]
    assert (hang["kind"], hang["unknown_ranks"], hang["unrecorded_ranks"]) == ("undecided", [2], [])
    assert "whether rank 2 entered it" in hang["headline"]


def test_all_entered_and_none_completed_is_the_network_or_a_gpu(dumps, capsys):
    for rank in range(8):
        dump(dumps, rank, up_to(19))
    hang = report(dumps, capsys)["hang"]
    assert (hang["kind"], hang["missing_ranks"], hang["waiting_ranks"]) == ("all_entered", [], list(range(8)))
    assert hang["headline"].startswith("Hang in the network or on a GPU: all 8 ranks entered all_reduce 19")


def test_nothing_stuck_is_no_hang(dumps, capsys):
    for rank in range(8):  # sends and coalesced parts that never complete by themselves are no stuck collectives
        parts = [call(19, op="nccl:all_gather", done=False), call(19, op="nccl:coalesced")]
        batch = [exchange(7, f"send {rank}->{(rank + 1) % 8}", done=False), exchange(7, "coalesced")]
        dump(dumps, rank, [*up_to(18), *parts, *batch])
    document = report(dumps, capsys)
    assert document["hang"] is None
    assert "ang:" not in document["verdict"]
    assert document["verdict"].startswith("By the dumps of 8 ranks no operation is stuck.")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"op": "nccl:all_gather"}, "rank 6 called all_gather (1,024 × Float)"),
        ({"shape": [2048]}, "rank 6 called all_reduce (2,048 × Float)"),
        ({"dtype": "Half"}, "rank 6 called all_reduce (1,024 × Half)"),
    ],
)
def test_different_calls_under_one_number_are_the_verdict(dumps, capsys, wrong, said):
    for rank in range(8):
        calls = up_to(20)
        if rank == 6:
            calls[18] = call(19, done=False, **wrong)
        dump(dumps, rank, calls)
    hang = report(dumps, capsys)["hang"]
    assert (hang["kind"], hang["sequence"]) == ("mismatch", 19)
    assert [one["ranks"] for one in hang["mismatch"]] == [[0, 1, 2, 3, 4, 5, 7], [6]]
    assert said in hang["headline"]


def test_all_to_all_with_uneven_parts_is_no_mismatch(dumps, capsys):
    for rank in range(8):
        dump(dumps, rank, [*up_to(18), call(19, op="nccl:all_to_all", shape=[rank + 1], done=False)])
    assert report(dumps, capsys)["hang"]["kind"] == "all_entered"


def test_root_is_the_group_whose_missing_rank_waits_nowhere(dumps, capsys):
    """Rank 1 never enters its pair's all_gather, so rank 0 never enters the world's all_reduce."""
    groups = {"0": ("default_pg", range(4)), "5": ("tp", [0, 1]), "6": ("tp", [2, 3])}
    for rank in range(4):
        calls = [call(1), call(1, group="5" if rank < 2 else "6", op="nccl:all_gather")]
        if rank == 0:
            calls.append(call(2, group="5", op="nccl:all_gather", done=False))
        if rank > 1:
            calls.append(call(2, done=False))
        dump(dumps, rank, calls, groups)
    hang = report(dumps, capsys)["hang"]
    assert (hang["group"], hang["group_description"], hang["culprit_ranks"]) == ("5", "tp", [1])
    assert not hang["is_circular"]
    (other,) = hang["others"]
    assert (other["group"], other["waiting_ranks"], other["missing_ranks"]) == ("0", [2, 3], [0, 1])


def test_newer_dump_of_a_rank_replaces_the_older(dumps, capsys):
    for rank in range(8):
        dump(dumps, rank, up_to(18 if rank == 3 else 19))
    assert report(dumps, capsys)["hang"]["missing_ranks"] == [3]
    for rank in range(8):
        dump(dumps, rank, up_to(20, completed=20))
    assert report(dumps, capsys)["hang"] is None


def test_groups_entered_in_different_order_wait_for_each_other(dumps, capsys):
    groups = {"1": ("a", [0, 1]), "2": ("b", [0, 1])}
    dump(dumps, 0, [call(1, group="1", done=False)], groups)
    dump(dumps, 1, [call(1, group="2", done=False)], groups)
    hang = report(dumps, capsys)["hang"]
    assert hang["is_circular"]
    assert "rank 0 waits in all_reduce 1 of process group 1 (a)" in hang["headline"]
    assert "rank 1 waits in all_reduce 1 of process group 2 (b)" in hang["headline"]


def test_ranks_outside_the_group_are_not_missing(dumps, capsys):
    groups = {"0": ("default_pg", range(4)), "7": ("dp", [0, 2])}
    for rank in range(4):
        own = [call(1, group="7", done=False)] if rank in (0, 2) else []
        dump(dumps, rank, [call(1), *own], groups)
    hang = report(dumps, capsys)["hang"]
    assert (hang["kind"], hang["members"], hang["missing_ranks"]) == ("all_entered", [0, 2], [])


def test_receive_without_a_send(dumps, capsys):
    groups = {"3": ("pp", [4, 6])}
    dump(dumps, 4, [exchange(1, "send 0->1", group="3")], groups)
    dump(dumps, 6, [exchange(1, "recv 1<-0", group="3"), exchange(2, "recv 1<-0", group="3", done=False)], groups)
    hang = report(dumps, capsys)["hang"]
    assert (hang["kind"], hang["collective"]) == ("not_entered", "send_recv")
    assert (hang["missing_ranks"], hang["waiting_ranks"]) == ([4], [6])


def ring_call(rank: int, number: int, *, done: bool) -> list[dict[str, Any]]:
    """A batch of a send to the next of four ranks and a receive: the calls keep their state, the batch completes."""
    peers = (f"send {rank}->{(rank + 1) % 4}", f"recv {rank}<-{(rank - 1) % 4}")
    return [*(exchange(number, one, done=False) for one in peers), exchange(number, "coalesced", done=done)]


@pytest.mark.parametrize(("absent", "kind"), [([], "all_entered"), ([2], "not_entered")])
def test_coalesced_exchanges_do_not_wait_behind_each_other(dumps, capsys, absent, kind):
    for rank in range(4):
        last = 5 if rank in absent else 6
        calls = [one for number in range(1, last + 1) for one in ring_call(rank, number, done=number < 6)]
        dump(dumps, rank, calls, {"0": ("default_pg", range(4))})
    hang = report(dumps, capsys)["hang"]
    assert (hang["kind"], hang["culprit_ranks"], hang["is_circular"]) == (kind, absent, False)


@pytest.mark.parametrize(("elements", "kind"), [(64, "all_entered"), (99, "mismatch")])
def test_send_and_receive_of_other_sizes_are_a_mismatch(dumps, capsys, elements, kind):
    for rank, peers in enumerate(("send 0->1", "recv 1<-0")):
        calls = [exchange(number, peers, done=number < 4, shape=[64]) for number in range(1, 5)]
        calls[3]["input_sizes"] = [[elements if rank else 64]]
        dump(dumps, rank, calls, {"0": ("default_pg", range(2))})
    hang = report(dumps, capsys)["hang"]
    assert (hang["kind"], hang["culprit_ranks"]) == (kind, [])


def test_ring_buffer_that_lost_a_group_is_unknown_and_its_status_tells(dumps, capsys):
    groups = {"0": ("default_pg", range(2)), "9": ("busy", [1])}
    dump(dumps, 0, up_to(19), groups)
    busy = [call(number, group="9") for number in range(500, 510)]
    dump(dumps, 1, busy, groups, first=900)
    hang = report(dumps, capsys)["hang"]
    assert (hang["kind"], hang["unknown_ranks"], hang["missing_ranks"]) == ("undecided", [1], [])
    status = {f"last_{what}_collective": "18" for what in ("enqueued", "started", "completed")}
    busy.insert(0, call(18))  # the entry joins the process's number of the group to its name
    dump(dumps, 1, busy, groups, first=900, pg_status={"0": status})
    assert report(dumps, capsys)["hang"]["missing_ranks"] == [1]


WATCHDOG = (
    "[rank{rank}]:[E1206 18:44:12.715298746 ProcessGroupNCCL.cpp:607] [Rank {rank}] Watchdog caught collective "
    "operation timeout: WorkNCCL(SeqNum=19, OpType=ALLREDUCE, NumelIn={elements}, NumelOut={elements}, "
    "Timeout(ms)=600000) ran for 600061 milliseconds before timing out.\n"
    "[rank{rank}]:[E1206 18:44:12.715588844 ProcessGroupNCCL.cpp:1664] [PG 0 Rank {rank}] Exception (either an error "
    "or timeout) detected by watchdog at work: 19, last enqueued NCCL work: 20, last completed NCCL work: 18.\n"
)


def test_watchdog_lines_alone_name_the_waiting_and_guess_no_other(tmp_path, capsys):
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "job.log").write_text("".join(WATCHDOG.format(rank=rank, elements=1024) for rank in (0, 1, 2)))
    hang = report(logs, capsys)["hang"]
    assert (hang["kind"], hang["group"], hang["collective"], hang["sequence"]) == ("undecided", "0", "all_reduce", 19)
    assert (hang["waiting_ranks"], hang["missing_ranks"], hang["waited_ns"]) == ([0, 1, 2], [], 600_061_000_000)
    lines_of = [WATCHDOG.format(rank=rank, elements=1024).splitlines(keepends=True) for rank in (0, 1, 2)]
    (logs / "job.log").write_text("".join((*lines_of[0], *lines_of[1], lines_of[2][1])))
    hang = report(logs, capsys)["hang"]  # rank 2 says that it waits, and not in what
    assert (hang["kind"], hang["waiting_ranks"], hang["unknown_ranks"]) == ("undecided", [0, 1, 2], [])
    (logs / "job.log").write_text("".join(WATCHDOG.format(rank=rank, elements=1024 + rank // 2) for rank in (0, 1, 2)))
    hang = report(logs, capsys, "--json")
    assert json.loads(hang)["hang"]["kind"] == "mismatch"


def test_a_rank_without_a_line_among_watchdog_lines_is_named_and_not_blamed(tmp_path, capsys):
    hang = lines(tmp_path, capsys, "".join(WATCHDOG.format(rank=rank, elements=1024) for rank in (0, 1, 2, 4)))
    assert (hang["kind"], hang["missing_ranks"], hang["unrecorded_ranks"]) == ("undecided", [], [3])
    assert "rank 3 left no dump or line" in hang["headline"]


def test_a_rank_that_only_heard_of_a_timeout_says_how_far_it_got(tmp_path, capsys):
    """As PyTorch 2.4 to 2.9 print it: the ranks that wait time out, and the rank that they wait for is told to dump."""
    signal = (
        "[rank3]:[E703 21:51:54.112142364 ProcessGroupNCCL.cpp:1987] [PG ID 0 PG GUID 0(default_pg) Rank 3] Received a "
        "dump signal due to a collective timeout from  rank 1 and we will try our best to dump the debug info. Last "
        "enqueued NCCL work: 18, last completed NCCL work: 18.This is most likely caused by incorrect usages of "
        "collectives\n"
    )
    hang = lines(tmp_path, capsys, "".join(WATCHDOG.format(rank=rank, elements=1024) for rank in (0, 1, 2)) + signal)
    assert (hang["kind"], hang["culprit_ranks"], hang["waiting_ranks"]) == ("not_entered", [3], [0, 1, 2])


def test_timeout_of_a_receive_is_no_collective(tmp_path, capsys):
    """Receives have numbers of their own: rank 1's receive 5 does not put it behind the all-reduce 19."""
    receive = WATCHDOG.format(rank=1, elements=8).replace("SeqNum=19, OpType=ALLREDUCE", "SeqNum=5, OpType=RECV")
    hang = lines(tmp_path, capsys, WATCHDOG.format(rank=0, elements=8) + receive.splitlines()[0] + "\n")
    assert (hang["sequence"], hang["waiting_ranks"], hang["missing_ranks"]) == (19, [0], [])
    (other,) = hang["others"]
    assert (other["sequence"], other["waiting_ranks"], other["collective"]) == (5, [1], "send_recv")


def test_dumps_and_watchdog_lines_agree(dumps, capsys):
    for rank in range(8):
        dump(dumps, rank, up_to(18 if rank == 3 else 20))
    (dumps / "job.log").write_text("".join(WATCHDOG.format(rank=rank, elements=1024) for rank in (0, 1)))
    hang = report(dumps, capsys)["hang"]
    assert (hang["kind"], hang["missing_ranks"], hang["waited_ns"]) == ("not_entered", [3], 600_061_000_000)
    assert not any("no watchdog" in line for line in hang["evidence"])


def lines(tmp_path: Path, capsys: pytest.CaptureFixture[str], *text: str) -> Any:
    """The hang that a log of these lines shows."""
    (tmp_path / "logs").mkdir(exist_ok=True)
    (tmp_path / "logs" / "job.log").write_text("".join(f"{line}\n" for line in text))
    return report(tmp_path / "logs", capsys)["hang"]


def caught(rank: int, number: int, operation: str = "ALLREDUCE", *, before: str = "", more: str = "") -> str:
    return (
        f"{before}[E ProcessGroupNCCL.cpp:474] [Rank {rank}] Watchdog caught collective operation timeout: "
        f"WorkNCCL(SeqNum={number}, OpType={operation}{more}, Timeout(ms)=600000) ran for 600{rank:03} milliseconds"
    )


@pytest.mark.parametrize(
    "before",
    [
        "(Worker[rank={}] pid=77, ip=10.1.2.3) [rank{}]:",
        "node{}: [rank{}]:",
        " 12%|#1  | 12/99 [03:11<24:01,  1.64s/it]\r 13%|#2  | {}/99 [03:13<23:59][rank{}]:",
        "[80746] <{}> [rank{}]:",
    ],
)
def test_global_rank_is_read_wherever_it_stands(tmp_path, capsys, before):
    """Rank 1 of a group is rank 9 of the job: ranks 0 and 1 have no part in it."""
    end = "[PG ID 12 PG GUID 40(EXPERT_GROUP) Rank 1]  failure detected by watchdog at work sequence id: 7 PG status: "
    hang = lines(
        tmp_path,
        capsys,
        caught(1, 7, before=before.format(9, 9)),
        f"{before.format(9, 9)}[E1 1.cpp:2] {end}last enqueued work: 9, last completed work: 6",
    )
    assert (hang["group"], hang["sequence"], hang["waiting_ranks"]) == ("40", 7, [9])
    assert (hang["missing_ranks"], hang["unrecorded_ranks"]) == ([], [])


@pytest.mark.parametrize("other", [caught(1, 88, "BROADCAST"), caught(7, 91), caught(1, 88, more=", NumelIn=12")])
def test_unlike_calls_of_unnamed_groups_are_no_mismatch(tmp_path, capsys, other):
    """PyTorch before 2.2 names no group: calls that differ under one number may be of two groups."""
    hang = lines(tmp_path, capsys, caught(7, 88), other)
    assert (hang["kind"], hang["sequence"], hang["group"]) == ("undecided", 88, None)
    assert (hang["missing_ranks"], hang["unrecorded_ranks"], hang["mismatch"]) == ([], [], None)
    assert any("name no process group" in line for line in hang["evidence"])
    assert len(hang["others"]) == 1


def test_a_call_without_a_group_is_of_the_one_that_another_rank_names(tmp_path, capsys):
    """A process that is killed prints the timeout, and not the line with its group."""
    end = "[PG 1 Rank 0] Exception (either an error or timeout) detected by watchdog at work: 88, "
    status = f"[rank0]:[E1 1.cpp:2] {end}last enqueued NCCL work: 90, last completed NCCL work: 87"
    hang = lines(tmp_path, capsys, caught(0, 88, before="[rank0]:"), status, caught(2, 88, before="[rank2]:"))
    assert (hang["group"], hang["waiting_ranks"], hang["others"]) == ("1", [0, 2], [])
    hang = lines(tmp_path, capsys, caught(0, 88, before="[rank0]:"), status, caught(2, 88, "BROADCAST"))
    assert len(hang["others"]) == 1


@pytest.mark.parametrize(
    ("group", "completed", "kind"),
    [("0(default_pg)", 8, "mismatch"), ("0(default_pg)", 7, "undecided"), ("4(TP)", 8, "undecided")],
)
def test_ranks_that_completed_later_calls_made_other_ones(tmp_path, capsys, group, completed, kind):
    """Rank 1 may have completed the call in which rank 0 waits, and no later one; groups may share a name."""
    begin = f"[rank{{0}}]:[E1 1.cpp:2] [PG ID 0 PG GUID {group} Rank {{0}}]  failure detected by watchdog "
    status = begin + "at work sequence id: {1} PG status: last enqueued work: 12, last completed work: {2}"
    hang = lines(
        tmp_path,
        capsys,
        caught(0, 7, "_REDUCE_SCATTER_BASE", before="[rank0]:"),
        status.format(0, 7, 6),
        caught(1, completed + 1, "_ALLGATHER_BASE", before="[rank1]:"),
        status.format(1, completed + 1, completed),
    )
    assert (hang["kind"], hang["sequence"], hang["waiting_ranks"]) == (kind, 7, [0])
    stated = [(call["ranks"], call["sequence"]) for call in hang["mismatch"] or ()]
    assert stated == ([([0], 7), ([1], 9)] if kind == "mismatch" else [])
    assert (kind == "mismatch") == ("rank 1 called all_gather 9" in hang["headline"])


def test_equal_calls_of_an_unnamed_group_wait_together(tmp_path, capsys):
    hang = lines(tmp_path, capsys, caught(0, 88), caught(2, 88))
    assert (hang["waiting_ranks"], hang["unrecorded_ranks"], hang["others"]) == ([0, 2], [1], [])


def test_monitored_barrier_names_the_ranks_that_its_first_rank_missed(tmp_path, capsys):
    hang = lines(
        tmp_path,
        capsys,
        "RuntimeError: [Rank 0]: Ranks 5, 6 failed to pass monitoredBarrier in 90000 ms",
        "Rank 2 successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 0.",
    )
    assert (hang["kind"], hang["collective"], hang["culprit_ranks"]) == ("not_entered", "monitored_barrier", [5, 6])
    assert (hang["waiting_ranks"], hang["timeout_ns"]) == ([0, 2], 90_000_000_000)
    assert hang["headline"] == "Hang: ranks 5-6 did not enter monitored_barrier"
    of_group = (
        "[rank8]: [Rank 0]: Rank 3 failed to pass monitoredBarrier in 90000 ms"  # rank 3 of a group, whose first is 8
    )
    hang = lines(tmp_path, capsys, of_group)
    assert (hang["waiting_ranks"], hang["missing_ranks"], hang["culprit_ranks"]) == ([8], [], [])


def test_calls_that_pytorch_states_to_differ_are_a_mismatch(tmp_path, capsys):
    def printed(rank: int, shape: str, operation: str = "ALLREDUCE") -> str:
        return (
            f"Rank {rank} is running collective: CollectiveFingerPrint(SequenceNumber=31, OpType={operation}, "
            f"TensorShape=[{shape}], TensorDtypes=BFloat16, TensorDeviceTypes=TensorOptions(dtype=float (default))"
        )

    stated = "[rank{}]: RuntimeError: Detected mismatch between collectives on ranks. {}), but {})."
    hang = lines(
        tmp_path,
        capsys,
        stated.format(3, printed(3, "20, 10"), printed(0, "7")),
        stated.format(1, printed(1, "7"), printed(0, "7")),
    )
    assert (hang["kind"], hang["sequence"], hang["collective"]) == ("mismatch", 31, "all_reduce")
    assert [(one["ranks"], one["elements"], one["dtype"]) for one in hang["mismatch"]] == [
        ([0, 1], 7, "BFloat16"),
        ([3], 200, "BFloat16"),
    ]


def test_coalesced_call_without_a_size_loses_no_other_timeout(tmp_path, capsys):
    """PyTorch prints 2^64 - 1 for sizes that it does not know."""
    unset = caught(1, 8, "COALESCED", more=f", NumelIn={2**64 - 1}, NumelOut={2**64 - 1}", before="[rank1]:")
    hang = lines(tmp_path, capsys, unset, caught(0, 8, "COALESCED", before="[rank0]:"))
    assert (hang["sequence"], hang["waiting_ranks"], hang["elements"]) == (8, [0, 1], None)


def test_first_process_that_failed_is_evidence_and_no_culprit(tmp_path, capsys):
    table = ["Root Cause (first observed failure):", "[0]:", "  time      : 2025-03-11_18:33:20", "  host      : n3",
             "  rank      : 8 (local_rank: 0)", "  exitcode  : -9 (pid: 3401)", "=" * 30]  # fmt: skip
    hang = lines(tmp_path, capsys, caught(2, 8), *table)
    assert hang["culprit_ranks"] == []
    assert any(line.startswith("the first process that torchrun saw fail is rank 8 on n3") for line in hang["evidence"])


def test_rank_that_failed_is_what_the_others_wait_for(tmp_path, capsys):
    """A rank that failed and left no line, and one that is behind: the first is gone, the second may wait for it."""
    waiting = [caught(rank, 8, before=f"[rank{rank}]:") for rank in (0, 1, 2)]
    group = (
        "[E P.cpp:2] [PG ID 0 PG GUID 0(default_pg) Rank {0}] failure detected by watchdog at work sequence id: 8 PG "
    )
    status = [f"[rank{rank}]:{group.format(rank)}status: last enqueued work: {last}, last completed work: 7"
              for rank, last in ((0, 9), (1, 9), (2, 9), (4, 7))]  # fmt: skip
    error = "[rank3]: RuntimeError: CUDA error: an illegal memory access was encountered"
    hang = lines(tmp_path, capsys, *waiting, *status, error)
    assert (hang["kind"], hang["culprit_ranks"], hang["waiting_ranks"]) == ("failed", [3], [0, 1, 2])
    assert "rank 4 did not enter it" in hang["evidence"]
    assert not any("healthy job" in line for line in hang["evidence"])
    assert lines(tmp_path, capsys, *waiting, *status, error.replace("3", "1", 1))["culprit_ranks"] == [4]  # it waits


@pytest.mark.parametrize(("exit_code", "culprits"), [(1, [1]), (-11, [1]), (-9, []), (-6, []), (-15, [])])
def test_first_exit_decides_unless_something_else_ends_processes_so(tmp_path, capsys, exit_code, culprits):
    table = ["Root Cause (first observed failure):", "[0]:", "  time      : 2025-03-11_18:33:20", "  host      : n3",
             "  rank      : 1 (local_rank: 0)", f"  exitcode  : {exit_code} (pid: 3401)", "=" * 30]  # fmt: skip
    hang = lines(tmp_path, capsys, caught(0, 8), caught(2, 8), *table)
    assert (hang["culprit_ranks"], hang["unrecorded_ranks"]) == (culprits, [1])


@pytest.mark.parametrize(("host", "culprits"), [("n3.cluster", [1]), ("n4", [])])
def test_a_rank_killed_by_signal_9_failed_if_its_host_lacked_memory(tmp_path, capsys, host, culprits):
    table = ["Root Cause (first observed failure):", "[0]:", "  time      : 2025-03-11_18:33:20", "  host      : n3",
             "  rank      : 1 (local_rank: 1)", "  exitcode  : -9 (pid: 3401)", "=" * 30]  # fmt: skip
    killed = f"Mar 11 18:33:19 {host} kernel: Out of memory: Killed process 3401 (python3) total-vm:1kB"
    assert lines(tmp_path, capsys, caught(0, 8), caught(2, 8), *table, killed)["culprit_ranks"] == culprits


TRACEBACKS = """\
[rank3]: Traceback (most recent call last):
[rank1]: Traceback (most recent call last):
[rank3]:   File "/app/train.py", line 88, in main
[rank1]:   File "/app/train.py", line 90, in main
[rank3]:   File "/app/data.py", line 12, in __getitem__
[rank3]:     return self.rows[i]
[rank3]:            ~~~~~~~~~^^^
[rank3]:   File "/usr/lib/python3/dist-packages/torch/utils/data.py", line 7, in fetch
[rank1]: torch.distributed.DistBackendError: NCCL error: remote process exited
[rank3]: IndexError: list index out of range
[rank3]: During handling of the above exception, another exception occurred:
[rank3]: Traceback (most recent call last):
[rank3]:   File "/app/train.py", line 99, in main
[rank3]: RuntimeError: training failed"""


def test_a_rank_that_failed_in_an_operation_that_all_entered(dumps, capsys):
    for rank in range(4):
        dump(dumps, rank, [call(number, done=number < 6) for number in range(1, 7)], {"0": ("default_pg", range(4))})
    error = "[rank{}]: RuntimeError: CUDA error: an illegal memory access was encountered\n"
    (dumps / "job.log").write_text(error.format(2))
    hang = report(dumps, capsys)["hang"]
    assert (hang["kind"], hang["culprit_ranks"], hang["waiting_ranks"]) == ("failed", [2], [0, 1, 3])
    (dumps / "job.log").write_text("".join(map(error.format, range(4))))  # as many that a watchdog ended
    hang = report(dumps, capsys)["hang"]
    assert (hang["kind"], hang["culprit_ranks"], hang["waiting_ranks"]) == ("all_entered", [], [0, 1, 2, 3])


def test_an_exception_that_ended_a_rank_is_what_the_others_wait_for(tmp_path, capsys):
    hang = lines(tmp_path, capsys, *(caught(rank, 8, before=f"[rank{rank}]:") for rank in (0, 2)), TRACEBACKS)
    assert (hang["kind"], hang["culprit_ranks"]) == ("failed", [3])
    assert hang["headline"].startswith("Hang: rank 3 failed (IndexError at /app/data.py(12): __getitem__) and ")
    caught_by_program = TRACEBACKS.replace("[rank3]: ", "3: ")
    hang = lines(tmp_path, capsys, *(caught(rank, 8, before=f"[rank{rank}]:") for rank in (0, 2)), caught_by_program)
    assert (hang["kind"], hang["culprit_ranks"]) == ("undecided", [])


def test_stuck_watchdog_is_told_with_and_without_a_hang(tmp_path, capsys):
    stuck = "[rank5]:[E6 P.cpp:1] [PG ID 0 PG GUID 0(default_pg) Rank 5] ProcessGroupNCCL's watchdog got stuck "
    hang = lines(tmp_path, capsys, caught(2, 8), stuck + "for 480 seconds without making progress in monitoring")
    assert any(line.startswith("the watchdog of rank 5 made no progress for 480 s") for line in hang["evidence"])
    (tmp_path / "logs" / "job.log").write_text(stuck + "for 480 seconds without making progress in monitoring\n")
    document = report(tmp_path / "logs", capsys)
    assert document["hang"] is None
    assert document["verdict"].startswith("The watchdog of rank 5 made no progress for 480 s")


def ras_query(behind: int, *, missing: str = "") -> str:
    """A text of ncclras: 2 of 32 ranks are behind; hand-made after the manual's excerpts."""
    return f"""Job summary
===========

  #0-0 (27a079b828ff1a75) MISMATCH
    Communicator ranks have different collective operation counts
    30 ranks have launched up to operation 6650
    2 ranks have launched up to operation {behind}
    Rank 3 -- GPU 3 managed by process 483075 on node 172.16.64.210
    Rank 9 -- GPU 1 managed by process 483079 on node 172.16.64.211
{missing}
"""


def test_ranks_without_data_are_those_that_do_not_answer(tmp_path, capsys):
    """NCCL 2.26 on lists them like the ranks of a mismatch; numbers that no rank can have are not the job's."""
    absent = (
        "#0-0 (b3398875b8b2a063) INCOMPLETE\n  Missing communicator data from 2 ranks\n"
        "  Rank 7 -- GPU 3 managed by process 604 on node n9\n"
        "  Rank 1057455228 -- GPU 0 managed by process 605 on node n9\n"
    )
    hang = lines(tmp_path, capsys, "Job summary", "===========", *absent.splitlines())
    assert (hang["kind"], hang["group"], hang["missing_ranks"]) == ("unresponsive", "b3398875b8b2a063", [7])


def test_ranks_behind_in_one_health_query_are_a_note_in_two_a_hang(tmp_path, capsys):
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "ras.txt").write_text(ras_query(6649))
    document = report(logs, capsys)
    assert document["hang"] is None
    said = (
        "Communicator 27a079b828ff1a75: 2 ranks at operation 6649 (ranks 3,9), 30 ranks at operation 6650 (NCCL RAS)."
    )
    assert document["verdict"].startswith(said)
    (logs / "ras.txt").write_text(ras_query(6648) + ras_query(6649))
    assert report(logs, capsys)["hang"] is None
    other = tmp_path / "other"
    other.mkdir()
    (other / "ras.txt").write_text(ras_query(6649) * 2)
    assert main(["ingest", str(other), "-o", str(tmp_path / "other-lake")]) == 0
    hang = json_of(capsys, "report", tmp_path / "other-lake", "--json")["hang"]
    assert (hang["kind"], hang["missing_ranks"], hang["group"]) == ("not_entered", [3, 9], "27a079b828ff1a75")
    assert (hang["culprit_ranks"], hang["sequence"]) == ([3, 9], 6650)
    assert (hang["waiting_ranks"][:4], len(hang["waiting_ranks"])) == ([0, 1, 2, 4], 30)


def ras_counts(*communicators: tuple[str, list[tuple[int, str, int, list[int]]]]) -> str:
    """Two equal answers that state of each communicator how many ranks launched how many, and which, of outliers."""
    answer = "Job summary\n"
    for name, groups in communicators:
        answer += f"#1-0 ({name}) MISMATCH\n"
        for size, operation, number, ranks in groups:
            answer += f"  {size} ranks have launched up to {operation} operation {number}\n"
            answer += "".join(f"  Rank {rank} -- GPU {rank} managed by process 9{rank} on node n1\n" for rank in ranks)
    return answer * 2


AHEAD_AND_BEHIND = [(7, "AllGather", 10, []), (1, "AllGather", 11, [5]), (7, "Broadcast", 4, []),
                    (1, "Broadcast", 3, [2])]  # fmt: skip


@pytest.mark.parametrize(
    ("communicators", "kind", "culprits", "call"),
    [
        # rank 5 is ahead in one kind, rank 2 behind in another: the others wait for rank 2
        ([("aa", AHEAD_AND_BEHIND)], "not_entered", [2], ("Broadcast", 4)),
        # ranks 0 and 1 went on less far than the rest, and wait for rank 6 all the same
        ([("aa", [(5, "AllReduce", 9, []), (2, "AllReduce", 7, [0, 1]), (1, "AllReduce", 5, [6])])], "not_entered",
         [6], ("AllReduce", 6)),
        # as many collectives, one of another kind
        ([("aa", [(7, "AllReduce", 9, []), (1, "AllReduce", 8, [3]), (7, "AllGather", 4, []),
                  (1, "AllGather", 5, [3])])], "mismatch", [], (None, None)),
        # rank 3 may be one of the ranks that wait in the larger communicator, or rank 5 in the smaller
        ([("aa", [(7, "AllReduce", 9, []), (1, "AllReduce", 8, [5])]),
          ("bb", [(3, "AllReduce", 9, []), (1, "AllReduce", 8, [3])])], "undecided", [], (None, None)),
        ([("aa", [(7, "AllReduce", 9, []), (1, "AllReduce", 8, [5])]),
          ("bb", [(3, "AllReduce", 9, []), (1, "AllReduce", 8, [5])])], "not_entered", [5], ("AllReduce", 9)),
        # which ranks are behind is not listed
        ([("aa", [(5, "AllReduce", 9, []), (3, "AllReduce", 8, [])])], "undecided", [], (None, None)),
    ],
)  # fmt: skip
def test_a_health_query_counts_each_kind_of_collective_by_itself(tmp_path, capsys, communicators, kind, culprits, call):
    hang = lines(tmp_path, capsys, ras_counts(*communicators))
    assert (hang["kind"], hang["culprit_ranks"], (hang["operation"], hang["sequence"])) == (kind, culprits, call)


def test_a_rank_that_waits_in_another_communicator_is_not_blamed(tmp_path, capsys):
    """Processes that see one GPU each: rank 0 of the first communicator waits in the second one, for its rank 3."""
    pair = [(0, {"AllGather": 7}), (9, {"AllGather": 8})]
    world = [(at, {"AllReduce": 8 if at == 3 else 9, "AllGather": 2}) for at in range(4)]

    def ranks(members: list[tuple[int, dict[str, int]]]) -> list[dict[str, Any]]:
        places = {"host": "10.0.0.1", "cuda_dev": 0}
        return [{"rank": rank, "pid": 100 + process, "collective_counts": counts, **places}
                for rank, (process, counts) in enumerate(members)]  # fmt: skip

    communicators = [{"hash": name, "size": len(members), "ranks": ranks(members), "missing_ranks": []}
                     for name, members in (("0xcc", pair), ("0xaa", world))]  # fmt: skip
    logs = tmp_path / "logs"
    logs.mkdir()
    for minute in (1, 2):
        answer = {"timestamp": f"2025-12-19 13:0{minute}:00", "communicators_count": 2, "communicators": communicators}
        (logs / f"{minute}.json").write_text(json.dumps(answer))
    hang = report(logs, capsys)["hang"]
    assert (hang["group"], hang["culprit_ranks"], hang["sequence"]) == ("0xaa", [3], 9)


def test_a_peer_that_the_health_monitor_calls_dead_is_told(tmp_path, capsys):
    logs = tmp_path / "logs"
    logs.mkdir()
    line = "[2025-12-19 13:07:07] PEER_DEAD: Process 1524345 on node 172.16.64.245 managing GPU 1\n"
    (logs / "monitor.txt").write_text("RAS Monitor Mode - watching for peer changes\n" + line)
    assert report(logs, capsys)["verdict"].startswith("The process of GPU 1 on 172.16.64.245 is considered dead")


def test_unresponsive_rank_is_a_hang(tmp_path, capsys):
    lost = "  #0-1 (cf264af53edbe986) INCOMPLETE\n    Missing communicator data from 1 rank\n    The missing rank: 21"
    hang = lines(tmp_path, capsys, ras_query(6649, missing=lost))
    assert (hang["kind"], hang["missing_ranks"], hang["group"]) == ("unresponsive", [21], "cf264af53edbe986")


def test_health_query_in_json(tmp_path, capsys):
    def rank(number: int, **given: Any) -> dict[str, Any]:
        return {"rank": number, "host": "10.0.0.1", "pid": 1, "cuda_dev": number} | given

    def answer(status: dict[str, bool]) -> str:
        here = rank(0, collective_counts={"AllReduce": 3, "AllGather": 2})
        communicator = {"hash": "0xae", "size": 2, "ranks": [here], "missing_ranks": [rank(1, status=status)]}
        return json.dumps(
            {"timestamp": "2025-12-19 13:06:53", "communicators_count": 1, "communicators": [communicator]}
        )

    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "ras.json").write_text(answer({"unresponsive": False, "considered_dead": False}))
    assert report(logs, capsys)["hang"] is None
    (logs / "ras.json").write_text(answer({"unresponsive": True, "considered_dead": False}))
    hang = report(logs, capsys)["hang"]
    assert (hang["kind"], hang["missing_ranks"]) == ("unresponsive", [1])


@needs_evidence
def test_documented_answers_of_the_health_query():
    log = parse(EVIDENCE / "ras/ras.rst")
    assert log.problems == []
    found = rows(log, "ras", "rank", "operations", "count", "state")
    assert found[:2] == [(None, 6650, 26, None), (None, 6649, 6, None)]
    assert [rank for rank, operations, count, _ in found if operations and not count] == [0, 2, 3, 4, 5, 7]
    assert {rank for rank, *_, state in found if state and rank is not None} == {21}


def test_the_last_kernel_of_the_missing_rank_is_told_where_its_trace_lies_beside(tmp_path, capsys):
    job = tmp_path / "job"
    assert main(["sample", str(job), "--ranks", "8", "--steps", "5", "--kernels", "60", "--quiet"]) == 0
    for rank in range(8):
        dump(job, rank, [one | {"at": None} for one in up_to(18 if rank == 3 else 20)])
    hang = report(job, capsys)["hang"]
    (of_missing,) = [line for line in hang["evidence"] if line.startswith("rank 3's recording ends in step ")]
    assert " with kernel " in of_missing
    assert sum("recording ends in step" in line for line in hang["evidence"]) == 3  # and two that wait


def test_equal_dumps_of_two_ranks_are_two_dumps(dumps, capsys):
    for rank in range(8):
        dump(dumps, rank, [one | {"at": 1} for one in up_to(18 if rank in (3, 4) else 19)])
    hang = report(dumps, capsys)["hang"]
    assert (hang["missing_ranks"], hang["unrecorded_ranks"]) == ([3, 4], [])


def test_a_log_that_an_older_jitter_read_is_read_again(dumps, capsys):
    dump(dumps, 0, up_to(19))
    report(dumps, capsys)
    (record,) = (dumps.parent / "lake" / "logs" / "records").glob("*.json")
    lake = dumps.parent / "lake"
    old = [msgspec.structs.replace(one, parsers_version=1) for one in intact_log_records(lake)[0]]
    record.write_bytes(seal_json(msgspec.json.format(msgspec.json.encode(old[0]), indent=1)))
    assert "1 log was read by an older jitter, which took less from them: ingest them again." in output_of(
        capsys, "report", lake, "--json"
    )
    assert "older jitter" not in json.dumps(report(dumps, capsys))


def test_what_logs_state_of_the_gpu_and_the_host_of_the_rank_to_blame(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """Rank 3 is behind; Xid 79 of its GPU and a blocked task of its host are evidence, that of another host is not."""
    group = "[PG ID 0 PG GUID 0(default_pg) Rank"
    timeout = (
        "WorkNCCL(SeqNum=19, OpType=ALLREDUCE, NumelIn=8, NumelOut=8, Timeout(ms)=600000) ran for 600010 milliseconds"
    )
    lines = [
        *(
            f"n{rank // 2}:42{rank}:43 [{rank % 2}] NCCL INFO comm 0x7f rank {rank} nranks 4 cudaDev {rank % 2} "
            f"busId 1{rank}000 - Init COMPLETE"
            for rank in range(4)
        ),
        *(
            f"[rank{rank}]:[E1] [Rank {rank}] Watchdog caught collective operation timeout: {timeout}"
            for rank in (0, 1, 2)
        ),
        *(
            f"[rank{rank}]:[E1] {group} {rank}] failure detected by watchdog at work sequence id: 19 PG status: last "
            "enqueued work: 20, last completed work: 18"
            for rank in (0, 1, 2)
        ),
        f"[rank3]:[E1] {group} 3] Received a dump signal due to a collective timeout from rank 0. Last enqueued NCCL "
        "work: 18, last completed NCCL work: 18.",
        *(f"Nov 26 11:49:20 n{host} kernel: INFO: task python:1 blocked for more than 120 seconds." for host in (0, 1)),
        "Nov 26 11:49:20 n1 kernel: NVRM: Xid (PCI:0000:13:00): 79, pid=1, GPU has fallen off the bus.",
        "[rank3]: RuntimeError: CUDA error: unknown error",
    ]
    (tmp_path / "job.log").write_text("\n".join(lines) + "\n")
    assert main(["ingest", str(tmp_path / "job.log"), "-o", str(tmp_path / "lake"), "--quiet"]) == 0
    document = json_of(capsys, "report", tmp_path / "lake", "--json")
    assert document["hang"]["culprit_ranks"] == [3]
    assert document["hang"]["evidence"][1:] == [
        "Xid 79 of GPU 1 (rank 3) on n1",
        "rank 3 failed: CUDA error: unknown error",
        "on n1: python was blocked in the kernel for more than 120 s",
    ]
    assert [fact["words"] for fact in document["facts"]] == [
        "on n0: python was blocked in the kernel for more than 120 s"
    ]


def test_errors_of_another_day_are_no_evidence_of_a_hang(dumps, capsys):
    """The dumps tell when the operation began: on 27 August 2024."""
    for rank in range(8):
        dump(dumps, rank, up_to(18 if rank == 3 else 20))
    lines = [
        *(
            f"n{rank}:42:43 [0] NCCL INFO comm 0x7f rank {rank} nranks 8 cudaDev 0 busId 1{rank}000 - Init COMPLETE"
            for rank in range(8)
        ),
        "2024-07-01T17:00:00Z n3 kernel: NVRM: Xid (PCI:0000:13:00): 119, pid=1, Timeout",
        "2024-08-27T17:21:00Z n3 kernel: NVRM: Xid (PCI:0000:13:00): 79, pid=1, GPU has fallen off the bus.",
        "2024-07-01T17:00:00Z n3 kernel: Out of memory: Killed process 571 (python) total-vm:1kB",
    ]
    (dumps / "job.log").write_text("\n".join(lines) + "\n")
    hang = report(dumps, capsys)["hang"]
    assert hang["culprit_ranks"] == [3]
    assert [line for line in hang["evidence"] if "Xid" in line or "memory" in line] == [
        "Xid 79 of GPU 0 (rank 3) on n3"
    ]


@pytest.mark.parametrize(("last_of_rank_3", "rank", "is_evidence"), [(None, 3, True), (None, 2, False), (20, 3, True)])
def test_errors_of_ranks_that_may_hold_up_a_hang_are_its_evidence(
    dumps, capsys, last_of_rank_3: int | None, rank: int, is_evidence: bool
):
    """No rank is named: rank 3 left no dump, or all ranks entered the operation."""
    for waiting in range(8):
        if waiting != 3 or last_of_rank_3 is not None:
            dump(dumps, waiting, up_to(last_of_rank_3 or 20))
    lines = [
        f"n{one}:42:43 [0] NCCL INFO comm 0x7f rank {one} nranks 8 cudaDev 0 busId 1{one}000 - Init COMPLETE"
        for one in range(8)
    ]
    lines.append(f"2024-08-27T17:21:00Z n{rank} kernel: NVRM: Xid (PCI:0000:1{rank}:00): 79, pid=1, GPU has fallen")
    (dumps / "job.log").write_text("\n".join(lines) + "\n")
    document = report(dumps, capsys)
    assert document["hang"]["culprit_ranks"] == []
    told = [line for line in document["hang"]["evidence"] if "Xid" in line]
    assert (told, [fact["words"] for fact in document["facts"]]) == (
        ([f"Xid 79 of GPU 0 (rank {rank}) on n{rank}"], [])
        if is_evidence
        else ([], [f"Xid 79 of GPU 0 (rank {rank}) on n{rank}"])
    )


@pytest.mark.parametrize(("day", "culprits"), [("2024-07-01", []), ("2024-08-27", [5])])
def test_a_rank_that_failed_on_another_day_is_not_to_blame(dumps, capsys, day: str, culprits: list[int]):
    for rank in {*range(8)} - {3, 5}:
        dump(dumps, rank, up_to(20))
    failed = f"{day}T17:20:00Z n5 podman[12]: [rank5]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate"
    (dumps / "job.log").write_text(f"{failed} 19.14 GiB. GPU 6 has a total capacity\n")
    assert report(dumps, capsys)["hang"]["culprit_ranks"] == culprits


def test_what_logs_state_of_the_time_of_a_hang_is_evidence_long_after_the_recorded_steps(dumps, capsys):
    write(simulate(small(steps=2), []), dumps, "kineto")
    for rank in range(3):
        dump(dumps, rank, up_to(20), {"0": ("default_pg", range(4))})
    lines = [
        f"n{rank}:42:43 [0] NCCL INFO comm 0x7f rank {rank} nranks 4 cudaDev 0 busId 1{rank}000 - Init COMPLETE"
        for rank in range(4)
    ]
    lines += [
        "2024-08-27T17:21:00Z n3 kernel: NVRM: Xid (PCI:0000:13:00): 79, pid=1, GPU has fallen off the bus.",
        "2024-08-27T17:21:00Z n3 podman[12]: [rank3]: RuntimeError: CUDA error: device-side assert triggered",
        "2024-07-01T17:00:00Z n2 kernel: Out of memory: Killed process 571 (python) total-vm:1kB",
    ]
    (dumps / "job.log").write_text("\n".join(lines) + "\n")
    document = report(dumps, capsys)
    assert document["steps"]
    assert document["hang"]["culprit_ranks"] == [3]
    assert [line.partition(" of ")[0] for line in document["hang"]["evidence"][-2:]] == [
        "Xid 79",
        "rank 3 failed: CUDA error: device-side assert triggered",
    ]
    assert [fact["words"] for fact in document["facts"]] == [
        "the system killed python on n2 for lack of memory, at another time than the steps"
    ]
