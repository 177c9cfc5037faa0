"""Which recordings and logs of a lake a damaged file belongs to."""

from collections.abc import Sequence
from pathlib import Path

from jitter.core.errors import DamagedFileError
from jitter.lake.folder import LakeFolder
from jitter.lake.integrity.containment import read_lake_file
from jitter.lake.integrity.rank_files import find_incomplete
from jitter.lake.layout import files_of_record
from jitter.lake.log_records import intact_log_records
from jitter.lake.parquet import incomplete_file_error
from jitter.lake.records import SourceRecord, decode_record


def find_damage(root: Path, error: DamagedFileError, records: Sequence[SourceRecord]) -> dict[str, DamagedFileError]:
    """Return the error of each recording or log, by digest, that has a damaged file: of `error` and all like it.

    Damaged records are found, and files that are missing or cut; other damage shows only where a file is read.
    """
    place = error.path.relative_to(root)
    holder = next((record.digest for record in records if place in files_of_record(record)), place.stem)
    found = {holder: error}
    if place.parts[0] == "sources":
        found |= {one.path.stem: one.error for one in LakeFolder(root).intact_records()[1]}
    elif place.parts[0] == "logs":
        found |= {one.path.stem: one.error for one in intact_log_records(root)[1]}
    else:
        cut = find_incomplete(root, records)
        found |= {digest: incomplete_file_error(root / path) for digest, path in cut.items() if digest != holder}
    return found


def has_changed(root: Path, record: SourceRecord) -> bool:
    """Return whether another ingest has replaced or removed a record since it was read."""
    try:
        return decode_record(read_lake_file(root / "sources" / record.name)) != record
    except FileNotFoundError:
        return True
    except (OSError, ValueError):
        return False


def describe_left_out(root: Path, digest: str, error: DamagedFileError, records: Sequence[SourceRecord]) -> str:
    """Say which rank or log a damaged file leaves out of every answer."""
    ranks = {record.rank for record in records if record.digest == digest}
    ranks |= {int(path.parent.name.removeprefix("rank=")) for path in root.glob(f"host/rank=*/{digest}.parquet")}
    what = "A log" if error.path.relative_to(root).parts[0] == "logs" else "A recording"
    if len(ranks) == 1:
        what = f"Rank {ranks.pop()}"
    return f"{what} is left out, because a file is damaged: {error.message}. All that is damaged: jitter verify {root}"
