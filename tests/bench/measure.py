"""Runs commands and tells what they cost: wall and processor seconds, and the peak memory of the largest process."""

import math
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

_LOOKS_EVERY_S = 0.1


@dataclass(frozen=True)
class Cost:
    """The figures of one run. `cpu_seconds` is that of all processes, to a tenth of a second for each worker."""

    seconds: float
    cpu_seconds: float
    peak_mb: float

    def __str__(self) -> str:
        return f"{self.seconds:.2f} s ({self.cpu_seconds:.2f} s of processor), {self.peak_mb:.0f} MB"


def run(command: Sequence[str | Path], **environment: str) -> Cost:
    """Run a command to its end; exit if it fails."""
    started = time.perf_counter()
    with subprocess.Popen(
        [str(word) for word in command],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**os.environ, **environment},
        start_new_session=True,
    ) as process:
        assert process.stderr is not None
        watched = _Watch(process.pid)
        said = process.stderr.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.perf_counter() - started
    if process.returncode:
        sys.exit(f"{' '.join(map(str, command))}: exit {process.returncode}\n{said.decode(errors='replace')}")
    watched.end()
    peak_kb = max(usage.ru_maxrss, watched.peak_kb)
    cpu_seconds = max(usage.ru_utime + usage.ru_stime, watched.cpu_seconds)
    return Cost(seconds, cpu_seconds, peak_kb / 1024)


class _Watch:
    """Watches all processes of a session: no wait tells what some workers took."""

    def __init__(self, session: int) -> None:
        self._session = session
        self.peak_kb = 0
        self._ticks: dict[str, int] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    @property
    def cpu_seconds(self) -> float:
        """Processor time of all processes together, as last seen of each."""
        return sum(self._ticks.values()) / os.sysconf("SC_CLK_TCK")

    def end(self) -> None:
        """Stop watching."""
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(_LOOKS_EVERY_S):
            for folder in Path("/proc").glob("[0-9]*"):
                try:
                    if os.getsid(int(folder.name)) == self._session:
                        status = (folder / "status").read_text()
                        self.peak_kb = max(self.peak_kb, int(status.partition("VmHWM:")[2].split()[0]))
                        user, system = (folder / "stat").read_text().rpartition(")")[2].split()[11:13]
                        self._ticks[folder.name] = int(user) + int(system)
                except (OSError, IndexError):  # it has just ended
                    continue


def alternating(contestants: dict[str, Callable[[], Cost]], rounds: int) -> dict[str, Cost]:
    """Run the contestants in turn, `rounds` times; the medians of each one's figures."""
    costs: dict[str, list[Cost]] = {name: [] for name in contestants}
    for number in range(rounds):
        for name, contest in contestants.items():
            cost = contest()
            print(f"  round {number + 1}: {name}: {cost}", flush=True)
            costs[name].append(cost)
    return {
        name: Cost(
            statistics.median(c.seconds for c in found),
            statistics.median(c.cpu_seconds for c in found),
            statistics.median(c.peak_mb for c in found),
        )
        for name, found in costs.items()
    }


def exponent(sizes: Sequence[float], costs: Sequence[float]) -> float:
    """The power of the size with which a cost grows: the slope of the line through the logarithms."""
    return statistics.linear_regression([math.log(size) for size in sizes], [math.log(cost) for cost in costs]).slope
