"""Pairs that cannot be compared: the reason is stated, and no number is given as if it were one."""

import msgspec
import pytest

import jitter
from jitter.comparison.build_document import build_document
from jitter.comparison.document import select_steps
from jitter.comparison.model import comparison_document
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
