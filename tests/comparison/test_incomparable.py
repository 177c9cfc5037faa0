"""Whether runs can be compared, and the effect on step time: its interval, noise, several bases."""

import msgspec
import numpy as np
import pytest

import jitter
from jitter.comparison.build_document import build_document
from jitter.comparison.document import select_steps
from jitter.comparison.model import comparison_document
from jitter.comparison.significance import MIN_NOISE, measure_effect, median
from jitter.core.numeric.student_t import student_quantile, student_tail
from jitter.simulate import Job, simulate
from tests.support.simulated import ingest_run


@pytest.fixture(scope="module")
def document(tmp_path_factory):
    run = simulate(Job(ranks=2, steps=8, kernels=30, seed=1))
    return build_document(ingest_run(run, tmp_path_factory.mktemp("base"), "nsys"))


def refused(base, new, reason):
    found = comparison_document(jitter.compare(base, new))
    assert found["verdict"] == "incomparable"
    assert len(found["reasons"]) == 1
    assert reason in found["reasons"][0]
    assert reason in found["sentence"]
    assert found["step_time"] is None
    assert found["split"] == found["kernels"] == []


def test_too_few_steps(document):
    few = select_steps(document, range(4))
    refused(document, few, "has 4 steps, fewer than 5")
    refused(few, document, "has 4 steps, fewer than 5")
    assert comparison_document(jitter.compare(document, select_steps(document, range(5))))["verdict"] == "same"


def test_no_kernels(document):
    refused(document, msgspec.structs.replace(document, teams=()), "has no kernels")


def test_other_sequences(document):
    other = msgspec.structs.replace(document, names=tuple(f"other_{name}" for name in document.names))
    refused(document, other, "share less than half")


def test_unequal_periods_without_a_common_marker(document):
    team = document.teams[0]
    places = len(team.places)
    longer = msgspec.structs.replace(
        team, places=team.places + team.places[: places // 2], times_ns=team.times_ns + team.times_ns[: places // 2]
    )
    other = msgspec.structs.replace(document, teams=(longer,), marker=None)
    refused(document, other, "no common step marker")
    marked = msgspec.structs.replace(other, marker=document.marker)
    assert comparison_document(jitter.compare(document, marked))["verdict"] == "same"


def test_one_of_several_bases_without_steps(document):
    found = jitter.compare(document, select_steps(document, range(4)), document)
    assert found.verdict == "incomparable"


@pytest.mark.parametrize("steps", [4, 7, 14, 40])
def test_the_interval_holds_the_truth(steps):
    """At least 93 of 100 intervals of 95% hold a true difference of 3%."""
    rng = np.random.default_rng(steps)
    held = 0
    for _ in range(200):
        base, new = rng.normal(1e7, 2e5, steps), rng.normal(1.03e7, 2e5, steps)
        found = measure_effect([base], new)
        held += found.low_ns <= 3e5 <= found.high_ns
        assert found.low_ns <= found.difference_ns <= found.high_ns
    assert held >= 186


def test_slow_single_steps_do_not_move_it():
    base = np.full(15, 1e7)
    new = base.copy()
    new[[3, 9]] = 5e7
    found = measure_effect([base], new)
    assert found.difference_ns == 0
    assert not found.is_real


def test_less_than_1_percent_is_noise():
    base, new = np.full(30, 1e7), np.full(30, 1.009e7)
    found = measure_effect([base], new)
    assert found.low_ns > 0
    assert found.noise_fraction == MIN_NOISE
    assert not found.is_real
    assert measure_effect([base], np.full(30, 1.011e7)).is_real


def test_halves_of_the_base_that_differ_are_noise():
    base = np.concatenate([np.full(10, 1e7), np.full(10, 1.1e7)])
    found = measure_effect([base], np.full(20, 1.15e7))
    assert found.noise_fraction == pytest.approx(0.1)


def test_what_several_bases_differ_by_is_noise():
    rng = np.random.default_rng(1)
    bases = [rng.normal(centre, 1e4, 20) for centre in (1e7, 1.04e7, 0.97e7, 1.02e7)]
    new = rng.normal(1.04e7, 1e4, 20)
    assert measure_effect(bases[:1], new).is_real
    found = measure_effect(bases, new)
    assert not found.is_real
    assert found.noise_fraction > 0.02
    assert found.base_ns == median(np.array([median(times) for times in bases]))


def test_equal_calls_give_equal_answers():
    rng = np.random.default_rng(1)
    base, new = rng.normal(1e7, 1e5, 9), rng.normal(1.02e7, 1e5, 9)
    assert measure_effect([base], new) == measure_effect([base], new)


@pytest.mark.parametrize(
    ("t", "degrees", "p"), [(2.776, 4, 0.05), (2.228, 10, 0.05), (3.169, 10, 0.01), (1.96, 1e6, 0.05)]
)
def test_students_t(t, degrees, p):
    """Values of printed tables."""
    assert 2 * float(student_tail(t, degrees)) == pytest.approx(p, rel=0.01)
    assert student_quantile(1 - p / 2, degrees) == pytest.approx(t, rel=0.02)
