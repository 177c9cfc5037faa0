"""Typed tables built row by row, in Arrow batches, so that memory holds columns and not Python objects."""

from collections.abc import Sequence
from math import inf
from typing import Any, Final

import pyarrow as pa
import pyarrow.types as kinds

from jitter.logs.schemas import SCHEMAS

_BATCH_ROWS: Final = 8_192
_TEXT_LIMIT: Final = 65_536
_SHORT: Final = _TEXT_LIMIT // 4
"""Characters that no encoding makes longer than the limit."""


class Tables:
    """Rows of every relation that a log fills."""

    def __init__(self, source: str) -> None:
        """Start empty; `source` goes into every row."""
        self._source = source
        self._rows: dict[str, list[tuple[Any, ...]]] = {}
        self._batches: dict[str, list[pa.RecordBatch]] = {}
        self._repeated: dict[str | None, pa.Array] = {}
        """Columns of one repeated text, which batches share."""

    def add(self, relation: str, **values: Any) -> None:
        """Add a row; columns without a value are null.

        Raises ValueError for a number that the column cannot hold: the line that states it is broken.
        """
        limits = _LIMITS[relation]
        for name, value in values.items():
            if value is not None:
                values[name] = _fitting(value, limits.get(name))
        row = tuple(map(values.get, limits))
        rows = self._rows.setdefault(relation, [])
        rows.append(row)
        if len(rows) >= _BATCH_ROWS:
            self._seal(relation)

    def add_batch(self, relation: str, batch: pa.RecordBatch) -> None:
        """Add many rows at once; the columns are the relation's without `source`."""
        columns = [*batch.columns, self._repeat(self._source, batch.num_rows)]
        self._batches.setdefault(relation, []).append(pa.RecordBatch.from_arrays(columns, schema=SCHEMAS[relation]))

    def has_rows(self) -> bool:
        """Return whether any relation has a row."""
        return any(self._rows.values()) or bool(self._batches)

    def finished(self) -> dict[str, pa.Table]:
        """Return the tables of the relations that have rows, in the order of the schemas."""
        for relation in list(self._rows):
            self._seal(relation)
        return {
            relation: pa.Table.from_batches(self._batches[relation], schema)
            for relation, schema in SCHEMAS.items()
            if self._batches.get(relation)
        }

    def _seal(self, relation: str) -> None:
        rows = self._rows.pop(relation)
        if rows:
            columns = zip(*rows, strict=True)
            arrays = [self._array(column, kind) for column, kind in zip(columns, SCHEMAS[relation].types, strict=False)]
            batch = pa.RecordBatch.from_arrays(arrays, schema=pa.schema(list(SCHEMAS[relation])[:-1]))
            self.add_batch(relation, batch)

    def _array(self, values: Sequence[Any], kind: pa.DataType) -> pa.Array:
        if kinds.is_string(kind) and len(set(values)) == 1:
            return self._repeat(values[0], len(values))
        return pa.array(values, kind)

    def _repeat(self, text: str | None, rows: int) -> pa.Array:
        """Return a column of one text; that of a full batch is kept, and takes memory once."""
        if rows != _BATCH_ROWS:
            return pa.repeat(pa.scalar(text, pa.string()), rows)
        column = self._repeated.get(text)
        if column is None:
            column = self._repeated[text] = pa.repeat(pa.scalar(text, pa.string()), rows)
        return column


def _limit(kind: pa.DataType) -> float | None:
    """Return what the numbers of a column are below: infinity for reals, None for texts and truth values."""
    kind = kind.value_type if kinds.is_list(kind) else kind
    if kinds.is_integer(kind):
        return float(1 << kind.bit_width - 1)
    return inf if kinds.is_floating(kind) else None


_LIMITS: Final = {
    relation: {column.name: _limit(column.type) for column in schema if column.name != "source"}
    for relation, schema in SCHEMAS.items()
}


def _fitting(value: Any, limit: float | None) -> Any:
    """Return a value as its column holds it: texts of limited length; ValueError for a number that does not fit."""
    if limit is not None:
        for number in value if isinstance(value, list) else (value,):
            if not -limit <= number < limit or number == -inf:
                raise ValueError(f"{number} does not fit")
    return _cut(value) if isinstance(value, str) and len(value) > _SHORT else value


def _cut(text: str) -> str:
    return text.encode(errors="replace")[:_TEXT_LIMIT].decode(errors="ignore")
