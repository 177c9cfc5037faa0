"""How report and ingest grow with the ranks, with the steps and with the kernels of a step, each alone.

python -m tests.bench.report_growth [--quick] [--rounds N]

The time of a job of one rank and one step of 60 kernels, which is start-up, is subtracted from all.
"""

import argparse
import tempfile
import time
from pathlib import Path

from tests.bench.measure import exponent
from tests.bench.shapes import Job, measure, simulate

_BASE = Job("base", 8, 10, 4_000, 0)
_FACTORS = (1, 2, 4, 8)


def grown(size: Job, of: str) -> list[Job]:
    """Jobs that grow in one of their sizes."""
    return [size._replace(**{of: getattr(size, of) * factor}) for factor in _FACTORS]


def seconds(job: Job, rounds: int) -> tuple[float, float]:
    """Seconds of the job's ingest and of its report."""
    with tempfile.TemporaryDirectory(prefix="jitter-bench-") as folder:
        work = Path(folder)
        simulate(job, work / "traces", [])
        row = measure(job.name, work / "traces", work, rounds)
    print(f"{job.ranks} × {job.steps} × {job.kernels}: {row}", flush=True)
    return row.ingest.seconds, row.report.seconds


def main() -> None:
    """Print the exponents."""
    options = argparse.ArgumentParser()
    options.add_argument("--quick", action="store_true", help="a quarter of the kernels, one round")
    options.add_argument("--rounds", type=int, default=3, help="of alternating runs; medians are used")
    chosen = options.parse_args()
    base = _BASE._replace(kernels=_BASE.kernels // 4) if chosen.quick else _BASE
    rounds = 1 if chosen.quick else chosen.rounds
    started = time.perf_counter()
    least = seconds(Job("least", 1, 1, 60, 0), rounds)
    for of in ("ranks", "steps", "kernels"):
        jobs = grown(base, of)
        measured = [seconds(job, rounds) for job in jobs]
        sizes = [getattr(job, of) for job in jobs]
        ingest, report = (exponent(sizes, [max(costs[at] - least[at], 1e-3) for costs in measured]) for at in range(2))
        print(f"with {of}: report grows to the power of {report:.2f}, ingest to that of {ingest:.2f}")
    print(f"({time.perf_counter() - started:.0f} s)")


if __name__ == "__main__":
    main()
