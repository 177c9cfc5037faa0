"""Simulated jobs in lakes, analysed, with the same data in the form that the oracles take."""

from functools import cache
from typing import Protocol

import pytest

from tests.support.oracles.replay import JOBS, OracleJob, oracle_job


class OracleJobs(Protocol):
    """Returns the job of this name."""

    def __call__(self, name: str) -> OracleJob: ...


@pytest.fixture(scope="session")
def oracle_jobs(tmp_path_factory: pytest.TempPathFactory) -> OracleJobs:
    """Return the jobs by name, each made once; pytest ends a session fixture with parameters at the next parameter."""
    return cache(lambda name: oracle_job(name, tmp_path_factory.mktemp("oracle_job")))


@pytest.fixture(params=JOBS)
def job(request: pytest.FixtureRequest, oracle_jobs: OracleJobs) -> OracleJob:
    return oracle_jobs(request.param)
