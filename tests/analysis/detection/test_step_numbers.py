"""Ranks whose steps have other numbers than the same steps on the other ranks are told, and nobody is cleared."""

import re
from pathlib import Path

import numpy as np
import pytest

from jitter.analysis.detection.measured_run import find_shifted_numbers
from jitter.core.step_key import StepKey
from jitter.simulate import Fault, simulate
from tests.support.lakes import RankLake, kernel, lake_of
from tests.support.simulated import ingest_run, ingest_traces, small

KEYS = [StepKey(None, number) for number in range(12)]


def ends_of(rank_shift: int, *, pause: float = 40e6) -> np.ndarray:
    """(steps, 4 ranks) ends on clocks of their own; rank 2 numbers its steps higher by `rank_shift`."""
    rng = np.random.default_rng(3)
    lasted = np.full(24, 5e6)
    lasted[9] += pause
    ends = np.cumsum(lasted)
    shifts = np.array([0, 0, rank_shift, 0])
    places = 6 + np.arange(12)[:, None] - shifts
    return ends[places] + np.array([0, 7e9, -3e9, 1e9]) + rng.normal(0, 300, places.shape)


@pytest.mark.parametrize("shift", [1, -1, 3])
def test_a_rank_that_numbers_otherwise_is_found(shift: int):
    assert find_shifted_numbers(ends_of(shift), KEYS) == {2: shift}


def test_most_ranks_are_right_whichever_comes_first():
    assert find_shifted_numbers(ends_of(1)[:, [2, 0, 1, 3]], KEYS) == {0: 1}


def test_steps_that_are_alike_or_few_tell_nothing():
    assert find_shifted_numbers(ends_of(0), KEYS) == {}
    assert find_shifted_numbers(ends_of(1, pause=0), KEYS) == {}
    assert find_shifted_numbers(ends_of(1)[:4], KEYS[:4]) == {}
    apart = [StepKey(None, 2 * number) for number in range(12)]
    assert find_shifted_numbers(ends_of(1), apart) == {}


def test_ranks_that_meet_nowhere_have_steps_of_their_own(tmp_path: Path):
    """As replicas of an engine, of which each has a long step when a request comes."""
    ranks = []
    for rank in range(4):
        begins = np.cumsum([0, *(50_000 if step == 5 + rank else 1_000 for step in range(12))]).tolist()
        steps = {(None, step): [kernel("gemm", at, at + 900)] for step, at in enumerate(begins[:-1])}
        ranks.append(RankLake(rank, steps))
    measured = lake_of(tmp_path / "lake", ranks).analyze().measured
    assert find_shifted_numbers(measured.statistics.ends_ns, measured.steps.run.keys)
    assert measured.shifted_numbers == {}


def test_nobody_is_cleared_where_steps_do_not_belong_together(tmp_path: Path):
    """Rank 1 pauses in one step; rank 3's marker says the next number for each step."""
    pause = Fault.parse("cpu_stall:rank=1,step=5,kernel=20,ms=60")
    run = simulate(small(ranks=4, steps=12), [pause])
    right = ingest_run(run, tmp_path, "kineto")
    assert right.diagnose().conclusion.status == "found"
    traces = [Path(record.file) for record in right.sources]
    for trace in traces:
        numbered = re.sub(r"ProfilerStep#(\d+)", lambda match: f"ProfilerStep#{int(match[1]) + 1}", trace.read_text())
        if "rank-3" in trace.name:
            trace.write_text(numbered)
    (tmp_path / "wrong").mkdir()
    found = ingest_traces(tmp_path / "wrong", *traces).diagnose()
    assert (found.loss.ns, found.conclusion.status, found.conclusion.cleared) == (None, "unknown", ())
    assert any("Rank 3 numbers its steps otherwise" in doubt for doubt in found.conclusion.doubts)
