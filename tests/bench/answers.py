"""Answers from a large lake: `jitter report --json` and one step's table, cold, against plain pandas and the floor.

python -m tests.bench.answers [--quick] [--lake FOLDER] [--fault FAULT] [--rounds N]

The lake is simulated and mostly copies (see `grown_lake.py`). Cold: a process of its own each time, the lake's files
out of the system's cache. pandas does a few steps, scaled; the floor is DuckDB reading the columns that a diagnosis
needs from the same files.
"""

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import NamedTuple

from jitter.lake.layout import ANSWER_CACHE
from tests.bench.grown_lake import FAULT, FIRST_STEP, SIMULATED, grow
from tests.bench.measure import Cost, alternating, run

JITTER = (sys.executable, "-m", "jitter")


class Size(NamedTuple):
    """The size of the measurement: the talk's run, or a small one for every day."""

    ranks: int
    steps: int
    kernels: int
    pandas_steps: int
    rounds: int


TALK = Size(960, 50, 903, 2, 3)
QUICK = Size(64, 20, 300, 5, 1)


def cold(lake: Path, command: list[str | Path], folder: str = "") -> Cost:
    """Run a command with nothing of this folder of the lake in the system's cache."""
    for path in (lake / folder).rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())  # what is not on the disk yet stays in the cache
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return run(command)


def report(lake: Path) -> Cost:
    """Answer everything, as if nobody had asked before."""
    shutil.rmtree(lake / ANSWER_CACHE, ignore_errors=True)
    return report_again(lake)


def report_again(lake: Path) -> Cost:
    """Answer everything to who asks again."""
    return cold(lake, [*JITTER, "report", lake, "--json"])


def table(lake: Path, *words: str) -> Cost:
    """Print one step's table."""
    return cold(lake, [*JITTER, "table", lake, "--step", str(FIRST_STEP + 4), *words])


def contestants(lake: Path, size: Size) -> dict[str, Callable[[], Cost]]:
    """The work that is run in turn."""
    steps = [str(FIRST_STEP + at) for at in range(size.pandas_steps)]
    pandas = [sys.executable, "-m", "tests.bench.pandas_answers", lake, *steps]
    return {
        "report": partial(report, lake),
        "report, asked again": partial(report_again, lake),
        "pandas": partial(cold, lake, pandas, "kernels"),
        "floor": partial(cold, lake, [sys.executable, "-m", "tests.bench.read_floor", lake], "kernels"),
        "table --metric gap": partial(table, lake, "--metric", "gap"),
        "table --metric ttke --deviation": partial(table, lake, "--metric", "ttke", "--deviation"),
    }


def compare(lake: Path, size: Size) -> None:
    """Print what answers cost."""
    costs = alternating(contestants(lake, size), size.rounds)
    for name, cost in costs.items():
        print(f"{name}: {cost}")
    ours, floor = costs["report"], costs["floor"]
    scaled = size.steps / size.pandas_steps
    theirs = costs["pandas"].seconds * scaled
    print(
        f"the first jitter report --json after an ingest takes {ours.seconds:.1f} s at {ours.peak_mb:.0f} MB: "
        f"{theirs / ours.seconds:.1f} times faster than pandas ({theirs:.0f} s, scaled from {size.pandas_steps} of "
        f"{size.steps} steps, not measured), {ours.seconds / floor.seconds:.1f} times the floor"
    )
    print(
        f"in processor time {costs['pandas'].cpu_seconds * scaled / ours.cpu_seconds:.1f} times less than pandas, "
        f"{ours.cpu_seconds / floor.cpu_seconds:.1f} times the floor"
    )


def main() -> None:
    """Make the lake, if need be, and compare."""
    options = argparse.ArgumentParser()
    options.add_argument("--quick", action="store_true", help="a lake of 64 ranks, one round")
    options.add_argument("--lake", type=Path, help="made here and left behind; one that is there already is taken")
    options.add_argument("--fault", default=FAULT, help="of the lake that is made, or 'none'")
    options.add_argument("--rounds", type=int, help="of alternating runs; medians are told")
    chosen = options.parse_args()
    size = QUICK if chosen.quick else TALK
    size = size._replace(rounds=chosen.rounds or size.rounds)
    started = time.perf_counter()
    with ExitStack() as stack:
        lake = chosen.lake or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="jitter-bench-"))) / "lake"
        if not lake.exists():
            grow(lake, size.ranks, size.steps, size.kernels, os.cpu_count() or 1, chosen.fault)
        print(
            f"a lake of {size.ranks} ranks × {size.steps} steps × {size.kernels} kernels: {SIMULATED} ranks simulated "
            "and ingested, the others copies of them with times of their own",
            flush=True,
        )
        compare(lake, size)
    print(f"({time.perf_counter() - started:.0f} s)")


if __name__ == "__main__":
    main()
