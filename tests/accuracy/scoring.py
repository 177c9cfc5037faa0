"""One job: made, written, ingested, diagnosed, and compared with what is true of it."""

import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

from jitter.simulate import Fault, Run, write
from tests.accuracy.cases import Case, case
from tests.accuracy.waits import Found, broken, compare
from tests.support.simulated import PartialRun, ingest_traces, true_gain_ns

COSTLY: Final = 0.02
"""A fault that gains more than this part of the steps' time must be found."""
_TOLD_APART: Final = 2
"""So many ranks that are late together may be named one by one."""
HALVES_EVERY: Final = 5
"""In every so many jobs the rules are inferred from odd steps and tried on even ones."""


class Verdict(NamedTuple):
    """One fault that had to be found."""

    kind: str
    right: bool
    gain_ns: int
    told_ns: int | None
    """The stated cost of the culprit that names just its ranks; None without one."""
    steps_right: bool | None
    """Whether that culprit names just its steps, the first apart; None without one, and for what grows over the run."""


class Score(NamedTuple):
    """How one job went."""

    seed: int
    shape: str
    kind: str
    noise: float
    form: str
    about: str
    verdicts: tuple[Verdict, ...]
    innocent: bool
    """No rank was named that has no fault: of a healthy job, nobody."""
    is_healthy: bool
    gain_ns: int
    """The true gain of a repair of all faults that were found."""
    told_ns: int
    """The gain that the diagnosis states for it."""
    waits: Found
    halves: tuple[int, int]
    """Dependencies of odd steps that even ones break, of so many."""
    found: tuple[str, ...]
    """The culprits in words."""
    seconds: tuple[float, float, float]
    """To make and write the traces, to ingest them, to diagnose."""
    error: str | None = None


def score(seed: int) -> Score:
    """The job of this seed. A job that the analysis dies of is scored as wrong in everything."""
    made = time.perf_counter()
    one = case(seed)
    with tempfile.TemporaryDirectory(prefix="jitter-accuracy-") as folder:
        try:
            return _score(one, Path(folder), made)
        except Exception as error:
            words = f"{type(error).__name__}: {error}"
            needed = tuple(
                Verdict(f.kind, False, gain, None, None) for f, gain in _gains(one.run).items() if _costly(one, gain)
            )
            nothing = Found(0, 0, 0, 0)
            return Score(*_about(one), needed, False, one.is_healthy, 0, 0, nothing, (0, 0), (), (0.0, 0.0, 0.0), words)


def score_all(seeds: Sequence[int], processes: int) -> Iterator[Score]:
    """The scores of these seeds, in their order."""
    # a fork of a process with threads (DuckDB's, Arrow's) may hang
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        yield from pool.map(score, seeds)


def _about(one: Case) -> tuple[int, str, str, float, str, str]:
    return one.seed, one.run.job.shape, one.kind, one.run.job.noise, one.form, str(one)


def _score(one: Case, folder: Path, begun: float) -> Score:
    _traces(one, folder / "traces", lambda _step: True)
    written = time.perf_counter()
    lake = ingest_traces(folder)
    ingested = time.perf_counter()
    diagnosis = lake.diagnose()
    culprits = list(diagnosis.culprits)
    diagnosed = time.perf_counter()
    gains = _gains(one.run)
    innocent = all(_ranks(culprit) <= _allowed(one.run, culprit) for culprit in culprits)
    verdicts = []
    matched: list[Fault] = []
    for fault, gain in gains.items():
        mine = _naming(one.run, culprits, fault)
        matched += [fault] if mine else []
        if _costly(one, gain):
            exact = next((culprit for culprit in mine if _ranks(culprit) == fault.ranks), None)
            told = None if exact is None else exact.gain_ns
            verdicts.append(
                Verdict(fault.kind, bool(mine) and innocent, gain, told, _steps_right(one.run, fault, exact))
            )
    gain = true_gain_ns(one.run, *matched) if matched else 0
    halves = _halves(one, folder) if one.seed % HALVES_EVERY == 0 else (0, 0)
    return Score(
        *_about(one),
        tuple(verdicts),
        innocent,
        one.is_healthy,
        gain,
        diagnosis.what_if.culprits_repaired_ns or 0,
        compare(one.run, lake),
        halves,
        tuple(_words(culprit) for culprit in culprits),
        (written - begun, ingested - written, diagnosed - ingested),
    )


