"""Random captures with all oddities are joined right, by a slow account, with their rows in memory and in files."""

import random
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from jitter.core.schema import ACTIVITIES, CALLS, RANGES
from jitter.core.step_key import StepKey
from jitter.ingestion.transform import launch_join, sorted_rows
from jitter.ingestion.transform.capture import Capture
from jitter.ingestion.transform.launch_join import Gpu, JoinedCapture
from jitter.ingestion.transform.steps.step_markers import StepRange
from jitter.readers import Batch
from tests.support.fuzz_depth import fuzz, of_all

NAMES = [
    *(
        "gemm",
        "void at::native::relu(int)",
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
        "[CUDA memcpy HtoD]",
        "cudaLaunchKernel",
    ),
    *("cuLaunchKernel", "cudaGraphLaunch_v10000", "cudaMemcpy", "cudaMemcpyAsync", "cudaStreamSynchronize"),
    *("cudaStreamBeginCapture_v10000", "cudaStreamEndCapture_v10000", "cudaEventRecord", "gemm"),
    *("[CUDA memcpy Device-to-Host (Device -> Pageable)]", "[CUDA memcpy Device-to-Host (Device -> Pinned)]"),
]
COLLECTIVE, MEMORY, LAUNCH, DRIVER, GRAPH, BLOCKING, COPY, SYNC, BEGIN, END, RECORD, AGAIN, PAGEABLE, PINNED = range(
    2, 16
)


