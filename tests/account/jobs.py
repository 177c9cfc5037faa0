"""Small jobs with faults, and the limit within which their shares agree with exact Shapley values."""

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import jitter
from jitter.analysis.detection.run_analysis import RunAnalysis
from jitter.simulate import Fault, Job, RankRecording, Run, simulate
from tests.accuracy.irregular.scoring import write_job
from tests.accuracy.irregular.waits import case as waiting_job
from tests.accuracy.layouts.job import LayoutJob
from tests.accuracy.layouts.traces import ingest_job
from tests.support.simulated import PartialRun, ingest_run

SINGLE: Final = 0.02
"""Of the loss: one fault, little noise."""
HIDDEN: Final = 0.15
"""One fault hides another, or the loss is noise."""
CALM: Final = {"noise": 0.005, "cpu_noise": 0.02}
FIRST_STEP: Final = 100

SHAPES: Final[Mapping[str, Mapping[str, Any]]] = {
    "data": {},
    "overlapped": {"buckets": 6},
    "tensor": {"shape": "tensor_parallel"},
    "sharded": {"shape": "sharded"},
    "expert": {"shape": "expert"},
    "pipeline": {"shape": "pipeline", "stages": 4, "kernels": 100},
    "two teams": {"shape": "pipeline", "stages": 2, "microbatches": 2, "ranks": 6},
    "tensor and data": {"shape": "tensor_data"},
    "queue": {"launch_queue": 24, "cpu_ns": 3000, "call_ns": 2500},
    "queue and tensor": {"launch_queue": 12, "cpu_ns": 2500, "call_ns": 2000, "shape": "tensor_parallel"},
    "interference": {"interference": 0.3, "buckets": 4},
    "interference and groups": {"interference": 0.25, "shape": "tensor_data"},
}
SLOW_GPU: Final = "slow_gpu:rank=2,factor=1.2"
SLOW_GPU_ONCE: Final = "slow_gpu:rank=2,factor=1.3,step=103"
LATE: Final = "late_start:rank=1,step=103,ms=1.5"
LATE_TOO: Final = "late_start:rank=3,step=103,ms=1.5"
STALL: Final = "cpu_stall:rank=2,step=103,kernel=17,ms=2"
SLOW_CPU: Final = "slow_cpu:rank=3,factor=3"
SLOW_TRANSFERS: Final = "slow_collective:factor=8,step=103"
PAUSE: Final = "late_start:rank=1,step=101,ms=20"
LACKING: Final = ("extra_kernel:rank=1,kernel=9", "missing_kernel:rank=0,kernel=6,step=102")


@dataclass(frozen=True)
class Case:
    shape: str
    faults: tuple[str, ...] = ()
    limit: float = SINGLE
    joins_late: bool = False
    """Whether rank 3 has not the first two steps."""
    options: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return " ".join((self.shape, *self.faults, *(["joins late"] if self.joins_late else []), *self.options))

    @property
    def job(self) -> Job:
        calm = CALM if self.limit == SINGLE else {}
        sized = {"ranks": 4, "steps": 5, "kernels": 50, "first_step": FIRST_STEP, "seed": 3}
        return Job(**{**sized, **calm, **SHAPES[self.shape], **self.options})


