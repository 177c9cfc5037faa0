"""The lake's rows of one rank's step, from the joined activities, and the digest of their sequence."""

import hashlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from jitter.kernels import collective_operation, is_collective
from jitter.schema import KERNELS

_KINDS = pa.array(["compute", "collective", "memory"])
_COMPUTE, _COLLECTIVE, _MEMORY = range(3)
_COMPUTED = {
    "rank",
    "ordinal",
    "kernel_name",
    "kind",
    "duration_ns",
    "launch_name",
    "correlation_id",
    "collective",
}
_AS_READ = [field.name for field in KERNELS if field.name not in _COMPUTED]


class StepRows:
    """Makes rows for one rank; `names` are the recording's names, `main_stream` the rank's."""

    def __init__(self, names: Sequence[str], rank: int, main_stream: int | None) -> None:
        self._names = pa.array(names, pa.string())
        self._operations = pa.array([collective_operation(name) for name in names], pa.string())
        self._collective = np.array([is_collective(name) for name in names], dtype=bool)
        self._hashes = np.array(
            [
                int.from_bytes(hashlib.blake2b(n.encode("utf-8", "replace"), digest_size=8).digest(), "little")
                for n in names
            ],
            dtype=np.uint64,
        )
        self._rank = rank
        self._main_stream = main_stream

    def build(self, activities: pa.Table) -> tuple[pa.Table, str, int]:
        """Make `schema.KERNELS` of activities in launch order; with their sequence's digest and count of kernels."""
        size = activities.num_rows
        ids = activities["name"].to_numpy()
        is_memory = activities["is_memory"].to_numpy(zero_copy_only=False)
        kinds = np.where(is_memory, _MEMORY, np.where(self._collective[ids], _COLLECTIVE, _COMPUTE))
        on_main = (
            np.zeros(size, dtype=bool)
            if self._main_stream is None
            else pc.equal(activities["stream"], self._main_stream).fill_null(False).to_numpy()
        )
        operations = pc.if_else(
            pa.array(kinds == _COLLECTIVE),
            pc.coalesce(activities["collective"], self._operations.take(activities["name"])),
            pa.scalar(None, pa.string()),
        )
        columns = {
            "rank": pa.repeat(pa.scalar(self._rank, pa.int32()), size),
            "ordinal": np.arange(size, dtype=np.int32),
            "kernel_name": self._named(activities["name"]),
            "kind": pa.DictionaryArray.from_arrays(pa.array(kinds.astype(np.int32)), _KINDS),
            "duration_ns": pc.subtract(activities["end_ns"], activities["start_ns"]),
            "launch_name": self._named(activities["launch_name"]),
            "correlation_id": activities["correlation"],
            "collective": operations,
            **{name: activities[name] for name in _AS_READ},
        }
        rows = pa.table([columns[field.name] for field in KERNELS], names=KERNELS.names)
        concurrent = (kinds == _COLLECTIVE) | ~on_main
        return rows, self._digest(ids[~is_memory], concurrent[~is_memory]), int(size - is_memory.sum())

    def _named(self, ids: pa.ChunkedArray) -> pa.DictionaryArray:
        """Names with a dictionary of only those that occur: the file holds no others."""
        encoded = ids.combine_chunks().dictionary_encode()
        return pa.DictionaryArray.from_arrays(encoded.indices, self._names.take(encoded.dictionary))

    def _digest(self, ids: npt.NDArray[np.int32], concurrent: npt.NDArray[np.bool_]) -> str:
        digest = hashlib.blake2b(self._hashes[ids].tobytes(), digest_size=16)
        digest.update(concurrent.tobytes())
        return digest.hexdigest()
