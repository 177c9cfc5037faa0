"""PyTorch traces: jitter from gz to lake, against HTA parsing the same file and against the floor.

python -m tests.bench.kineto [--hta-python build/hta/bin/python] [--rounds N] [--quick]
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.bench.measure import Cost, alternating, run

_HTA = "import sys; from hta.common.trace import parse_trace_file; parse_trace_file(sys.argv[1])"
JITTER = (sys.executable, "-m", "jitter")


def make_traces(folder: Path, steps: int, ranks: int) -> list[Path]:
    """Simulate gzip traces, one a rank: 900 kernels a step and the CPU operations that come with them."""
    command = [*JITTER, "sample", folder, "--format", "kineto", "--ranks", ranks, "--steps", steps, "--kernels", "900"]
    options = ["--option", "cpu_ops=5", "--seed", "1", "--quiet", "--force"]
    subprocess.run(
        [str(word) for word in (*command, *options)], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    return sorted(folder.glob("*.json.gz"))


def make_trace(folder: Path, steps: int) -> Path:
    """Simulate one rank's."""
    (trace,) = make_traces(folder, steps, 1)
    return trace


def plain_size(trace: Path) -> int:
    """How many bytes the trace is, decompressed."""
    done = subprocess.run(f"zcat '{trace}' | wc -c", shell=True, check=True, capture_output=True)
    return int(done.stdout)


def ingest(lake: Path, *traces: Path, jobs: int = 1) -> Cost:
    """Ingest into a lake made anew."""
    shutil.rmtree(lake, ignore_errors=True)
    return run([*JITTER, "ingest", *traces, "-o", lake, "--jobs", str(jobs), "--quiet"])


def against_others(work: Path, trace: Path, hta: str | None, rounds: int) -> None:
    """Print jitter's cost beside HTA's and the floor's."""
    contestants = {
        "jitter": lambda: ingest(work / "lake", trace),
        "floor": lambda: run([sys.executable, Path(__file__).with_name("floor.py"), trace]),
    }
    if hta is not None:
        contestants["HTA"] = lambda: run([hta, "-c", _HTA, trace])
    costs = alternating(contestants, rounds)
    ours = costs["jitter"]
    for name, cost in costs.items():
        print(f"{name}: {cost}")
    floor = costs["floor"]
    print(
        f"jitter takes {ours.seconds / floor.seconds:.2f} times the floor "
        f"({ours.cpu_seconds / floor.cpu_seconds:.2f} times its processor time)"
    )
    if hta is not None:
        theirs = costs["HTA"]
        print(
            f"jitter is {theirs.seconds / ours.seconds:.1f} times faster than HTA, "
            f"with 1/{theirs.peak_mb / ours.peak_mb:.1f} of its peak memory"
        )


def two_workers(work: Path, rounds: int) -> None:
    """Print what a second worker gains on a second file."""
    trace, other = make_traces(work / "two", 480, 2)
    costs = alternating(
        {
            "one worker, one file": lambda: ingest(work / "lake", trace),
            "two workers, two files": lambda: ingest(work / "lake", trace, other, jobs=2),
        },
        rounds,
    )
    one, two = costs["one worker, one file"].seconds, costs["two workers, two files"].seconds
    print(f"two workers: {2 * one / two:.2f} times the throughput of one")


def growth(work: Path, rounds: int) -> None:
    """Print how the peak grows with the file."""
    small, large = make_trace(work / "small", 240), make_trace(work / "large", 960)
    costs = alternating(
        {"small": lambda: ingest(work / "lake", small), "large": lambda: ingest(work / "lake", large)}, rounds
    )
    sizes = plain_size(small) / 1e9, plain_size(large) / 1e9
    ratio = costs["large"].peak_mb / costs["small"].peak_mb
    print(f"peak for {sizes[1]:.2f} GB is {ratio:.2f} times that for {sizes[0]:.2f} GB")


def main() -> None:
    """Run all three."""
    options = argparse.ArgumentParser()
    options.add_argument("--hta-python")
    options.add_argument("--quick", action="store_true", help="a tenth of the size, one round")
    options.add_argument("--rounds", type=int, default=3, help="of alternating runs; medians are told")
    chosen = options.parse_args()
    rounds = 1 if chosen.quick else chosen.rounds
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="jitter-bench-") as folder:
        work = Path(folder)
        trace = make_trace(work / "first", 48 if chosen.quick else 480)
        print(f"one trace: {plain_size(trace) / 1e9:.2f} GB plain, {trace.stat().st_size / 1e6:.0f} MB gz", flush=True)
        against_others(work, trace, chosen.hta_python, rounds)
        if not chosen.quick:
            two_workers(work, rounds)
            growth(work, rounds)
    print(f"({time.perf_counter() - started:.0f} s)")


if __name__ == "__main__":
    main()
