"""A reader that another package adds, in this process and in those it starts."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from jitter.readers import readers


@contextmanager
def added_reader(name: str, source: str, site: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Install a package into `site` whose module, `source`, defines `READER`, for as long as the block lasts."""
    about = site / f"{name}-1.dist-info"
    about.mkdir(parents=True)
    (site / f"{name}_reader.py").write_text(source)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
    (about / "entry_points.txt").write_text(f"[jitter.readers]\n{name} = {name}_reader:READER\n")
    monkeypatch.syspath_prepend(site)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])]))
    sys.modules.pop(f"{name}_reader", None)
    readers.cache_clear()
    try:
        yield
    finally:
        readers.cache_clear()
