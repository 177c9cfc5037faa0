"""Reads a recording whole, as an ingest does."""

from pathlib import Path
from typing import Any

import pytest

from jitter.core.errors import UnreadableTraceError
from jitter.core.schema import READER_TABLES
from jitter.readers import Recording, SourceReader, readers

Row = dict[str, Any]


def read_rows(reader: SourceReader, path: Path) -> tuple[Recording, dict[str, list[Row]]]:
    """Return the recording and the rows of each table; every byte must be reported, every batch be valid and small."""
    recording, batches = reader.open(path)
    rows: dict[str, list[Row]] = {table: [] for table in READER_TABLES}
    advanced: list[int] = []
    for table, batch in batches(advanced.append):
        batch.validate(full=True)
        assert batch.nbytes < 20_000_000
        rows[table] += batch.to_pylist()
    files = [file for of in reader.files(path).read for file in ([of] if of.is_file() else of.iterdir())]
    assert min(advanced, default=0) >= 0
    assert sum(advanced) == sum(file.stat().st_size for file in files)
    return recording, rows


def refusal(name: str, path: Path) -> str:
    """Return the error with which a reader refuses a source."""
    with pytest.raises(UnreadableTraceError) as caught:
        read_rows(readers()[name], path)
    return str(caught.value)
