"""Duration, gap, time to kernel end and launch latency of one step, for all its ranks, from the lake's parquet."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pyarrow as pa

from jitter.align import StepIndex
from jitter.clock import CollectiveEnd, SharedMoment, shared_moment, wall_clock
from jitter.sql import sql

METRICS = ("duration", "gap", "ttke", "launch_latency")


@dataclass(frozen=True)
class RankInStep:
    """One rank's file of a step and what the metrics need to know of its recording."""

    rank: int
    file: Path
    main_stream: int | None
    clock: str
    """Names the clock: ranks of one recording share it."""
    utc_offset_ns: int | None


@dataclass(frozen=True)
class StepMetrics:
    """A step's metrics, one row a kernel and rank (columns: see `sql/metrics/metrics.sql`), and its alignment."""

    rows: pa.Table
    moments: dict[int, SharedMoment]
    """By cohort."""
    indices: tuple[StepIndex, ...]
    """The alignment of each cohort that the rows are indexed by."""


def step_metrics(
    ranks: Mapping[int, RankInStep], indices: Sequence[StepIndex], whole: Mapping[int, frozenset[int]]
) -> StepMetrics:
    """Measure one step of the given ranks; `whole` names each cohort's ranks over the run."""
    with duckdb.connect(config={"autoinstall_known_extensions": False, "autoload_known_extensions": False}) as db:
        members = [(m.rank, index.cohort, m.sequence) for index in indices for m in index.members]
        _create(
            db,
            "members",
            {
                "rank": pa.array([rank for rank, _, _ in members], pa.int32()),
                "cohort": pa.array([cohort for _, cohort, _ in members], pa.int32()),
                "sequence": pa.array([sequence for _, _, sequence in members], pa.string()),
                "main_stream": pa.array([ranks[rank].main_stream for rank, _, _ in members], pa.int64()),
            },
        )
        _create(db, "indices", _index_columns(indices))
        # where every rank is left out, any file gives the columns, and no member its rows
        files = [str(ranks[rank].file) for rank, _, _ in members] or [str(one.file) for one in ranks.values()][:1]
        db.execute(sql("metrics/step_rows"), {"files": files})
        moments = _moments(db, ranks, indices, whole)
        shared = [(rank, ns) for moment in moments.values() for rank, ns in moment.moments_ns.items()]
        _create(
            db,
            "moments",
            {
                "rank": pa.array([rank for rank, _ in shared], pa.int32()),
                "moment_ns": pa.array([ns for _, ns in shared], pa.int64()),
            },
        )
        return StepMetrics(db.sql(sql("metrics/metrics")).to_arrow_table(), moments, tuple(indices))


def _index_columns(indices: Sequence[StepIndex]) -> dict[str, pa.Array]:
    rows = [
        (index.cohort, digest, position, partner)
        for index in indices
        for digest, partners in index.partners.items()
        for position, partner in enumerate(partners)
    ]
    cohort, sequence, position, partner = zip(*rows, strict=True) if rows else ((), (), (), ())
    return {
        "cohort": pa.array(cohort, pa.int32()),
        "sequence": pa.array(sequence, pa.string()),
        "position": pa.array(position, pa.int64()),
        "kernel_index": pa.array(partner, pa.int32()),
    }


def _moments(
    db: duckdb.DuckDBPyConnection,
    ranks: Mapping[int, RankInStep],
    indices: Sequence[StepIndex],
    whole: Mapping[int, frozenset[int]],
) -> dict[int, SharedMoment]:
    ends: dict[int, list[CollectiveEnd]] = {}
    for cohort, rank, index, operation, end_ns, group, size in db.execute(sql("metrics/collective_ends")).fetchall():
        group_ranks = None if group is None else tuple(group)
        ends.setdefault(cohort, []).append(CollectiveEnd(rank, index, operation, end_ns, group_ranks, size))
    starts = dict(db.execute(sql("metrics/first_starts")).fetchall())
    return {
        index.cohort: _moment(
            [ranks[member.rank] for member in index.members], ends.get(index.cohort, []), starts, whole[index.cohort]
        )
        for index in indices
    }


def _moment(
    ranks: Sequence[RankInStep], ends: Sequence[CollectiveEnd], starts: Mapping[int, int], whole: frozenset[int]
) -> SharedMoment:
    found = shared_moment([rank.rank for rank in ranks], ends, starts, whole)
    if found is not None and found.moments_ns:
        return found
    unsynchronised = found.unsynchronised if found is not None else 0
    clock = wall_clock({r.rank: r.utc_offset_ns for r in ranks}, {r.rank: r.clock for r in ranks})
    if clock is None:
        return SharedMoment("none", {}, unsynchronised=unsynchronised)
    return SharedMoment(clock.method, clock.moments_ns, None, clock.uncertainty_ns, unsynchronised)


def _create(db: duckdb.DuckDBPyConnection, name: str, columns: Mapping[str, pa.Array]) -> None:
    db.register("_rows", pa.table(dict(columns)))
    db.execute(f"CREATE OR REPLACE TEMP TABLE {name} AS FROM _rows")
    db.unregister("_rows")
