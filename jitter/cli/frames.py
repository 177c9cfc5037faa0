"""A table of an answer to stdout or a file, in the form asked for."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from jitter.cli.output import check_target, write_whole
from jitter.errors import UsageError

if TYPE_CHECKING:
    import pandas as pd

SCHEMA_VERSION = 1
_SUFFIXES = {".csv": "csv", ".json": "json", ".parquet": "parquet"}
PARQUET_MARK = {b"jitter": b"table"}
"""Metadata by which a parquet file is known to be ours."""
NEVER = b"\0 parquet tells by its metadata, not by its beginning"


def write_table(frame: "pd.DataFrame", form: str | None, output: Path | None, force: bool) -> None:
    """Write rows as csv (means to 3 decimals, null an empty cell), json or parquet; parquet to a file only.

    Raises `UsageError` for a file that is not ours and for parquet on a terminal.
    """
    form = form_of(form, output) or "csv"
    if form == "parquet":
        _write_parquet(frame, output, force)
        return
    text = _as_json(frame) if form == "json" else frame.to_csv(index=False, float_format="%.3f", lineterminator="\n")
    if output is None:
        sys.stdout.write(text)
        return
    # the names of 960 ranks make a long heading: its beginning is enough to know it by
    heading = text[: text.find("\n")].encode()[:64] if form == "csv" else b'"schema_version"'
    check_target(output, force, heading)
    write_whole(output, text)


def form_of(form: str | None, output: Path | None) -> str | None:
    """The form asked for, or that of the file's suffix, if it tells any."""
    return form or (_SUFFIXES.get(output.suffix.lower()) if output is not None else None)


def is_our_parquet(path: Path) -> bool:
    """Whether this is a parquet file that jitter wrote."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return path.is_file() and PARQUET_MARK.items() <= (pq.read_schema(path).metadata or {}).items()
    except (OSError, pa.ArrowInvalid):
        return False


def _as_json(frame: "pd.DataFrame") -> str:
    rows = json.loads(frame.to_json(orient="records", double_precision=3))
    return json.dumps({"schema_version": SCHEMA_VERSION, "rows": rows}, indent=1) + "\n"


def _write_parquet(frame: "pd.DataFrame", output: Path | None, force: bool) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.Table.from_pandas(frame, preserve_index=False).replace_schema_metadata(PARQUET_MARK)
    if output is not None:
        check_target(output, force or is_our_parquet(output), NEVER)
        pq.write_table(table, output)
    elif sys.stdout.isatty():
        raise UsageError("parquet is not for a terminal", "give -o FILE.parquet")
    else:
        pq.write_table(table, sys.stdout.buffer)
