"""Nsight Systems exports: jitter against the talk's way on a slice of its run, and how the cost grows with the ranks.

python -m tests.bench.ingest [--quick] [--keep FOLDER] [--rounds N]

Each run writes into a folder of its own: some file systems are slow to make files where many were removed just before.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from tests.bench.measure import Cost, alternating, exponent, run

JITTER = (sys.executable, "-m", "jitter")


class Size(NamedTuple):
    """The size of the measurement: the talk's run, or a small one for every day."""

    sliced_ranks: int
    ranks: tuple[int, ...]
    steps: int
    kernels: int
    rounds: int


TALK = Size(16, (60, 240, 960), 50, 903, 3)
QUICK = Size(4, (60, 240, 960), 5, 90, 1)
TALKS_RANKS, TALKS_STEPS, TALKS_KERNELS = 960, 50, 903


def make_exports(folder: Path, ranks: int, steps: int, kernels: int) -> list[Path]:
    """Simulate a job's exports, by rank."""
    command = [*JITTER, "sample", folder, "--ranks", ranks, "--steps", steps, "--kernels", kernels, "--quiet"]
    subprocess.run([str(word) for word in command], check=True, stdout=subprocess.DEVNULL)
    return [folder / f"rank{rank}.sqlite" for rank in range(ranks)]


def ingest(work: Path, exports: list[Path], jobs: int) -> Cost:
    """Ingest into a new lake."""
    lake = Path(tempfile.mkdtemp(prefix="lake-", dir=work))
    return run([*JITTER, "ingest", *exports, "-o", lake, "--jobs", str(jobs), "--quiet"])


def talks_way(work: Path, exports: list[Path]) -> Cost:
    """Convert as the talk did, into a new folder."""
    folder = Path(tempfile.mkdtemp(prefix="csv-", dir=work))
    return run([sys.executable, "-m", "tests.bench.talk", folder, *exports])


def against_the_talk(work: Path, exports: list[Path], rounds: int, jobs: int) -> float:
    """Print jitter's cost beside that of the talk's way on the same exports; returns the latter's seconds a rank."""
    costs = alternating(
        {
            "the talk's way": lambda: talks_way(work, exports),
            "jitter, 1 worker": lambda: ingest(work, exports, 1),
            f"jitter, {jobs} workers": lambda: ingest(work, exports, jobs),
        },
        rounds,
    )
    theirs = costs.pop("the talk's way")
    print(f"the talk's way: {theirs}")
    print(
        f"  for {TALKS_RANKS} ranks (scaled from {len(exports)}, not measured): "
        f"{theirs.seconds * TALKS_RANKS / len(exports) / 60:.1f} min"
    )
    for name, cost in costs.items():
        print(f"{name}: {cost}: {theirs.seconds / cost.seconds:.1f} times faster")
    return theirs.seconds / len(exports)


def growth(work: Path, exports: list[Path], size: Size, jobs: int, talks_s: float | None) -> None:
    """Print what more ranks cost, and the exponent of the time over the kernels.

    Where they are as long as those that the talk's way was measured on, also how many times that its `talks_s`
    seconds a rank would take.
    """
    kernels, seconds = [], []
    for ranks in size.ranks:
        cost = ingest(work, exports[:ranks], jobs)
        kernels.append(ranks * size.steps * size.kernels)
        seconds.append(cost.seconds)
        print(
            f"{ranks} ranks, {kernels[-1]:,} kernels, {jobs} workers: {cost}; "
            f"{1000 * cost.seconds / ranks:.0f} ms a rank"
            + ("" if talks_s is None else f"; the talk's way, scaled: {talks_s * ranks / cost.seconds:.1f} times that"),
            flush=True,
        )
    print(f"time grows with kernels to the power of {exponent(kernels, seconds):.2f}")


def main() -> None:
    """Run both."""
    options = argparse.ArgumentParser()
    options.add_argument("--quick", action="store_true", help="short steps, a smaller slice, one round")
    options.add_argument("--keep", type=Path, metavar="FOLDER", help="work there and leave exports and lake behind")
    options.add_argument("--rounds", type=int, help="of alternating runs; medians are told")
    chosen = options.parse_args()
    size = QUICK if chosen.quick else TALK
    size = size._replace(rounds=chosen.rounds or size.rounds)
    jobs = os.cpu_count() or 1
    started = time.perf_counter()
    with ExitStack() as stack:
        work = chosen.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="jitter-bench-")))
        sliced = make_exports(work / "slice", size.sliced_ranks, TALKS_STEPS, TALKS_KERNELS)
        talks_s = against_the_talk(work, sliced, size.rounds, jobs)
        exports = make_exports(work / "exports", max(size.ranks), size.steps, size.kernels)
        print(f"made {sum(path.stat().st_size for path in exports) / 1e9:.2f} GB of exports", flush=True)
        growth(work, exports, size, jobs, None if chosen.quick else talks_s)
    print(f"({time.perf_counter() - started:.0f} s)")


if __name__ == "__main__":
    main()
