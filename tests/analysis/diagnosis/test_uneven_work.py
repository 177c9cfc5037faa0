"""Work that is uneven over ranks and steps, as of packed sequences: all ranks hold up the job in turn."""

from pathlib import Path

import numpy as np
import pytest

from jitter.analysis.diagnosis.diagnosis import Diagnosis
from tests.accuracy.irregular.job import IrregularJob
from tests.accuracy.irregular.programs import duration_ns, run_job
from tests.accuracy.irregular.scoring import ingest_job


def diagnose(job: IrregularJob, folder: Path) -> Diagnosis:
    return ingest_job(job, folder)[0].diagnose()


def even_work_saves_ns(job: IrregularJob) -> float:
    """Return what the job gains where all ranks have the mean work of each step."""
    uneven = duration_ns(run_job(job))
    job.length[:] = job.length.mean(axis=0)
    return uneven - duration_ns(run_job(job))


@pytest.mark.parametrize(
    ("seed", "ranks", "shape", "fixed", "cause"),
    [
        (1, 8, "overlapped", False, "workload_imbalance"),
        (5, 4, "blocking", False, "workload_imbalance"),
        (3, 8, "sharded", True, "gpu_time"),
    ],
)
def test_uneven_batches_are_named_and_priced_by_even_ones(
    tmp_path, seed: int, ranks: int, shape: str, fixed: bool, cause: str
):
    job = IrregularJob(seed, shape, ranks, 12, 60, "variable lengths", lengths=0.4, fixed_grids=fixed)
    diagnosis = diagnose(job, tmp_path)
    (found,) = diagnosis.culprits
    assert (found.scope, found.ranks, found.cause) == ("job", tuple(range(ranks)), cause)
    assert found.recurs == "no"
    assert found.confidence in ("medium", "high")
    assert found.gain_ns == pytest.approx(even_work_saves_ns(job), rel=0.15)
    assert "in turn, so none is to blame" in diagnosis.verdict
    assert "tokens" in diagnosis.verdict


@pytest.mark.parametrize("effect", ["noise", "spread"])
def test_noise_and_gpus_that_differ_for_ever_are_no_uneven_work(tmp_path, effect: str):
    job = IrregularJob(4, "blocking", 8, 12, 60, "plain", **{effect: 0.04})
    assert np.ptp(job.length) == 0
    assert not [one for one in diagnose(job, tmp_path).culprits if one.scope == "job"]
