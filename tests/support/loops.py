"""Run compiled loops compiled, or as they stand, whatever the input's size."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from jitter.core.numeric import compilation

WAYS = ("uncompiled", "compiled")


@contextmanager
def run_loops(way: str) -> Iterator[None]:
    """Have loops run in this way while this lasts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compilation, "_numba", None)
        patch.setattr(compilation, "WORTH_COMPILING", 0 if way == "compiled" else 10**18)
        if way == "compiled":
            compilation.compile_loops(1)
            assert compilation._numba, "numba is not installed"
        yield


@pytest.fixture(params=WAYS)
def each_way(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run the test both ways."""
    with run_loops(request.param):
        yield
