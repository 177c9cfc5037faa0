"""Databases for the history's tests: each test runs on SQLite and on PostgreSQL."""

import itertools
from pathlib import Path

import msgspec
import pytest

from jitter.comparison.document import Document, StepEntry
from jitter.comparison.runs import build_document
from jitter.simulate import Job, simulate
from tests.support.postgresql_server import postgresql_server
from tests.support.simulated import ingest_run

__all__ = ["postgresql_server"]
_numbers = itertools.count()


@pytest.fixture(params=["sqlite", "postgresql"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the path or URL of an empty database."""
    if request.param == "sqlite":
        return str(tmp_path / "folder" / "history.sqlite")
    server = request.getfixturevalue("postgresql_server")
    import psycopg

    name = f"history{next(_numbers)}"
    with psycopg.connect(f"{server}/postgres", autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return f"{server}/{name}"


@pytest.fixture(scope="session")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = simulate(Job(ranks=2, steps=8, kernels=24, seed=1))
    return ingest_run(run, tmp_path_factory.mktemp("history"), "nsys").root


@pytest.fixture(scope="session")
def document(lake: Path) -> Document:
    import jitter

    return build_document(jitter.open(lake))


def scaled(document: Document, number: int, factor: float = 1.0) -> Document:
    """The document of another run, whose steps all take `factor` times as long."""
    steps = tuple(
        step
        if step.step_time_ns is None
        else StepEntry(step.epoch, step.step, round(factor * step.step_time_ns), step.loss_ns)
        for step in document.steps
    )
    return msgspec.structs.replace(document, digest=f"digest{number}", label=f"run{number}", steps=steps)
