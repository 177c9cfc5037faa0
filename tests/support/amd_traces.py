"""Reads a recording of AMD's profilers whole, and joins kernels with their calls the slow way."""

from pathlib import Path
from typing import NamedTuple

from jitter.readers import Recording, SourceReader, readers
from tests.support.reading import Row, read_rows
from tests.support.real_recordings import TRACES


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
    return TRACES / "rocprof" / name


def read(path: Path) -> Read:
    """Read with the one reader whose format it is."""
    found: list[SourceReader] = [reader for reader in readers().values() if reader.sniff(path)]
    assert len(found) == 1, [reader.name for reader in found]
    recording, rows = read_rows(found[0], path)
    return Read(recording, rows["activities"], rows["calls"], rows["ranges"])
