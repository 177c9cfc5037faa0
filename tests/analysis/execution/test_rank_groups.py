"""Groups of identical ranks in small random steps, against an oracle that takes one rank and one row at a time."""

import hashlib
import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from jitter.analysis.execution.step_times import (
    HostCall,
    IdenticalRanks,
    StepActivities,
    StepSyncCalls,
    empty_step,
    fill_group,
    group_identical_ranks,
    place_operations,
)

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("each_way")]


COMPUTE, COLLECTIVE, MEMORY, SYNC, HOST_BARRIER = range(5)
FAR = 10**17
"""Clocks count from anywhere: what is a float here already is no whole number of ns any more."""
KIND_OF = {"cudaStreamSynchronize": SYNC, "cudaMemcpy": SYNC, "cudaFree": SYNC, "barrier": HOST_BARRIER}
NAMES = tuple(KIND_OF)
COLUMNS = ("start", "end", "call", "back")

Row = dict[str, int | None]
Call = tuple[int, int, str]
Expected = dict[tuple[int, ...], list[dict[str, Any]]]


class Step:
    """One sequence's ranks: rows and synchronising calls in ns on each rank's clock, None where unknown."""

    def __init__(self, kinds: list[int], rows: Mapping[int, list[Row]], calls: Mapping[int, list[Call]]) -> None:
        self.kinds, self.rows, self.calls = kinds, rows, calls
        self.zero = {rank: FAR + 1000 * rank for rank in rows}
        self.origins = {rank: zero - 5000 for rank, zero in self.zero.items()}

    def found(self, kind: str) -> dict[tuple[int, ...], IdenticalRanks]:
        """The groups of identical ranks, by their ranks."""
        nothing = np.iinfo(kind).min
        ranks = list(self.rows)

        def column(name: str) -> Any:
            return np.array(
                [[nothing if row[name] is None else row[name] - self.zero[r] for row in self.rows[r]] for r in ranks],
                kind,
            ).reshape(len(ranks), len(self.kinds))

        zero = np.array([self.zero[rank] for rank in ranks])
        columns = [column(name) for name in COLUMNS]
        part = StepActivities(np.array(ranks), "sequence", np.array(self.kinds, np.int8), zero, np.stack(columns, 1))
        syncs = _syncs({rank: calls for rank, calls in self.calls.items() if calls})
        given = list(group_identical_ranks(part, syncs, self.origins))
        np.testing.assert_array_equal(part.times, np.stack(columns, 1))  # others read them, too
        found = {tuple(group.ranks.tolist()): group for group in given}
        assert len(found) == len(given)
        return found

    def oracle(self) -> Expected:
        """Ranks that did the same, and their operations: kind, row, name, and each rank's times from its origin."""
        alike: dict[Any, list[int]] = {}
        told = {rank: self._rank(rank) for rank in self.rows}
        for rank, operations in told.items():
            same = tuple((op["kind"], op["row"], op["name"]) for op in operations)
            alike.setdefault(same, []).append(rank)
        return {
            tuple(ranks): [
                {**ops[0], **{name: [op[name] for op in ops] for name in COLUMNS}}
                for ops in zip(*(told[rank] for rank in ranks), strict=True)
            ]
            for ranks in alike.values()
        }

    def _rank(self, rank: int) -> list[dict[str, Any]]:
        rows = [dict(row) for row in self.rows[rank]]
        places: dict[int, list[Call]] = {}
        launched = [row["call"] for row in self.rows[rank]]
        for call in self.calls.get(rank, []):
            behind = [at for at, begun in enumerate(launched) if begun is not None and begun > call[0]]
            place = behind[0] if behind else len(rows)
            places.setdefault(place, []).append(call)
            if place and launched[place - 1] == call[0]:
                own = rows[place - 1]
                is_behind = place > 1 and rows[place - 2]["end"] > call[0]
                own["back"] = call[0] if is_behind else min(max(own["start"], own["call"]), own["back"])
        for at in range(len(rows) - 1, 0, -1):
            if launched[at] is not None and launched[at] == launched[at - 1]:
                rows[at]["call"] = rows[at]["back"] = None
        found = []
        for at in range(len(rows) + 1):
            for begun, ended, name in places.get(at, []):
                comes = KIND_OF[name] == HOST_BARRIER
                times = (begun, ended, begun, begun) if comes else (None, None, begun, ended)
                found.append({"kind": KIND_OF[name], "row": -1, "name": name, **_times(self.origins[rank], *times)})
            if at < len(rows):
                times = (rows[at][name] for name in COLUMNS)
                found.append({"kind": self.kinds[at], "row": at, "name": "", **_times(self.origins[rank], *times)})
        return found


