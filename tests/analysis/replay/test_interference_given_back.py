"""What-if with compute that slows down beside collectives, against an engine that shares nothing with the replay."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.accuracy.irregular.job import Fault, IrregularJob
from tests.accuracy.irregular.scoring import ingest_job
from tests.support.fuzz_depth import fuzz, some_of
from tests.support.replay_assertions import assert_replay_matches_recording

FAULT = Fault("slow_gpu", (2,), 1.25)
PAUSE = Fault("pause", (1,), 0.7, (2, 3))


def job_of(interference: float, fault: Fault = FAULT) -> IrregularJob:
    return IrregularJob(
        seed=5,
        shape="overlapped",
        ranks=6,
        steps=5,
        kernels=30,
        effect="interference",
        transfer=0.12,
        interference=interference,
        faults=(fault,),
    )


@fuzz
@pytest.mark.parametrize("interference", some_of([0.0, 0.1, 0.2, 0.3], 2))
def test_the_price_of_a_slow_gpu_whose_victims_slow_down_while_they_wait(tmp_path: Path, interference: float):
    lake, saved = ingest_job(job_of(interference), tmp_path)
    (rules,) = lake.analyze().run.dependencies.values()
    assert rules.interference == pytest.approx(interference, abs=0.03)
    diagnosis = lake.diagnose()
    (culprit,) = diagnosis.culprits
    assert (culprit.ranks, culprit.cause) == ((2,), "gpu_compute")
    assert culprit.gain_ns == pytest.approx(saved, rel=0.05)
    told = [note for note in diagnosis.notes if "longer while a collective runs on their GPU" in note]
    assert len(told) == (interference > 0)


@pytest.mark.parametrize("seed", some_of([5, 6, 7, 8], 2))
def test_who_comes_late_is_charged_for_kernels_beside_collectives_that_were_launched_after_them(
    tmp_path: Path, seed: int
):
    """While they wait, all other ranks are slower: none of them is to blame."""
    lake, saved = ingest_job(replace(job_of(0.3, PAUSE), seed=seed, shape="prefetched", transfer=0.25), tmp_path)
    (culprit,) = lake.diagnose().culprits
    assert (culprit.ranks, culprit.cause) == ((1,), "cpu_launch")
    assert culprit.gain_ns == pytest.approx(saved, rel=0.01)


@pytest.mark.parametrize(("fault", "shape"), [(FAULT, "overlapped"), (PAUSE, "overlapped"), (PAUSE, "prefetched")])
def test_unrepaired_the_replay_is_what_was_recorded(tmp_path: Path, fault: Fault, shape: str):
    lake, _ = ingest_job(replace(job_of(0.25, fault), shape=shape), tmp_path)
    assert lake.analyze().run.job.interference[0] > 0.2
    assert_replay_matches_recording(lake)
