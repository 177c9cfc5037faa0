"""Notes on ranks of the job that were not ingested."""

from collections.abc import Iterable

from jitter.core.formatting import format_ranks
from jitter.lake.rank_coverage import rank_coverage
from jitter.lake.records import SourceRecord


def coverage_notes(records: Iterable[SourceRecord]) -> list[str]:
    """Return a note if ranks of the job are missing: holes in the ranks, or fewer ranks than the world size."""
    found = rank_coverage(records)
    # without a world size, one recorded rank says nothing about the others
    if not found.missing or not found.ranks or (found.world_size is None and len(found.ranks) == 1):
        return []
    size = len(found.ranks) + len(found.missing)
    source = f"the job has {size} ranks" if found.world_size is not None else f"ranks reach {found.ranks[-1]}"
    missing = format_ranks(found.missing)
    return [f"{source}, and {missing} {'have' if len(found.missing) > 1 else 'has'} no recording in the lake"]