CASES: Final = (
    Case("data", (SLOW_GPU,)),
    Case("data", (SLOW_CPU,)),
    Case("data", (SLOW_TRANSFERS,)),
    Case("data", (), HIDDEN),
    Case("data", (LATE, SLOW_GPU_ONCE), HIDDEN),
    Case("data", (SLOW_GPU,), joins_late=True),
    Case("data", (LATE, LATE_TOO), HIDDEN, joins_late=True),
    Case("data", (SLOW_GPU, *LACKING)),
    Case("overlapped", (SLOW_GPU,)),
    Case("overlapped", (LATE, LATE_TOO), HIDDEN),
    Case("tensor", (SLOW_GPU,)),
    Case("tensor", (), HIDDEN, options={"ranks": 5}),
    Case("tensor", (SLOW_TRANSFERS,)),
    Case("tensor", (SLOW_CPU,), HIDDEN),
    Case("tensor", (SLOW_GPU,), joins_late=True),
    Case("tensor", (SLOW_GPU, *LACKING)),
    Case("sharded", (SLOW_GPU,)),
    Case("sharded", (SLOW_TRANSFERS,)),
    Case("sharded", (), HIDDEN),
    Case("expert", (SLOW_GPU,)),
    Case("expert", (), HIDDEN),
    Case("pipeline", (SLOW_GPU_ONCE,)),
    Case("pipeline", (SLOW_TRANSFERS,)),
    Case("two teams", (SLOW_GPU,)),
    Case("two teams", (LATE, SLOW_GPU_ONCE), HIDDEN),
    Case("tensor and data", (SLOW_GPU,)),
    Case("tensor and data", (), HIDDEN),
    Case("queue", (SLOW_GPU,)),
    Case("queue", (STALL,)),
    Case("queue and tensor", (STALL,)),
    Case("queue and tensor", (LATE, SLOW_GPU_ONCE), HIDDEN),
    Case("interference", (SLOW_GPU,)),
    Case("interference", (LATE, LATE_TOO), HIDDEN),
    Case("interference and groups", (SLOW_GPU,)),
)
HELD: Final = {"launch_queue": 24, "syncs": frozenset({"loss", "before", "after"}), "autotuned": 0.4}
BESIDE: Final = {"side_stream": 21, "second_thread": False, "cpu_bound": True, "variable_work": 0.03}
ODD: Final = (
    Case("data", (SLOW_CPU,), HIDDEN, options=HELD),
    Case("sharded", (SLOW_CPU,), HIDDEN, options=HELD),
    Case("tensor", (SLOW_CPU,), HIDDEN, options=BESIDE),
    Case("pipeline", (SLOW_CPU,), HIDDEN, options=BESIDE),
)
"""Held by calls that wait, or bound by hosts and with side streams."""
WAITS: Final = (700_000, 700_002, 700_008)
"""Seeds of jobs whose hosts wait without a record."""


@contextmanager
def analyzed(case: Case, renumbered: Sequence[int] = ()) -> Iterator[RunAnalysis]:
    """Simulate, ingest and analyze a job; `renumbered` (ranks,) are other numbers for its ranks."""
    run = simulate(case.job, [Fault.parse(one) for one in case.faults])
    if renumbered:
        run = RenumberedRun(run, renumbered)  # type: ignore[assignment]
    if case.joins_late:
        run = PartialRun(run, frozenset(), lambda rank, step: rank != 3 or step >= FIRST_STEP + 2)  # type: ignore[assignment]
    with tempfile.TemporaryDirectory() as folder:
        yield ingest_run(run, Path(folder)).analyze()


@contextmanager
def analyzed_waits(seed: int) -> Iterator[RunAnalysis]:
    """Ingest and analyze a job of another generator, whose hosts wait without a record."""
    with tempfile.TemporaryDirectory() as folder:
        traces, lake = Path(folder) / "traces", Path(folder) / "lake"
        traces.mkdir()
        write_job(waiting_job(seed)[0], traces)
        jitter.ingest([traces], lake, executor=jitter.LocalExecutor())
        yield jitter.open(lake).analyze()


@contextmanager
def analyzed_crossed() -> Iterator[RunAnalysis]:
    """Ingest and analyze a job whose ranks come to their messages in different orders."""
    job = LayoutJob(5, shape="crossed", row=2, ranks=4, microbatches=4, naming="ranks", slow=(1, 1.3), late=(2, 3e5))
    with tempfile.TemporaryDirectory() as folder:
        yield ingest_job(job, Path(folder)).analyze()


CROSSED: Final = "messages in different orders"
JOBS: Final[Mapping[str, Callable[[], AbstractContextManager[RunAnalysis]]]] = {
    **{str(case): partial(analyzed, case) for case in (*CASES, *ODD)},
    **{f"waits {seed}": partial(analyzed_waits, seed) for seed in WAITS},
    CROSSED: analyzed_crossed,
}
"""All jobs by name."""


class RenumberedRun:
    """A run whose ranks have other numbers."""

    def __init__(self, run: Run, numbers: Sequence[int]) -> None:
        self.job, self._run, self._numbers = run.job, run, numbers

    def ranks(self, _wanted: object = None) -> Iterator[RankRecording]:
        found = [
            replace(
                one,
                rank=self._numbers[one.rank],
                groups={
                    name: group._replace(ranks=tuple(sorted(self._numbers[rank] for rank in group.ranks)))
                    for name, group in one.groups.items()
                },
            )
            for one in self._run.ranks()
        ]
        yield from sorted(found, key=lambda one: one.rank)
