"""Names and texts of an Nsight Systems export: numbering, look-up in StringIds, conversion to valid UTF-8."""

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from jitter.core.numeric.arrays import Ints
from jitter.readers.nsys.tables import STRINGS, RowFilter, Tables

Key = TypeVar("Key")


class Interner(Generic[Key]):
    """Numbers keys in order of first appearance."""

    def __init__(self) -> None:
        self.keys: list[Key] = []
        self._positions: dict[Key, int] = {}

    def position(self, key: Key) -> int:
        """Return the number of a key; a new key gets the next number."""
        if key not in self._positions:
            self._positions[key] = len(self.keys)
            self.keys.append(key)
        return self._positions[key]

    def positions(self, values: pa.Array, key: Callable[[int | None], Key]) -> pa.Array:
        """Return the numbers (int32, no nulls) of the keys of `values`; `key` is called once per distinct value."""
        encoded = values.dictionary_encode("encode")
        lookup = np.array([self.position(key(value)) for value in encoded.dictionary.to_pylist()], np.int32)
        return pa.array(lookup[encoded.indices.to_numpy()], pa.int32())


class StringTable:
    """Rows of StringIds by id."""

    def __init__(self, tables: Tables, ids: Ints) -> None:
        """Read the rows with these ids (any order, no duplicates). Raises what `tables` raises."""
        batches: list[Any] = []
        if len(ids) and tables.columns(STRINGS).issuperset({"id", "value"}):
            batches = list(tables.read(STRINGS, ["id"], ["value"], RowFilter("id", ids.tolist())))
        found = pa.Table.from_batches(batches, pa.schema([("id", pa.int64()), ("value", pa.binary())]))
        found = found.filter(found["id"].is_valid()).sort_by("id").combine_chunks()
        self._ids = found["id"].to_numpy()
        self._values = pa.concat_arrays(found["value"].chunks) if len(found) else pa.array([], pa.binary())

    def at(self, ids: pa.Array) -> pa.Array:
        """Return the strings (binary) of ids (int64); null where the id is null or absent."""
        if not len(self._ids):
            return pa.nulls(len(ids), pa.binary())
        wanted = ids.fill_null(0).to_numpy()
        places = np.searchsorted(self._ids, wanted).clip(max=len(self._ids) - 1)
        absent = (self._ids[places] != wanted) | ids.is_null().to_numpy(zero_copy_only=False)
        return self._values.take(pa.array(places, pa.int64(), mask=absent))


def decode_utf8(values: pa.Array) -> tuple[pa.Array, int]:
    """Return binary values as strings, and how many were invalid UTF-8 (invalid bytes are replaced). Nulls stay."""
    try:
        return values.cast(pa.string()), 0
    except pa.ArrowInvalid:
        texts = [None if value is None else value.decode("utf-8", "replace") for value in values.to_pylist()]
        invalid = sum(
            value is not None and text is not None and text.encode() != value
            for value, text in zip(values.to_pylist(), texts, strict=True)
        )
        return pa.array(texts, pa.string()), invalid


def resolve_names(tables: Tables, keys: Sequence[int | str | None]) -> tuple[list[str], int, int]:
    """Return the names of keys: ids of StringIds, or the names themselves.

    Returns the names, how many ids have none (the name then says so), and how many names were invalid UTF-8.
    """
    ids = np.array(sorted(key for key in keys if isinstance(key, int)), np.int64)
    texts, invalid = decode_utf8(StringTable(tables, ids).at(pa.array(ids)))
    by_id = dict(zip(ids.tolist(), texts.to_pylist(), strict=True))
    names: list[str] = []
    missing = 0
    for key in keys:
        name = key if isinstance(key, str) else by_id.get(key)
        missing += name is None
        names.append(f"[name {key} is not in the export]" if name is None else name)
    return names, missing, invalid


def read_registered_strings(tables: Tables, table: str, only: RowFilter) -> StringTable:
    """Return the strings that a table's `textId` refers to, from a first pass over that column."""
    ids = np.array([], np.int64)
    if "textId" in tables.columns(table):
        for batch in tables.read(table, ["textId"], only=only):
            ids = np.union1d(ids, pc.drop_null(batch.column(0)).to_numpy())
    return StringTable(tables, ids)
