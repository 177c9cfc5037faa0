"""A simulated job as profilers saw it, ingested and examined; and what its files say of each rank's step."""

import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

import jitter
from jitter.cli import main
from jitter.core.step_key import StepKey
from jitter.lake.folder import LakeFolder
from jitter.simulate import Fault, Job, RankRecording, Run, simulate, write
from tests.support.partial_captures import keep_activities

SMALL: dict[str, Any] = {"kernels": 60, "steps": 4, "gpus_per_node": 2, "marker": "profiler", "epoch": None}


def small(shape: str = "data_parallel", **more: Any) -> Job:
    sized = {"kernels": 100} if shape == "pipeline" else {}
    return Job(**{**SMALL, "ranks": 4, "seed": 5, "shape": shape, **sized, **more})


def step_ns(job: Job, *faults: str) -> float:
    """The simulated job's mean step time without its first step, which has no known begin."""
    return run_ns(simulate(job, [Fault.parse(fault) for fault in faults])) / (job.steps - 1)


def run_ns(run: Run) -> int:
    """From the last collective of the first step to that of the last."""
    ends = run.last_collective_ends()
    return ends[-1] - ends[0]


def true_gain_ns(run: Run, *faults: Fault) -> int:
    """The time that a run without these faults saves; without any, if none is given."""
    return run_ns(run) - run_ns(run.without(*faults))


def write_traces(run: Run, folder: Path, form: str = "kineto", **options: Any) -> list[Path]:
    """Write the run's traces as text that tests may edit: JSON is not compressed, which takes as long as to write."""
    return write(run, folder, form, **({"zipped": False} if form == "kineto" else {}) | options)


def ingest_run(run: Run, folder: Path, form: str = "kineto", rejected: int = 0, **options: Any) -> "jitter.Lake":
    """Write the run's traces in a profiler's format, ingest them, and open the lake.

    `rejected` is how many files the ingest must reject; `options` are the format's. Traces go to `folder / "traces"`,
    the lake to `folder / "lake"`.
    """
    write_traces(run, folder / "traces", form, **options)
    return ingest_traces(folder, rejected=rejected)


def ingest_traces(folder: Path, *traces: Path, rejected: int = 0) -> "jitter.Lake":
    """Ingest these traces, or those in `folder / "traces"`, to `folder / "lake"`, and open it."""
    report = jitter.ingest(traces or [folder / "traces"], folder / "lake", executor=jitter.LocalExecutor())
    assert len(report.refused) == rejected, report.refused
    return jitter.open(folder / "lake")


def sampled_lake(folder: Path, options: str) -> "jitter.Lake":
    """Do as `ingest_run` by the commands `jitter sample`, with these options, and `jitter ingest`."""
    traces, root = str(folder / "traces"), str(folder / "lake")
    assert main(["sample", traces, "--quiet", *shlex.split(options)]) == 0
    assert main(["ingest", traces, "-o", root, "--quiet", "--jobs", "1"]) == 0
    return jitter.open(root)


def ingest_partial_run(
    run: Run,
    folder: Path,
    form: str = "kineto",
    absent: frozenset[int] = frozenset(),
    sees: Callable[[int, int], bool] = lambda rank, step: True,
) -> "jitter.Lake":
    """Do as `ingest_run` without the ranks in `absent`, and with the steps for which `sees(rank, step)` is true."""
    return ingest_run(PartialRun(run, absent, sees), folder, form)  # type: ignore[arg-type]


def accept_changed_files(lake: "jitter.Lake") -> "jitter.Lake":
    """Open a lake anew after a test changed its files: without their checksums, and without the times beside them."""
    folder = LakeFolder(lake.root)
    for record in folder.records():
        steps = [msgspec.structs.replace(step, checksum=None, times=None) for step in record.steps]
        folder.write_record(msgspec.structs.replace(record, steps=steps, host_checksum=None))
    folder.close()
    return jitter.open(lake.root)


def rewrite_kernels(lake: "jitter.Lake", change: Callable[[pa.Table], Mapping[str, Any]]) -> "jitter.Lake":
    """Replace columns in each of a lake's kernels files, by name as `change` returns them; open the lake anew."""
    for path in sorted((lake.root / "kernels").rglob("*.parquet")):
        rows = pq.read_table(path, partitioning=None)
        for name, values in change(rows).items():
            at = rows.schema.get_field_index(name)
            field = rows.schema.field(at)
            rows = rows.set_column(at, field, pa.array(values, field.type))
        pq.write_table(rows, path)
    return accept_changed_files(lake)


def activities(lake: "jitter.Lake", rank: int, key: StepKey) -> pd.DataFrame:
    """A rank's rows of a step, by ordinal."""
    epoch = "" if key.epoch is None else f"epoch={key.epoch}/"
    rows = pd.read_parquet(lake.root / f"kernels/{epoch}step={key.step}/rank={rank}.parquet", partitioning=None)
    return rows.sort_values("ordinal").reset_index(drop=True)


class PartialRun:
    """A run as far as profilers saw it: in the place of a `Run` where traces are written."""

    def __init__(self, run: Run, absent: frozenset[int], sees: Callable[[int, int], bool]) -> None:
        """`sees(rank, step)`: whether this step of this rank was recorded."""
        self.job: Job = run.job
        self._run, self._absent, self._sees = run, absent, sees

    def ranks(self, wanted: Any = None) -> Iterator[RankRecording]:
        """The recordings there are."""
        for recording in self._run.ranks([rank for rank in range(self.job.ranks) if rank not in self._absent]):
            steps = [step for step in self.job.step_numbers if self._sees(recording.rank, step)]
            yield recording if len(steps) == self.job.steps else _only(recording, steps)


def _only(recording: RankRecording, steps: list[int]) -> RankRecording:
    """The recording of a profiler that ran in these steps alone."""
    kept = keep_activities(recording, recording.in_step & np.isin(recording.step, steps))
    return replace(
        kept,
        calls=tuple(call for call in recording.calls if call.step in steps),
        ranges=tuple(one for one in recording.ranges if one.step in steps),
    )
