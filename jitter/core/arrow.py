"""Convert Arrow columns to numpy arrays and back, and keep pyarrow from importing pandas.

pyarrow imports pandas when it converts its first array, if pandas is installed. That import takes 0.4 s, longer than
reading a small lake. `hide_pandas` prevents it in the processes that belong to jitter: the command and its workers.
"""

import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from jitter.core.numeric.arrays import Bools, Codes, Ints

if TYPE_CHECKING:
    import pandas as pd


def to_numpy(column: pa.Array | pa.ChunkedArray, null: int = 0) -> npt.NDArray[Any]:
    """Return a column of numbers in its own type, shape (rows), with `null` where the value is null.

    A column in one chunk and without nulls is not copied.
    """
    if column.null_count:
        column = column.fill_null(null)
    values: npt.NDArray[Any] = column.to_numpy()
    return values


def is_valid(column: pa.ChunkedArray) -> Bools:
    """Return where a column is not null, shape (rows)."""
    if not column.null_count:
        return np.ones(len(column), np.bool_)
    valid: Bools = column.is_valid().to_numpy()
    return valid


def from_numpy(values: npt.NDArray[Any], is_known: Bools | None = None) -> pa.Array:
    """Return an Arrow array of `values`, shape (rows), null where `is_known`, shape (rows), is false."""
    return pa.array(values, mask=None if is_known is None else ~is_known)


def to_list(column: pa.ChunkedArray) -> list[Any]:
    """Return a column's values as Python objects, None where null: as `to_pylist`, several times faster."""
    elements: list[Any] = []
    if pa.types.is_dictionary(column.type):
        for chunk in column.chunks:
            # one entry more stands for null
            values = np.array([*chunk.dictionary.to_pylist(), None], object)
            elements += values[to_numpy(chunk.indices, len(values) - 1)].tolist()
    elif pa.types.is_integer(column.type) and not column.null_count:
        elements = to_numpy(column).tolist()
    else:
        elements = column.to_pylist()
    return elements


def encode_lists(column: pa.ChunkedArray) -> tuple[Ints, list[tuple[int, ...]]]:
    """Return the distinct lists of a column of integer lists, and each row's position among them, shape (rows).

    The position of a null list is -1. The groups of a thousand ranks are long lists with few distinct values.
    """
    lists = column.combine_chunks()
    values, ends = to_numpy(lists.values), to_numpy(lists.offsets).tolist()
    codes_by_bytes: dict[bytes, int] = {}
    distinct: list[tuple[int, ...]] = []
    codes = np.full(len(lists), -1, np.int64)
    for row in np.flatnonzero(is_valid(column)).tolist():
        items = values[ends[row] : ends[row + 1]]
        content = items.tobytes()
        if content not in codes_by_bytes:
            codes_by_bytes[content] = len(distinct)
            distinct.append(tuple(items.tolist()))
        codes[row] = codes_by_bytes[content]
    return codes, distinct


def coded(column: pa.Array | pa.ChunkedArray) -> tuple[list[Any], Codes]:
    """Return the distinct values of a column, None for null, and for each row the position of its value, (rows,)."""
    values = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    encoded = values.dictionary_encode("encode")
    return encoded.dictionary.to_pylist(), encoded.indices.to_numpy()


def map_distinct(values: pa.Array, function: Callable[[Any], Any], kind: pa.DataType) -> pa.Array:
    """Return `function` of each value, as `kind`; it is called once per distinct value, and null is one of them."""
    encoded = values.dictionary_encode("encode")
    return pa.array([function(value) for value in encoded.dictionary.to_pylist()], kind).take(encoded.indices)


def column_or_nulls(rows: pa.Table | pa.RecordBatch, name: str, kind: pa.DataType) -> pa.Array | pa.ChunkedArray:
    """Return a column of `rows`; nulls of type `kind` if they lack it."""
    return rows[name] if name in rows.schema.names else pa.nulls(rows.num_rows, kind)


def table_of_rows(rows: Sequence[Sequence[object]], schema: pa.Schema) -> pa.Table:
    """Return a table of `schema` from rows that hold one value per column."""
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    return pa.table(
        [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)], schema=schema
    )


def to_frame(table: pa.Table) -> "pd.DataFrame":
    """Return a DataFrame; whole numbers and booleans with nulls have pandas' types for them (Int64, boolean)."""
    import pandas as pd

    def nullable(kind: pa.DataType) -> Any:
        if pa.types.is_boolean(kind):
            return pd.BooleanDtype()
        name = str(kind).replace("uint", "UInt").replace("int", "Int")
        return pd.api.types.pandas_dtype(name) if pa.types.is_integer(kind) else None

    columns = [column.to_pandas(types_mapper=nullable if column.null_count else None) for column in table.columns]
    frame = pd.DataFrame(dict(enumerate(columns)))
    frame.columns = pd.Index(table.column_names)
    return frame


def hide_pandas() -> None:
    """Make pyarrow regard pandas as not installed, until a conversion needs pandas (`to_pandas` works as before).

    `pyarrow.array` then treats a pandas Series as a plain sequence. Call this only in processes that belong to jitter.
    """
    finder = _PandasFinder()
    sys.meta_path.insert(0, finder)
    try:
        pa.array([])  # pyarrow looks for pandas once, here
    finally:
        sys.meta_path.remove(finder)


class _PandasFinder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname == "pandas":
            raise ModuleNotFoundError("pandas is hidden", name=fullname)
        return None