def _traces(one: Case, folder: Path, wanted: Any) -> None:
    """Write what was recorded of the wanted steps."""
    steps = one.run.job.step_numbers

    def sees(rank: int, step: int) -> bool:
        lost = (rank in one.late and step == steps[0]) or (rank in one.early and step == steps[-1])
        return bool(wanted(step)) and not lost

    # it does what the formats ask of a run
    write(PartialRun(one.run, one.absent, sees), folder, one.form)  # type: ignore[arg-type]


def _gains(run: Run) -> dict[Fault, int]:
    """The true gain of a repair of each fault alone."""
    return {fault: true_gain_ns(run, fault) for fault in run.faults}


def _costly(one: Case, gain: int) -> bool:
    times = [time for time in one.run.step_times().values() if time is not None]
    return gain > COSTLY * len(times) * median(times)


def _ranks(culprit: Any) -> frozenset[int]:
    return frozenset(culprit.ranks or ())


def _steps_right(run: Run, fault: Fault, culprit: Any) -> bool | None:
    """Of a culprit that names just the fault's ranks, whether its steps are the fault's."""
    if culprit is None or fault.drift:
        return None
    numbers = run.job.step_numbers
    happened = {step for step in numbers if fault.on_ranks(step, run.job.ranks)}
    # the first step has no time of its own, so that nothing is told of it
    return {key.step for key in culprit.steps} - {numbers[0]} == happened - {numbers[0]}


def _naming(run: Run, culprits: Sequence[Any], fault: Fault) -> list[Any]:
    """The culprits that name this fault's ranks and cause; none where they do not.

    Faults of one cause may be told as one culprit with the ranks of several. What befalls many ranks together must be
    told as one; two may be told one by one. Of a transfer that is slow for a group it may be the group that is named;
    where members of the group were not recorded, these or the network.
    """
    causes = {fault.cause, "gpu_time"} if fault.kind in ("slow_gpu", "unequal_work") else {fault.cause}
    alike = [culprit for culprit in culprits if culprit.cause in causes]
    if fault.cause == "communication":
        places = [one for one in alike if not one.ranks or one.scope == "unrecorded"]
        return places + [one for one in alike if one not in places and fault.ranks <= _ranks(one)]
    guilty = frozenset(rank for other in run.faults if other.cause == fault.cause for rank in other.ranks)
    alike = [one for one in alike if _ranks(one) <= guilty]
    whole = [one for one in alike if fault.ranks <= _ranks(one)]
    if whole or len(fault.ranks) > _TOLD_APART:
        return whole
    parts = [one for one in alike if _ranks(one) & fault.ranks]
    return parts if fault.ranks <= frozenset[int]().union(*map(_ranks, parts)) else []


def _allowed(run: Run, culprit: Any) -> frozenset[int]:
    """The ranks that may be named for this culprit's cause."""
    everyone = frozenset(range(run.job.ranks))
    found = frozenset(rank for fault in run.faults for rank in fault.ranks)
    if culprit.cause != "communication":
        return found
    for fault in run.faults:
        if fault.kind == "slow_collective":
            return everyone
        if fault.kind == "slow_link":
            found |= _neighbours(run, fault.ranks)
    return found


def _neighbours(run: Run, ranks: Sequence[int] | frozenset[int]) -> frozenset[int]:
    """All who share a group with one of them."""
    return frozenset(
        other
        for numbers in run.plan.groups.values()
        for rank in ranks
        for other in range(run.job.ranks)
        if numbers[rank] >= 0 and numbers[rank] == numbers[other]
    )


def _halves(one: Case, folder: Path) -> tuple[int, int]:
    """The rules of a lake of odd steps alone, on the even ones of what ran."""
    _traces(one, folder / "odd" / "traces", lambda step: step % 2 == 1)
    lake = ingest_traces(folder / "odd")
    return broken(one.run, lake, [step for step in one.run.job.step_numbers if step % 2 == 0])


def _words(culprit: Any) -> str:
    ranks = "+".join(map(str, sorted(_ranks(culprit)))) or "none"
    return f"{culprit.cause} on {culprit.scope} {ranks}, {culprit.gain_ns} ns"
