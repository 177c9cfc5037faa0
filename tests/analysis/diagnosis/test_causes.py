"""The registry of causes is complete: names, entries, detectors and simulated faults."""

from typing import get_args

import pytest

from jitter.analysis.diagnosis.causes import CAUSES, CauseEvidence, CauseInfo, find_cause
from jitter.analysis.diagnosis.model import Cause
from jitter.analysis.execution.self_times import TimePart
from jitter.simulate.faults import FAULT_KINDS

NAMED = [cause for cause in get_args(Cause) if cause != "none"]


def test_every_cause_has_an_entry():
    assert set(CAUSES) == set(get_args(Cause))


@pytest.mark.parametrize("cause", NAMED)
def test_an_entry_says_all_that_a_report_needs(cause: Cause):
    info = CAUSES[cause]
    assert info.words
    assert info.advice
    assert info.side is not None
    assert info.part is not None
    assert info.detect is not None


def test_every_cause_has_a_simulated_fault():
    simulated = {kind.cause for kind in FAULT_KINDS.values()}
    of_all_ranks = {"sync_calls", "blocking_copies", "launch_bound", "exposed_communication", "serial_copies"}
    # undecided between two; stages of tests/accuracy/layouts; options of a job, not faults
    assert simulated == set(NAMED) - {"gpu_time", "unequal_stages", *of_all_ranks}


def test_every_part_of_time_has_a_cause_that_is_always_found():
    for part in TimePart:
        of_part = [info for info in CAUSES.values() if info.part is part]
        assert of_part, part


def test_the_first_cause_that_is_found_counts(monkeypatch: pytest.MonkeyPatch):
    class Candidate:
        part = TimePart.GPU

    def entry(told: str | None, part: TimePart = TimePart.GPU) -> CauseInfo:
        found = None if told is None else CauseEvidence("likely", (told,))
        return CauseInfo("", None, part, "", lambda evidence, candidate: found)

    def found(registry: dict[str, CauseInfo]) -> tuple[str, CauseEvidence]:
        monkeypatch.setattr("jitter.analysis.diagnosis.causes.CAUSES", registry)
        return find_cause(None, Candidate())  # type: ignore[arg-type]

    assert found({"a": entry(None), "b": entry("b"), "c": entry("c")}) == ("b", ("likely", ("b",)))
    assert found({"a": entry("a", TimePart.CPU), "c": entry("c")}) == ("c", ("likely", ("c",)))
    assert found({"a": entry(None)}) == ("none", ("unknown", ()))
