"""The page of the sample, drawn once."""

import pytest

import jitter
from jitter.report.page import render_html


@pytest.fixture(scope="session")
def sample_page(sample_lake: "jitter.Lake") -> str:
    """Return the page of `sample_lake`."""
    return render_html(sample_lake)
