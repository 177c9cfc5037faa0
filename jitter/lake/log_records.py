"""Logs in a lake: one JSON record per log, and one parquet file per log and relation that it fills.

The record is written last, so that a log without a record is not in the lake.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from jitter.core.arrow import column_or_nulls
from jitter.core.errors import DamagedFileError
from jitter.core.files import errors_name
from jitter.lake.folder import LakeFolder
from jitter.lake.integrity.checksums import checksum, is_sealed, seal_json
from jitter.lake.integrity.containment import read_lake_file
from jitter.lake.parquet import unreadable_file_error, wrong_checksum_error
from jitter.lake.records import Count, Digest, Int64, RecordVersionError, read_record_files

_LOGS: Final = Path("logs")
_RECORDS: Final = _LOGS / "records"
_SCHEMA_VERSION: Final = 2


_NUMBER_IN_NAME: Final = re.compile(r"\d")
Row = Mapping[str, Any]
Rows = Sequence[Row]
"""Of a relation."""
Relation = Annotated[str, msgspec.Meta(pattern=r"\A[a-z_]{1,64}\Z")]
"""Name of a relation, which is the name of a folder."""


class LogRecord(msgspec.Struct, forbid_unknown_fields=False):
    """Content and problems of one log."""

    digest: Digest
    """Names the record: of the log's content and label."""
    file: str
    size: Count
    mtime_ns: Int64
    label: str
    """Name of the run that the log belongs to: `--label`, or the folder's name."""
    formats: dict[str, Count]
    """Number of records read, by format."""
    relations: dict[Relation, Count]
    """Number of rows, by relation."""
    problems: list[str]
    checksums: dict[str, str] = {}
    """Checksum of the parquet file, by relation; empty in records of version 1."""
    schema_version: Count = _SCHEMA_VERSION
    parsers_version: Count = 1
    """Version of the parsers that read it (`jitter.logs.VERSION`); 1 in older records."""


_decode: Final = msgspec.json.Decoder(LogRecord).decode


def log_digest(content_digest: str, label: str, name: str) -> str:
    """Return the digest of a log's record.

    The file's name counts where it may state a rank or a host: dumps of two ranks that called nothing are equal, and so
    are the clocks of two healthy hosts.
    """
    numbered = f" {name}" if _NUMBER_IN_NAME.search(name) else ""
    return hashlib.blake2b(f"{content_digest} {label}{numbered}".encode(), digest_size=16).hexdigest()


def relation_file(relation: str, digest: str) -> Path:
    """Return the parquet file of a log's rows, relative to the lake's folder."""
    return _LOGS / relation / f"{digest}.parquet"


def intact_log_records(root: Path) -> tuple[list[LogRecord], list[DamagedFileError]]:
    """Return the records of logs that can be read, by file, and the damaged ones, whose logs an ingest reads again.

    Raises `LakeError` for a record of another version.
    """
    cure = "ingest its log again: jitter ingest LOG -o LAKE; without the log, remove this file"
    records, damaged = read_record_files(sorted((root / _RECORDS).glob("*.json")), _decoded, "logs", cure)
    return sorted(records, key=lambda record: (record.file, record.digest)), damaged


def _decoded(content: bytes) -> LogRecord:
    sealed = is_sealed(content)
    record = _decode(content)
    if not 1 <= record.schema_version <= _SCHEMA_VERSION:
        raise RecordVersionError(f"record version {record.schema_version}, this one reads 1 to {_SCHEMA_VERSION}")
    if record.schema_version > 1 and not sealed:
        raise ValueError("it has no checksum")
    return record


def log_record_file(record: LogRecord) -> Path:
    """Return the file of a log's record, relative to the lake's folder."""
    return _RECORDS / f"{record.digest}.json"


def publish_log(folder: LakeFolder, record: LogRecord, tables: Mapping[str, pa.Table]) -> None:
    """Write a log's tables, then its record."""
    record.schema_version = _SCHEMA_VERSION
    staged, moves = folder.staging(), []
    for relation, table in tables.items():
        content = pa.BufferOutputStream()
        pq.write_table(table, content, compression="zstd", write_page_checksum=True)
        written = content.getvalue().to_pybytes()
        record.checksums[relation] = checksum(written)
        path = Path(f"{relation}-{record.digest}")
        with errors_name(staged / path):
            (staged / path).write_bytes(written)
        moves.append((path, relation_file(relation, record.digest)))
    text = msgspec.json.format(msgspec.json.encode(record), indent=1)
    folder.publish(staged, moves, log_record_file(record), seal_json(text))


def remove_log(folder: LakeFolder, record: LogRecord) -> None:
    """Remove a log: its record first, then its tables."""
    folder.remove([log_record_file(record)])
    folder.remove([relation_file(relation, record.digest) for relation in record.relations])


def read_relation(root: Path, relation: str, schema: pa.Schema, records: Sequence[LogRecord]) -> pa.Table:
    """Return all logs' rows of a relation as a table of `schema`; columns that a file lacks are null.

    Raises `LakeError` if a file is missing or damaged.
    """
    tables = [schema.empty_table()]
    for record in records:
        if relation not in record.relations:
            continue
        path = root / relation_file(relation, record.digest)
        try:
            content = read_lake_file(path)
            if record.checksums.get(relation) not in (None, checksum(content)):
                raise wrong_checksum_error(path)
            read = pq.ParquetFile(pa.BufferReader(content)).read()
            columns = (column_or_nulls(read, field.name, field.type).cast(field.type) for field in schema)
            tables.append(pa.table(list(columns), schema=schema))
        except (OSError, pa.ArrowException) as error:
            raise unreadable_file_error(path, error) from None
    return pa.concat_tables(tables)
