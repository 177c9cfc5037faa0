"""One irregular job: run, written, ingested, diagnosed, and compared with its truth."""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final, NamedTuple

import jitter
from tests.accuracy.irregular.cases import case
from tests.accuracy.irregular.job import Fault, IrregularJob
from tests.accuracy.irregular.kineto_trace import write_trace
from tests.accuracy.irregular.programs import duration_ns, run_job, step_length_ns
from tests.support.simulated import ingest_traces

PRICE_ERROR: Final = 0.1
"""Of the true saving. A price this far off is still right."""
COSTLY: Final = 0.02
"""A fault that costs more than this part of the run must be found."""
_CAUSES: Final = {
    "slow_gpu": {"gpu_compute", "gpu_time"},
    "all_slow": {"gpu_compute", "gpu_time", "workload_imbalance"},
    "more_work": {"workload_imbalance", "gpu_time"},
    "pause": {"cpu_launch", "late_start", "cpu_after"},
    "late": {"late_start"},
    "slow_link": {"communication"},
    "slow_network": {"communication"},
}


class Finding(NamedTuple):
    """One finding of the diagnosis."""

    confidence: str
    recurs: str
    scope: str
    right: bool
    words: str


class IrregularScore(NamedTuple):
    """How one job went."""

    seed: int
    effect: str
    fault: str
    outcome: str
    """healthy: silent, job, lead, wrong. Faulty: right, lead, wrong, missed, hedged, silent, cleared;
    small: not scored. Hedged: nothing is named, but the conclusion does not clear the links."""
    findings: tuple[Finding, ...]
    gain_ns: float
    """The true saving of a repair of the faults that were found."""
    told_ns: float
    told_range_ns: tuple[float, float] | None
    """The range of the finding's saving, where it states one."""
    about: str
    verdict: str
    invented: int = 0
    """Inferred waits of a job whose hosts wait nowhere without a record."""

    @property
    def is_priced(self) -> bool:
        """Whether the saving, or the range that it states, is within 10% of the truth."""
        low, high = self.told_range_ns or (self.told_ns, self.told_ns)
        error = PRICE_ERROR * self.gain_ns
        return low - error <= self.gain_ns <= high + error


Cases = Callable[[int], tuple[IrregularJob, str]]
"""Gives the job of a seed, and its fault's name."""


def score(seed: int, cases: Cases = case) -> IrregularScore:
    """Score the job of this seed; a crash is an outcome."""
    job, fault = cases(seed)
    try:
        return _score(job, fault)
    except Exception as error:
        words = f"{type(error).__name__}: {error}"
        return IrregularScore(seed, job.effect, fault, "crash", (), 0.0, 0.0, None, _about(job), words)


def score_all(seeds: Sequence[int], processes: int, cases: Cases = case) -> Iterator[IrregularScore]:
    """Yield the scores of these seeds, in their order."""
    if processes == 1:
        yield from (score(seed, cases) for seed in seeds)
        return
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        yield from pool.map(partial(score, cases=cases), seeds, chunksize=4)


def _about(job: IrregularJob) -> str:
    said = [f"{job.shape}, {job.ranks} ranks, {job.steps} steps, {job.kernels} kernels"]
    said += [f"{name}={getattr(job, name):.3g}" for name in ("noise", "interference") if getattr(job, name)]
    said += ["no synchronisation"] if not job.synchronises else []
    fields = ("after_wait", "host_noise", "launch", "loader", "pace", "spread", "lengths", "collections")
    usual = IrregularJob(0, "", 1, 1, 1, "")
    said += [f"{name}={getattr(job, name):.3g}" for name in fields if getattr(job, name) != getattr(usual, name)]
    said += [f"waits {job.wait} on {job.wait_on}, rows={job.wait_rows}"] if job.wait else []
    said += [f"stages={job.stages} micro={job.microbatches}"] if job.stages > 1 else []
    said += [f"{one.kind} {list(one.ranks)} {one.size:.2f} steps={one.steps or 'all'}" for one in job.faults]
    return "; ".join(said)


def write_job(job: IrregularJob, folder: Path) -> list[Any]:
    """Run the job and write its traces; return what ran."""
    traces = run_job(job)
    clocks = job.rng(6).uniform(0, 5e8, job.ranks)
    for rank, trace in enumerate(traces):
        if rank not in job.absent:
            write_trace(folder, rank, job.ranks, trace, 1e9 + float(clocks[rank]), rank % job.devices)
    return traces


def ingest_job(job: IrregularJob, folder: Path) -> tuple["jitter.Lake", float]:
    """Run, write and ingest the job in a folder; return its lake, and what the job without its faults saves."""
    (folder / "traces").mkdir()
    saved = duration_ns(write_job(job, folder / "traces")) - duration_ns(run_job(job, *job.faults))
    return ingest_traces(folder), saved


