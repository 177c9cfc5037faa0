"""Tables of where time goes: each rank's step by part; kernels by name, operator, scope, phase, line or stream."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from jitter.analysis.metrics.communication import SHARES, RankStep
from jitter.core.arrow import from_numpy, table_of_rows, to_numpy
from jitter.core.errors import UsageError
from jitter.core.names.kernels import KINDS
from jitter.core.numeric.arrays import Ints
from jitter.core.numeric.stats import lower_median
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
    """Return each rank's step by part (`SHARES`), in ns; the parts add up to `step_ns`."""
    rows = [
        (rank_step.key.epoch, rank_step.key.step, rank_step.rank, rank_step.step_ns, *rank_step.shares_ns)
        for rank_step in rank_steps
    ]
    return table_of_rows(rows, BREAKDOWN_SCHEMA)


def tabulate_groups(
    by: str, parts: Iterable[StepColumns], ranks: Sequence[int], chosen: Sequence[int] | None = None
) -> pa.Table:
    """Return the time of groups of GPU activities, a row a group and kind, the most time first; ns per step.

    Columns: the group (`NOT_RECORDED` where it is not known); `kind`; `count`, activities per rank and step;
    `ranks`, how many have the group; `total_ns`, the mean over these ranks; `median_ns` (lower median), `min_ns`,
    `max_ns` over them and the ranks `min_rank` and `max_rank`; `lost_ns`, maximum − median, null for collectives,
    in which ranks wait for each other; by stream `median_share`, `min_share` and `max_share` of the rank's time on
    all streams; `rank_<R>`, time of each rank, or of each of those `chosen`.

    Args:
        by: a key of `GROUPS`.
        parts: the steps, each at once or some of its ranks after others, with the columns `columns_of(by)`.
        ranks: all ranks, in order.
        chosen: the ranks that have a column `rank_<R>`; None: all ranks.

    """
    every, steps = np.array(ranks, np.int64), np.zeros(len(ranks), np.int64)
    sums: dict[tuple[object, str], Ints] = {}
    """(count and time, ranks) of each group and kind."""
    for read in parts:
        of_rank = np.searchsorted(every, read.ranks)
        steps[of_rank] += 1
        for key, of_ranks in _sum_groups(by, read):
            sums.setdefault(key, np.zeros((2, len(ranks)), np.int64))[:, of_rank] += of_ranks
    per_step = {key: of_ranks / np.maximum(steps, 1) for key, of_ranks in sums.items()}
    total = np.sum([times_ns for _, times_ns in sums.values()], axis=0) / np.maximum(steps, 1)
    shown = every if chosen is None else np.array(chosen, np.int64)
    shares = {f"{what}_share": pa.float64() for what in ("median", "min", "max") if by == "stream"}
    numbers = ("ranks", "total_ns", "median_ns", "min_ns", "min_rank", "max_ns", "max_rank", "lost_ns")
    schema = pa.schema(
        {
            by: pa.int64() if by == "stream" else pa.string(),
            "kind": pa.string(),
            "count": pa.float64(),
            **dict.fromkeys(numbers, pa.int64()),
            **shares,
            **{f"rank_{rank}": pa.int64() for rank in shown.tolist()},
        }
    )
    rows = []
    for (name, kind), (counts, times_ns) in per_step.items():
        has = np.flatnonzero(counts > 0)
        of_has, of_whole = times_ns[has], times_ns[has] / np.maximum(total[has], 1)
        middle, middle_share = lower_median(np.stack([of_has, of_whole]))[:, 0].tolist()
        low, high = int(of_has.argmin()), int(of_has.argmax())
        row: tuple[Any, ...] = (
            NOT_RECORDED if name is None and by != "stream" else name,
            kind,
            float(counts[has].mean()),
            len(has),
            round(float(of_has.mean())),
            round(middle),
            round(float(of_has[low])),
            int(every[has[low]]),
            round(float(of_has[high])),
            int(every[has[high]]),
            None if kind == "collective" else round(float(of_has[high]) - middle),
            *((middle_share, float(of_whole.min()), float(of_whole.max())) if shares else ()),
            *(round(float(times_ns[at])) if counts[at] else None for at in np.searchsorted(every, shown).tolist()),
        )
        rows.append(row)
    by_time = sorted(rows, key=lambda of_group: (-of_group[4], str(of_group[0])))
    return table_of_rows(by_time, schema)


def _sum_groups(by: str, read: StepColumns) -> Iterator[tuple[tuple[object, str], Ints]]:
    """Yield each group and kind of some ranks' rows with, (2, ranks), how many they are and their time, ns."""
    names, listed = _names(by, read)
    kinds, kind_names = read.codes("kind")
    codes = names * len(KINDS) + kinds
    is_used = np.bincount(codes) > 0
    pairs, pair_index = np.flatnonzero(is_used), (np.cumsum(is_used) - 1)[codes]
    row, shape = read.of_rank * len(pairs) + pair_index, (len(read.ranks), len(pairs))
    times_ns = np.zeros(shape[0] * shape[1], np.int64)
    np.add.at(times_ns, row, read.values("end_ns") - read.values("start_ns"))
    sums = np.stack([np.bincount(row, minlength=len(times_ns)), times_ns]).reshape(2, *shape)
    for at, pair in enumerate(pairs.tolist()):
        name, kind = divmod(pair, len(KINDS))
        yield (listed[name], kind_names[kind]), sums[:, :, at]


def _names(by: str, read: StepColumns) -> tuple[Ints, list[object]]:
    """Return the group of each row as a position in a list; the last of the list is None, the unknown."""
    if by == "stream":
        encoded = from_numpy(read.values("stream")).dictionary_encode()  # faster than to sort the values
        distinct = encoded.dictionary.to_pylist()
        return np.where(read.known("stream"), to_numpy(encoded.indices), len(distinct)), [*distinct, None]
    positions, texts = read.codes(GROUPS[by])
    return np.where(positions < 0, len(texts), positions).astype(np.int64), [*texts, None]


def columns_of(by: str) -> tuple[str, ...]:
    """Return the columns that grouping by this needs; raise `UsageError` for an unknown group."""
    if by not in GROUPS:
        raise UsageError(f"no group {by!r}", f"kernels are grouped by {', '.join(GROUPS)}")
    return GROUPS[by], "kind", "start_ns", "end_ns"
