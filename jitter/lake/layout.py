"""Where things lie in a lake, and where a lake lies if nobody says."""

from functools import lru_cache
from pathlib import Path

from jitter.core.step_key import StepKey
from jitter.lake.records import SourceRecord

DEFAULT_LAKE = Path("jitter-lake")
COMPACTED_STEPS = Path("derived", "compact")
"""Compacted steps: derived from the ranks' files, and disposable."""
TIMING_CACHE = Path("derived", "extracts")
"""What a diagnosis reads of each recording; disposable too."""
TIMING_CACHE_VERSION = 1
"""In their names, and their beginnings: those that another version made are none."""
ANSWER_CACHE = Path("derived", "answers")
"""What a large lake was asked before; disposable too."""


@lru_cache(maxsize=4096)  # of each step all ranks ask
def step_folder(key: StepKey) -> Path:
    """Where a step's files lie, from the lake's root."""
    step = f"step={key.step}"
    return Path("kernels", step) if key.epoch is None else Path("kernels", f"epoch={key.epoch}", step)


def kernels_file(key: StepKey, rank: int) -> Path:
    """One rank's step, from the lake's root."""
    return step_folder(key) / f"rank={rank}.parquet"


def compacted_folder(key: StepKey) -> Path:
    """Where a step's compacted parts lie, from the lake's root."""
    return COMPACTED_STEPS.joinpath(*step_folder(key).parts[1:])


def host_file(rank: int, digest: str) -> Path:
    """What one source tells of a rank's host, from the lake's root."""
    return Path("host", f"rank={rank}", f"{digest}.parquet")


def timing_cache_file(digest: str) -> Path:
    """What a diagnosis reads of the recording of this record, from the lake's root."""
    return TIMING_CACHE / f"{digest}.{TIMING_CACHE_VERSION}"


def files_of_record(record: SourceRecord) -> list[Path]:
    """All files that a record accounts for, from the lake's root; the record itself left out."""
    if record.rank is None:
        return []
    kernels = [kernels_file(step.key, record.rank) for step in record.steps]
    return [*kernels, host_file(record.rank, record.digest), timing_cache_file(record.digest)]
