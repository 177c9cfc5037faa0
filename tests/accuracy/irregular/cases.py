"""Jobs from seeds: effects and faults in turn, each with what a right diagnosis may say."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import numpy as np

from tests.accuracy.irregular.job import Fault, IrregularJob

TUNING: Final = 1_000
"""First seed that thresholds may be tuned on."""
REPORTED: Final = 100_000
"""First seed of reported jobs."""
JOBS: Final = 640

Rng = np.random.Generator
Effect = Callable[[Rng, int, int], dict[str, Any]]
"""Gets the generator, ranks and steps; returns fields of the job."""


def _some(rng: Rng, ranks: int, least: int, most: int) -> tuple[int, ...]:
    return tuple(int(one) for one in rng.choice(ranks, min(ranks, int(rng.integers(least, most + 1))), replace=False))


def _pipeline(naming: str) -> Effect:
    def fields(rng: Rng, _ranks: int, _steps: int) -> dict[str, Any]:
        stages, columns = int(rng.integers(2, 5)), int(rng.integers(2, 4))
        sizes = {"stages": stages, "ranks": stages * columns, "microbatches": int(rng.integers(2, 5)), "kernels": 18}
        return {"shape": "pipeline", "naming": naming, **sizes}

    return fields


EFFECTS: Final[dict[str, Effect]] = {
    "plain": lambda rng, _r, _s: {"noise": float(rng.uniform(0.005, 0.04))},
    "wandering clocks, some": lambda rng, r, _s: {"wander": 0.02, "wandering": _some(rng, r, 2, 4)},
    "wandering clocks, all": lambda _rng, r, _s: {"wander": 0.02, "wandering": tuple(range(r))},
    "common clock": lambda _rng, _r, _s: {"common_wander": 0.05},
    "GPU spread": lambda _rng, _r, _s: {"spread": 0.015},
    "heavy tails": lambda _rng, _r, _s: {"heavy_tails": 0.01, "noise": 0.02},
    "checkpoints": lambda rng, _r, s: {"checkpoints": _some(rng, s, 1, 2)},
    "long inputs": lambda _rng, _r, _s: {"long_inputs": 0.05},
    "variable lengths": lambda _rng, _r, _s: {"lengths": 0.25},
    "fixed grids": lambda _rng, _r, _s: {"lengths": 0.15, "fixed_grids": True},
    "collection pauses": lambda rng, _r, _s: {"collections": float(rng.uniform(0.1, 0.3))},
    "interference": lambda rng, _r, _s: {"interference": float(rng.uniform(0.1, 0.3)), "transfer": 0.12},
    "few ranks": lambda rng, _r, _s: {"ranks": int(rng.integers(2, 4))},
    "few steps": lambda rng, _r, _s: {"steps": int(rng.integers(2, 4))},
    "pipeline, column": _pipeline("column"),
    "pipeline, pair": _pipeline("pair"),
    "pipeline, direction": _pipeline("direction"),
    "mixture": lambda rng, r, _s: {
        "spread": 0.015,
        "wander": 0.01,
        "wandering": tuple(range(r)),
        "heavy_tails": 0.005,
        "interference": float(rng.uniform(0, 0.2)),
    },
}
COMBINATIONS: Final[tuple[tuple[str, str], ...]] = (
    *((effect, "") for effect in EFFECTS),
    ("collection pauses", ""),
    ("wandering clocks, some", ""),
    ("plain", "slow_gpu"),
    ("wandering clocks, all", "slow_gpu"),
    ("GPU spread", "slow_gpu"),
    ("heavy tails", "slow_gpu"),
    ("variable lengths", "slow_gpu"),
    ("fixed grids", "slow_gpu"),
    ("interference", "slow_gpu"),
    ("few ranks", "slow_gpu"),
    ("few steps", "pause"),
    ("mixture", "slow_gpu"),
    ("plain", "more_work"),
    ("fixed grids", "more_work"),
    ("interference", "late"),
    ("interference", "pause"),
    ("heavy tails", "pause"),
    ("mixture", "late"),
    ("checkpoints", "pause"),
    ("collection pauses", "slow_gpu"),
    ("pipeline, column", "slow_gpu"),
    ("pipeline, pair", "pause"),
    ("pipeline, direction", "slow_gpu"),
    ("pipeline, direction", "late"),
    ("plain", "two"),
    ("interference", "two"),
    ("plain", "three"),
    ("plain", "slow_link"),
    ("GPU spread", "majority"),
    ("plain", "majority"),
    ("plain", "all_slow"),
    ("mixture", "all_slow"),
    ("plain", "slow_network"),
    ("plain", "unrecorded"),
    ("mixture", "unrecorded"),
)
"""(effect, fault); consecutive seeds go through them in turn."""


def case(seed: int) -> tuple[IrregularJob, str]:
    """Return the job of this seed and its fault's name, "" if it is healthy."""
    effect, wanted = COMBINATIONS[seed % len(COMBINATIONS)]
    rng = np.random.default_rng((seed, 99))
    ranks = int(rng.choice([4, 4, 6, 8, 8, 8, 12, 16]))
    if wanted in ("majority", "three"):
        ranks = int(rng.choice([8, 8, 12, 16]))
    steps = int(rng.integers(5, 13))
    fields: dict[str, Any] = {
        "shape": str(rng.choice(["overlapped", "blocking"])),
        "kernels": int(rng.integers(24, 44)),
        "synchronises": bool(rng.random() < 0.85),
        "devices": int(rng.choice([2, 4, 8])),
        "ranks": ranks,
        "steps": steps,
    }
    fields |= EFFECTS[effect](rng, ranks, steps)
    job = IrregularJob(seed=seed, effect=effect, **fields)
    if not wanted:
        return job, ""
    faults = FAULTS[wanted](rng, job)
    absent = faults[0].ranks if wanted == "unrecorded" else ()
    return replace(job, faults=tuple(faults), absent=absent), wanted


