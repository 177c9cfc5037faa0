"""Reads a recording of AMD's profilers whole, and joins kernels with their calls the slow way."""

import os
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from jitter.readers import Reader, Recording, readers

Row = dict[str, Any]

TRACES = Path(os.environ["JITTER_TRACES"], "rocprof") if "JITTER_TRACES" in os.environ else None
needs_traces = pytest.mark.skipif(TRACES is None, reason="JITTER_TRACES names no folder of real traces")


class Read(NamedTuple):
    """The recording, and the rows of each table."""

    recording: Recording
    activities: list[Row]
    calls: list[Row]
    ranges: list[Row]

    @property
    def kernels(self) -> list[Row]:
        """The activities that are no copies, by start."""
        return sorted((a for a in self.activities if not a["is_memory"]), key=lambda a: a["start_ns"])

    def name(self, row: Row) -> str:
        return self.recording.names[row["name"]]

    def launch(self, row: Row) -> Row | None:
        """The first call of the activity's correlation in its process."""
        found = [c for c in self.calls if (c["process"], c["correlation"]) == (row["process"], row["correlation"])]
        return min(found, key=lambda c: c["start_ns"]) if found and row["correlation"] is not None else None


def real(name: str) -> Path:
    assert TRACES is not None
    return TRACES / name


def read(path: Path) -> Read:
    """Read with the one reader whose format it is; every byte must be reported, every batch be valid and small."""
    found: list[Reader] = [reader for reader in readers().values() if reader.sniff(path)]
    assert len(found) == 1, [reader.name for reader in found]
    (reader,) = found
    recording, batches = reader.open(path)
    rows: dict[str, list[Row]] = {"activities": [], "calls": [], "ranges": []}
    advanced: list[int] = []
    for table, batch in batches(advanced.append):
        batch.validate(full=True)
        assert batch.nbytes < 20_000_000
        rows[table] += batch.to_pylist()
    assert min(advanced) >= 0
    assert sum(advanced) == sum(file.stat().st_size for file in reader.files(path).read)
    return Read(recording, rows["activities"], rows["calls"], rows["ranges"])
