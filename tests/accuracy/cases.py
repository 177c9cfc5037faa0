"""Jobs from seeds: of every shape, size and noise, healthy and with every fault, recorded whole or in part."""

from dataclasses import dataclass
from statistics import median
from typing import Any, Final

import numpy as np

from jitter.simulate import Fault, Job, Run, simulate
from jitter.simulate.shapes import SHAPES
from tests.accuracy.fault_kinds import KINDS, Site

REPORTED: Final = 5_000_000
TUNING: Final = 7_000_000
"""The first seeds of the jobs that are reported, and of those that the analysis may be tuned on."""
JOBS: Final = 330

_NOISES: Final = ((0.005, 0.03), (0.02, 0.08), (0.05, 0.2))
"""Relative deviations of times on the GPU and on the host."""
_RANKS: Final = (2, 3, 4, 4, 6, 8, 8, 8, 12, 16, 16, 24, 32, 64)
_GROUPED: Final = frozenset({"tensor_data", "expert", "pipeline"})
"""Shapes of several groups, which Kineto alone records."""
_FORMATS: Final = ("nsys", "nsys", "nsys", "kineto", "rocprof-csv", "rocpd")
_CELLS: Final = 30_000
"""About so many kernels has a job at most."""


@dataclass(frozen=True)
class Case:
    """One job as it was and as it was recorded."""

    seed: int
    run: Run
    kind: str
    """The faults' kinds; "healthy" where there is none."""
    form: str
    """The traces' format."""
    absent: frozenset[int]
    """Ranks without a trace."""
    late: frozenset[int]
    """Ranks whose recording lacks the first step."""
    early: frozenset[int]
    """Ranks whose recording lacks the last step."""

    @property
    def is_healthy(self) -> bool:
        """Whether there is nothing to find."""
        return not self.run.faults

    def __str__(self) -> str:
        job, usual = self.run.job, Job()
        names = ("tensor", "stages", "microbatches", "experts", "cpu_bound", "launch_queue", "variable_work")
        more = [*names, "autotuned", "side_stream", "second_thread"]
        said = [f"{name}={getattr(job, name)}" for name in more if getattr(job, name) != getattr(usual, name)]
        said += [f"syncs={'+'.join(sorted(job.syncs))}"] if job.syncs else []
        for name in ("absent", "late", "early"):
            if ranks := getattr(self, name):
                said.append(f"{name}={sorted(ranks)}")
        size = f"{job.ranks} ranks ({job.gpus_per_node} a node), {job.steps} steps, {job.kernels} kernels"
        return f"{self.seed}: {job.shape}, {size}, noise {job.noise}, {self.form}; {' '.join(said)}; {self.kind}"


