"""Tables of where time goes: each rank's step by part; kernels by name, operator, scope, phase, line or stream."""

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from jitter.analysis.metrics.communication import RankStep
from jitter.analysis.metrics.time_shares import SHARES
from jitter.core.arrow import from_numpy, table_of_rows, to_numpy
from jitter.core.errors import UsageError
from jitter.core.names.kernels import KINDS
from jitter.core.numeric.arrays import Floats, Ints
from jitter.lake.step_reader import StepColumns

GROUPS: Final = {
    "kernel": "kernel_name",
    "operator": "operator",
    "scope": "scope",
    "phase": "phase",
    "source_line": "source_line",
    "stream": "stream",
}
"""Each way to group kernels, and its column."""

NOT_RECORDED: Final = "(not recorded)"
"""The group of activities of which none is recorded; of the streams, which are numbers, null."""

BREAKDOWN_SCHEMA: Final = pa.schema(
    [
        ("epoch", pa.int64()),
        ("step", pa.int64()),
        ("rank", pa.int32()),
        ("step_ns", pa.int64()),
        *((f"{part}_ns", pa.int64()) for part in SHARES),
    ]
)


def breakdown_table(rank_steps: Iterable[RankStep]) -> pa.Table:
    """Return each rank's step by part (`time_shares.SHARES`), in ns; the parts add up to `step_ns`."""
    rows = [
        (rank_step.key.epoch, rank_step.key.step, rank_step.rank, rank_step.step_ns, *rank_step.shares_ns)
        for rank_step in rank_steps
    ]
    return table_of_rows(rows, BREAKDOWN_SCHEMA)


