"""How answers grow with the ranks: `jitter report --json` and one step's table on 60, 240 and 960 ranks.

python -m tests.bench.growth [--quick] [--lake FOLDER]

The smaller lakes are the first ranks of the large one (see `grown_lake.py`).
"""

import argparse
import os
import shutil
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from jitter.lake.folder import LakeFolder
from jitter.lake.layout import files_of_record
from tests.bench.answers import QUICK, TALK, report, table
from tests.bench.grown_lake import grow
from tests.bench.measure import Cost, exponent

RANKS = (60, 240, 960)


def first_ranks(lake: Path, small: Path, ranks: int) -> None:
    """Make a lake of the first ranks of another, by hard links."""
    shutil.rmtree(small, ignore_errors=True)
    (small / "sources").mkdir(parents=True)
    (small / "jitter.json").hardlink_to(lake / "jitter.json")
    for record in LakeFolder(lake).records():
        if record.rank is not None and record.rank < ranks:
            for place in (*files_of_record(record), Path("sources", record.name)):
                (small / place).parent.mkdir(parents=True, exist_ok=True)
                (small / place).hardlink_to(lake / place)


def measure(lake: Path) -> dict[str, Cost]:
    """The time of a report and of a table."""
    return {
        "report --json": report(lake),
        "table": table(lake, "--metric", "gap"),
    }


def main() -> None:
    """Make the lakes and measure them."""
    options = argparse.ArgumentParser()
    options.add_argument("--quick", action="store_true", help="five short steps")
    options.add_argument("--lake", type=Path, help="the large lake: made here and left behind, or taken if it is there")
    chosen = options.parse_args()
    size = QUICK._replace(steps=5) if chosen.quick else TALK
    started = time.perf_counter()
    kernels: list[int] = []
    costs: dict[str, list[Cost]] = {}
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="jitter-bench-")))
        lake = chosen.lake or work / "lake"
        if not lake.exists():
            grow(lake, max(RANKS), size.steps, size.kernels, os.cpu_count() or 1)
        # on the lake's own file system: links do not leave it
        small = lake.with_name(f"{lake.name}-first-ranks")
        stack.callback(shutil.rmtree, small, ignore_errors=True)
        for ranks in RANKS:
            first_ranks(lake, small, ranks)
            kernels.append(ranks * size.steps * size.kernels)
            for name, cost in measure(small).items():
                costs.setdefault(name, []).append(cost)
                print(f"{ranks} ranks, {kernels[-1]:,} kernels: {name}: {cost}", flush=True)
    for name, found in costs.items():
        seconds, peaks = (exponent(kernels, [getattr(cost, of) for cost in found]) for of in ("seconds", "peak_mb"))
        print(f"{name}: time grows with kernels to the power of {seconds:.2f}, memory to that of {peaks:.2f}")
    print(f"({time.perf_counter() - started:.0f} s)")


if __name__ == "__main__":
    main()
