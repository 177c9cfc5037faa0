"""Work on a range of steps in another process, which opens the lake for itself and is given what the whole run tells.

An executor sends these functions and their arguments.
"""

import socket
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import NamedTuple

import numpy as np

from jitter.analysis.account.noise import Noise
from jitter.analysis.account.step_account import StepAccount
from jitter.analysis.alignment.kernel_index import KernelIndices
from jitter.analysis.detection.executors.passes import StepStatistics, measure_steps, replay_steps
from jitter.analysis.execution.run_reader import RunReader
from jitter.analysis.execution.self_times import SelfTimes
from jitter.analysis.replay.run_steps import RunSteps, Shared
from jitter.analysis.replay.what_if import Scenario
from jitter.core.errors import LakeError
from jitter.core.numeric.arrays import Floats
from jitter.core.step_key import StepKey
from jitter.lake.folder import LakeFolder
from jitter.lake.records import records_by_step

Baselines = Mapping[int, SelfTimes]
"""By step the medians of self times."""


class RemoteRun(NamedTuple):
    """Description of a run with which a worker process goes through its steps."""

    name: str
    """Unique to the run."""
    root: Path
    steps: tuple[StepKey, ...]
    shared: Shared
    digests: frozenset[str]
    """Of the recordings that the run consists of: others may have come into the lake since."""


def remote_run(root: Path, steps: RunSteps) -> RemoteRun:
    """Describe a run to other processes; `root` is the lake's folder as they see it."""
    return RemoteRun(uuid.uuid4().hex, root, tuple(steps.run.keys), steps.shared, steps.lake.digests)


def measure_remotely(run: RemoteRun, first: int, last: int) -> list[StepStatistics]:
    """Measure each step of a range."""
    return measure_steps(_opened(run), first, last)


def account_remotely(
    run: RemoteRun, baseline_transfers: Sequence[Floats], baselines: Baselines, noise: Sequence[Noise]
) -> list[StepAccount]:
    """Keep the account of the run; `baselines` are the medians of its steps, `noise` that of each."""
    writable = [Noise(*(np.array(values, np.float64) for values in one)) for one in noise]
    return replay_steps(_with_baselines(run, baselines), _writable(baseline_transfers), [], writable).accounts


def replay_remotely(
    run: RemoteRun, scenarios: Sequence[Scenario], baseline_transfers: Sequence[Floats], baselines: Baselines
) -> Floats:
    """Replay the run: (steps, scenarios) gained."""
    return replay_steps(_with_baselines(run, baselines), _writable(baseline_transfers), scenarios).gained_ns


def _writable(transfers: Sequence[Floats]) -> list[Floats]:
    """Return the transfers of each step; arrays that are one object stay one."""
    copies = {id(one): np.array(one, np.float64) for one in transfers}
    return [copies[id(one)] for one in transfers]


def _with_baselines(run: RemoteRun, baselines: Baselines) -> RunSteps:
    steps = _opened(run)
    for number, found in baselines.items():
        # arrays as they are sent may be read-only, which compiled loops take for another type
        steps.baselines[number] = SelfTimes(*(np.array(values, np.float64) for values in found))
    return steps


_open: dict[str, RunSteps] = {}
_one_opens = Lock()


def _opened(run: RemoteRun) -> RunSteps:
    """Return the run's steps, opened once in this process."""
    with _one_opens:
        if run.name not in _open:
            _open.clear()
            if not run.root.exists():
                raise LakeError(
                    f"{run.root}: the worker on {socket.gethostname()} does not see it",
                    "the lake must lie on a file system that all workers share, under the same path",
                )
            folder = LakeFolder(run.root)
            folder.require()
            records = [record for record in folder.intact_records()[0] if record.digest in run.digests]
            if len(records) < len(run.digests):
                raise LakeError(f"{run.root}: has changed while it was read", "run it again when no ingest is running")
            held = records_by_step(records)
            lake = RunReader(run.root, held, KernelIndices(run.root, held).of, run.steps)
            _open[run.name] = RunSteps(lake, run.shared)
        return _open[run.name]