class Oddities:
    """A random capture: rows of activities and calls as dicts, waits for data, and steps of each process."""

    def __init__(self, seed: int) -> None:
        self._random = pick = random.Random(seed)
        self.activities: list[dict[str, Any]] = []
        self.calls: list[dict[str, Any]] = []
        self.loading: list[dict[str, Any]] = []
        self.steps: dict[int, list[StepRange]] = {}
        self._lost = pick.choice((0, 0.05, 0.3))
        self._unlaunched = pick.choice((0, 0, 0.02, 0.3))
        self._nested = pick.choice((0, 0, 0.2))
        for process in range(pick.choice((1, 1, 2, 4))):
            self._process(process)
        self.library = self._library_calls(random.Random(seed + 1000))
        pick.shuffle(self.activities)
        pick.shuffle(self.calls)

    def _process(self, process: int) -> None:
        pick = self._random
        devices = pick.choice(([0], [0], [3, 1], [None], [0, None]))
        streams = pick.choice(([7], [7, 20], [7, None, 0]))
        records_launches = pick.random() < 0.85
        now, correlation = pick.randrange(-50, 1000), pick.choice((1, 1, 2**40))
        free_ns: dict[Any, int] = {}
        for _ in range(pick.randrange(1, 120)):
            now += pick.randrange(1, 40)
            correlation += pick.randrange(1, 3)
            thread = pick.choice((100, 100, 101, None))
            kind = pick.choice((LAUNCH,) * 8 + (GRAPH, BLOCKING, COPY, SYNC, BEGIN, END, RECORD))
            known = None if pick.random() < 0.03 else correlation
            call = {
                "process": process,
                "thread": thread,
                "name": kind,
                "start_ns": now,
                "end_ns": None if pick.random() < 0.05 else now + pick.randrange(12),
                "correlation": known,
            }
            launched = records_launches and pick.random() >= self._unlaunched
            if launched:
                self.calls.append(call)
                if pick.random() < self._nested:
                    # the driver's call within, or one that begins with it and has no end
                    inner = {
                        "name": DRIVER,
                        "start_ns": now + pick.randrange(3),
                        "end_ns": pick.choice((None, now + 3)),
                    }
                    self.calls.append(call | inner)
            if kind in (SYNC, BEGIN, END, RECORD) or pick.random() < self._lost:
                continue
            lane = pick.choice(devices), pick.choice(streams)
            for _ in range(pick.randrange(2, 6) if kind == GRAPH else 1):
                # kernels of a graph may well begin and end together
                start = max(now, free_ns.get(lane, 0)) + pick.choice((0, 0, 5)) - (not launched) * 2
                end = start + pick.choice((0, 3, 50))
                free_ns[lane] = pick.choice((start, end))
                self.activities.append(self._activity(process, lane, kind, start, end, known))
        self._steps_of(process, now)

    def _activity(self, process: int, lane: Any, kind: int, start: int, end: int, known: int | None) -> dict[str, Any]:
        pick = self._random
        is_memory = kind in (BLOCKING, COPY)
        to_host = (MEMORY, PAGEABLE, PINNED)[start % 3]  # by start: equal rows would tie
        name = (to_host if kind == COPY else MEMORY) if is_memory else pick.choice((0, 1, AGAIN, COLLECTIVE))
        return {
            "process": process,
            "device": lane[0],
            "stream": lane[1],
            "name": name,
            "is_memory": is_memory,
            "start_ns": start,
            "end_ns": end,
            "correlation": known,
            "grid_x": (None, 1, 128)[name % 3],  # by name: rows that differ in nothing else would tie
            "grid_y": 1,
            "message_bytes": 4096 if name == COLLECTIVE else None,
            "collective": "all_reduce" if name == COLLECTIVE else None,
            "group_ranks": [0, 1] if name == COLLECTIVE else None,
        }

    def _library_calls(self, pick: random.Random) -> list[dict[str, Any]]:
        """Ranges of a communication library and of a framework, nested on their thread; groups that are recorded."""
        for row in self.activities:
            if not row["is_memory"] and row["start_ns"] % 19 == 0:  # by start: equal rows would tie
                row["group_size"] = 4
        found = []
        for process, thread in {(call["process"], call["thread"]): None for call in self.calls}:
            at = pick.randrange(-20, 300)
            for _ in range(pick.choice((0, 0, 1, 4))):
                at += pick.randrange(1, 200)
                text = pick.choice(("ncclAllReduce", "ncclGroupEnd", "nccl:all_gather", "ncclCommInitRank", "nccl"))
                end = at + pick.randrange(1, 60)
                range_of = {"process": process, "thread": thread}
                found.append(range_of | {"text": text, "start_ns": at, "end_ns": pick.choice((end, end, None))})
                if pick.random() < 0.5 and end > at + 6:
                    inner = pick.choice(("ncclBroadcast", "nccl:reduce"))
                    found.append(range_of | {"text": inner, "start_ns": at + 2, "end_ns": end - 2})
                at = end
        pick.shuffle(found)
        return found

    def is_communication(self, row: dict[str, Any], call: dict[str, Any] | None) -> bool:
        """By its name, its group, or the range around its launch; a framework's own kernels by none of its ranges."""
        if row["is_memory"]:
            return False
        if row["name"] == COLLECTIVE or row.get("group_size") is not None:
            return True
        around = [
            one
            for one in self.library
            if call is not None
            and (one["process"], one["thread"]) == (call["process"], call["thread"])
            and one["end_ns"] is not None
            and one["start_ns"] <= call["start_ns"] <= one["end_ns"]
        ]
        if any(one["text"] in {"ncclAllReduce", "ncclGroupEnd", "ncclBroadcast"} for one in around):
            return True
        return row["name"] != 1 and any(one["text"].startswith("nccl:") and not self._holds(one) for one in around)

    def _holds(self, one: dict[str, Any]) -> bool:
        """Whether a framework's range holds a library's call."""
        return any(
            other["text"] in {"ncclAllReduce", "ncclGroupEnd", "ncclBroadcast"}
            and (one["process"], one["thread"]) == (other["process"], other["thread"])
            and one["start_ns"] < other["start_ns"] <= one["end_ns"]
            for other in self.library
        )

    def _steps_of(self, process: int, until: int) -> None:
        pick = self._random
        if pick.random() < 0.1:
            return
        bounds = sorted(pick.sample(range(-60, until + 60), 2 * pick.randrange(1, 6)))
        pairs = list(zip(bounds[::2], bounds[1::2], strict=True))
        self.steps[process] = [
            StepRange(StepKey(None, row), None, start, end, None if row == len(pairs) - 1 and end % 2 else end)
            for row, (start, end) in enumerate(pairs)
        ]
        self.loading += [
            {"process": process, "thread": thread, "text": "next_batch", "start_ns": start, "end_ns": None}
            for start, thread in zip(bounds, (100, None) * len(bounds), strict=False)
        ]

    def batches(self) -> list[Batch]:
        """In several batches; some leave out columns in which they know nothing."""
        ranges = [*self.loading, *self.library]
        found = [Batch("ranges", _rows(ranges, RANGES))] if ranges else []
        for table, rows, schema in (("activities", self.activities, ACTIVITIES), ("calls", self.calls, CALLS)):
            for first in range(0, len(rows), 37):
                some = rows[first : first + 37]
                absent = {name for name in schema.names if all(row.get(name) is None for row in some)}
                names = [name for name in schema.names if name not in absent or self._random.random() < 0.3]
                found.append(Batch(table, _rows(some, pa.schema([schema.field(name) for name in names]))))  # type: ignore[arg-type]
        return found


