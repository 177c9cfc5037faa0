"""Paths within a lake. All are relative to the lake's folder."""

import re
from functools import lru_cache
from pathlib import Path
from typing import Final

from jitter.core.step_key import StepKey
from jitter.lake.records import DIGEST, SourceRecord

DERIVED = Path("derived")
"""Disposable files, which make reading faster: deleting them costs time, never information."""
ANSWER_CACHE = DERIVED / "answers"
"""Diagnoses."""

_NUMBER: Final = r"(?:0|-?[1-9][0-9]{0,18})"
_OWN_FILE: Final = re.compile(
    rf"kernels/(?:epoch={_NUMBER}/)?step={_NUMBER}/rank={_NUMBER}\.parquet"
    rf"|host/rank={_NUMBER}/{DIGEST}\.parquet"
    rf"|times/{DIGEST}\.bin"
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
    return step_folder(key) / f"rank={rank}.parquet"


def host_file(rank: int, digest: str) -> Path:
    """Return the parquet file of the host events in one recording."""
    return Path("host", f"rank={rank}", f"{digest}.parquet")


def times_file(digest: str) -> Path:
    """Return the file of the times in the recording whose record has this digest."""
    return Path("times", f"{digest}.bin")


def files_of_record(record: SourceRecord) -> list[Path]:
    """Return all files that belong to a record, except the record itself."""
    if record.rank is None:
        return []
    kernels = [kernels_file(step.key, record.rank) for step in record.steps]
    return [*kernels, host_file(record.rank, record.digest), times_file(record.digest)]
