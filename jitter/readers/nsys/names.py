"""Names and texts of an Nsight Systems export: StringIds, valid UTF-8, and the names of copies."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from jitter.core.arrow import column_or_nulls
from jitter.core.numeric.arrays import Ints
from jitter.readers.columns import Interner
from jitter.readers.nsys.tables import STRINGS, RowFilter, Tables

NameKey = int | str | None
"""The key of a name until it is looked up: an id of StringIds, or the name itself."""
_DIRECTIONS: Final = (
    *("Unknown", "Host-to-Device", "Device-to-Host", "Host-to-Array", "Array-to-Host", "Array-to-Array"),
    *("Array-to-Device", "Device-to-Array", "Device-to-Device", "Host-to-Host", "Peer-to-Peer"),
    *("Unified Host-to-Device", "Unified Device-to-Host", "Unified Device-to-Device"),
)
_MEMORY_KINDS: Final = ("Pageable", "Pinned", "Device", "Array", "Managed", "Device Static", "Managed Static")
_UNKNOWN: Final = len(_MEMORY_KINDS)
_HOST_KINDS: Final = frozenset({"Pageable", "Pinned"})


class StringTable:
    """Rows of StringIds by id."""

    def __init__(self, tables: Tables, ids: Ints) -> None:
        """Read the rows with these ids (any order, no duplicates). Raises what `tables` raises."""
        batches: list[Any] = []
        if len(ids) and tables.columns(STRINGS).issuperset({"id", "value"}):
            batches = list(tables.read(STRINGS, ["id"], ["value"], RowFilter("id", ids.tolist())))
        strings = pa.Table.from_batches(batches, pa.schema([("id", pa.int64()), ("value", pa.binary())]))
        strings = strings.filter(strings["id"].is_valid()).sort_by("id").combine_chunks()
        self._ids = strings["id"].to_numpy()
        self._values = pa.concat_arrays(strings["value"].chunks) if len(strings) else pa.array([], pa.binary())

    def at(self, ids: pa.Array) -> pa.Array:
        """Return the strings (binary) of ids (int64); null where the id is null or absent."""
        if not len(self._ids):
            return pa.nulls(len(ids), pa.binary())
        wanted = ids.fill_null(0).to_numpy()
        places = np.searchsorted(self._ids, wanted).clip(max=len(self._ids) - 1)
        absent = (self._ids[places] != wanted) | ids.is_null().to_numpy(zero_copy_only=False)
        return self._values.take(pa.array(places, pa.int64(), mask=absent))


def read_registered_strings(tables: Tables, table: str, only: RowFilter) -> StringTable:
    """Return the strings that a table's `textId` refers to, from a first pass over that column."""
    ids = np.array([], np.int64)
    if "textId" in tables.columns(table):
        for batch in tables.read(table, ["textId"], only=only):
            ids = np.union1d(ids, pc.drop_null(batch.column(0)).to_numpy())
    return StringTable(tables, ids)


def decode_utf8(values: pa.Array) -> tuple[pa.Array, int]:
    """Return binary values as strings, and how many were invalid UTF-8 (invalid bytes are replaced). Nulls stay."""
    try:
        return values.cast(pa.string()), 0
    except pa.ArrowInvalid:
        words = values.to_pylist()
        texts = [None if word is None else word.decode("utf-8", "replace") for word in words]
        invalid = sum(text is not None and text.encode() != word for word, text in zip(words, texts, strict=True))
        return pa.array(texts, pa.string()), invalid


def resolve_names(tables: Tables, keys: Sequence[NameKey]) -> tuple[list[str], int, int]:
    """Return the names of keys.

    Returns the names, how many ids have none (the name then says so), and how many names were invalid UTF-8.
    """
    ids = np.array(sorted(key for key in keys if isinstance(key, int)), np.int64)
    texts, invalid = decode_utf8(StringTable(tables, ids).at(pa.array(ids)))
    by_id = dict(zip(ids.tolist(), texts.to_pylist(), strict=True))
    names = [key if isinstance(key, str) else by_id.get(key) for key in keys]
    resolved = [
        f"[name {key} is not in the export]" if name is None else name for key, name in zip(keys, names, strict=True)
    ]
    return resolved, names.count(None), invalid


def name_copies(rows: pa.RecordBatch, names: Interner[NameKey], labels: Mapping[int, str]) -> pa.Array:
    """Return the numbers in `names` of copies: `[CUDA memcpy Host-to-Device (Pageable -> Device)]`.

    The name has the direction, and the memory of both ends where one is host memory. `labels` are the export's own
    names of directions that are not known here.
    """
    directions = rows["copyKind"].dictionary_encode("encode")
    kinds = directions.dictionary.to_pylist()
    source, target = (_memory_kinds(rows, column) for column in ("srcKind", "dstKind"))
    codes = (directions.indices.to_numpy().astype(np.int64) * (_UNKNOWN + 1) + source) * (_UNKNOWN + 1) + target

    def name(code: int) -> str:
        rest, to = divmod(code, _UNKNOWN + 1)
        position, start = divmod(rest, _UNKNOWN + 1)
        kind = -1 if kinds[position] is None else kinds[position]
        direction = _DIRECTIONS[kind] if 0 <= kind < len(_DIRECTIONS) else labels.get(kind, "Unknown")
        ends = [_MEMORY_KINDS[end] for end in (start, to) if end != _UNKNOWN]
        memory = f" ({' -> '.join(ends)})" if len(ends) == 2 and _HOST_KINDS.intersection(ends) else ""
        return f"[CUDA memcpy {direction}{memory}]"

    return names.positions(pa.array(codes), name)


def _memory_kinds(rows: pa.RecordBatch, column: str) -> Ints:
    values = column_or_nulls(rows, column, pa.int64()).fill_null(_UNKNOWN).to_numpy()
    return np.where((values >= 0) & (values < _UNKNOWN), values, _UNKNOWN)
