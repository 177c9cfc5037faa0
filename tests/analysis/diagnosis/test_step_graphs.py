"""Steps that are one CUDA graph each, collectives included: its streams wait for each other, and all share a launch."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jitter.simulate import Fault, Job, RankRecording, Run, simulate
from tests.support.simulated import ingest_run, small, true_gain_ns


class GraphedRun:
    """A run whose steps are one graph each, in the place of a `Run` where traces are written."""

    def __init__(self, run: Run) -> None:
        self.job: Job = run.job
        self._run = run

    def ranks(self, wanted: Any = None) -> Iterator[RankRecording]:
        """The recordings, each step's activities with the launch of its first."""
        for recording in self._run.ranks(wanted):
            follows = np.append(False, np.diff(recording.step) == 0)
            head = np.maximum.accumulate(np.where(follows, 0, np.arange(len(follows))))
            yield replace(
                recording,
                shares_launch=follows,
                correlation=recording.correlation[head],
                launch_start_ns=recording.launch_start_ns[head],
                launch_end_ns=recording.launch_end_ns[head],
                has_launch=recording.has_launch[head],
            )


@pytest.mark.parametrize("form", ["kineto", "nsys"])
def test_a_slow_gpu_in_graphs_is_found_and_priced(tmp_path: Path, form: str):
    slow = Fault.parse("slow_gpu:rank=2,factor=1.2")
    run = simulate(small("data_parallel", ranks=6, steps=6), [slow])
    graphed: Any = GraphedRun(run)
    (culprit,) = ingest_run(graphed, tmp_path, form).diagnose().culprits
    assert (culprit.ranks, culprit.cause) == ((2,), "gpu_compute")
    assert culprit.gain_ns == pytest.approx(true_gain_ns(run, slow), rel=0.05)