def _rows(rows: Sequence[dict[str, Any]], schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(rows), schema)


def account(joined: JoinedCapture, steps: dict[int, list[StepRange]]) -> dict[str, Any]:
    """All that a capture tells, plain."""
    in_steps: dict[Gpu, list[dict[str, Any]]] = {}
    for gpu, rows in joined.in_steps(steps):
        in_steps.setdefault(gpu, []).extend(
            {name: row.get(name) for name in (*ACTIVITIES.names[1:], *LAUNCH_NAMES, "is_collective", "step_row")}
            for row in rows.to_pylist()
        )
    uses = joined.gpus()
    host = joined.host(steps)
    return {
        "uses": uses,
        "has_launches": joined.has_launches,
        "in_steps": in_steps,
        "sequences": [
            joined.sequence(use.gpu, kind, stream).to_pydict()
            for use in uses
            for kind in ("compute", "collective")
            for stream in (None, use.main_stream)
        ],
        "before_capture": joined.before_capture,
        "uncertain": joined.uncertain(steps),
        "lost": joined.lost_launches(steps),
        "host": host.select(sorted(host.schema.names)).to_pylist(),
    }


LAUNCH_NAMES = ("launch_name", "launch_start_ns", "launch_end_ns", "launch_thread")


def told(oddities: Oddities, folder: Path) -> dict[str, Any]:
    found = Capture(re.compile("(?P<step>)x"), folder)
    for batch in oddities.batches():
        found.add(batch)
    return account(found.join(NAMES), oddities.steps)


PLACES = ("memory", "files")
CASES = [
    pytest.param(place, seed, id=f"{place}-{seed}")
    for seed in range(of_all(60, 12))
    for place in PLACES
    if place == "memory" or seed < of_all(30, 6)
]
"""The random captures, by the place of their rows and seed."""


