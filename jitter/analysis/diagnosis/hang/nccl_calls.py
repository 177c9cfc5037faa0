"""What NCCL's log of calls (`opCount`) tells of a hang: calls that differ under one number, and ranks that are behind.

The log states calls, not their ends, and that of a job that was ended stops anywhere: ranks behind are a hang only if
a watchdog gave up, in the only communicator with ranks behind, if the calls of all ranks and communicators are known;
else a rank may wait for another one elsewhere. Sends and receives share the numbers and are not the same on all ranks.
NCCL before 2.19 prints no id that the ranks of a communicator share; that of all ranks is known by its size.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from jitter.analysis.diagnosis.hang.model import Call, Hang, StuckOperation, Variant
from jitter.analysis.diagnosis.hang.rules import Doubts, judge, kind_of
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.formatting import escape_control, format_ranks
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
        ranks: dict[_Signature, list[int]] = defaultdict(list)
        for rank, calls in sorted(self.calls.items()):
            if len(calls.get(number, ())) == 1:
                ranks[calls[number][0]].append(rank)
        return ranks


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
    ranks: dict[int, list[int]] = defaultdict(list)
    for rank, number in communicator.last.items():
        ranks[number].append(rank)
    texts = [f"{format_ranks(sorted(of_number))} at {number}" for number, of_number in sorted(ranks.items())]
    more = f" and {len(texts) - _MOST} more" if len(texts) > _MOST else ""
    name = "the communicator of all ranks" if communicator.name is None else f"communicator {communicator.name}"
    return f"last calls of {name} in NCCL's log: {', '.join(texts[:_MOST])}{more}; a log that was cut off ends earlier"


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
    hang = judge(Hang(stuck, kind_of(stuck), stuck.blocking), Doubts(is_confirmed), lambda ranks: ())
    return hang.with_evidence([f"call {at} is opCount {at:x} in NCCL's log", *_behind_now(communicator, at)])


def _behind_now(communicator: _Communicator, at: int) -> Iterator[str]:
    if communicator.behind_at == at:
        yield _describe(communicator)
        yield f"whether call {at - 1}, which all ranks entered, ended is not in the log: a rank may wait for its end"


def _call(communicator: _Communicator, number: int, what: _Signature | None) -> Call:
    if what is None:
        return Call(communicator.name, None, number, None, None, None, None, None, None)
    operation, elements, dtype, _ = what
    return Call(communicator.name, None, number, operation, parse_operation(operation), None, elements, dtype, None)


def _communicators(rows: Sequence[Row]) -> tuple[list[_Communicator], bool]:
    """Return the communicators whose ranks are known, the largest first, and whether these are all, with all ranks."""
    by_name: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        if None not in (row["comm"], row["rank"], row["ranks"]) and 1 < row["ranks"] <= _LARGEST:
            by_name[row["comm"]].append(row)
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
    calls: dict[int, dict[int, list[_Signature]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        rank = row["rank"] if row["ranks"] == world else of_process.get((row["host"], row["process"]))
        if rank is None or row["operation"] in ("Send", "Recv"):
            return None
        calls[rank][row["sequence"]].append((row["operation"], row["elements"], row["dtype"], row["root"]))
    if len(calls) < 2:
        return None
    return _Communicator(name, tuple(range(world)) if rows[0]["ranks"] == world else (), calls)


def _global_ranks(named: Sequence[tuple[str | None, Sequence[Row]]], world: int) -> dict[tuple[Any, Any], int]:
    """Return the global rank of each process that has one, from a communicator of all ranks."""
    ranks: dict[tuple[Any, Any], set[int]] = defaultdict(set)
    for _, of_name in named:
        for row in of_name:
            if row["ranks"] == world:
                ranks[row["host"], row["process"]].add(row["rank"])
    return {process: next(iter(of_process)) for process, of_process in ranks.items() if len(of_process) == 1}