class GroupedTimes:
    """Time of each group of GPU activities on each rank, summed over steps."""

    def __init__(self, by: str, parts: Iterable[StepColumns], ranks: Sequence[int]) -> None:
        """Read steps, each at once or some of its ranks after others, with the columns `columns_of(by)`.

        `ranks` are all ranks, in order.
        """
        self.by = by
        self.ranks = np.array(ranks, np.int64)
        self._numbers: dict[tuple[object, str], int] = {}
        self._times: list[Ints] = []
        self._counts: list[Ints] = []
        self._steps = np.zeros(len(ranks), np.int64)
        for read in parts:
            self._add(read)

    def _add(self, read: StepColumns) -> None:
        of_rank = np.searchsorted(self.ranks, read.ranks)
        self._steps[of_rank] += 1
        names, listed = self._names(read)
        kinds, kind_names = read.codes("kind")
        codes = names * len(KINDS) + kinds
        is_used = np.bincount(codes) > 0
        pairs, pair_index = np.flatnonzero(is_used), (np.cumsum(is_used) - 1)[codes]
        row = read.of_rank * len(pairs) + pair_index
        shape = len(read.ranks), len(pairs)
        counts = np.bincount(row, minlength=shape[0] * shape[1]).reshape(shape)
        duration = read.values("end_ns") - read.values("start_ns")
        times = np.zeros(shape[0] * shape[1], np.int64)
        np.add.at(times, row, duration)
        for at, pair in enumerate(pairs.tolist()):
            name, kind = divmod(pair, len(KINDS))
            number = self._numbers.setdefault((listed[name], kind_names[kind]), len(self._numbers))
            if number == len(self._times):
                self._times.append(np.zeros(len(self.ranks), np.int64))
                self._counts.append(np.zeros(len(self.ranks), np.int64))
            self._times[number][of_rank] += times.reshape(shape)[:, at]
            self._counts[number][of_rank] += counts[:, at]

    def _names(self, read: StepColumns) -> tuple[Ints, list[object]]:
        """Return the group of each row as a position in a list; the last of the list is None, the unknown."""
        column = GROUPS[self.by]
        if self.by == "stream":
            values = read.values(column)
            is_known = read.known(column)
            encoded = from_numpy(values).dictionary_encode()  # faster than to sort the values
            distinct = encoded.dictionary.to_pylist()
            return np.where(is_known, to_numpy(encoded.indices), len(distinct)), [*distinct, None]
        positions, texts = read.codes(column)
        return np.where(positions < 0, len(texts), positions).astype(np.int64), [*texts, None]

    def to_arrow(self, ranks: Sequence[int] | None = None) -> pa.Table:
        """Return a row per group and kind, the most time first; times are per step, in ns.

        Columns: the group (`NOT_RECORDED` where it is not known); `kind`; `count`, activities per rank and step;
        `ranks`, how many have the group; `total_ns`, the mean over these ranks; `median_ns` (lower median), `min_ns`,
        `max_ns` over them and the ranks `min_rank` and `max_rank`; `lost_ns`, maximum − median, null for collectives,
        in which ranks wait for each other; by stream `median_share`, `min_share` and `max_share` of the rank's time on
        all streams; `rank_<R>`, time of each rank, or of each of `ranks`.
        """
        steps = np.maximum(self._steps, 1)
        total = np.sum(self._times, axis=0) if self._times else np.zeros(len(self.ranks))
        chosen = self.ranks.tolist() if ranks is None else list(ranks)
        rows = [
            self._row(name, kind, counts / steps, times / steps, total / steps, chosen)
            for ((name, kind), counts, times) in zip(
                self._numbers, np.array(self._counts), np.array(self._times), strict=True
            )
        ]
        rows.sort(key=lambda row: (-row["total_ns"], str(row[self.by])))  # type: ignore[operator]
        group = pa.int64() if self.by == "stream" else pa.string()
        shares = ("median_share", "min_share", "max_share") if self.by == "stream" else ()
        schema = pa.schema(
            [
                (self.by, group),
                ("kind", pa.string()),
                ("count", pa.float64()),
                ("ranks", pa.int64()),
                *((name, pa.int64()) for name in ("total_ns", "median_ns", "min_ns", "min_rank", "max_ns", "max_rank")),
                ("lost_ns", pa.int64()),
                *((name, pa.float64()) for name in shares),
                *((f"rank_{rank}", pa.int64()) for rank in chosen),
            ]
        )
        return pa.table({name: [row[name] for row in rows] for name in schema.names}, schema=schema)

    def _row(
        self, name: object, kind: str, counts: Floats, times: Floats, total: Floats, chosen: Sequence[int]
    ) -> dict[str, object]:
        has = np.flatnonzero(counts > 0)
        rank_times = times[has]
        middle = float(np.sort(rank_times)[(len(rank_times) - 1) // 2])
        low, high = int(rank_times.argmin()), int(rank_times.argmax())
        shares = rank_times / np.maximum(total[has], 1)
        return {
            self.by: NOT_RECORDED if name is None and self.by != "stream" else name,
            "kind": kind,
            "count": float(counts[has].mean()),
            "ranks": len(has),
            "total_ns": round(float(rank_times.mean())),
            "median_ns": round(middle),
            "min_ns": round(float(rank_times[low])),
            "min_rank": int(self.ranks[has[low]]),
            "max_ns": round(float(rank_times[high])),
            "max_rank": int(self.ranks[has[high]]),
            "lost_ns": None if kind == "collective" else round(float(rank_times[high]) - middle),
            "median_share": float(np.sort(shares)[(len(shares) - 1) // 2]),
            "min_share": float(shares.min()),
            "max_share": float(shares.max()),
            **{
                f"rank_{self.ranks[at]}": round(float(times[at])) if counts[at] else None
                for at in np.searchsorted(self.ranks, chosen).tolist()
            },
        }


def columns_of(by: str) -> tuple[str, ...]:
    """Return the columns that grouping by this needs; raise `UsageError` for an unknown group."""
    if by not in GROUPS:
        raise UsageError(f"no group {by!r}", f"kernels are grouped by {', '.join(GROUPS)}")
    return GROUPS[by], "kind", "start_ns", "end_ns"
