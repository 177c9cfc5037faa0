"""Simulated jobs in lakes, analysed, with the same data in the form that the oracles take."""

import pytest

from tests.support.oracles.replay_jobs import JOBS, OracleJob, oracle_job


@pytest.fixture(scope="session", params=JOBS)
def job(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> OracleJob:
    return oracle_job(request.param, tmp_path_factory.mktemp("oracle_job"))
