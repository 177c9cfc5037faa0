"""Simulated traces that the tests of the ingest share; nobody changes them."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from jitter.simulate import Job, simulate, write

RANKS, STEPS, KERNELS = 3, 3, 16


@pytest.fixture(scope="session")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """rank0..2.sqlite, steps 2000 to 2002 of epoch 1."""
    folder = tmp_path_factory.mktemp("traces")
    write(simulate(Job(ranks=RANKS, steps=STEPS, kernels=KERNELS, first_step=2000)), folder, "nsys")
    return folder


@pytest.fixture
def own(traces: Path, tmp_path: Path) -> Path:
    """A copy of the traces that the test may change."""
    return Path(shutil.copytree(traces, tmp_path / "own"))


@pytest.fixture(scope="session")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Make a folder of traces of a small job: `job` are `Job`'s fields, `options` the format's."""

    def make(job: dict[str, object], **options: object) -> Path:
        folder = tmp_path_factory.mktemp("simulated")
        write(simulate(Job(**({"ranks": 2, "steps": 2, "kernels": 16} | job))), folder, "nsys", **options)  # type: ignore[arg-type]
        return folder

    return make
