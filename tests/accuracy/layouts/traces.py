"""Writes a job's traces, and what the job costs more than another one."""

from pathlib import Path

import numpy as np

import jitter
from tests.accuracy.irregular.kineto_trace import write_trace
from tests.accuracy.layouts.job import LayoutJob, duration_ns, run_job
from tests.support.simulated import ingest_traces


def ingest_job(job: LayoutJob, folder: Path) -> "jitter.Lake":
    """Run the job, write its traces and ingest them."""
    at = folder / "traces"
    at.mkdir(parents=True)
    clocks = np.random.default_rng((job.seed, 4)).uniform(0, 5e8, job.ranks)
    for rank, trace in enumerate(run_job(job)):
        stated = {"with_groups": job.naming not in ("none", "nothing"), "with_operations": job.naming != "nothing"}
        write_trace(at, rank, job.ranks, trace, 1e9 + float(clocks[rank]), rank % 8, **stated)
    return ingest_traces(folder)


def true_cost_ns(job: LayoutJob, without: LayoutJob) -> float:
    """Return how much longer the job takes than another one."""
    return duration_ns(run_job(job)) - duration_ns(run_job(without))
