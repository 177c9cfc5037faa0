"""The fixed short part of the torture; `make torture` runs the whole."""

import pytest

from tests.torture.sections import SECTIONS, torture

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", SECTIONS)
def test_quick(name: str):
    (figures,) = torture([name], quick=True, seed=1)
    assert figures.outcomes.total() > 0
    assert figures.failures == []
