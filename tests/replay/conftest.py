"""Simulated jobs in lakes, examined; the slow replay and the hand-made parts that the tests share."""

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
# the accuracy harness is a package of the repository's root
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent / "report"), str(HERE.parents[1])]

from plain_jobs import JOBS, PlainJob, plain_job  # noqa: E402


@pytest.fixture(scope="session", params=JOBS)
def job(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> PlainJob:
    return plain_job(request.param, tmp_path_factory.mktemp("plain"))
