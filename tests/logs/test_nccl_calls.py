"""Calls that NCCL logs with their numbers: what is read of them, and the ranks that a hang waits for."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from log_reading import parsed, rows
from test_hang import caught, lines

OTHER = "Broadcast", 96, 9


def init(
    rank: int, ranks: int = 4, comm: str = "0x7a00", shared: str = " commId 0xfeed01", of: int | None = None
) -> str:
    """The line of a rank's communicator; `of`: the process, numbered by its global rank."""
    process = rank if of is None else of
    return (
        f"n{process // 2}:{500 + process}:9 [0] NCCL INFO ncclCommInitRank comm "
        f"{comm}{rank} rank {rank} nranks {ranks} cudaDev {rank % 2} nvmlDev 0 busId {rank}c000{shared} - Init COMPLETE"
    )


def called(
    rank: int,
    number: int,
    what: tuple[str, int, int] = ("AllReduce", 4096, 7),
    *,
    ranks: int = 4,
    comm: str = "0x7a00",
    of: int | None = None,
) -> str:
    name, count, kind = what
    process = rank if of is None else of
    return (
        f"n{process // 2}:{500 + process}:7{process} [0] NCCL INFO {name}: opCount {number:x} sendbuff 0x7f5dd32b2100 "
        f"recvbuff (nil) count {count} datatype {kind} op 0 root 0 comm {comm}{rank} [nranks={ranks}] stream 0x55b"
    )


def job(last: Iterable[int], first: int = 0, **more: Any) -> list[str]:
    """The calls of all ranks, each up to its last."""
    return [called(rank, number, **more) for rank, end in enumerate(last) for number in range(first, end + 1)]


def test_last_calls_of_each_rank_are_read():
    log = parsed("\n".join([*map(init, range(4)), *job([200, 3, 3, 3]), called(1, 4, OTHER), called(1, 5, comm="0x1")]))
    read = rows(log, "nccl_calls", "comm", "rank", "ranks", "host", "sequence", "operation", "elements", "dtype")
    assert [row[4] for row in read if row[1] == 0] == list(range(137, 201))
    assert read[-1] == ("0xfeed01", 3, 4, "n1", 3, "AllReduce", 4096, "float32")
    assert [row[4:] for row in read if row[1] == 1][-1] == (4, "Broadcast", 96, "bfloat16")


@pytest.mark.parametrize("shared", ["", " commId 0xfeed01"])
def test_rank_that_is_behind_is_named_where_a_watchdog_gave_up(tmp_path: Path, capsys: Any, shared: str):
    text = [*(init(rank, shared=shared) for rank in range(4)), *job([12, 12, 10, 11])]
    hang = lines(tmp_path, capsys, *text, caught(0, 9))
    assert (hang["kind"], hang["collective"], hang["sequence"]) == ("not_entered", "all_reduce", 11)
    assert (hang["culprit_ranks"], hang["waiting_ranks"], hang["elements"]) == ([2], [0, 1, 3], 4096)
    assert hang["waited_ns"] == 600_000_000_000
    assert "call 11 is opCount b in NCCL's log" in hang["evidence"]


@pytest.mark.parametrize(
    "more",
    [
        [],  # no watchdog
        [caught(0, 9), called(1, 13, ("Send", 7, 7))],  # a receive may wait
        [caught(0, 9), *(init(rank % 2, 2, f"0x9{rank // 2}", f" commId 0xee0{rank // 2}", rank) for rank in range(4)),
         called(0, 5, ranks=2, comm="0x90", of=0), called(0, 5, ranks=2, comm="0x91", of=2)],  # partners
    ],
)  # fmt: skip
def test_rank_that_may_wait_elsewhere_is_not_named(tmp_path: Path, capsys: Any, more: list[str]):
    hang = lines(tmp_path, capsys, *map(init, range(4)), *job([12, 12, 10, 12]), *more)
    assert hang is None or (hang["kind"], hang["culprit_ranks"]) == ("undecided", [])


def test_rank_without_calls_clears_and_blames_nobody(tmp_path: Path, capsys: Any):
    hang = lines(tmp_path, capsys, *map(init, range(4)), *job([12, 10, 12]), caught(0, 9))
    assert (hang["kind"], hang["culprit_ranks"]) == ("undecided", [])


def test_call_that_differs_is_a_mismatch(tmp_path: Path, capsys: Any):
    text = [*map(init, range(4)), *job([9, 9, 7, 9]), called(2, 8, OTHER), called(2, 9, OTHER)]
    hang = lines(tmp_path, capsys, *text)
    assert (hang["kind"], hang["sequence"]) == ("mismatch", 8)
    assert [variant["ranks"] for variant in hang["mismatch"]] == [[0, 1, 3], [2]]
    grouped = [*map(init, range(4)), *job([9, 9, 8, 9]), called(2, 9, OTHER), called(2, 9, OTHER)]
    assert lines(tmp_path, capsys, *grouped) is None


def test_equal_calls_are_no_hang(tmp_path: Path, capsys: Any):
    assert lines(tmp_path, capsys, *map(init, range(4)), *job([9, 9, 9, 9])) is None
