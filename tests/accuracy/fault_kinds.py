"""The kinds of faults of the harness: what goes wrong, how much of a step it takes, in which steps."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from jitter.simulate import Fault, Run


@dataclass(frozen=True)
class Site:
    """The places at which a fault may be put."""

    rng: np.random.Generator
    run: Run
    """Without faults."""
    step_ns: float
    """Its median step."""
    free: frozenset[int]
    """Ranks without a fault."""

    def rank(self) -> int:
        """A rank that is free."""
        return int(self.rng.choice(sorted(self.free)))

    def kernels(self, rank: int) -> int:
        """Kernels of a step of this rank."""
        return self.run.plan.programs[self.run.plan.stage[rank]].kernels

    def ms(self, least: float, most: float) -> float:
        """A time of this part of a step."""
        return round(float(self.rng.uniform(least, most)) * self.step_ns / 1e6, 6)

    def factor(self, least: float, most: float) -> float:
        """A factor between these."""
        return round(float(self.rng.uniform(least, most)), 3)

    def steps(self) -> frozenset[int] | None:
        """All steps, one, a stretch, or every second or third; never the first alone, of which no time is known."""
        numbers = self.run.job.step_numbers
        pattern = self.rng.choice(["all", "all", "one", "stretch", "every"])
        if pattern == "all":
            return None
        if pattern == "one":
            return frozenset({int(self.rng.choice(numbers[1:]))})
        if pattern == "stretch":
            first = int(self.rng.integers(1, len(numbers) - 1))
            return frozenset(numbers[first : first + max(2, len(numbers) // 3)])
        return frozenset(numbers[1 :: int(self.rng.integers(2, 4))])

    def few_steps(self) -> frozenset[int]:
        """Up to a third of the steps: the others are what these are compared with."""
        numbers = self.run.job.step_numbers[1:]
        return frozenset(self.rng.choice(numbers, max(1, len(numbers) // 3), replace=False).tolist())


def _late(site: Site) -> list[Fault]:
    return [Fault("late_start", frozenset({site.rank()}), site.steps(), ms=site.ms(0.2, 2.0), loading=False)]


def _unequal(site: Site) -> list[Fault]:
    return [Fault("unequal_work", frozenset({site.rank()}), site.steps(), factor=site.factor(1.1, 1.6))]


def _stall(site: Site) -> list[Fault]:
    rank = site.rank()
    kernel = int(site.rng.integers(site.kernels(rank) // 10, site.kernels(rank)))
    return [Fault("cpu_stall", frozenset({rank}), site.steps(), kernel=kernel, ms=site.ms(0.4, 2.0))]


def _slow_cpu(site: Site) -> list[Fault]:
    factor = site.factor(1.3, 2) if site.run.job.cpu_bound else site.factor(4, 8)
    return [Fault("slow_cpu", frozenset({site.rank()}), site.steps(), factor=factor)]


def _slow_part(site: Site) -> list[Fault]:
    """One part of the step alone."""
    rank = site.rank()
    count = site.kernels(rank)
    first = int(site.rng.integers(count // 2))
    part = frozenset(range(first, first + count // 4))
    return [Fault("slow_gpu", frozenset({rank}), site.steps(), kernels=part, factor=site.factor(1.5, 3))]


def _extra(site: Site) -> list[Fault]:
    rank = site.rank()
    kernel = int(site.rng.integers(2, site.kernels(rank) - 2))
    return [Fault("extra_kernel", frozenset({rank}), site.steps(), kernel=kernel, ms=site.ms(0.05, 0.5))]


def _slow_link(site: Site) -> list[Fault]:
    """With several groups it may last: the others' transfers show what they should take."""
    lasting = site.run.job.shape in ("tensor_data", "expert") and site.rng.random() < 0.5
    steps = None if lasting else site.few_steps()
    return [Fault("slow_link", frozenset({site.rank()}), steps, factor=site.factor(3, 8))]


def _pauses(site: Site) -> list[Fault]:
    """A fault a rank: each has its steps, and its gain."""
    job = site.run.job
    if job.ranks > 8 or len(site.free) < job.ranks:
        return []
    every = max(3, job.ranks)
    ms = site.ms(0.8, 2.0)
    faults = [Fault("pause", frozenset({rank}), every=every, ms=ms) for rank in range(job.ranks)]
    return [fault for fault in faults if any(fault.pauses(min(fault.ranks), step) for step in job.step_numbers[1:])]


def _together(site: Site, ranks: frozenset[int]) -> list[Fault]:
    if not ranks <= site.free:
        return []
    if site.rng.random() < 0.5:
        return [Fault("slow_gpu", ranks, site.steps(), factor=site.factor(1.1, 1.5))]
    return [Fault("late_start", ranks, site.steps(), ms=site.ms(0.1, 0.6))]


def _host(site: Site) -> list[Fault]:
    """All ranks of a host, of three hosts at least."""
    job = site.run.job
    hosts = job.ranks // job.gpus_per_node
    # in a pipeline a host may hold a whole stage, and then has nobody to be compared with
    if hosts < 3 or job.gpus_per_node == 1 or job.shape == "pipeline":
        return []
    first = int(site.rng.integers(hosts)) * job.gpus_per_node
    return _together(site, frozenset(range(first, first + job.gpus_per_node)))


def _device(site: Site) -> list[Fault]:
    """The same device of every host, of three a host at least."""
    job = site.run.job
    if job.ranks // job.gpus_per_node < 2 or job.gpus_per_node < 3:
        return []
    return _together(site, frozenset(range(int(site.rng.integers(job.gpus_per_node)), job.ranks, job.gpus_per_node)))


def _alternating(site: Site) -> list[Fault]:
    """Two ranks, each late in every second step."""
    if len(site.free) < 4:
        return []
    ms = site.ms(0.2, 0.8)
    numbers = site.run.job.step_numbers
    ranks = site.rng.choice(sorted(site.free), 2, replace=False).tolist()
    return [
        Fault("late_start", frozenset({rank}), frozenset(numbers[first::2]), ms=ms) for first, rank in enumerate(ranks)
    ]


KINDS: Final[dict[str, Callable[[Site], list[Fault]]]] = {
    "late_start": lambda site: [
        Fault("late_start", frozenset({site.rank()}), site.steps(), ms=site.ms(0.2, 2.0), loading=False)
    ],
    "slow_gpu": lambda site: [Fault("slow_gpu", frozenset({site.rank()}), site.steps(), factor=site.factor(1.06, 1.5))],
    "cpu_stall": _stall,
    "unequal_work": lambda site: [
        Fault("unequal_work", frozenset({site.rank()}), site.steps(), factor=site.factor(1.1, 1.6))
    ],
    "slow_link": _slow_link,
    "host": _host,
    "slow_cpu": _slow_cpu,
    "data_loading": lambda site: [Fault("late_start", frozenset({site.rank()}), site.steps(), ms=site.ms(0.2, 2.0))],
    "slow_part": _slow_part,
    "extra_kernel": _extra,
    "slow_collective": lambda site: [Fault("slow_collective", steps=site.few_steps(), factor=site.factor(3, 8))],
    "pauses": _pauses,
    "drift": lambda site: [Fault("slow_gpu", frozenset({site.rank()}), factor=site.factor(1.2, 1.8), drift=True)],
    "alternating": _alternating,
    "device": _device,
}
"""Each makes its faults; none where the job has no room for them."""
