"""Kernels that start apart and end together, on clocks that share no zero; and what they do to a diagnosis."""

import numpy as np
import pytest

from jitter.analysis.detection.likely_communication import CommunicationSurvey, has_waited, is_likely_communication
from jitter.analysis.diagnosis.diagnose import limit_to_communication
from jitter.analysis.diagnosis.diagnosis import Diagnosis
from jitter.analysis.diagnosis.model import Culprit, Loss, StepAnswer, WhatIf
from jitter.core.step_key import StepKey
from jitter.report.text.fix_list import answer_questions
from tests.support.findings import culprit

RANKS, LAUNCHES = 8, 40
Times = tuple[np.ndarray, np.ndarray]


def _clocks(random: np.random.Generator, start: np.ndarray, end: np.ndarray) -> Times:
    offset = random.integers(-(10**12), 10**12, RANKS)
    return start + offset, end + offset


def _arrivals(random: np.random.Generator, apart_ns: float) -> np.ndarray:
    return np.arange(LAUNCHES)[:, None] * 1e6 + np.abs(random.normal(0, apart_ns, (LAUNCHES, RANKS)))


def _collective(random: np.random.Generator, apart_ns: float = 50_000, groups: int = 1) -> Times:
    start = _arrivals(random, apart_ns)
    end = np.empty_like(start)
    for group in np.array_split(np.arange(RANKS), groups):
        end[:, group] = start[:, group].max(axis=1, keepdims=True) + 20_000
    return _clocks(random, start, end + random.normal(0, 100, start.shape))


def _work(random: np.random.Generator, apart_ns: float = 50_000, noise: float = 0.02) -> Times:
    start = _arrivals(random, apart_ns)
    return _clocks(random, start, start + 60_000 * (1 + random.normal(0, noise, start.shape)))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_collectives_are_found_whatever_their_groups(seed: int, groups: int):
    assert is_likely_communication(*_collective(np.random.default_rng(seed), groups=groups))


@pytest.mark.parametrize("seed", range(5))
def test_a_rank_that_is_always_late_does_not_hide_a_collective(seed: int):
    random = np.random.default_rng(seed)
    start = _arrivals(random, 5_000)
    start[:, 2] += 80_000
    end = np.broadcast_to(start.max(axis=1, keepdims=True) + 20_000, start.shape)
    assert is_likely_communication(*_clocks(random, start, end + random.normal(0, 100, start.shape)))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("groups", [1, 2])
def test_kernels_that_compute_and_communicate_have_waited_for_a_rank_that_pauses(seed: int, groups: int):
    """They hardly wait otherwise, and those that waited were slow GPUs, with high confidence."""
    random = np.random.default_rng(seed)
    start = _arrivals(random, 3_000)
    start[17, 6] += 8e6
    end = np.empty_like(start)
    for group in np.array_split(np.arange(RANKS), groups):
        end[:, group] = start[:, group].max(axis=1, keepdims=True) + 300_000
    times = _clocks(random, start, end + random.normal(0, 1_000, start.shape))
    assert not is_likely_communication(*times)
    assert [has_waited(*times, rank) for rank in range(RANKS)] == [
        rank != 6 and (groups == 1 or rank >= 4) for rank in range(RANKS)
    ]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("others", [(), (4, 7)])
def test_kernels_that_take_longer_have_not(seed: int, others: tuple[int, ...]):
    """Neither a rank's alone, nor those of several of which one ends when a rank does that began as much later."""
    random = np.random.default_rng(seed)
    start = _arrivals(random, 3_000)
    start[17, 6] += 8e6 if others else 0.0
    end = start + 300_000 * (1 + random.normal(0, 0.02, start.shape))
    end[17, [2, *others]] += [8e6, *np.linspace(5e6, 11e6, len(others))]
    assert not has_waited(*_clocks(random, start, end), 2)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("apart_ns", "noise"), [(50_000, 0.02), (50_000, 0.5), (0, 0.02), (200, 0.5), (1e6, 0.02)])
def test_work_is_not(seed: int, apart_ns: float, noise: float):
    assert not is_likely_communication(*_work(np.random.default_rng(seed), apart_ns, noise))


def test_work_of_a_slow_rank_is_not():
    random = np.random.default_rng(1)
    start, end = _work(random)
    end[:, 2] += 40_000
    assert not is_likely_communication(start, end)


def test_few_launches_and_absent_ranks_prove_nothing():
    start, end = _collective(np.random.default_rng(2))
    assert not is_likely_communication(start[:3], end[:3])
    start[:, 3] = np.nan
    assert not is_likely_communication(start, end)


def _diagnosis(*culprits: Culprit) -> Diagnosis:
    steps = (StepAnswer(StepKey(None, 1), 30, 1, 0.03, None, None, None, None, "none"),)
    return Diagnosis(Loss(1_000_000, 0.03), steps, culprits, WhatIf(0, 1), 8)


def _survey(**given: object) -> CommunicationSurvey:
    plain = {"ranks": 8, "is_recognized": True, "is_in_graphs": False, "likely": ()}
    return CommunicationSurvey(**(plain | given))  # type: ignore[arg-type]


LIKELY = ("void mycorp::ring<float>(float*)",)


def test_recognised_communication_limits_nothing():
    diagnosis = _diagnosis(culprit(cause="gpu_compute"))
    assert limit_to_communication(diagnosis, _survey()) is diagnosis
    assert limit_to_communication(diagnosis, _survey(ranks=1, is_recognized=False)) is diagnosis


@pytest.mark.parametrize(
    ("survey", "confidences"),
    [
        (_survey(likely=LIKELY), ["low", "high"]),
        (_survey(likely=LIKELY, is_recognized=False), ["low", "low"]),
        (_survey(is_recognized=False), ["low", "low"]),
        (_survey(is_in_graphs=True), ["low", "high"]),
        (_survey(is_recognized=False, is_in_graphs=True), ["low", "low"]),
    ],
)
def test_findings_that_rest_on_it_are_of_low_confidence(survey: CommunicationSurvey, confidences: list[str]):
    found = limit_to_communication(_diagnosis(culprit(cause="gpu_compute"), culprit(cause="cpu_launch")), survey)
    assert [one.confidence for one in found.culprits] == confidences
    assert found.notes
    assert "low" in found.verdict


@pytest.mark.parametrize("survey", [_survey(likely=LIKELY), _survey(is_recognized=False), _survey(is_in_graphs=True)])
def test_nobody_is_cleared(survey: CommunicationSurvey):
    found = limit_to_communication(_diagnosis(), survey)
    assert found.verdict.startswith("The cost of jitter is unknown; no rank can be blamed or cleared: ")
    assert (found.loss.ns, found.what_if.all_repaired_ns, found.conclusion.status) == (None, None, "unknown")
    assert answer_questions(found, {})[0].answer == f"Unknown: {found.communication_doubt}."
    assert "stands out" not in found.verdict


def test_the_option_is_named():
    found = limit_to_communication(_diagnosis(culprit(cause="gpu_compute")), _survey(likely=LIKELY))
    (_, hint), (slow,) = found.notes, found.culprits
    assert "--collective 'ring'" in hint
    assert "--collective 'ring'" in slow.advice
