"""`jitter compare` of a lake with itself beside its report, and of two baselines; the lake stays as it is.

python -m tests.bench.comparison LAKE [--rounds N]
"""

import argparse
import shutil
import sys
import tempfile
from functools import partial
from pathlib import Path

from jitter.lake.layout import ANSWER_CACHE
from tests.bench.answers import JITTER, cold, report
from tests.bench.measure import Cost, alternating, run


def compare(lake: Path) -> Cost:
    """Compare the lake with itself, as if nobody had asked anything of it before."""
    shutil.rmtree(lake / ANSWER_CACHE, ignore_errors=True)
    return cold(lake, [*JITTER, "compare", lake, lake, "--json"])


def state_of(lake: Path) -> dict[Path, tuple[int, int]]:
    """Size and time of change of every file that is not derived."""
    files = (path for path in lake.rglob("*") if path.is_file() and "derived" not in path.relative_to(lake).parts)
    return {path: (path.stat().st_size, path.stat().st_mtime_ns) for path in files}


def main() -> None:
    """Print the ratios."""
    options = argparse.ArgumentParser()
    options.add_argument("lake", type=Path)
    options.add_argument("--rounds", type=int, default=3, help="of alternating runs; medians are printed")
    chosen = options.parse_args()
    before = state_of(chosen.lake)
    with tempfile.TemporaryDirectory(prefix="jitter-bench-") as folder:
        baseline = Path(folder) / "base.json"
        run([*JITTER, "export", chosen.lake, "--baseline", baseline])
        costs = alternating(
            {
                "report --json": partial(report, chosen.lake),
                "compare with itself": partial(compare, chosen.lake),
                "compare two baselines": partial(run, [*JITTER, "compare", baseline, baseline, "--json"]),
            },
            chosen.rounds,
        )
        print(f"a baseline has {baseline.stat().st_size / 1e6:.2f} MB")
    once = costs["report --json"]
    for name, cost in costs.items():
        seconds, processor = cost.seconds / 2 / once.seconds, cost.cpu_seconds / 2 / once.cpu_seconds
        print(f"{name}: {cost}, {seconds:.2f} × two reports ({processor:.2f} × their processor time)")
    if state_of(chosen.lake) != before:
        sys.exit("the lake was changed")


if __name__ == "__main__":
    main()
