"""Jobs of which a part of the recording is lost: every answer is right for what is there, or says nothing."""

import random
import shutil
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path

import jitter
from jitter.core.errors import JitterError
from jitter.ingestion.ingest import IngestReport
from jitter.simulate import Fault, Job, Run, simulate, write
from jitter.simulate.formats import FORMATS
from jitter.simulate.shapes import SHAPES
from tests.support.recorded_events import list_events
from tests.torture.answer_checks import Row, Step, Whole, ask, describe_crash, find_wrong_answers, step_times_of
from tests.torture.figures import Figures
from tests.torture.partial_recordings import files_of_ranks, lose_parts

CASES_A_JOB = 6
KERNEL_TABLES = {"nsys": "CUPTI_ACTIVITY_KIND_KERNEL", "kineto": "kernel"}
"""AMD's tables hold fills of memory too."""
PAGE_EVERY = 5
"""A page takes as long as all other answers."""
_GROUPED = frozenset({"tensor_data", "expert", "pipeline"})
"""Shapes of several groups, which Kineto alone records."""


def ask_partial_jobs(cases: int, seed: int) -> Figures:
    """Ingest what is left of simulated jobs, and compare all answers with the job and its whole recording."""
    figures = Figures("answers of partial recordings")
    with tempfile.TemporaryDirectory() as folder:
        original: Original | None = None
        for case in range(cases):
            number = case // CASES_A_JOB
            if original is None or original.number != number:
                shutil.rmtree(Path(folder, "whole"), ignore_errors=True)
                original = Original(seed, number, Path(folder, "whole"))
            chance = random.Random(f"{seed} {case}")
            place = Path(folder, "case")
            with warnings.catch_warnings():
                warnings.simplefilter("error", RuntimeWarning)  # a user would read it on stderr
                outcome, failure = _ask_case(original, place, chance, with_page=case % PAGE_EVERY == 0)
            figures.count(outcome, None if failure is None else f"case {seed} {case}, {original}: {failure}")
            shutil.rmtree(place, ignore_errors=True)
    return figures


class Original:
    """A job, its whole recording, and the answers of that."""

    def __init__(self, seed: int, number: int, place: Path) -> None:
        chance = random.Random(f"{seed} original {number}")
        self.number = number
        self.run = _simulate(chance, list(SHAPES)[number % len(SHAPES)])
        formats = ["kineto"] * (6 if self.run.job.shape in _GROUPED else 2) + [*FORMATS]
        self.format = chance.choice(formats)
        self.traces = place / "in"
        write(self.run, self.traces, self.format)
        report = jitter.ingest(self.traces, place / "lake", executor=jitter.LocalExecutor())
        if report.refused:
            raise RuntimeError(f"{self}: {report.refused}")
        answers = ask(place / "lake")
        above_low = [one for one in answers.report["culprits"] if one["confidence"] != "low"]
        found = frozenset(rank for one in above_low for rank in one["ranks"] if one["scope"] != "job")
        faulty = frozenset(rank for fault in self.run.faults for rank in fault.ranks)
        self.whole = Whole(
            rows=answers.rows,
            step_times=step_times_of(answers),
            document=answers.document,
            guilty=found | faulty,
            found=found & faulty,
            tables=answers.tables,
            recorded=_recorded(self.run, answers.rows),
        )

    def __str__(self) -> str:
        job = self.run.job
        kinds = ", ".join(f"{fault.kind} {sorted(fault.ranks)}" for fault in self.run.faults) or "healthy"
        return f"{job.shape} {self.format} {job.ranks} ranks {job.steps} steps {job.kernels} kernels ({kinds})"


def _recorded(run: Run, rows: Mapping[Row, Step]) -> frozenset[tuple[int, int]]:
    """Return (rank, start) of every activity of the run, on the clock of these rows of it."""
    first: dict[int, int] = {}
    for row in rows:
        first[row.rank] = min(first.get(row.rank, row.start_ns), row.start_ns)
    found: set[tuple[int, int]] = set()
    for own in run.ranks():
        clock = first[own.rank] - int(own.start_ns[own.in_step].min())
        found |= {(own.rank, start + clock) for start in own.start_ns.tolist()}
    return frozenset(found)


def _simulate(chance: random.Random, shape: str) -> Run:
    ranks = chance.choice((4, 6, 8)) if shape in _GROUPED else chance.randint(3, 8)
    kernels = chance.randint(90, 120) if shape == "pipeline" else chance.randint(24, 60)
    job = Job(
        ranks=ranks,
        steps=chance.randint(2, 7),
        kernels=kernels,
        seed=chance.randrange(1_000_000),
        shape=shape,
        first_step=chance.choice((0, 1, 2000)),
        gpus_per_node=chance.choice((2, 4, 8)),
        stages=2 if shape == "pipeline" else None,
        microbatches=3 if shape == "pipeline" else None,
        syncs=frozenset(chance.choice(((), ("loss",), ("loss", "before")))),
    )
    rank, step = frozenset({chance.randrange(ranks)}), frozenset({chance.choice(job.step_numbers)})
    fault = chance.choice(
        (
            None,
            None,
            Fault("slow_gpu", rank, factor=1.4),
            Fault("slow_gpu", rank, step, factor=2.0),
            Fault("cpu_stall", rank, step, kernel=chance.randrange(20), ms=3),
            Fault("late_start", rank, step, ms=4),
            Fault("slow_cpu", rank, factor=6),
            Fault("extra_kernel", rank, kernel=chance.randrange(2, 20), ms=1),
        )
    )
    return simulate(job, [] if fault is None else [fault])


def _ask_case(original: Original, place: Path, chance: random.Random, *, with_page: bool) -> tuple[str, str | None]:
    shutil.copytree(original.traces, place / "in")
    lost = lose_parts(place / "in", original.format, chance)
    kinds = " + ".join(sorted(set(lost.values()))) if len(set(lost.values())) == 1 else "several losses"
    told = f"lost {lost}"
    try:
        report = jitter.ingest(place / "in", place / "lake", executor=jitter.LocalExecutor())
        if not any(record.steps for record in report.added):
            return f"{kinds}: no lake", None
        answers = ask(place / "lake", original.whole.document, with_page=with_page)
    except JitterError as error:
        return f"{kinds}: refused", f"{told}: {error}"
    except Exception as error:
        return f"{kinds}: crash", f"{told}: {describe_crash(error)}"
    wrong = list(find_wrong_answers(answers, original.whole, lost))
    wrong += _miscounted(report, place / "in", original.format, lost)
    if wrong:
        return f"{kinds}: wrong", f"{told}: {'; '.join(wrong)}"
    return f"{kinds}: right", None


def _miscounted(report: IngestReport, traces: Path, form: str, lost: dict[int, str]) -> Iterator[str]:
    """Yield recordings of which jitter counts other kernels than their files hold, where those can be read plainly."""
    for rank, files in files_of_ranks(traces).items():
        told = [record.kernels for record in report.added if record.rank == rank]
        if form in KERNEL_TABLES and told and lost.get(rank) not in ("cut", "damaged"):
            kernels = sum(event.table == KERNEL_TABLES[form] for event in list_events(files))
            if sum(told) != kernels:
                yield f"{sum(told)} kernels of rank {rank}, whose recording has {kernels}"
