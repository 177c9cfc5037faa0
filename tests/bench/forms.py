"""Forms of the report on one lake: JSON, the page, `jitter serve`, `jitter compare`; and the report of the sample.

python -m tests.bench.forms LAKE [--rounds N]
"""

import argparse
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from functools import partial
from pathlib import Path

from jitter.lake.layout import ANSWER_CACHE
from tests.bench.answers import JITTER, cold, report
from tests.bench.measure import Cost, alternating, run

SAMPLE = Path(__file__).parents[2] / "data" / "sample"


def page(lake: Path, folder: Path) -> Cost:
    """Write the page, as if nobody had asked before."""
    shutil.rmtree(lake / ANSWER_CACHE, ignore_errors=True)
    return cold(lake, [*JITTER, "report", lake, "-o", folder / "page.html"])


def compared(lake: Path) -> Cost:
    """Compare the lake with itself, as if nobody had asked before."""
    shutil.rmtree(lake / ANSWER_CACHE, ignore_errors=True)
    return cold(lake, [*JITTER, "compare", lake, lake, "--json"])


def served(lake: Path) -> Cost:
    """Start the live page; over when it says its address."""
    shutil.rmtree(lake / ANSWER_CACHE, ignore_errors=True)
    started = time.perf_counter()
    command = [*JITTER, "serve", str(lake), "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        next(found for line in server.stderr if (found := re.search(r"http://\S+", line)))
        seconds = time.perf_counter() - started
        peak = int(re.findall(r"VmHWM:\s+(\d+)", Path(f"/proc/{server.pid}/status").read_text())[0])
        ticks = sum(map(int, Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()[11:13]))
        server.send_signal(signal.SIGINT)
        server.wait()
    return Cost(seconds, ticks / os.sysconf("SC_CLK_TCK"), peak / 1024)


def main() -> None:
    """Print the ratios."""
    options = argparse.ArgumentParser()
    options.add_argument("lake", type=Path)
    options.add_argument("--rounds", type=int, default=3, help="of alternating runs; medians are printed")
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="jitter-bench-") as folder:
        sample = Path(folder) / "sample"
        run([*JITTER, "ingest", SAMPLE, "-o", sample, "--quiet"])
        baseline = Path(folder) / "base.json"
        run([*JITTER, "export", chosen.lake, "--baseline", baseline])
        costs = alternating(
            {
                "report --json": partial(report, chosen.lake),
                "report --html": partial(page, chosen.lake, Path(folder)),
                "serve": partial(served, chosen.lake),
                "compare with itself": partial(compared, chosen.lake),
                "compare two baselines": partial(run, [*JITTER, "compare", baseline, baseline, "--json"]),
                "report of the sample": partial(report, sample),
            },
            chosen.rounds,
        )
    base = costs["report --json"]
    for name, cost in costs.items():
        seconds, processor = cost.seconds / base.seconds, cost.cpu_seconds / base.cpu_seconds
        print(f"{name}: {cost}, {seconds:.2f} × report --json ({processor:.2f} × its processor time)")


if __name__ == "__main__":
    main()
