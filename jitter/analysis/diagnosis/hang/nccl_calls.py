"""What NCCL's log of calls (`opCount`) tells of a hang: calls that differ under one number, and ranks that are behind.

The log states calls, not their ends, and that of a job that was ended stops anywhere: ranks behind are a hang only if
a watchdog gave up, in the only communicator with ranks behind, if the calls of all ranks and communicators are known;
else a rank may wait for another one elsewhere. Sends and receives share the numbers and are not the same on all ranks.
NCCL before 2.19 prints no id that the ranks of a communicator share; that of all ranks is known by its size.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any, Final

from jitter.analysis.diagnosis.hang.model import Call, Doubts, Hang, StuckOperation, Variant, judge, kind_of
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.formatting import escape_control, format_ranks, format_some
from jitter.core.grouping import by_key
from jitter.core.names.kernels import parse_operation
from jitter.lake.log_records import Row

_MOST: Final = THRESHOLDS.sentences.max_named
_LARGEST: Final = 1 << 20
_Signature = tuple[str, int, str, int]
"""Operation, elements, type and root."""


@dataclass(frozen=True)
class _Communicator:
    """The last calls of a communicator's ranks; ranks are global ones."""

    name: str | None
    members: tuple[int, ...]
    """Empty where the ranks of some members are not known."""
    calls: Mapping[int, Mapping[int, list[_Signature]]]
    """By rank and number."""

    @property
    def last(self) -> dict[int, int]:
        """The number of each rank's last call."""
        return {rank: max(numbers) for rank, numbers in self.calls.items()}

    @property
    def differs_at(self) -> int | None:
        """The first number under which two ranks called something else; None if there is none."""
        numbers = sorted({number for calls in self.calls.values() for number in calls})
        return next((number for number in numbers if len(self.called(number)) > 1), None)

    @property
    def behind_at(self) -> int | None:
        """The first number that some of the ranks entered and some did not; None if all are as far."""
        last = self.last.values()
        return min(last) + 1 if min(last) < max(last) else None

    def called(self, number: int) -> dict[_Signature, list[int]]:
        """Return the ranks that made each call of a number, without those that grouped several under it."""
        single = ((calls[number][0], rank) for rank, calls in self.calls.items() if len(calls.get(number, ())) == 1)
        return by_key(sorted(single, key=itemgetter(1)))


def find_hang_in_calls(rows: Sequence[Row], *, is_confirmed: bool) -> Hang | None:
    """Return the hang that the calls show: those that differ, or if a watchdog gave up, the one that ranks lack.

    `rows` are those of the relation `nccl_calls`.
    """
    communicators, is_complete = _communicators(rows)
    for communicator in communicators:
        if (at := communicator.differs_at) is not None:
            return _hang(communicator, at, is_confirmed=is_confirmed)
    behind = [communicator for communicator in communicators if communicator.behind_at is not None]
    if not is_confirmed or not is_complete or len(behind) != 1 or behind[0].behind_at is None:
        return None
    return _hang(behind[0], behind[0].behind_at, is_confirmed=True)


def join_hangs(by_watchdog: Hang | None, by_calls: Hang | None) -> Hang | None:
    """Return the hang that watchdog and dumps show, or if they leave open who is missing, that of NCCL's calls."""
    if by_watchdog is None or by_calls is None or by_watchdog.kind != "undecided":
        return by_watchdog or by_calls
    timed_out = by_watchdog.operation
    operation = replace(by_calls.operation, waited_ns=timed_out.waited_ns, timeout_ns=timed_out.timeout_ns)
    others = (replace(by_watchdog, others=()), *by_watchdog.others)
    return replace(by_calls, operation=operation, others=others).with_evidence(
        [f"PyTorch's watchdog: {text}" for text in by_watchdog.evidence]
    )


def describe_calls(rows: Sequence[Row]) -> tuple[str, ...]:
    """Return a sentence for each of the first communicators whose ranks are not equally far."""
    behind = [one for one in _communicators(rows)[0] if one.differs_at is None and one.behind_at is not None]
    return tuple(escape_control(_describe(communicator)) for communicator in behind[:_MOST])


def _describe(communicator: _Communicator) -> str:
    ranks = by_key((number, rank) for rank, number in communicator.last.items())
    texts = [f"{format_ranks(sorted(of_number))} at {number}" for number, of_number in sorted(ranks.items())]
    name = "the communicator of all ranks" if communicator.name is None else f"communicator {communicator.name}"
    return f"last calls of {name} in NCCL's log: {format_some(texts, _MOST)}; a log that was cut off ends earlier"