def _times(origin: int, *values: int | None) -> dict[str, float]:
    return {
        name: float("nan") if value is None else float(value - origin)
        for name, value in zip(COLUMNS, values, strict=True)
    }


def _syncs(of: Mapping[int, list[Call]]) -> StepSyncCalls:
    """Of ranks in any order, in arrays that hold the last rank's first."""
    ranks = sorted(of)
    every = [call for rank in reversed(ranks) for call in of[rank]]
    last = np.cumsum([len(of[rank]) for rank in reversed(ranks)], dtype=np.int64)[::-1]
    begun, ended = (np.array([call[field] for call in every], np.int64) for field in (0, 1))
    name = np.array([NAMES.index(text) for _, _, text in every], np.int64)
    first = last - [len(of[rank]) for rank in ranks] if ranks else last
    calls = tuple(HostCall(*call) for call in KIND_OF.items())
    return StepSyncCalls(np.array(ranks, np.int64), first, last, begun, ended, np.full(len(every), 7), name, calls)


def _columns(group: IdenticalRanks, places: np.ndarray | None = None, numbers: list[int] | None = None) -> list[Any]:
    """(operations, ranks) of each time, laid out along a program; of ranks with number -1 nothing."""
    size, ranks = len(group.row), len(group.ranks)
    places = np.arange(size) if places is None else places
    numbers = list(range(ranks)) if numbers is None else numbers
    here = np.isin(np.arange(ranks), numbers)
    step = empty_step(np.zeros(ranks, np.int64), np.full(ranks, size), here)
    fill_group(step, group, place_operations(group.kind, group.row, places, size), np.array(numbers))
    found = []
    for values in (step.start, step.end, step.call, step.back):
        whole = np.full((size, ranks), np.nan)
        whole[:, here] = values.reshape(int(here.sum()), size).T
        found.append(whole)
    return found


def assert_same(step: Step, kind: str) -> dict[tuple[int, ...], IdenticalRanks]:
    found, expected = step.found(kind), step.oracle()
    chance = np.random.default_rng(len(step.kinds))
    assert found.keys() == expected.keys()
    for ranks, operations in expected.items():
        group = found[ranks]
        size = len(operations)
        assert group.kind.tolist() == [op["kind"] for op in operations]
        assert group.row.tolist() == [op["row"] for op in operations]
        assert [call.name for call in group.calls] == [op["name"] for op in operations if op["row"] < 0]
        wanted = [np.array([op[name] for op in operations]).reshape(size, len(ranks)) for name in COLUMNS]
        assert_equal(_columns(group), wanted)
        # some without a place in the program, and the last rank not wanted
        places = np.where(chance.random(size) < 0.3, -1, np.arange(size))
        numbers = [*range(len(ranks) - 1), -1]
        for told, whole in zip(_columns(group, places, numbers), wanted, strict=True):
            kept = np.where((places >= 0)[:, None] & (np.array(numbers) >= 0), whole, np.nan)
            assert_equal([told], [kept])
    assert len({group.signature for group in found.values()}) == len(found)
    return found


