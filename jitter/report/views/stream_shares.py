"""Share of each stream in a rank's GPU time in one step: max rank, min rank, and the range over all ranks."""

from typing import Final, NamedTuple

import numpy as np

from jitter.api import Lake
from jitter.core.step_key import StepKey

MAX_STREAMS: Final = 16
"""Streams in the table; those with the most time."""


class RankShare(NamedTuple):
    """A stream's part of the time of one rank on all its streams."""

    rank: int
    ns: int
    fraction: float


class StreamShare(NamedTuple):
    """One stream across ranks; None where a rank does not run anything on it."""

    stream: int | None
    kinds: str
    """The kinds of activity on it: `compute, memory`."""
    max_rank: RankShare | None
    min_rank: RankShare | None
    least: RankShare
    most: RankShare


def build_stream_shares(lake: Lake, key: StepKey, max_rank: int | None, min_rank: int | None) -> list[StreamShare]:
    """Return the streams of one step, the most time first; `max_rank` and `min_rank` are the step's."""
    table = lake.table(by="stream", step=key, arrow=True)
    columns = [name for name in table.schema.names if name.startswith("rank_")]
    ranks = [int(name.removeprefix("rank_")) for name in columns]
    if not table.num_rows:
        return []
    times = np.array([table[name].fill_null(0).to_numpy() for name in columns], np.int64)  # ranks × (stream, kind)
    whole = times.sum(axis=1)
    rows: dict[int | None, list[int]] = {}
    for at, stream in enumerate(table["stream"].to_pylist()):
        rows.setdefault(stream, []).append(at)
    kinds = table["kind"].to_pylist()
    found = []
    for stream, its in rows.items():
        ns = times[:, its].sum(axis=1)
        share = ns / np.maximum(whole, 1)
        has = np.flatnonzero(ns > 0)
        if not len(has):
            continue
        of_rank = {ranks[at]: RankShare(ranks[at], int(ns[at]), float(share[at])) for at in has.tolist()}
        found.append(
            StreamShare(
                stream,
                ", ".join(sorted({kinds[at] for at in its})),
                of_rank.get(max_rank) if max_rank is not None else None,
                of_rank.get(min_rank) if min_rank is not None else None,
                of_rank[ranks[int(has[share[has].argmin()])]],
                of_rank[ranks[int(has[share[has].argmax()])]],
            )
        )
    found.sort(key=lambda one: -one.most.ns)
    return found[:MAX_STREAMS]
