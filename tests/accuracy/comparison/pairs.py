"""Pairs of runs from seeds: of every shape, size and noise, without a change or with a known one; and their scores."""

import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

import numpy as np

from jitter.comparison.compare_documents import Comparison, compare_documents
from jitter.comparison.document import Document
from jitter.comparison.gates import Result, check_regression
from jitter.comparison.runs import load_run
from jitter.simulate import Job, Run, simulate
from jitter.simulate.shapes import SHAPES
from tests.accuracy.comparison.changes import KINDS, Change, make_change
from tests.support.simulated import ingest_run

HEALTHY: Final = 11_000_000
CHANGED: Final = 12_000_000
"""The first seeds of pairs without a change and with one."""
PAIRS: Final = 300
MAX_REGRESSION: Final = 0.03
_RANKS: Final = (2, 2, 3, 4, 4, 4, 6, 8, 8, 8, 12, 16, 16, 32, 64)
_CELLS: Final = 16_000
"""About so many kernels has a run at most."""


class Score(NamedTuple):
    """How one pair went."""

    seed: int
    shape: str
    kind: str
    about: str
    verdict: str
    gate: str
    """Result of `check --max-regression 3%`."""
    fraction: float | None
    """The step's change that the comparison states."""
    truth: float
    """The step's change in the simulator: the same seed without the change."""
    noise: float | None
    first_right: bool
    """Whether the kernel, class of time or rank that adds most to the step is the known one."""

    @property
    def counts(self) -> bool:
        """Whether the change exceeds twice the noise: it must be found."""
        return self.kind != "healthy" and self.noise is not None and abs(self.truth) > 2 * self.noise

    @property
    def is_right(self) -> bool:
        """Whether the verdict is that of the truth."""
        if self.kind == "healthy":
            return self.verdict == "same"
        return self.verdict == ("slower" if self.truth > 0 else "faster")


def job_of(seed: int, rng: np.random.Generator, is_changed: bool) -> tuple[Job, Job]:
    """Return the jobs of a pair: the same program, other noise, other numbers of steps and sometimes of ranks."""
    shape = list(SHAPES)[seed % len(SHAPES)]
    ranks = int(rng.choice(_RANKS))
    more: dict[str, Any] = {}
    if shape == "pipeline":
        stages = int(rng.integers(2, 5))
        ranks = max(2, ranks // stages) * stages
        more = {"stages": stages, "microbatches": int(rng.integers(2, 4))}
    elif shape in ("tensor_data", "expert"):
        ranks = max(ranks - ranks % 2, 4)
        more = {"tensor" if shape == "tensor_data" else "experts": 2}
    if is_changed and KINDS[(seed // len(SHAPES)) % len(KINDS)] == "host":
        more["cpu_bound"] = True
    kernels = int(rng.integers(100 if shape == "pipeline" else 60, 160))
    steps = [int(rng.integers(6, 16)) for _ in range(2)]
    steps = [max(6, min(own, _CELLS // (ranks * kernels))) for own in steps]
    job = Job(
        ranks=ranks,
        steps=steps[0],
        kernels=kernels,
        seed=2 * seed,
        gpus_per_node=8 if ranks % 8 == 0 else ranks,
        noise=float(rng.choice([0.01, 0.02, 0.03, 0.05])),
        cpu_noise=0.08,
        epoch=None,
        marker="profiler",
        shape=shape,
        **more,
    )
    wanted = ranks
    unit = int(more.get("stages", 2 if shape in ("tensor_data", "expert") else 1))
    # a pipeline of one replica has no gradients to reduce: with more replicas it would be another program
    if rng.random() < 0.3 and (shape != "pipeline" or ranks > unit):
        apart = unit * max(1, ranks // 4 // unit) * int(rng.choice([-1, 1]))
        wanted = max(2 * unit, ranks + apart)
    other = replace(
        job, steps=steps[1], seed=2 * seed + 1, ranks=wanted, gpus_per_node=8 if wanted % 8 == 0 else wanted
    )
    return job, other


def score(seed: int, is_changed: bool) -> Score:
    """Simulate, ingest and compare the pair of this seed."""
    rng = np.random.default_rng(seed)
    base_job, new_job = job_of(seed, rng, is_changed)
    base, new = simulate(base_job), simulate(new_job)
    kind = KINDS[(seed // len(SHAPES)) % len(KINDS)] if is_changed else "healthy"
    change = make_change(kind, new, rng) if is_changed else Change("healthy", new, frozenset(), frozenset())
    documents = [_document(base), _document(change.run)]
    found = compare_documents(documents[:1], documents[1])
    gate = check_regression(found, MAX_REGRESSION)
    about = (
        f"{base_job.ranks}/{new_job.ranks} ranks, {base_job.steps}/{new_job.steps} steps, {base_job.kernels} kernels"
    )
    return Score(
        seed,
        base_job.shape,
        kind,
        f"{about}, noise {base_job.noise}: {found.sentence}",
        found.verdict,
        Result(gate.result).name,
        None if found.effect is None else found.effect.fraction,
        _step_ns(change.run) / _step_ns(new) - 1,
        None if found.effect is None else found.effect.noise_fraction,
        _is_first(change, found),
    )


def _document(run: Run) -> Document:
    with tempfile.TemporaryDirectory(prefix="jitter-pair-") as name:
        return load_run(ingest_run(run, Path(name)).root)


def _step_ns(run: Run) -> float:
    return median(time for time in run.step_times().values() if time is not None)


def _is_first(change: Change, found: Comparison) -> bool:
    """Whether the known change is named first: among kernels, classes of time or ranks."""
    if change.rank is not None:
        ranks = sorted(found.ranks, key=lambda one: -abs(one.difference_ns or 0))
        return ranks[0].rank == change.rank
    kernels: list[Any] = [] if found.kernels is None else found.kernels.changes[:1]
    names = {name for one in kernels for joined in (one.kernel_name, one.new_kernel_name) for name in _split(joined)}
    if change.kernels & names:
        return True
    largest = max(found.split, key=lambda part: abs(part.difference_ns), default=None)
    return largest is not None and largest.part in change.parts


def _split(joined: str | None) -> Sequence[str]:
    return joined.split(" + ") if joined else []


def score_all(seeds: Sequence[tuple[int, bool]], processes: int) -> Iterator[Score]:
    """Yield the scores of these (seed, is changed), in order."""
    if processes < 2:
        yield from (score(*one) for one in seeds)
        return
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        yield from pool.map(score, *zip(*seeds, strict=True))
