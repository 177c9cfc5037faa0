"""Groups of collectives whose trace states none, as the run's model inferred them: one definition for all tables."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from jitter.analysis.collectives.matching import GROUP_COLUMNS
from jitter.analysis.execution.run_model import RunModel
from jitter.analysis.metrics.collective_calls import ASSUMED_GROUP
from jitter.core.numeric.arrays import Bools, Ints, begins_of
from jitter.core.step_key import StepKey
from jitter.lake.step_reader import StepColumns

INFERRED_GROUP: Final = "{} collectives state no group: it was inferred from which ranks leave them together"


class _Attendances(NamedTuple):
    """The group of each rank at each collective it attends; arrays are (attendances,), ascending by number."""

    number: Ints
    """One number of the rank and the collective's place in its program."""
    group: Ints
    """Of all groups of all collectives."""
    ranks: pa.ListArray
    """(groups,) the ranks of each, ascending."""
    size: Ints
    """(groups,) how many."""
    lowest: Ints
    """(groups,) the lowest of them."""


class InferredGroups:
    """Fills in the ranks of inferred groups; the model is asked for when a collective without a group is read."""

    def __init__(self, model: Callable[[], RunModel]) -> None:
        self._ask_model = model
        self._is_without_parts = False
        """Whether the model was asked, and inferred no group of some of the ranks."""

    def filled(self, key: StepKey, read: StepColumns, reasons: Counter[str] | None = None) -> StepColumns:
        """Return a step, given with `kind` and `GROUP_COLUMNS`, with groups; count in `reasons` the collectives."""
        if self._is_without_parts:
            return read
        is_collective = read.equals("kind", "collective")
        is_anonymous: Bools = is_collective & ~np.logical_or.reduce([read.known(name) for name in GROUP_COLUMNS])
        if not is_anonymous.any():
            return read
        self._is_without_parts = not self._model.matching.inferred or not self._is_part.any()
        if self._is_without_parts:
            return read
        attendances, group = self._attendances, self._groups_of_rows(key, read, is_collective)
        is_filled = is_anonymous & (group >= 0) & self._is_part[group]
        # as often as its lowest rank attends them
        is_lowest = np.array(read.ranks, np.int64)[read.of_rank] == attendances.lowest[group]
        if reasons is not None:
            reasons[INFERRED_GROUP] += int((is_lowest & is_filled).sum())
        stated = read.table["group_ranks"]
        inferred = attendances.ranks.take(pa.array(group, mask=~is_filled)).cast(stated.type)
        at = read.table.schema.get_field_index("group_ranks")
        return replace(read, table=read.table.set_column(at, "group_ranks", pc.coalesce(stated, inferred)))

    def explain(self, reasons: Counter[str]) -> None:
        """Count collectives of all ranks in `reasons` as inferred, not as assumed, where the model inferred that."""
        if reasons[ASSUMED_GROUP] and self._model.matching.inferred and not self._model.matching.unrecorded:
            reasons[INFERRED_GROUP] += reasons.pop(ASSUMED_GROUP)

    @cached_property
    def _model(self) -> RunModel:
        return self._ask_model()

    @cached_property
    def _attendances(self) -> _Attendances:
        arrays, rank_numbers = self._model.collective_arrays, self._model.rank_numbers
        number = self._number(arrays.rank, arrays.place)
        order, members = np.argsort(number), np.lexsort((rank_numbers[arrays.rank], arrays.group))
        size = np.bincount(arrays.group, minlength=int(arrays.first_group[-1]))
        ranks, begins = rank_numbers[arrays.rank[members]], begins_of(size.tolist())
        lists = pa.ListArray.from_arrays(pa.array(begins, pa.int32()), pa.array(ranks, pa.int32()))
        return _Attendances(number[order], arrays.group[order], lists, size, np.append(ranks, -1)[begins[:-1]])

    @cached_property
    def _is_part(self) -> Bools:
        """(groups,) whether it is a part of the ranks: what spans all of them needs no list."""
        is_part: Bools = self._attendances.size < len(self._model.rank_numbers)
        return is_part

    def _number(self, rank: Ints, place: Ints) -> Ints:
        return rank * (1 + max(self._model.operation_counts.values(), default=0)) + place

    def _groups_of_rows(self, key: StepKey, read: StepColumns, is_collective: Bools) -> Ints:
        """Return (rows,) the group of each collective, of all groups; -1: none, or not in the program."""
        places, numbers, attendances = self._model.places_of_collectives(key), self._model.number_of, self._attendances
        group = np.full(len(is_collective), -1, np.int64)
        for rank, (first, last) in zip(read.ranks, pairwise(read.bounds.tolist()), strict=True):
            rows = first + np.flatnonzero(is_collective[first:last])
            if rank in places and len(places[rank]) == len(rows):
                number = self._number(np.full(len(rows), numbers[rank]), places[rank])
                at = np.minimum(np.searchsorted(attendances.number, number), len(attendances.number) - 1)
                is_known = (places[rank] >= 0) & (attendances.number[at] == number)
                group[rows] = np.where(is_known, attendances.group[at], -1)
        return group
