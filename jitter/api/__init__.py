"""The Python API: open a lake and ask it. The command line, the report and notebooks use the same methods."""

from pathlib import Path

from jitter.api.lake import Lake
from jitter.lake import DEFAULT_LAKE

__all__ = ["Lake", "open"]


def open(path: str | Path = DEFAULT_LAKE) -> Lake:  # noqa: A001  # the name users type: jitter.open
    """Open the lake in the folder `path`, which `jitter.ingest` made.

    Opening a lake reads its records and writes nothing. Raises `LakeError` if the folder is not a lake, holds no
    steps, or was written by an incompatible version.
    """
    return Lake(Path(path))
