"""Ingestion of trace files into a lake: discover, read, divide into steps, stage, publish."""

import os
from collections.abc import Iterable
from importlib.metadata import entry_points
from itertools import chain
from pathlib import Path
from typing import Final

WORTH_WORKERS_BYTES: Final = 8 << 20
"""Bytes of sources that one process reads in the time in which worker processes start, half a second."""


def are_worth_workers(paths: Iterable[Path]) -> bool:
    """Return whether files and what folders hold are of `WORTH_WORKERS_BYTES` or more."""
    size = 0
    for path in paths:
        for file in chain([path], path.rglob("*")):
            # the readers report a file that is gone or may not be read
            size += file.stat().st_size if os.access(file, os.R_OK) and file.is_file() else 0
            if size >= WORTH_WORKERS_BYTES:
                return True
    return False


def worker_modules() -> list[str]:
    """Return the modules that an ingest's worker processes load before they are forked.

    Readers of other packages are loaded when they are needed: an error while loading one would end the fork server.
    """
    points = entry_points(group="jitter.readers")
    # another package's entry point may be invalid, so that it has no module
    return ["jitter.ingestion.convert", *(point.module for point in points if point.value.startswith("jitter."))]
