"""How much of a search the tests do: a sample of its cases in `make test`, all of them in `make fuzz`."""

import os
from collections.abc import Iterable
from typing import TypeVar

import pytest

T = TypeVar("T")

IS_WHOLE = os.environ.get("JITTER_FUZZ") == "1"
fuzz = pytest.mark.fuzz
"""Marks the tests that do more in `make fuzz`."""


def of_all(whole: int, sample: int) -> int:
    """Return the number of cases, or the distance between them: that of the whole search, or of the sample."""
    return whole if IS_WHOLE else sample


def some_of(cases: Iterable[T], every: int, first: int = 0) -> list[T]:
    """Return all cases in the whole search, and else each so manieth from the first on."""
    return list(cases)[of_all(0, first) :: of_all(1, every)]