def tenth(base: int, jobs: int = JOBS) -> list[int]:
    """One seed of each ten, another one every time: every tenth would meet half the shapes alone."""
    return [base + 10 * number + number % 10 for number in range(jobs // 10)]


def case(seed: int) -> Case:
    """The job of this seed. Consecutive seeds go through shapes, noises and kinds of faults in turn."""
    rng = np.random.default_rng(seed)
    shape = list(SHAPES)[seed % len(SHAPES)]
    turn = seed // len(SHAPES)
    job = _job(rng, seed, shape, _NOISES[turn % len(_NOISES)])
    healthy = simulate(job)
    third = (turn // len(_NOISES)) % 3
    count = 0 if third == 0 else 2 if third == 2 and turn % 2 and job.ranks > 3 else 1
    faults, kinds = _faults(rng, healthy, turn, seed % len(SHAPES), count)
    run = simulate(job, faults)
    touched = {rank for fault in faults for rank in fault.ranks}
    absent, late, early = _losses(rng, run, touched)
    form = "kineto" if shape in _GROUPED else str(rng.choice(_FORMATS))
    return Case(seed, run, " + ".join(kinds) or "healthy", form, absent, late, early)


def _job(rng: np.random.Generator, seed: int, shape: str, noise: tuple[float, float]) -> Job:
    ranks = int(rng.choice(_RANKS))
    kernels, steps = int(rng.integers(60, 250)), int(rng.integers(5, 13))
    more: dict[str, Any] = {}
    if shape == "pipeline":
        stages = int(rng.integers(2, 5))
        # a rank is compared with those of its stage
        ranks = max(2, ranks // stages) * stages
        more = {"stages": stages, "microbatches": int(rng.integers(2, 5))}
        kernels = max(kernels, 100)
    elif shape in _GROUPED and ranks < 4:
        ranks = 4
    per_node = int(rng.choice([n for n in (2, 3, 4, 8) if ranks % n == 0 or n > ranks] or [2]))
    steps = max(5, min(steps, _CELLS // (ranks * kernels)))
    kernels = min(kernels, max(60 if shape != "pipeline" else 100, _CELLS // (ranks * steps)))
    if rng.random() < 0.12:
        more["cpu_bound"] = True
    if rng.random() < 0.2:
        more["launch_queue"] = int(rng.integers(16, 65))
    # without one the host runs ahead by more and more, and hides whatever comes late
    if rng.random() < 0.55:
        more["syncs"] = frozenset(
            str(where) for where in rng.choice(["loss", "before", "after"], int(rng.integers(1, 3)))
        )
    if rng.random() < 0.1:
        more["variable_work"] = 0.03
    if rng.random() < 0.12:
        more["autotuned"] = float(rng.uniform(0.1, 0.5))
    if rng.random() < 0.15:
        more["side_stream"] = 21
    first_step = int(rng.integers(0, 3)) * 100
    rng.choice(2)  # decides nothing any more: without it, each seed would give another job than before
    return Job(
        ranks=ranks,
        steps=steps,
        kernels=kernels,
        seed=seed,
        gpus_per_node=per_node,
        first_step=first_step,
        epoch=None,
        marker="profiler",
        noise=noise[0],
        cpu_noise=noise[1],
        second_thread=bool(rng.random() < 0.7),
        shape=shape,
        **more,
    )


def _faults(rng: np.random.Generator, healthy: Run, turn: int, place: int, count: int) -> tuple[list[Fault], list[str]]:
    """So many kinds of faults, on ranks of their own."""
    job = healthy.job
    step_ns = median(time for time in healthy.step_times().values() if time is not None)
    free = set(range(job.ranks))
    faults: list[Fault] = []
    kinds: list[str] = []
    # 7 has no factor in common with the number of kinds: a shape meets all of them
    first = 7 * turn + place
    for number in range(count):
        if len(free) <= job.ranks // 2:
            break
        names = list(KINDS)
        kind = names[(first + number * int(rng.integers(1, len(names)))) % len(names)]
        site = Site(rng, healthy, step_ns, frozenset(free))
        made = KINDS[kind](site)
        if not made:
            kind = "slow_gpu"
            made = KINDS[kind](site)
        faults += made
        kinds.append(kind)
        free -= _taken(healthy, {rank for fault in made for rank in fault.ranks})
    return faults, kinds


def _taken(run: Run, ranks: set[int]) -> set[int]:
    """These ranks, and the others of the same stage where they are so few that a second fault would be the rule."""
    found = set(ranks)
    for stage in {int(run.plan.stage[rank]) for rank in ranks}:
        mine = run.plan.ranks_of(stage).tolist()
        found |= set(mine) if len(mine) < 4 else set()
    return found


def _losses(
    rng: np.random.Generator, run: Run, touched: set[int]
) -> tuple[frozenset[int], frozenset[int], frozenset[int]]:
    """Ranks without a trace, and those that lack the first or the last step: never a culprit, never too many."""
    spare: list[int] = []
    for stage in range(len(run.plan.programs)):
        ranks = run.plan.ranks_of(stage).tolist()
        left = [rank for rank in ranks if rank not in touched]
        spare += left[: max(0, len(ranks) - 3)]

    def some(chance: float) -> frozenset[int]:
        if not spare or rng.random() > chance:
            return frozenset()
        return frozenset(int(rank) for rank in rng.choice(spare, min(len(spare), int(rng.integers(1, 3)))))

    absent = some(0.2)
    return absent, some(0.15) - absent, some(0.15) - absent
