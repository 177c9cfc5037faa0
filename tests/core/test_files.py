"""Files that are written aside and put in place."""

import os
from pathlib import Path

import pytest

from jitter.core.files import atomic_file


def test_two_processes_write_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The file is complete at any time, and is that of the process which ends last."""
    path = tmp_path / "page.html"
    with atomic_file(path) as own:
        own.write_text("own, ")
        with monkeypatch.context() as patch:
            patch.setattr(os, "getpid", lambda: 1)
            with atomic_file(path) as other:
                other.write_text("the other's")
        assert path.read_text() == "the other's"
        with own.open("a") as file:
            file.write("complete")
    assert path.read_text() == "own, complete"
    assert list(tmp_path.iterdir()) == [path]
