"""Reads one of a lake's small parquet files; one that is lost or damaged is said."""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from jitter.errors import LakeError


def read_small(path: Path, columns: Sequence[str], as_codes: Sequence[str] = ()) -> pa.Table:
    """Read columns of a file, texts `as_codes` dictionary-encoded; raises `LakeError` if it cannot be read."""
    try:
        # twice as fast as by path; threads gain nothing on files this small
        content = pa.BufferReader(path.read_bytes())
        return pq.ParquetFile(content, read_dictionary=list(as_codes)).read(list(columns), use_threads=False)
    except (OSError, pa.ArrowInvalid) as error:
        raise unreadable_file(path, error) from None


def unreadable_file(path: Path, error: Exception) -> LakeError:
    """The error for a file of the lake that is gone, cut or not to be read."""
    why = (error.strerror if isinstance(error, OSError) else None) or str(error).splitlines()[0]
    return LakeError(f"{path}: cannot be read ({why})", "put the file back, or ingest its trace into another lake")
