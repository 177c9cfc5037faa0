"""Confidence: how likely chance explains a finding, and what leaves its ranks in doubt."""

from types import SimpleNamespace
from typing import Any

import pytest

from jitter.analysis.detection.findings import of_one_rank
from jitter.analysis.detection.standouts import Outlier
from jitter.analysis.diagnosis.confidence import judge_confidence
from jitter.analysis.diagnosis.grouping.finding_groups import FindingGroup
from jitter.analysis.diagnosis.grouping.scopes import RankGroup
from jitter.analysis.execution.self_times import TimePart


def judge(
    sigmas: float,
    chance: float,
    gain_ns: float = 1e6,
    other_gain_ns: float = 1e6,
    part: TimePart = TimePart.START,
    **analysis: Any,
) -> str:
    known = {"contradicts_recording": False, "is_unexplained": False, "qualities": [SimpleNamespace(uncertainty_ns=0)]}
    known |= {"gains": lambda _: [gain_ns], "bound_gains": lambda _: [other_gain_ns]}
    evidence: Any = SimpleNamespace(
        analysis=SimpleNamespace(**(known | analysis)),
        is_doubtful=lambda _ranks, communication: communication,
        has_launches=lambda _team: True,
        pricing=SimpleNamespace(min_gain_ns=lambda _steps: 1e5),
    )
    late = of_one_rank(Outlier(0, 1, part, (0,), 1e6, sigmas, chance))
    found = FindingGroup((late,), RankGroup("rank", (1,)), "gpu_compute", "likely", ())
    return judge_confidence(found, evidence)


@pytest.mark.parametrize(
    ("sigmas", "chance", "confidence"),
    [
        (3.0, 1e-5, "high"),
        (11.0, 0.04, "high"),
        (5.0, 0.005, "medium"),
        # in few steps six standard deviations occur by chance
        (8.0, 0.04, "low"),
    ],
)
def test_chance_decides_and_more_than_ten_standard_deviations(sigmas: float, chance: float, confidence: str):
    assert judge(sigmas, chance) == confidence


@pytest.mark.parametrize("doubt", ["contradicts_recording", "is_unexplained"])
def test_what_was_not_recorded_leaves_doubt(doubt: str):
    assert judge(50.0, 1e-9, **{doubt: True}) == "low"


def test_clocks_that_err_by_more_than_half_of_the_excess_leave_doubt():
    assert judge(50.0, 1e-9, qualities=[SimpleNamespace(uncertainty_ns=400_000)]) == "high"
    assert judge(50.0, 1e-9, qualities=[SimpleNamespace(uncertainty_ns=600_000)]) == "low"


@pytest.mark.parametrize(
    ("gain_ns", "other_gain_ns", "confidence"),
    [
        (1e6, 2e5, "high"),
        (1e6, 5e4, "low"),
        # masked by other findings, whatever hosts wait for
        (5e4, 5e4, "high"),
    ],
)
def test_waits_that_may_leave_nothing_to_save_leave_doubt(gain_ns: float, other_gain_ns: float, confidence: str):
    assert judge(50.0, 1e-9, gain_ns, other_gain_ns) == confidence
    assert judge(50.0, 1e-9, gain_ns, other_gain_ns, TimePart.GPU) == "high"