def hold_rows_in(place: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make captures hold their rows in memory or in files; the size of runs and windows depends on the seed."""
    monkeypatch.setattr(launch_join, "STEP_ROWS_AT_ONCE", seed % 7 * 20)
    if place == "files":
        monkeypatch.setattr(sorted_rows, "RUN_BYTES", seed % 3 * 5_000)
        monkeypatch.setattr(sorted_rows, "STRIDE", 1 + seed % 4)
        monkeypatch.setattr(launch_join, "ROWS_AT_ONCE", seed % 5 * 10)


@pytest.mark.parametrize("place", PLACES)
def test_without_a_row(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    hold_rows_in(place, 1, monkeypatch)
    assert account(Capture(re.compile("(?P<step>)x"), tmp_path).join([]), {}) == {
        "uses": [],
        "has_launches": set(),
        "in_steps": {},
        "sequences": [],
        "before_capture": {},
        "uncertain": {},
        "lost": {},
        "host": [],
    }


@fuzz
@pytest.mark.parametrize(("place", "seed"), CASES)
def test_against_an_oracle(place: str, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    oddities = Oddities(seed)
    hold_rows_in(place, seed, monkeypatch)
    found = told(oddities, tmp_path)
    calls, placed = _oracle(oddities)
    for gpu, rows in found["in_steps"].items():
        mine = [
            (place, row, call, step_row)
            for place, row, call in placed
            if (row["process"], row["device"]) == gpu
            and place is not None
            and (step_row := _step_row(oddities, gpu.process, place)) is not None
        ]
        # ties may go either way here: the order of what is told is looked at below
        assert Counter(
            (s, r["start_ns"], r["end_ns"], r["name"], r["correlation"], c and c["start_ns"], c and c["name"])
            for _, r, c, s in mine
        ) == Counter(
            (
                *(r[name] for name in ("step_row", "start_ns", "end_ns", "name", "correlation")),
                *(r[name] for name in ("launch_start_ns", "launch_name")),
            )
            for r in rows
        )
        assert Counter(
            (r["start_ns"], r["end_ns"], r["name"], oddities.is_communication(r, c)) for _, r, c, _ in mine
        ) == (Counter((r["start_ns"], r["end_ns"], r["name"], r["is_collective"]) for r in rows))
        assert [place for place, *_ in sorted(mine, key=lambda one: one[0])] == _places(rows, placed, gpu)
    assert set(found["in_steps"]) == {
        Gpu(row["process"], row["device"])
        for place, row, _ in placed
        if place is not None and _step_row(oddities, row["process"], place) is not None
    }
    kernels = [(place, row) for place, row, _ in placed if not row["is_memory"]]
    assert found["before_capture"] == Counter(Gpu(r["process"], r["device"]) for place, r in kernels if place is None)
    assert found["uncertain"] == _uncertain(oddities, placed)
    assert {use.gpu: use.kernels for use in found["uses"]} == Counter(
        Gpu(r["process"], r["device"]) for _, r in kernels
    )
    assert found["lost"] == _lost(oddities, calls)
    reads = [call for _, row, call in placed if row["name"] == PAGEABLE and call and call["name"] == COPY]
    held = [call for call in reads if _holds_copy(call, placed)]
    waits = [call for call in calls if call["name"] in (SYNC, BLOCKING) or any(call is one for one in held)]
    assert Counter(
        (w["process"], w["start_ns"], w["thread"], w["end_ns"]) for w in [*waits, *oddities.loading]
    ) == Counter((h["process"], h["start_ns"], h["thread"], h["end_ns"]) for h in found["host"])
    assert all(h["step_row"] == _step_row(oddities, h["process"], h["start_ns"]) for h in found["host"])


def _holds_copy(call: dict[str, Any], placed: Any) -> bool:
    """Whether a copy to pageable memory that a call launched begins within it."""
    begun_ns = [row["start_ns"] for _, row, own in placed if own is call and row["name"] == PAGEABLE]
    return call["end_ns"] is not None and call["end_ns"] > min(begun_ns)


def _places(rows: list[dict[str, Any]], placed: Any, gpu: Gpu) -> list[int]:
    """The places of rows as they were told, in that order."""
    by_row: dict[Any, list[int]] = {}
    for place, row, _ in placed:
        if (row["process"], row["device"]) == gpu and place is not None:
            by_row.setdefault(_key(row), []).append(place)
    return [sorted(by_row[_key(row)])[0] if row["launch_start_ns"] is None else row["launch_start_ns"] for row in rows]


def _key(row: dict[str, Any]) -> Any:
    return row["stream"], row["start_ns"], row["end_ns"], row["name"], row["correlation"]


def _oracle(oddities: Oddities) -> tuple[list[dict[str, Any]], list[tuple[int | None, dict[str, Any], Any]]]:
    """The calls that count, and (place, activity, launching call), by METRICS.md, row by row."""
    launching: dict[Any, dict[str, Any]] = {}
    for call in oddities.calls:
        key = call["process"], call["correlation"]
        before = launching.get(key)
        if call["correlation"] is not None and (before is None or _outermost(call) < _outermost(before)):
            launching[key] = call
    of_activity = [(row, launching.get((row["process"], row["correlation"]))) for row in oddities.activities]
    shared = Counter((call["process"], call["correlation"]) for call in oddities.calls)
    if any(call is not None and shared[row["process"], row["correlation"]] > 1 for row, call in of_activity):
        calls = [*launching.values(), *(call for call in oddities.calls if call["correlation"] is None)]
    else:
        calls = oddities.calls
    with_launches = {row["process"] for row, call in of_activity if call is not None}
    placed: list[tuple[int | None, dict[str, Any], Any]] = []
    for row, call in of_activity:
        if call is not None:
            place = call["start_ns"]
        elif row["process"] not in with_launches:
            place = row["start_ns"]
        else:
            before = [
                (other["start_ns"], other["end_ns"], its["start_ns"])
                for other, its in of_activity
                if its is not None
                and all(other[name] == row[name] for name in ("process", "device", "stream"))
                and (other["start_ns"], other["end_ns"]) <= (row["start_ns"], row["end_ns"])
            ]
            place = max(before)[2] if before else None
        placed.append((place, row, call))
    return calls, placed


def _uncertain(oddities: Oddities, placed: Sequence[tuple[int | None, dict[str, Any], Any]]) -> dict[Gpu, int]:
    """The activities without a launch that may have been launched in a later step than their predecessor, by GPU."""
    counts: Counter[Gpu] = Counter()
    with_launches = {row["process"] for _, row, call in placed if call is not None}
    for place, row, call in placed:
        if call is not None or place is None or row["process"] not in with_launches:
            continue
        after = [
            (other["start_ns"], other["end_ns"], its["start_ns"])
            for _, other, its in placed
            if its is not None
            and all(other[name] == row[name] for name in ("process", "device", "stream"))
            and (other["start_ns"], other["end_ns"]) > (row["start_ns"], row["end_ns"])
        ]
        latest = min(row["start_ns"], min(after)[2]) if after else row["start_ns"]
        process = row["process"]
        if latest > place and _step_row(oddities, process, latest) != _step_row(oddities, process, place):
            counts[Gpu(process, row["device"])] += 1
    return counts


def _outermost(call: dict[str, Any]) -> tuple[Any, ...]:
    end, thread = call["end_ns"], call["thread"]
    return call["start_ns"], end is None, -(end or 0), thread is None, thread or 0, call["name"]


def _step_row(oddities: Oddities, process: int, at_ns: int) -> int | None:
    for row, step in enumerate(oddities.steps.get(process, [])):
        if step.start_ns <= at_ns and (step.until_ns is None or at_ns < step.until_ns):
            return row
    return None


def _lost(oddities: Oddities, calls: list[dict[str, Any]]) -> dict[tuple[int, int], int]:
    answered = {(row["process"], row["correlation"]) for row in oddities.activities}
    lost: Counter[tuple[int, int]] = Counter()
    for call in calls:
        if call["name"] not in (LAUNCH, DRIVER, GRAPH) or call["correlation"] is None:
            continue
        edges = [
            (other["start_ns"], other["name"])
            for other in calls
            if other["name"] in (BEGIN, END)
            and other["process"] == call["process"]
            and other["thread"] == call["thread"]
            and other["thread"] is not None
            and other["start_ns"] <= call["start_ns"]
        ]
        step_row = _step_row(oddities, call["process"], call["start_ns"])
        is_taken_down = bool(edges) and max(edges)[1] == BEGIN
        if (call["process"], call["correlation"]) not in answered and not is_taken_down and step_row is not None:
            lost[call["process"], step_row] += 1
    return dict(lost)


@pytest.mark.parametrize(
    ("copy", "took_ns", "begins", "is_wait"),
    [
        ("Memcpy DtoH (Device -> Pageable)", 5_000, "within", True),
        ("Memcpy DtoH (Device -> Pageable)", 5_000, "after", False),
        ("Memcpy DtoH (Device -> Pageable)", 50_000, "after", True),
        ("Memcpy HtoD (Pageable -> Device)", 49_999, "within", False),
        ("Memcpy HtoD (Pageable -> Device)", 50_000, "within", True),
        ("Memcpy HtoD (Pageable -> Device)", 50_000, "after", False),
        ("CopyDeviceToHost", 50_000, "within", True),
        ("Memcpy HtoD (Pinned -> Device)", 50_000, "within", True),
        ("Memcpy DtoD (Device -> Device)", 50_000, "within", False),
    ],
)
def test_a_call_in_which_its_copy_is_done_waits_for_it(
    copy: str, took_ns: int, begins: str, is_wait: bool, tmp_path: Path
):
    """`hipMemcpyAsync` and `cudaMemcpyAsync` block with pageable memory, and else return at once."""
    of_all = {"process": 0, "correlation": 1}
    start_ns = took_ns - 1_000 if begins == "within" else took_ns
    call = of_all | {"thread": 1, "name": 1, "start_ns": 0, "end_ns": took_ns}
    activity = of_all | {"device": 0, "stream": 7, "name": 0, "is_memory": True, "start_ns": start_ns}
    found = Capture(re.compile("(?P<step>)x"), tmp_path)
    found.add(Batch("activities", _rows([activity | {"end_ns": start_ns + 1_100}], ACTIVITIES)))
    found.add(Batch("calls", _rows([call], CALLS)))
    host = found.join([copy, "cudaMemcpyAsync"]).host({}).to_pylist()
    assert [row["kind"] for row in host if row["kind"] == "sync"] == ["sync"] * is_wait
