"""Runs commands and tells what they cost: wall seconds and the peak memory of the process and its children."""

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Cost:
    """What one run took."""

    seconds: float
    peak_mb: float


def run(command: Sequence[str | Path], **environment: str) -> Cost:
    """Run a command to its end; raise if it fails. The peak is the largest process's, not a sum."""
    started = time.perf_counter()
    with subprocess.Popen(
        [str(word) for word in command],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**os.environ, **environment},
    ) as process:
        assert process.stderr is not None
        said = process.stderr.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.perf_counter() - started
    if process.returncode:
        sys.exit(f"{' '.join(map(str, command))}: exit {process.returncode}\n{said.decode(errors='replace')}")
    return Cost(seconds, usage.ru_maxrss / 1024)


def alternating(contestants: dict[str, Callable[[], Cost]], rounds: int) -> dict[str, Cost]:
    """Run the contestants in turn, `rounds` times; the median of each one's seconds and of its peaks."""
    costs: dict[str, list[Cost]] = {name: [] for name in contestants}
    for number in range(rounds):
        for name, contest in contestants.items():
            cost = contest()
            print(f"  round {number + 1}: {name}: {cost.seconds:.2f} s, {cost.peak_mb:.0f} MB", flush=True)
            costs[name].append(cost)
    return {
        name: Cost(statistics.median(c.seconds for c in found), statistics.median(c.peak_mb for c in found))
        for name, found in costs.items()
    }
