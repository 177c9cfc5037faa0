"""Rank coverage: which ranks of the job have no recording in the lake."""

from collections.abc import Iterable
from typing import NamedTuple

from jitter.core.formatting import format_ranks
from jitter.lake.records import SourceRecord


class RankCoverage(NamedTuple):
    """The ranks of a job that a lake holds and lacks."""

    ranks: tuple[int, ...]
    """Recorded ranks in order."""
    missing: tuple[int, ...]
    """Ranks without a recording: holes below the largest recorded rank, and the rest up to the world size."""
    world_size: int | None
    """Number of ranks of the job as recorded; None if no recording states it."""


def rank_coverage(records: Iterable[SourceRecord]) -> RankCoverage:
    """Return the coverage of the records of ingested sources.

    A recorded world size below the number of ranks found is ignored: under torchrun, a launcher's environment may count
    nodes.
    """
    held = [record for record in records if record.rank is not None and record.steps]
    ranks = sorted({record.rank for record in held if record.rank is not None})
    largest = ranks[-1] if ranks else -1
    sizes = [record.world_size for record in held if record.world_size is not None and record.world_size > largest]
    world_size = max(sizes, default=None)
    end = largest + 1 if world_size is None else world_size
    recorded_ranks = set(ranks)
    return RankCoverage(tuple(ranks), tuple(rank for rank in range(end) if rank not in recorded_ranks), world_size)


def coverage_notes(records: Iterable[SourceRecord]) -> list[str]:
    """Return a note if ranks of the job are missing: holes in the ranks, or fewer ranks than the world size."""
    coverage = rank_coverage(records)
    # without a world size, one recorded rank says nothing about the others
    if not coverage.missing or not coverage.ranks or (coverage.world_size is None and len(coverage.ranks) == 1):
        return []
    size = len(coverage.ranks) + len(coverage.missing)
    source = f"the job has {size} ranks" if coverage.world_size is not None else f"ranks reach {coverage.ranks[-1]}"
    missing = format_ranks(coverage.missing)
    return [f"{source}, and {missing} {'have' if len(coverage.missing) > 1 else 'has'} no recording"]
