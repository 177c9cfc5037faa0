"""Report time over ingest time for jobs of many shapes, and for real traces.

python -m tests.bench.shapes [--quick] [--only WORD] [--autotuned FRACTION] [--traces FOLDER] [--rounds N]

For each job: traces are simulated, then `jitter ingest` into a new lake and a cold `jitter report --json` take turns.
`--traces` (or JITTER_TRACES) adds each folder of real recordings below it, two levels deep; where no rank is known,
each recording of the folder on its own, as rank 0.
"""

import argparse
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from tests.bench.answers import JITTER, report
from tests.bench.measure import Cost, alternating, run

_DATABASES = {".sqlite", ".rpd", ".db"}
_AS_FIRST = ("--rank", "0")
_SLOW_GPU = "slow_gpu:rank=0,factor=1.1"


class Job(NamedTuple):
    """One simulated job, and how many times its ingest the report may take."""

    name: str
    ranks: int
    steps: int
    kernels: int
    limit: float
    options: tuple[str, ...] = ()

    def smaller(self) -> "Job":
        """The job with a tenth of the kernels a step."""
        return self._replace(kernels=max(60, self.kernels // 10))


JOBS = (
    Job("tensor parallel, slow GPU", 8, 6, 20_000, 1.5, ("--shape", "tensor_parallel", "--fault", _SLOW_GPU)),
    Job("one rank", 1, 3, 100_000, 2),
    Job("two ranks", 2, 3, 100_000, 2),
    Job("pipeline of 4 stages", 16, 10, 5_000, 2, ("--shape", "pipeline", "--stages", "4")),
    Job("data parallel", 64, 50, 903, 2),
    Job("sharded", 8, 200, 2_000, 2, ("--shape", "sharded")),
    Job("many tiny steps", 2, 20_000, 20, 2),
    Job("two streams", 8, 20, 2_000, 2, ("--side-stream", "19")),
)
LEAST = Job("least that runs compiled", 8, 10, 300, 0)
"""Its report takes what every report takes: start-up and loading numba."""


class Row(NamedTuple):
    """A line of the table."""

    name: str
    ingest: Cost
    report: Cost
    limit: float | None

    def __str__(self) -> str:
        ratio = self.report.seconds / self.ingest.seconds
        processor = self.report.cpu_seconds / self.ingest.cpu_seconds
        limit = "" if self.limit is None else f"{self.limit:g}"
        return f"| {self.name} | {self.ingest} | {self.report} | {ratio:.2f} | {processor:.2f} | {limit} |"


def simulate(job: Job, folder: Path, more: list[str]) -> None:
    """Write the job's traces."""
    size = ("--ranks", job.ranks, "--steps", job.steps, "--kernels", job.kernels)
    command = [*JITTER, "sample", folder, *size, *job.options, *more, "--quiet"]
    subprocess.run([str(word) for word in command], check=True, stdout=subprocess.DEVNULL)


def ingest(work: Path, traces: Path, *options: str) -> Cost:
    """Ingest into the lake of `work`, made anew."""
    shutil.rmtree(work / "lake", ignore_errors=True)
    return run([*JITTER, "ingest", traces, "-o", work / "lake", "--quiet", *options])


def measure(
    name: str, traces: Path, work: Path, rounds: int, limit: float | None = None, options: Sequence[str] = ()
) -> Row:
    """Measure one folder of traces, ingested with these options."""
    costs = alternating(
        {"ingest": partial(ingest, work, traces, *options), "report": lambda: report(work / "lake")}, rounds
    )
    return Row(name, costs["ingest"], costs["report"], limit)


def compile_loops() -> None:
    """Report a small job, so that no report that is measured compiles loops: the first after an installation does."""
    with tempfile.TemporaryDirectory(prefix="jitter-bench-") as folder:
        work = Path(folder)
        simulate(LEAST, work / "traces", [])
        ingest(work, work / "traces")
        print(f"first report, which compiles loops unless they are on disk: {report(work / 'lake')}", flush=True)


def can_ingest(traces: Path, *options: str) -> bool:
    """Whether anything in the folder can be ingested with these options, and reported."""
    with tempfile.TemporaryDirectory() as folder:
        lake = Path(folder) / "lake"
        commands = (("ingest", traces, "-o", lake, "--quiet", *options), ("report", lake, "--json"))
        return not any(
            subprocess.run([*JITTER, *map(str, words)], check=False, capture_output=True).returncode
            for words in commands
        )


def recordings_in(folder: Path) -> Iterator[tuple[Path, tuple[str, ...]]]:
    """Yield real recordings, each with the options of its ingest: folders two levels below, and single files there."""
    for one in sorted(path for path in folder.glob("*/*") if path.is_dir() or path.suffix in _DATABASES):
        if can_ingest(one):
            yield one, ()
        else:
            alone = [one] if one.is_file() else sorted(one.iterdir())
            yield from ((file, _AS_FIRST) for file in alone if can_ingest(file, *_AS_FIRST))


def main() -> None:
    """Print the table."""
    options = argparse.ArgumentParser()
    options.add_argument("--quick", action="store_true", help="a tenth of the kernels, one round")
    options.add_argument("--only", default="", help="jobs whose name has this word")
    options.add_argument("--autotuned", help="fraction of matrix kernels whose names differ between ranks")
    options.add_argument("--traces", type=Path, default=os.environ.get("JITTER_TRACES"), help="real recordings")
    options.add_argument("--rounds", type=int, default=3, help="of alternating runs; medians are printed")
    chosen = options.parse_args()
    more = ["--autotuned", chosen.autotuned] if chosen.autotuned else []
    rounds = 1 if chosen.quick else chosen.rounds
    started = time.perf_counter()
    compile_loops()
    rows = []
    with tempfile.TemporaryDirectory(prefix="jitter-bench-") as folder:
        work = Path(folder)
        for job in JOBS:
            if chosen.only not in job.name:
                continue
            job = job.smaller() if chosen.quick else job  # noqa: PLW2901
            name = f"{job.ranks} × {job.steps:,} × {job.kernels:,} {job.name}"
            print(name, flush=True)
            simulate(job, work / "traces", more)
            rows.append(measure(name, work / "traces", work, rounds, job.limit))
            shutil.rmtree(work / "traces")
        for real, given in recordings_in(Path(chosen.traces)) if chosen.traces and not chosen.autotuned else ():
            name = str(real.relative_to(chosen.traces))
            if chosen.only in name:
                print(name, flush=True)
                rows.append(measure(name, real, work, rounds, options=given))
    print("| job | ingest | report --json, cold | report / ingest | processor time | goal |\n|---|---|---|---|---|---|")
    print(*rows, sep="\n")
    print(f"({time.perf_counter() - started:.0f} s)")


if __name__ == "__main__":
    main()
