"""Validation of batches where they enter ingestion: tables, columns, types, nulls and indices, once per batch."""

from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from jitter.core.schema import READER_TABLES
from jitter.readers import Batch, ReaderError, Recording

_INDICES: Final = {"process": "processes", "name": "names"}


class BatchValidator:
    """Checks the batches of one recording against the schemas; call `check` for each, then `finish`.

    Both raise `ReaderError` with reader, table and column in the message.
    """

    def __init__(self, reader: str, path: Path) -> None:
        self._reader = reader
        self._path = path
        self._schemas: dict[str, pa.Schema] = {}
        self._largest: dict[tuple[str, str], int] = {}

    def check(self, batch: Batch) -> None:
        """Check one batch."""
        table, rows = batch
        if table not in READER_TABLES:
            raise self._error(f"unknown table {table!r}{_suggest(str(table), list(READER_TABLES))}")
        if not isinstance(rows, pa.RecordBatch):
            raise self._error(f"table {table!r}: rows are {type(rows).__name__}, not pyarrow.RecordBatch")
        expected_schema = self._schemas.get(table)
        if expected_schema is None or not rows.schema.equals(expected_schema):
            self._check_schema(table, rows.schema)
            self._schemas[table] = rows.schema
        for field in READER_TABLES[table]:
            if not field.nullable and rows[field.name].null_count:
                raise self._error(f"table {table!r}, column {field.name!r}: {rows[field.name].null_count} nulls")
        for column in _INDICES:
            if rows.num_rows and column in rows.schema.names:
                self._check_indices(table, column, rows[column])

    def finish(self, recording: Recording) -> None:
        """Check that indices are within the recording's processes and names, which are now complete."""
        sizes = {"process": len(recording.processes), "name": len(recording.names)}
        for (table, column), largest in self._largest.items():
            if largest >= sizes[column]:
                raise self._error(
                    f"table {table!r}, column {column!r}: index {largest}, but the recording has "
                    f"{sizes[column]} {_INDICES[column]}"
                )
        wrong = next((name for name in recording.names if not isinstance(name, str)), None)
        if wrong is not None:
            raise self._error(f"Recording.names holds {type(wrong).__name__}, not str")

    def _check_schema(self, table: str, schema: pa.Schema) -> None:
        expected = READER_TABLES[table]
        for field in schema:
            if field.name not in expected.names:
                raise self._error(
                    f"table {table!r}: unknown column {field.name!r}{_suggest(field.name, expected.names)}"
                )
            wanted = expected.field(field.name).type
            if field.type != wanted:
                raise self._error(f"table {table!r}, column {field.name!r}: {field.type}, expected {wanted}")
        if len(set(schema.names)) < len(schema.names):
            raise self._error(f"table {table!r}: a column occurs twice")
        missing = [field.name for field in expected if not field.nullable and field.name not in schema.names]
        if missing:
            raise self._error(f"table {table!r}: no column {missing[0]!r}")

    def _check_indices(self, table: str, column: str, values: pa.Array) -> None:
        bounds = pc.min_max(values)
        if bounds["min"].as_py() < 0:
            raise self._error(f"table {table!r}, column {column!r}: negative index {bounds['min'].as_py()}")
        key = table, column
        self._largest[key] = max(self._largest.get(key, 0), bounds["max"].as_py())

    def _error(self, what: str) -> ReaderError:
        return ReaderError(f"{self._path}: bug of reader {self._reader!r}: {what}", "report it to the reader's author")


def _suggest(name: str, known_names: list[str]) -> str:
    from difflib import get_close_matches  # imported here: only errors need it

    close = get_close_matches(name, known_names, 1)
    return f" (did you mean {close[0]!r}?)" if close else f" (expected {', '.join(known_names)})"
