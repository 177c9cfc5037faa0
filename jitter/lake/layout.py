"""Paths within a lake. All are relative to the lake's folder."""

import re
from functools import lru_cache
from pathlib import Path
from typing import Final

from jitter.core.step_key import StepKey
from jitter.lake.records import DIGEST, SourceRecord

DEFAULT_LAKE = Path("jitter-lake")
COMPACTED_STEPS = Path("derived", "compact")
"""Steps of a large lake, the rows of many ranks in one file."""
TIMING_CACHE = Path("derived", "timings")
"""The times that a diagnosis reads, one file per recording."""
TIMING_CACHE_VERSION = 4
"""Version of the layout of these files, and part of their names."""
ANSWER_CACHE = Path("derived", "answers")
"""Diagnoses of a large lake."""

_NUMBER: Final = r"(?:0|-?[1-9][0-9]{0,18})"
_OWN_FILE: Final = re.compile(
    rf"kernels/(?:epoch={_NUMBER}/)?step={_NUMBER}/rank={_NUMBER}\.parquet"
    rf"|host/rank={_NUMBER}/{DIGEST}\.parquet"
    rf"|derived/timings/{DIGEST}\.v[0-9]{{1,9}}\.arrow"
    rf"|sources/{DIGEST}\.json"
    rf"|logs/[a-z_]{{1,64}}/{DIGEST}\.(?:parquet|json)"
)


def is_own_file(place: str) -> bool:
    """Return whether a path, relative to the lake's folder, is one that this module gives to a file."""
    return _OWN_FILE.fullmatch(place) is not None


@lru_cache(maxsize=4096)  # called for each rank of a step
def step_folder(key: StepKey) -> Path:
    """Return the folder of a step's parquet files."""
    step = f"step={key.step}"
    return Path("kernels", step) if key.epoch is None else Path("kernels", f"epoch={key.epoch}", step)


def kernels_file(key: StepKey, rank: int) -> Path:
    """Return the parquet file of one rank's step."""
    return step_folder(key) / f"rank={rank}.parquet"


def compacted_folder(key: StepKey) -> Path:
    """Return the folder of a step's compacted files."""
    return COMPACTED_STEPS.joinpath(*step_folder(key).parts[1:])


def host_file(rank: int, digest: str) -> Path:
    """Return the parquet file of the host events in one recording."""
    return Path("host", f"rank={rank}", f"{digest}.parquet")


def timing_cache_file(digest: str) -> Path:
    """Return the timing cache of the recording whose record has this digest."""
    return TIMING_CACHE / f"{digest}.v{TIMING_CACHE_VERSION}.arrow"


def files_of_record(record: SourceRecord) -> list[Path]:
    """Return all files that belong to a record, except the record itself."""
    if record.rank is None:
        return []
    kernels = [kernels_file(step.key, record.rank) for step in record.steps]
    return [*kernels, host_file(record.rank, record.digest), timing_cache_file(record.digest)]
