"""The examples in docstrings are true."""

import doctest
from importlib import import_module
from pathlib import Path

import pytest

import jitter

PACKAGE = Path(jitter.__file__).parent
MODULES = [
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
    for path in sorted(PACKAGE.rglob("*.py"))
    if "\n    >>> " in path.read_text()
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_hold(name: str):
    failed, tried = doctest.testmod(import_module(name))
    assert (failed, tried > 0) == (0, True)