def assert_equal(ours: list[np.ndarray], its: list[np.ndarray]) -> None:
    """As numpy's own, in a tenth of its time where they are equal."""
    if not all(np.array_equal(one, other, equal_nan=True) for one, other in zip(ours, its, strict=True)):
        np.testing.assert_array_equal(ours, its)


def random_step(chance: random.Random) -> Step:
    """Graphs' launches of several rows, blocking copies, unknown launches, calls that wait at other places by rank."""
    kinds = chance.choices((COMPUTE, COLLECTIVE, MEMORY), (6, 2, 2), k=chance.randint(1, 9))
    ranks = chance.sample(range(40), chance.randint(1, 5))
    rows: dict[int, list[Row]] = {}
    calls: dict[int, list[Call]] = {}
    several = [at > 0 and chance.random() < 0.25 for at in range(len(kinds))]
    unknown = [chance.random() < 0.2 for _ in kinds]
    waits = [chance.random() < 0.3 for _ in kinds]
    for rank in sorted(ranks):
        now, own, begun = FAR + 1000 * rank + chance.randint(-40, 40), [], []
        odd = chance.random() < 0.2
        for at, kind in enumerate(kinds):
            graph = several[at] and bool(own)
            call = own[-1]["call"] if graph else now
            back = own[-1]["back"] if graph else now + chance.randint(0, 30)
            start = now + chance.randint(-5, 60)
            own.append({"start": start, "end": start + chance.randint(0, 50), "call": call, "back": back})
            if (unknown[at] or (odd and chance.random() < 0.5)) and not graph:
                own[-1]["call"] = own[-1]["back"] = None
            now = max(now + 1, back or 0) + chance.randint(0, 3)
            if waits[at] != (odd and chance.random() < 0.3):
                blocking = kind == MEMORY and own[-1]["call"] is not None and chance.random() < 0.7
                since = own[-1]["call"] if blocking else now
                begun.append((since, since + chance.randint(0, 80), NAMES[at % 3]))
                now += 2
        rows[rank], calls[rank] = own, begun
    return Step(kinds, rows, calls)


@pytest.mark.parametrize("kind", ["int32", "int64"])
def test_any_step(kind: str):
    """In int64 the unknown is so far from the times that ranks cannot be laid one after the other."""
    chance = random.Random(3)
    split = together = 0
    for _ in range(400):
        found = assert_same(random_step(chance), kind)
        split += len(found) > 1
        together += any(len(ranks) > 1 for ranks in found)
    assert split > 50
    assert together > 50


def row(start: int, call: int | None, back: int | None) -> Row:
    return {"start": FAR + start, "end": FAR + start + 10, "call": _far(call), "back": _far(back)}


def _far(time: int | None) -> int | None:
    return None if time is None else FAR + time


def only(step: Step) -> IdenticalRanks:
    (group,) = assert_same(step, "int32").values()
    return group


def test_groups_come_by_their_first_rank():
    """Also where it made few calls, and other ranks as many."""
    rows = [row(20, 1, 5), row(40, 30, 35)]
    one, two = (FAR + 7, FAR + 9, "cudaFree"), (FAR + 10, FAR + 12, "cudaMemcpy")
    step = Step([COMPUTE] * 2, dict.fromkeys(range(5), rows), {0: [one, two], 1: [one], 2: [one, two], 3: [two]})
    assert list(step.found("int32")) == [(0, 2), (1,), (3,), (4,)]


def test_the_signature_tells_sequence_copies_and_calls():
    one = only(Step([COMPUTE, MEMORY], {0: [row(20, 1, 5), row(40, 30, 35)]}, {}))
    other = only(Step([MEMORY, COMPUTE], {0: [row(20, 1, 5), row(40, 30, 35)]}, {}))
    assert one.signature[0] == other.signature[0] == "sequence"
    assert one.signature != other.signature
    shape = hashlib.blake2b(np.array([1], np.int32).tobytes() + bytes([MEMORY]) + b"()", digest_size=8)
    assert one.signature[1] == shape.digest()
