"""Typed tables built row by row, in Arrow batches, so that memory holds columns and not Python objects."""

from math import isfinite
from typing import Any, Final

import pyarrow as pa
import pyarrow.types as kinds

from jitter.logs.schemas import SCHEMAS

_BATCH_ROWS: Final = 8_192
_TEXT_LIMIT: Final = 65_536


class Tables:
    """Rows of every relation that a log fills."""

    def __init__(self, source: str) -> None:
        """Start empty; `source` goes into every row."""
        self._source = source
        self._columns: dict[str, dict[str, list[Any]]] = {}
        self._rows: dict[str, int] = {}
        self._batches: dict[str, list[pa.RecordBatch]] = {}

    def add(self, relation: str, **values: Any) -> None:
        """Add a row; columns without a value are null.

        Raises ValueError for a number that the column cannot hold: the line that states it is broken.
        """
        schema = SCHEMAS[relation]
        row = [_fitting(kind, values.get(name)) for name, kind in zip(schema.names[:-1], schema.types, strict=False)]
        columns = self._columns.get(relation)
        if columns is None:
            columns = self._columns[relation] = {name: [] for name in schema.names}
        for column, value in zip(columns.values(), [*row, self._source], strict=True):
            column.append(value)
        self._rows[relation] = self._rows.get(relation, 0) + 1
        if self._rows[relation] % _BATCH_ROWS == 0:
            self._seal(relation)

    def add_batch(self, relation: str, batch: pa.RecordBatch) -> None:
        """Add many rows at once; the columns are the relation's without `source`."""
        columns = [*batch.columns, pa.repeat(pa.scalar(self._source, pa.string()), batch.num_rows)]
        self._batches.setdefault(relation, []).append(pa.RecordBatch.from_arrays(columns, schema=SCHEMAS[relation]))
        self._rows[relation] = self._rows.get(relation, 0) + batch.num_rows

    def has_rows(self) -> bool:
        """Return whether any relation has a row."""
        return any(self._rows.values())

    def finished(self) -> dict[str, pa.Table]:
        """Return the tables of the relations that have rows, in the order of the schemas."""
        for relation in list(self._columns):
            self._seal(relation)
        return {
            relation: pa.Table.from_batches(self._batches[relation], schema)
            for relation, schema in SCHEMAS.items()
            if self._batches.get(relation)
        }

    def _seal(self, relation: str) -> None:
        columns = self._columns.pop(relation, None)
        if columns is None or not columns["source"]:
            return
        schema = SCHEMAS[relation]
        arrays = [pa.array(columns[field.name], field.type) for field in schema]
        self._batches.setdefault(relation, []).append(pa.RecordBatch.from_arrays(arrays, schema=schema))


def _fitting(kind: pa.DataType, value: Any) -> Any:
    """Return the value as the column holds it; texts are cut, numbers out of range are a ValueError."""
    if value is None:
        return None
    if isinstance(value, str):
        return value if len(value) <= _TEXT_LIMIT // 4 else _cut(value)
    if isinstance(value, bool):
        return value
    if isinstance(value, int) and not kinds.is_floating(kind):
        limit = 1 << (kind.bit_width - 1)
        if not -limit <= value < limit:
            raise ValueError(f"{value} does not fit")
        return value
    if isinstance(value, int | float):
        number = float(value)
        if not isfinite(number):
            raise ValueError(f"{value} is no measurement")
        return number
    return [_fitting(kind.value_type, item) for item in value]


def _cut(text: str) -> str:
    return text.encode(errors="replace")[:_TEXT_LIMIT].decode(errors="ignore")