def _score(job: IrregularJob, fault: str) -> IrregularScore:
    with tempfile.TemporaryDirectory(prefix="jitter-irregular-", dir=_folder()) as folder:
        (Path(folder) / "traces").mkdir()
        traces = write_job(job, Path(folder) / "traces")
        opened = ingest_traces(Path(folder))
        diagnosis = opened.diagnose()
        inferred = sum(one.provenance == "inferred" for one in opened.dependencies())
    findings = tuple(
        Finding(one.confidence, one.recurs, one.scope, _is_right(job, fault, one), _words(one))
        for one in diagnosis.culprits
    )
    total = duration_ns(traces)
    gains = {one: total - duration_ns(run_job(job, one)) for one in job.faults}
    found = [one for one in job.faults if _naming(job, one, diagnosis.culprits)]
    outcome = _outcome(job, fault, diagnosis, findings, gains, step_length_ns(traces))
    all_gain = total - duration_ns(run_job(job, *found)) if found else 0.0
    named = [culprit for one in found for culprit in _naming(job, one, diagnosis.culprits)]
    # other findings may be true of the job as well: their saving is not the fault's
    told = float(named[0].gain_ns if len(named) == 1 else diagnosis.what_if.culprits_repaired_ns or 0)
    if fault in ("majority", "all_slow"):
        # what slows most ranks, or all of them, is no part of the loss
        told = float(sum(one.gain_ns for one in diagnosis.culprits if one.scope == "job"))
    told_range = tuple(map(float, named[0].gain_range_ns)) if len(named) == 1 and named[0].gain_range_ns else None
    invented = 0 if job.wait and not job.wait_rows else inferred
    return IrregularScore(
        job.seed,
        job.effect,
        fault,
        outcome,
        findings,
        all_gain,
        told,
        told_range,
        _about(job),
        diagnosis.verdict,
        invented,
    )


def _folder() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None  # memory is faster than a disk


def _words(culprit: Any) -> str:
    ranks = "+".join(map(str, culprit.ranks))
    certainty = f"{culprit.confidence}, recurs {culprit.recurs}"
    told = f"{certainty}: {culprit.cause} on {culprit.scope} {ranks}, {culprit.gain_ns / 1e3:.0f} us"
    return "; ".join([told, culprit.step_pattern.words, *culprit.evidence[:1]])


def _naming(job: IrregularJob, fault: Fault, culprits: Sequence[Any]) -> list[Any]:
    """Return the culprits that name this fault's ranks and cause."""
    causes = _CAUSES[fault.kind]
    alike = [one for one in culprits if one.cause in causes]
    if fault.kind in ("slow_link", "slow_network"):
        return [one for one in alike if fault.kind == "slow_network" or set(fault.ranks) & set(one.ranks)]
    if fault.kind == "all_slow":
        return [one for one in alike if one.scope == "job"]
    guilty = {rank for other in job.faults if other.kind == fault.kind for rank in other.ranks}
    return [one for one in alike if set(one.ranks) <= guilty and set(one.ranks) & set(fault.ranks)]


def _is_right(job: IrregularJob, fault: str, culprit: Any) -> bool:
    """Return whether a finding is true of the job."""
    if culprit.scope == "unrecorded":
        return fault == "unrecorded"
    if culprit.scope == "job":
        return _is_true_of_all(job, fault, culprit)
    if culprit.recurs != "yes" and not job.faults and _is_true_event(job, culprit):
        return True
    if fault in ("", "unrecorded", "all_slow", "slow_network"):
        return fault == "slow_network" and culprit.cause == "communication" and len(culprit.ranks) == job.ranks
    if fault == "three" and (
        culprit.scope in ("host", "device") or any("every" in one for one in culprit.evidence[1:])
    ):
        return False
    return any(culprit in _naming(job, one, [culprit]) for one in job.faults)


def _is_true_event(job: IrregularJob, culprit: Any) -> bool:
    """Return whether a rank of a job without faults did lose the time: nothing is said of its losing it again."""
    if culprit.cause in ("cpu_launch", "late_start", "cpu_after"):
        return bool(job.collections or job.checkpoints or job.loader)
    if culprit.cause == "workload_imbalance":
        return bool(job.long_inputs)
    return culprit.cause in ("gpu_compute", "gpu_time") and bool(job.spread)


def _is_true_of_all(job: IrregularJob, fault: str, culprit: Any) -> bool:
    """Return whether a finding about the whole job is true of it."""
    if fault == "majority":
        return set(culprit.ranks) in (set(job.faults[0].ranks), set(range(job.ranks)))
    if fault == "three":
        return culprit.recurs == "unknown" and any(_naming(job, one, [culprit]) for one in job.faults)
    host = culprit.cause in ("cpu_launch", "late_start")
    if fault in ("all_slow", "slow_network"):
        return True
    if fault == "slow_link" and culprit.cause == "communication":
        return True  # of one group of all ranks, no finding can tell which link
    if host and (job.collections or job.checkpoints or job.loader):
        return True
    uneven = job.lengths or job.long_inputs or job.heavy_tails or job.wander or job.common_wander or job.spread
    return not host and culprit.cause != "communication" and bool(uneven)


def _outcome(
    job: IrregularJob,
    fault: str,
    diagnosis: Any,
    findings: Sequence[Finding],
    gains: dict[Fault, float],
    step_ns: float,
) -> str:
    above = [one for one in findings if one.confidence != "low"]
    if any(not one.right for one in above):
        return "wrong"
    if not fault:
        if not findings:
            return "silent"
        return "job" if all(one.scope == "job" for one in findings) else "lead"
    run_ns = step_ns * max(1, job.steps - 1)
    costly = [one for one, gain in gains.items() if gain > COSTLY * run_ns]
    if fault == "two" and costly:
        costly = list(job.faults) if sum(gains.values()) > COSTLY * run_ns else costly
    if not costly:
        return "small"
    said = diagnosis.conclusion
    is_network = fault in ("slow_link", "slow_network")
    cleared = not findings and ("link" if is_network else "rank") in said.cleared
    if fault == "unrecorded":
        if any(one.scope == "unrecorded" for one in findings):
            return "right"
        return "cleared" if cleared else "lead" if findings else "silent"
    named = [_naming(job, one, diagnosis.culprits) for one in costly]
    if all(named):
        sure = all(any(one.confidence != "low" for one in names) for names in named)
        return "right" if sure else "lead"
    if any(named):
        return "partly"
    if is_network and not findings and said.unverified_transfers is not None:
        return "hedged"
    return "cleared" if cleared else "silent" if not findings else "missed"