def _steps(rng: Rng, job: IrregularJob) -> tuple[int, ...] | None:
    """All steps, or some; the first alone has no known time."""
    if job.steps < 5 or rng.random() < 0.5:
        return None
    return _steps_of(rng, job, max(1, job.steps // 3))


def _steps_of(rng: Rng, job: IrregularJob, count: int) -> tuple[int, ...]:
    return tuple(sorted(rng.choice(np.arange(1, job.steps), count, replace=False).tolist()))


def _slow_gpu(rng: Rng, job: IrregularJob) -> list[Fault]:
    irregular = job.lengths or job.wander or job.spread or job.heavy_tails
    factor = float(rng.uniform(1.10, 1.3) if irregular else rng.uniform(1.06, 1.3))
    steps = None if irregular or rng.random() < 0.7 else _steps(rng, job)
    return [Fault("slow_gpu", _some(rng, job.ranks, 1, 1), factor, steps)]


def _pause(rng: Rng, job: IrregularJob) -> list[Fault]:
    size, place = float(rng.uniform(0.4, 1.2)), float(rng.uniform(0.1, 0.9))
    return [Fault("pause", _some(rng, job.ranks, 1, 1), size, _steps(rng, job), place)]


def _late(rng: Rng, job: IrregularJob) -> list[Fault]:
    return [Fault("late", _some(rng, job.ranks, 1, 1), float(rng.uniform(0.15, 0.8)), _steps(rng, job))]


def _two(rng: Rng, job: IrregularJob) -> list[Fault]:
    """Two ranks late in the same steps: the greater masks the smaller."""
    first, second = _some(rng, job.ranks, 2, 2)
    large = float(rng.uniform(0.5, 0.8))
    return [Fault("late", (first,), large), Fault("late", (second,), large * float(rng.uniform(0.3, 0.9)))]


def _three(rng: Rng, job: IrregularJob) -> list[Fault]:
    """Three unrelated ranks, each in steps of its own, or in all."""
    found = []
    for rank in _some(rng, job.ranks, 3, 3):
        steps = _steps_of(rng, job, job.steps // 2)
        found.append(Fault("late", (rank,), float(rng.uniform(0.3, 0.8)), steps))
    return found


def _slow_link(rng: Rng, job: IrregularJob) -> list[Fault]:
    steps = _steps_of(rng, job, max(1, job.steps // 4))
    return [Fault("slow_link", _some(rng, job.ranks, 1, 1), float(rng.uniform(3, 7)), steps)]


def _majority(rng: Rng, job: IrregularJob) -> list[Fault]:
    count = job.ranks // 2 + int(rng.integers(1, max(2, job.ranks // 4)))
    ranks = tuple(sorted(_some(rng, job.ranks, count, count)))
    kind = str(rng.choice(["slow_gpu", "late"]))
    return [Fault(kind, ranks, float(rng.uniform(1.12, 1.3) if kind == "slow_gpu" else rng.uniform(0.15, 0.4)))]


def _all_slow(rng: Rng, job: IrregularJob) -> list[Fault]:
    steps = _steps_of(rng, job, max(1, job.steps // 4))
    return [Fault("all_slow", tuple(range(job.ranks)), float(rng.uniform(1.25, 1.6)), steps)]


FAULTS: Final[dict[str, Callable[[Rng, IrregularJob], list[Fault]]]] = {
    "slow_gpu": _slow_gpu,
    "more_work": lambda rng, job: [Fault("more_work", _some(rng, job.ranks, 1, 1), float(rng.uniform(1.15, 1.5)))],
    "pause": _pause,
    "late": _late,
    "two": _two,
    "three": _three,
    "slow_link": _slow_link,
    "majority": _majority,
    "all_slow": _all_slow,
    "slow_network": lambda rng, job: [Fault("slow_network", tuple(range(job.ranks)), float(rng.uniform(3, 6)))],
    "unrecorded": lambda rng, job: [_slow_gpu, _late][int(rng.integers(2))](rng, job),
}
