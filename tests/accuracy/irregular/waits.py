"""Jobs whose hosts wait for the GPU without a record, and healthy jobs whose hosts only seem to."""

from dataclasses import replace
from typing import Any, Final

import numpy as np

from tests.accuracy.irregular.cases import Rng
from tests.accuracy.irregular.job import Fault, IrregularJob

TUNING: Final = 500_000
"""First seed that thresholds may be tuned on."""
REPORTED: Final = 700_000
"""First seed of reported jobs."""
JOBS: Final = 216

_WAITS: Final = ("end", "middle", "ahead", "end, device", "limiter", "")
_SHAPES: Final = ("overlapped", "sharded", "blocking")
_FAULTS: Final = ("slow_gpu", "late", "", "slow_gpu", "late", "late_once")
_HEALTHY: Final = ("launch-bound", "loader", "paced loader", "pauses", "free-running", "slow launches")


def case(seed: int) -> tuple[IrregularJob, str]:
    """Return the job of this seed and its fault's name, "" if it is healthy.

    Consecutive seeds go through waits, shapes and faults in turn. One job of six has no waits: its host is slow.
    """
    rng = np.random.default_rng((seed, 41))
    turn, which = divmod(seed, len(_WAITS))
    wait = _WAITS[which]
    again, of_shape = divmod(turn, len(_SHAPES))
    shape = _SHAPES[of_shape]
    wanted = _FAULTS[(again + 2 * of_shape) % len(_FAULTS)]
    fields: dict[str, Any] = {
        "shape": "sharded" if wait == "limiter" else shape,
        "ranks": int(rng.choice([4, 4, 6, 8, 8, 12])),
        "steps": int(rng.integers(5, 13)),
        "kernels": int(rng.integers(24, 44)),
        "noise": float(rng.uniform(0.005, 0.03)),
        "host_noise": float(rng.uniform(0.02, 0.2)),
        "spread": float(rng.choice([0.0, 0.005, 0.015])),
        "lengths": float(rng.choice([0.0, 0.0, 0.1, 0.25])),
        "interference": float(rng.choice([0.0, 0.0, 0.15])),
        "synchronises": False,
    }
    if wait:
        fields |= {
            "wait": wait.partition(",")[0],
            "wait_on": "device" if "device" in wait else "kernel",
            "wait_rows": bool(rng.random() < 0.25),
            "after_wait": float(rng.choice([0.0, 0.02, 0.1])),
            "loader": float(rng.choice([0.0, 0.0, 0.05, 0.15])),
        }
        effect = f"{fields['wait']}, {'rows' if fields['wait_rows'] else 'no rows'}"
    else:
        effect = _HEALTHY[turn % len(_HEALTHY)]
        fields |= _without_waits(rng, effect)
        wanted = ""
    job = IrregularJob(seed=seed, effect=effect, **fields)
    return (replace(job, faults=(_fault(rng, job, wanted),)), wanted.partition("_once")[0]) if wanted else (job, "")


def _without_waits(rng: Rng, effect: str) -> dict[str, Any]:
    """Return what is special about a job that never waits for the GPU."""
    return {
        "launch-bound": {"launch": float(rng.uniform(8, 20)), "host_noise": float(rng.uniform(0.05, 0.2))},
        "loader": {"loader": float(rng.uniform(0.5, 2.0))},
        "paced loader": {"pace": float(rng.uniform(1.2, 2.0)), "loader": float(rng.choice([0.0, 0.2]))},
        "pauses": {"collections": float(rng.uniform(0.1, 0.4)), "launch": float(rng.choice([1.0, 10.0]))},
        "free-running": {"loader": float(rng.choice([0.0, 0.3]))},
        "slow launches": {"launch": float(rng.uniform(3, 8)), "loader": 0.3},
    }[effect]


def _fault(rng: Rng, job: IrregularJob, kind: str) -> Fault:
    ranks = (int(rng.integers(job.ranks)),)
    if kind == "slow_gpu":
        least = 1.15 if job.lengths or job.spread else 1.08
        return Fault("slow_gpu", ranks, float(rng.uniform(least, 1.4)))
    steps = None
    if kind == "late_once":
        count = int(rng.integers(1, 3))
        steps = tuple(sorted(int(one) for one in rng.choice(np.arange(1, job.steps), count, replace=False)))
    return Fault("late", ranks, float(rng.uniform(0.5, 1.5)), steps)
