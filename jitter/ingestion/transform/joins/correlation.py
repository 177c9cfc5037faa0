"""Match launching calls and activities in memory: one table look-up by (process, correlation)."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from jitter.core.numeric.arrays import Bools, Ints

_NONE = -1
_DENSE = 4


class LaunchMatch(NamedTuple):
    """The matching of activities and calls."""

    call: Ints
    """For each activity the index of its launching call; -1 if there is none."""
    is_outer: Bools
    """For each call whether it counts: of the calls with the correlation of one activity only the outermost does."""
    is_answered: Bools
    """For each call whether an activity has its correlation; True for calls without a correlation."""


def match_launches(activities: pa.Table, calls: pa.Table) -> LaunchMatch:
    """Match activities and calls within each process by correlation.

    Needs `process` and `correlation` of both tables, and the other columns of `schema.CALLS` of `calls`.
    """
    call_keys, activity_keys, size = _keys(calls, activities)
    first = np.full(size + 1, _NONE, np.int64)  # the last entry stands for rows without a correlation
    first[call_keys] = np.arange(len(call_keys))
    first[size] = _NONE
    launching = np.zeros(size + 1, np.bool_)
    launching[activity_keys] = True
    launching[size] = True
    is_outer = np.ones(len(call_keys), np.bool_)
    if (launching[:size] & (np.bincount(call_keys, minlength=size + 1)[:size] > 1)).any():
        # the outermost call is written last, so it stays
        first[call_keys] = _NONE
        order = _outermost_first(calls)[::-1]
        first[call_keys[order]] = order
        first[size] = _NONE
        is_outer = (first[call_keys] == np.arange(len(call_keys))) | (call_keys == size)
    return LaunchMatch(first[activity_keys], is_outer, launching[call_keys])


def _keys(calls: pa.Table, activities: pa.Table) -> tuple[Ints, Ints, int]:
    """Return keys of calls and activities below `size`, equal where process and correlation are equal.

    Rows without a correlation have the key `size`.
    """
    correlations = pa.chunked_array([*calls["correlation"].chunks, *activities["correlation"].chunks], pa.int64())
    codes, size = _codes(correlations.combine_chunks())
    processes = pa.chunked_array([*calls["process"].chunks, *activities["process"].chunks], pa.int32())
    of_process, number = _codes(processes.combine_chunks())
    if number > 1:
        of_both, both = _codes(pa.array(codes * number + of_process, mask=codes == size))
        codes, size = of_both, both
    return codes[: len(calls)], codes[len(calls) :], size


def _codes(values: pa.Array) -> tuple[Ints, int]:
    """Return equal codes for equal values, and the number of codes, which is the code of null."""
    bounds = pc.min_max(values)
    low, high = bounds["min"].as_py(), bounds["max"].as_py()
    if low is not None and high - low < _DENSE * len(
        values
    ):  # profilers count correlations up, so values are dense and serve as codes
        above = high - low + 1
        codes: Ints = values.fill_null(low).to_numpy().astype(np.int64) - low
        if values.null_count:
            codes[values.is_null().to_numpy(zero_copy_only=False)] = above
        return codes, above
    encoded = values.dictionary_encode()
    size = len(encoded.dictionary)
    return encoded.indices.cast(pa.int64()).fill_null(size).to_numpy(), size


def _outermost_first(calls: pa.Table) -> Ints:
    """Return call indices by start, longest first: a driver call lies inside its runtime call; as `outermost.sql`."""
    keys = [("start_ns", "ascending"), ("end_ns", "descending"), ("thread", "ascending"), ("name", "ascending")]
    order: npt.NDArray[np.uint64] = pc.sort_indices(calls, sort_keys=keys).to_numpy()
    return order.astype(np.int64)