def _hang(communicator: _Communicator, at: int, *, is_confirmed: bool) -> Hang:
    called = sorted(communicator.called(at).items(), key=lambda item: (-len(item[1]), item[1]))
    last = communicator.last
    variants = tuple(Variant(_call(communicator, at, what), tuple(ranks)) for what, ranks in called)
    stuck = StuckOperation(
        call=_call(communicator, at, called[0][0] if called else None),
        members=communicator.members,
        waiting=tuple(sorted(rank for rank, number in last.items() if number >= at)),
        not_entered=tuple(sorted(rank for rank, number in last.items() if number < at)),
        unrecorded=tuple(sorted(set(communicator.members) - set(last))),
        variants=variants if len(variants) > 1 else (),
    )
    hang = judge(Hang(stuck, kind_of(stuck), stuck.blocking), Doubts(is_confirmed))
    return hang.with_evidence([f"call {at} is opCount {at:x} in NCCL's log", *_behind_now(communicator, at)])


def _behind_now(communicator: _Communicator, at: int) -> Iterator[str]:
    if communicator.behind_at == at:
        yield _describe(communicator)
        yield f"whether call {at - 1}, which all ranks entered, ended is not in the log: a rank may wait for its end"


def _call(communicator: _Communicator, number: int, what: _Signature | None) -> Call:
    if what is None:
        return Call(communicator.name, sequence=number)
    operation, elements, dtype, _ = what
    return Call(communicator.name, None, number, operation, parse_operation(operation), None, elements, dtype)


def _communicators(rows: Sequence[Row]) -> tuple[list[_Communicator], bool]:
    """Return the communicators whose ranks are known, the largest first, and whether these are all, with all ranks."""
    by_name = by_key(
        (row["comm"], row)
        for row in rows
        if None not in (row["comm"], row["rank"], row["ranks"]) and 1 < row["ranks"] <= _LARGEST
    )
    world = max((row["ranks"] for of_name in by_name.values() for row in of_name), default=0)
    named: list[tuple[str | None, list[Row]]] = []
    of_world: dict[int, list[str]] = defaultdict(list)
    is_complete = True
    for name, of_name in by_name.items():
        ranks = {row["rank"] for row in of_name}
        owners = {(row["host"], row["process"], row["rank"]) for row in of_name}
        if len(ranks) > 1 and len(owners) == len(ranks):
            named.append((name, of_name))
        elif len(ranks) == 1 and of_name[0]["ranks"] == world:
            of_world[of_name[0]["rank"]].append(name)
        else:
            is_complete = False
    if all(len(names) == 1 for names in of_world.values()):
        named.append((None, [row for names in of_world.values() for row in by_name[names[0]]]))
    else:
        is_complete = False
    of_process = _global_ranks(named, world)
    communicators = []
    for shared, members in sorted(named, key=lambda pair: (-len(pair[1]), str(pair[0]))):
        communicator = _communicator(shared, members, of_process, world)
        if communicator is not None:
            communicators.append(communicator)
        is_complete &= not members or (communicator is not None and len(communicator.calls) == members[0]["ranks"])
    return communicators, is_complete


def _communicator(
    name: str | None, rows: Sequence[Row], of_process: Mapping[tuple[Any, Any], int], world: int
) -> _Communicator | None:
    """Return a communicator with global ranks; None where a rank is not known, or where it has sends and receives."""
    ranks: list[Any] = [
        row["rank"] if row["ranks"] == world else of_process.get((row["host"], row["process"])) for row in rows
    ]
    if None in ranks or len(set(ranks)) < 2 or any(row["operation"] in ("Send", "Recv") for row in rows):
        return None
    of_ranks = by_key(
        (rank, (row["sequence"], (row["operation"], row["elements"], row["dtype"], row["root"])))
        for rank, row in zip(ranks, rows, strict=True)
    )
    calls = {rank: by_key(numbered) for rank, numbered in of_ranks.items()}
    return _Communicator(name, tuple(range(world)) if rows[0]["ranks"] == world else (), calls)


def _global_ranks(named: Sequence[tuple[str | None, Sequence[Row]]], world: int) -> dict[tuple[Any, Any], int]:
    """Return the global rank of each process that has one, from a communicator of all ranks."""
    ranks = by_key(
        ((row["host"], row["process"]), row["rank"]) for _, rows in named for row in rows if row["ranks"] == world
    )
    return {process: of_process[0] for process, of_process in ranks.items() if len(set(of_process)) == 1}
