"""The page of the sample, drawn once, and a lake with a slow group of experts."""

import pytest

import jitter
from jitter.report.page import render_html
from tests.support.simulated import sampled_lake


@pytest.fixture(scope="session")
def sample_page(sample_lake: "jitter.Lake") -> str:
    """Return the page of `sample_lake`."""
    return render_html(sample_lake)


@pytest.fixture(scope="session")
def slow_experts(tmp_path_factory: pytest.TempPathFactory) -> "jitter.Lake":
    """Return the lake of two groups of four experts; the transfers of ranks 4 to 7 take four times as long."""
    job = "--shape expert --experts 4 --ranks 8 --steps 5 --kernels 120 --format kineto"
    return sampled_lake(tmp_path_factory.mktemp("slow_experts"), f"{job} --fault slow_link:rank=6,factor=4")
