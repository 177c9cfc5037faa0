"""The metrics of a lake in slow and obvious Python, straight from its parquet files and records.

Written from the definitions, for tests to compare with. It knows nothing of the analysis: no SQL, no numpy, one rank
and one kernel after the other.
"""

import json
from collections import Counter
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from statistics import median_low
from typing import Any

import pyarrow.parquet as pq

METRICS = ("duration", "gap", "ttke", "launch_latency")
ALIGNING = {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"}
TOGETHER_NS = 100_000

StepKey = tuple[int | None, int]


@dataclass
class RankStep:
    """One rank in one step, and what is found of it. Rows are kernels in launch order, copies left out."""

    rank: int
    record: dict[str, Any]
    step: dict[str, Any]
    rows: list[dict[str, Any]]
    sequence: tuple[tuple[str, bool], ...]


@dataclass
class CohortStep:
    """One cohort's step. `rows`: (rank, position) -> the metrics; `moments`: rank -> the shared moment."""

    method: str = "none"
    aligned_on: int | None = None
    moments: dict[int, int] = field(default_factory=dict)
    unsynchronised: int = 0
    rows: dict[tuple[int, int], dict[str, Any]] = field(default_factory=dict)
    left_out: list[int] = field(default_factory=list)


def lake_steps(root: Path) -> dict[StepKey, dict[int, RankStep]]:
    """Everything the lake holds, step by step."""
    found: dict[StepKey, dict[int, RankStep]] = {}
    for path in sorted((root / "sources").glob("*.json")):
        record = json.loads(path.read_text())
        if record["rank"] is None:
            continue
        for step in record["steps"]:
            key = (step["epoch"], step["step"])
            folder = root / "kernels" / (f"step={key[1]}" if key[0] is None else f"epoch={key[0]}/step={key[1]}")
            file = pq.ParquetFile(folder / f"rank={record['rank']}.parquet")
            rows = sorted(file.read().to_pylist(), key=lambda row: row["ordinal"])
            rows = [row for row in rows if row["kind"] != "memory"]
            for row in rows:
                row["on_main"] = row["kind"] == "compute" and row["stream"] == record["main_stream"]
            sequence = tuple((row["kernel_name"], not row["on_main"]) for row in rows)
            found.setdefault(key, {})[record["rank"]] = RankStep(record["rank"], record, step, rows, sequence)
    return found


def longest(one: tuple[Any, ...], other: tuple[Any, ...]) -> list[list[int]]:
    """longest[i][j]: how many elements one[i:] and other[j:] have in common, in order."""
    table = [[0] * (len(other) + 1) for _ in range(len(one) + 1)]
    for i in reversed(range(len(one))):
        for j in reversed(range(len(other))):
            same = one[i] == other[j]
            table[i][j] = table[i + 1][j + 1] + 1 if same else max(table[i + 1][j], table[i][j + 1])
    return table


def partners(own: tuple[Any, ...], reference: tuple[Any, ...]) -> list[int | None]:
    """For each own kernel its place in the reference: the earliest that still gives the most matches."""
    table = longest(own, reference)
    found: list[int | None] = []
    at = 0
    for i, element in enumerate(own):
        places = range(at, len(reference))
        place = next((j for j in places if reference[j] == element and table[i + 1][j + 1] + 1 == table[i][at]), None)
        found.append(place)
        at = at if place is None else place + 1
    return found


def cohorts(steps: dict[StepKey, dict[int, RankStep]]) -> dict[int, int]:
    """Rank -> cohort, decided once a run from what each rank ran most often."""
    ran: dict[int, list[tuple[Any, ...]]] = {}
    for key in sorted(steps, key=lambda k: (-1 if k[0] is None else k[0], k[1])):
        for rank, one in steps[key].items():
            ran.setdefault(rank, []).append((one.sequence, one.step["cut"]))
    typical: dict[int, tuple[Any, ...]] = {}
    for rank, sequences in ran.items():
        uncut = [sequence for sequence, cut in sequences if not cut]
        typical[rank] = Counter(uncut or [sequence for sequence, _ in sequences]).most_common(1)[0][0]
    found: dict[int, int] = {}
    number = 0
    while rest := sorted(typical.keys() - found.keys()):
        commonest = Counter(typical[rank] for rank in rest).most_common(1)[0][0]
        for rank in rest:
            longer = max(len(typical[rank]), len(commonest))
            if longer == 0 or 2 * longest(typical[rank], commonest)[0][0] >= longer:
                found[rank] = number
        number += 1
    return found


def measure(root: Path) -> dict[tuple[StepKey, int], CohortStep]:
    """(step, cohort) -> what the definitions say of it. Without an uncut sequence in the run, nothing."""
    steps = lake_steps(root)
    cohort_of = cohorts(steps)
    found: dict[tuple[StepKey, int], CohortStep] = {}
    for key, ranks in steps.items():
        for cohort in sorted(set(cohort_of.values())):
            whole = {rank for rank, its in cohort_of.items() if its == cohort}
            mine = {rank: ranks[rank] for rank in sorted(whole & ranks.keys())}
            if not mine:
                continue
            reference = _reference(mine) or _usual(steps, whole)
            if reference is not None:
                found[key, cohort] = _measure(mine, reference, whole)
    return found


def _reference(ranks: dict[int, RankStep]) -> tuple[Any, ...] | None:
    """The commonest uncut sequence of the step; of equally common ones that of the lowest rank."""
    counts = Counter(ranks[rank].sequence for rank in sorted(ranks) if not ranks[rank].step["cut"])
    return counts.most_common(1)[0][0] if counts else None


def _usual(steps: dict[StepKey, dict[int, RankStep]], whole: set[int]) -> tuple[Any, ...] | None:
    ordered = sorted(steps, key=lambda k: (-1 if k[0] is None else k[0], k[1]))
    counts = Counter(
        steps[key][rank].sequence
        for key in ordered
        for rank in sorted(whole & steps[key].keys())
        if not steps[key][rank].step["cut"]
    )
    return counts.most_common(1)[0][0] if counts else None


def _measure(ranks: dict[int, RankStep], reference: tuple[Any, ...], whole: set[int]) -> CohortStep:
    found = CohortStep()
    indices = {rank: partners(one.sequence, reference) for rank, one in ranks.items()}
    kinds = {row["kernel_name"]: row["kind"] for one in ranks.values() for row in one.rows}
    collectives = [at for at, (name, _) in enumerate(reference) if kinds.get(name) == "collective"]
    if collectives:
        last = collectives[-1]
        for rank, one in list(ranks.items()):
            matched = [index for index in indices[rank] if index is not None]
            if one.step["cut"] and not (last in matched and max(matched) > last):
                found.left_out.append(rank)
                del ranks[rank]
    if not ranks:
        return found
    _align(found, ranks, indices, whole)
    firsts = {rank: _first(one.rows) for rank, one in ranks.items()}
    until = {
        rank: found.moments[rank] - firsts[rank]["start_ns"]
        for rank in ranks
        if rank in found.moments and firsts[rank] is not None
    }
    for rank, one in ranks.items():
        first_gap = max(until.values()) - until[rank] if rank in until else None
        ttke: int | None = 0
        launches: dict[tuple[Any, Any], dict[str, Any]] = {}
        for row in sorted(one.rows, key=lambda row: (row["start_ns"], row["ordinal"])):
            launches.setdefault((row["launch_thread"], row["launch_start_ns"]), row)
        for position, (row, index) in enumerate(zip(one.rows, indices[rank], strict=True)):
            duration = row["end_ns"] - row["start_ns"]
            if not row["on_main"]:
                gap: int | None = 0
            elif row is firsts[rank]:
                gap = first_gap
            else:
                gap = row["start_ns"] - _previous(one.rows, row)["end_ns"]
            if row["on_main"]:
                ttke = None if ttke is None or gap is None else ttke + gap + duration
            latency = None
            launch = row["launch_start_ns"]
            if launch is not None and launches[row["launch_thread"], launch] is row:
                latency = row["start_ns"] - launch
            found.rows[rank, position] = {
                "kernel_index": index,
                "kernel_name": row["kernel_name"],
                "on_main": row["on_main"],
                "start_ns": row["start_ns"],
                "end_ns": row["end_ns"],
                "duration": duration,
                "gap": gap,
                "ttke": ttke,
                "launch_latency": latency,
            }
    return found


def means(found: CohortStep, metric: str) -> dict[int, Fraction]:
    """Kernel index -> mean over the ranks that have a value there."""
    values: dict[int, list[int]] = {}
    for row in found.rows.values():
        if row["kernel_index"] is not None and row[metric] is not None:
            values.setdefault(row["kernel_index"], []).append(row[metric])
    return {index: Fraction(sum(some), len(some)) for index, some in values.items()}


def step_end(found: CohortStep, rank: int) -> int | None:
    """The end of the last aligning collective; without one, of the last main-stream kernel to end."""
    if found.method == "collective":
        return found.moments[rank]
    return max((row["end_ns"] for (of, _), row in found.rows.items() if of == rank and row["on_main"]), default=None)


def step_times(measured: dict[tuple[StepKey, int], CohortStep]) -> dict[StepKey, int | None]:
    """From one step's end to the next one's, median over ranks; only between consecutive numbers.

    Steps of which no kernel is left are not in it.
    """
    ends: dict[StepKey, dict[int, int]] = {}
    for (key, _), found in measured.items():
        if found.rows:
            ends.setdefault(key, {})
        for rank in {rank for rank, _ in found.rows}:
            end = step_end(found, rank)
            if end is not None:
                ends[key][rank] = end
    times: dict[StepKey, int | None] = {}
    for key, now in ends.items():
        before = ends.get((key[0], key[1] - 1), {})
        periods = [now[rank] - before[rank] for rank in now.keys() & before.keys()]
        times[key] = median_low(periods) if periods else None
    return times


def last_kernel(found: CohortStep) -> int | None:
    """k*: the last main-stream kernel that every rank starts before its last aligning collective ends."""
    latest = []
    for rank in {rank for rank, _ in found.rows}:
        until = found.moments[rank] if found.method == "collective" else None
        mine = [
            row["kernel_index"]
            for (of, _), row in found.rows.items()
            if of == rank and row["on_main"] and row["kernel_index"] is not None
            if until is None or row["start_ns"] < until
        ]
        if not mine:
            return None
        latest.append(max(mine))
    return min(latest, default=None)


def _first(rows: list[dict[str, Any]]) -> dict[str, Any] | None:
    main = [row for row in rows if row["on_main"]]
    return min(main, key=lambda row: (row["start_ns"], row["ordinal"]), default=None)


def _previous(rows: list[dict[str, Any]], row: dict[str, Any]) -> dict[str, Any]:
    on_stream = sorted(
        (other for other in rows if other["stream"] == row["stream"]),
        key=lambda other: (other["start_ns"], other["ordinal"]),
    )
    return on_stream[next(at for at, other in enumerate(on_stream) if other is row) - 1]


def _align(
    found: CohortStep, ranks: dict[int, RankStep], indices: dict[int, list[int | None]], whole: set[int]
) -> None:
    ends: dict[int, dict[int, dict[str, Any]]] = {}
    for rank, one in ranks.items():
        for row, index in zip(one.rows, indices[rank], strict=True):
            if row["kind"] == "collective" and index is not None:
                ends.setdefault(index, {})[rank] = row
    together = {
        index: by_rank
        for index, by_rank in ends.items()
        if by_rank.keys() == ranks.keys() and all(_of_all(row, whole) for row in by_rank.values())
    }
    apart = _apart(together)
    found.unsynchronised = len(apart)
    together = {index: by_rank for index, by_rank in together.items() if index not in apart}
    if together:
        # one collective ends last for everyone, or the data are not what this oracle is for
        latest = {max(together, key=lambda index: (together[index][rank]["end_ns"], index)) for rank in ranks}
        assert len(latest) == 1, "the ranks disagree which collective ended last"
        found.aligned_on = latest.pop()
        found.method = "collective"
        found.moments = {rank: row["end_ns"] for rank, row in together[found.aligned_on].items()}
        return
    offsets = {rank: one.record["utc_offset_ns"] for rank, one in ranks.items()}
    if len({one.record["file_digest"] for one in ranks.values()}) == 1:
        offsets = dict.fromkeys(ranks, 0)
    if None not in offsets.values():
        found.method = "wall clock"
        found.moments = {rank: -offset for rank, offset in offsets.items()}


def _of_all(row: dict[str, Any], whole: set[int]) -> bool:
    if row["collective"] is not None and row["collective"] not in ALIGNING:
        return False
    if row["group_ranks"] is not None:
        return whole <= set(row["group_ranks"])
    return row["group_size"] is None or row["group_size"] >= len(whole)


def _apart(together: dict[int, dict[int, dict[str, Any]]]) -> set[int]:
    """Collectives of unnamed operation that contradict the clocks: those that most of the others agree against.

    By vote: two collectives agree if for every pair of ranks they put the clocks equally far apart, within 100 us.
    A named one always has a vote that counts; an unnamed one that no other agrees with stands alone.
    """
    apart = set()
    for index, by_rank in together.items():
        others = [other for other in together if other != index]
        if not others or any(row["collective"] is not None for row in by_rank.values()):
            continue
        named = [other for other in others if any(r["collective"] is not None for r in together[other].values())]
        if not any(_agree(by_rank, together[other]) for other in named or others):
            apart.add(index)
    return apart


def _agree(one: dict[int, dict[str, Any]], other: dict[int, dict[str, Any]]) -> bool:
    shifts = [one[rank]["end_ns"] - other[rank]["end_ns"] for rank in one]
    return max(shifts) - min(shifts) <= TOGETHER_NS
