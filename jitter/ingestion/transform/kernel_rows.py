"""Rows of the lake for one rank, from the joined activities of complete steps, with each step's sequence digest."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from jitter.core.arrow import column_or_nulls
from jitter.core.names.kernels import COLLECTIVE, COMPUTE, KINDS, MEMORY, copy_direction
from jitter.core.numeric.arrays import Bools
from jitter.core.schema import KERNELS
from jitter.ingestion.transform.collective_calls import CommunicationFinder
from jitter.ingestion.transform.launch_scopes import SCOPE_COLUMNS

_NAMED = {"kernel_name": "name", "launch_name": "launch_name"}
_PEERS = ("source_rank", "destination_rank")
_COMPUTED = {
    *_NAMED,
    *_PEERS,
    "rank",
    "ordinal",
    "kind",
    "duration_ns",
    "correlation_id",
    "collective",
    "copy_direction",
}
_MOST_TO_COUNT = 1 << 20
_AS_READ = [field.name for field in KERNELS if field.name not in _COMPUTED]


class RankStepRows(NamedTuple):
    """One step of one rank: its rows (`schema.KERNELS`), sequence digest and number of kernels."""

    row: int
    """Index into the process's steps."""
    rows: pa.Table
    sequence: str
    kernels: int
    """Number of kernels, without copies and fills."""


class KernelRowBuilder:
    """Builds rows for one rank; `names` are the names of the recording, `main_stream` is the rank's main stream."""

    def __init__(
        self, names: Sequence[str], rank: int, main_stream: int | None, communication: CommunicationFinder
    ) -> None:
        self._names = pa.array(names, pa.string())
        self._kinds = pa.array(KINDS, pa.string())
        self._operations = pa.array(communication.operations(names), pa.string())
        self._directions = pa.array([copy_direction(name) for name in names], pa.string())
        self._hashes = np.array(
            [
                int.from_bytes(hashlib.blake2b(n.encode("utf-8", "replace"), digest_size=8).digest(), "little")
                for n in names
            ],
            dtype=np.uint64,
        )
        self._rank = rank
        self._main_stream = main_stream

    def build(self, activities: pa.Table) -> Iterator[RankStepRows]:
        """Yield the rows of complete steps, given in order (column `step_row`) and in launch order."""
        activities = activities.combine_chunks()
        size = activities.num_rows
        step_rows = activities["step_row"].to_numpy()
        bounds = [0, *(np.flatnonzero(np.diff(step_rows)) + 1).tolist(), size]
        ids = activities["name"].to_numpy()
        is_memory = activities["is_memory"].to_numpy(zero_copy_only=False)
        is_collective = activities["is_collective"].to_numpy(zero_copy_only=False)
        kinds = np.where(is_memory, MEMORY, np.where(is_collective, COLLECTIVE, COMPUTE))
        on_main = (
            np.zeros(size, dtype=bool)
            if self._main_stream is None
            else pc.equal(activities["stream"], self._main_stream).fill_null(False).to_numpy()
        )
        concurrent = (kinds == COLLECTIVE) | ~on_main
        hashes = self._hashes[ids]
        starts = np.array(bounds[:-1])
        named = {name: self._named(activities[source]) for name, source in _NAMED.items()}
        named |= {name: activities[name].combine_chunks() for name in SCOPE_COLUMNS if name in activities.schema.names}
        operations = pc.if_else(
            pa.array(kinds == COLLECTIVE),
            pc.coalesce(_column(activities, "collective"), self._operations.take(activities["name"])),
            pa.scalar(None, pa.string()),
        )
        columns = {
            **named,
            "rank": pa.repeat(pa.scalar(self._rank, pa.int32()), size),
            "ordinal": np.arange(size, dtype=np.int32) - np.repeat(starts, np.diff(bounds)).astype(np.int32),
            "kind": pa.DictionaryArray.from_arrays(pa.array(kinds.astype(np.int32)), self._kinds),
            "duration_ns": pc.subtract(activities["end_ns"], activities["start_ns"]),
            "correlation_id": activities["correlation"],
            "collective": operations,
            "copy_direction": pc.if_else(
                activities["is_memory"], self._directions.take(activities["name"]), pa.scalar(None, pa.string())
            ),
            **{name: _column(activities, name) for name in _AS_READ if name not in named},
            **self._peers(activities),
        }
        rows = pa.table([columns[field.name] for field in KERNELS], schema=KERNELS)
        partly = {name: _lack_names(column, bounds) for name, column in named.items()}
        for number, (first, last) in enumerate(pairwise(bounds)):
            is_kernel = ~is_memory[first:last]
            step_activities = rows.slice(first, last - first)
            digest = hashlib.blake2b(hashes[first:last][is_kernel].tobytes(), digest_size=16)
            digest.update(concurrent[first:last][is_kernel].tobytes())
            yield RankStepRows(
                int(step_rows[first]),
                _with_names_that_occur(step_activities, [name for name, lacking in partly.items() if lacking[number]]),
                digest.hexdigest(),
                int(is_kernel.sum()),
            )

    def _peers(self, activities: pa.Table) -> dict[str, pa.Array]:
        """Return the ranks that send and receive; where the trace states one of them, this rank is the other."""
        peers = {name: _column(activities, name) for name in _PEERS}
        if all(column.null_count == activities.num_rows for column in peers.values()):
            return peers
        own_rank = pa.scalar(self._rank, pa.int32())
        source, destination = peers.values()
        return {
            "source_rank": pc.if_else(destination.is_valid(), source.fill_null(own_rank), source),
            "destination_rank": pc.if_else(source.is_valid(), destination.fill_null(own_rank), destination),
        }

    def _named(self, ids: pa.ChunkedArray) -> pa.DictionaryArray:
        """Return names as a dictionary array whose dictionary holds only names that occur."""
        encoded = ids.combine_chunks().dictionary_encode()
        return pa.DictionaryArray.from_arrays(encoded.indices, self._names.take(encoded.dictionary))


def _column(activities: pa.Table, name: str) -> pa.Array:
    return column_or_nulls(activities, name, KERNELS.field(name).type)


def _lack_names(column: pa.DictionaryArray, bounds: Sequence[int]) -> Bools:
    """Return which slices between `bounds` may lack a name of the column's dictionary."""
    names, steps = len(column.dictionary), len(bounds) - 1
    if steps * names > _MOST_TO_COUNT:
        return np.ones(steps, np.bool_)
    step = np.repeat(np.arange(steps), np.diff(bounds))
    if column.null_count:
        step = step[column.is_valid().to_numpy(zero_copy_only=False)]
    step_and_name = step * names + column.indices.drop_null().to_numpy()
    lacking: Bools = (np.bincount(step_and_name, minlength=steps * names).reshape(steps, names) == 0).any(1)
    return lacking


def _with_names_that_occur(rows: pa.Table, partly: Iterable[str]) -> pa.Table:
    """Return the step's rows with the dictionaries of the columns `partly` reduced to names of this step."""
    for name in partly:
        column = rows[name].chunk(0)
        used = column.indices.dictionary_encode()
        fewer = pa.DictionaryArray.from_arrays(used.indices, column.dictionary.take(used.dictionary))
        rows = rows.set_column(rows.schema.get_field_index(name), KERNELS.field(name), fewer)
    return rows
