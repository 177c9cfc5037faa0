"""Stretches of a run computed by another process: one that opens the lake for itself, and is told what the run tells.

Whoever sends the work (a pool on this machine, a cluster) sends these functions and what they take.
"""

import socket
import uuid
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from threading import Lock
from typing import NamedTuple

import numpy as np

from jitter.analysis.detection.passes import PassesHere, SeenStep, StepPath, look, walk
from jitter.analysis.execution.own_time import OwnTimes
from jitter.analysis.execution.run_reader import LakeRun
from jitter.analysis.metrics.kernel_index import KernelIndices
from jitter.analysis.replay.run_steps import ExaminedSteps, Shared
from jitter.analysis.replay.what_if import Scenario
from jitter.core.arrays import Floats
from jitter.core.errors import LakeError
from jitter.core.step_key import StepKey
from jitter.lake.folder import LakeFolder
from jitter.lake.records import records_by_step

Typical = Mapping[int, Mapping[int, OwnTimes]]
"""Each step's medians, by team."""


class SentRun(NamedTuple):
    """What another process needs to make the run's steps for itself."""

    name: str
    """Of this run and no other."""
    root: Path
    steps: tuple[StepKey, ...]
    shared: Shared


def sent_run(root: Path, steps: ExaminedSteps) -> SentRun:
    """Tell of a run what others need; `root` as they see it."""
    return SentRun(uuid.uuid4().hex, root, tuple(steps.run.keys), steps.shared)


def typical_of(steps: ExaminedSteps, first: int, last: int) -> Typical:
    """The medians that are needed to walk a stretch: of its steps, and of the one before."""
    return {number: steps.typical[number] for number in range(max(0, first - 1), last)}


def cut(steps: int, stretches: int) -> list[tuple[int, int]]:
    """Cut so many steps into stretches as long as each other, no more than there are steps."""
    return list(pairwise(np.linspace(0, steps, min(steps, stretches) + 1).astype(int).tolist()))


def look_there(run: SentRun, first: int, last: int) -> list[SeenStep]:
    """Look at a stretch."""
    return look(_opened(run), first, last)


def walk_there(run: SentRun, first: int, last: int, usual: Mapping[int, float], typical: Typical) -> list[StepPath]:
    """Walk the paths of a stretch; `typical` are its steps' medians, and of the step before it."""
    return walk(_told(run, typical), first, last, usual)


def replay_there(run: SentRun, scenarios: Sequence[Scenario], usual: Mapping[int, float], typical: Typical) -> Floats:
    """Replay the run: (steps, scenarios) gained."""
    return PassesHere(_told(run, typical)).go(usual, scenarios, walk=False).gained_ns


def _told(run: SentRun, typical: Typical) -> ExaminedSteps:
    steps = _opened(run)
    steps.typical.update(typical)
    return steps


_open: dict[str, ExaminedSteps] = {}
_one_opens = Lock()


def _opened(run: SentRun) -> ExaminedSteps:
    """The run's steps, for all that this process does with them."""
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
            held = records_by_step(folder.records())
            lake = LakeRun(run.root, held, KernelIndices(run.root, held).of, run.steps)
            _open[run.name] = ExaminedSteps(lake, run.shared)
        return _open[run.name]
