"""Execute a query whose relations are made, in any process: it imports nothing of the analysis."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import duckdb
import pyarrow as pa

from jitter.core.errors import JitterError, UsageError
from jitter.core.parallel.executors import cpu_count
from jitter.lake.parquet import unreadable_file_error

Parameters = Sequence[Any] | Mapping[str, Any] | None
_DATABASE: Final = "query.duckdb"
_SHOW: Final = "the relations and their columns: jitter query --relations"
_BATCH_ROWS: Final = 10_000
"""Rows fetched at a time: DuckDB does not count their memory."""
_COUNTED_SHARE: Final = 0.8
"""Share of the memory that DuckDB may use of what it counts; the rest is for values and rows that it does not count."""
_THREAD_BYTES: Final = 125_000_000
"""Memory that each of DuckDB's threads needs at least, as DuckDB's documentation states."""
_CONFIG: Final = {"autoinstall_known_extensions": False, "autoload_known_extensions": False}


class QueryResult:
    """The rows of a query, to be iterated once, batch by batch."""

    def __init__(self, reader: pa.RecordBatchReader, relations: Sequence[str]) -> None:
        self.schema: pa.Schema = reader.schema
        self._reader = reader
        self._relations = relations

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Yield record batches; raise `UsageError` if the query fails on a value."""
        try:
            yield from self._reader
        except (OSError, MemoryError, pa.ArrowException) as error:  # Arrow wraps the errors that DuckDB raises
            raise query_error(error, self._relations) from None


@dataclass(frozen=True)
class PreparedQuery:
    """A SELECT whose relations are made: in a database file, or as names of the lake's files.

    Any process may execute it as long as the context that made it lasts.
    """

    text: str
    parameters: Parameters
    root: Path
    folder: Path
    """Temporary folder with the database."""
    variables: Mapping[str, Any]
    """Values that the relations' views refer to."""
    relations: Sequence[str]
    memory_bytes: int | None

    @contextmanager
    def execute(self, on_open: Callable[[], None] = lambda: None) -> Iterator[QueryResult]:
        """Run the query and give its rows while the context lasts; raise as `prepare_query`.

        `on_open` is called once DuckDB runs, before it executes the query.
        """
        with open_query_database(self.folder, self.memory_bytes) as db:
            try:
                set_variables(db, self.variables)
                _lock(db, self.root, self.folder)
                on_open()
                rows = QueryResult(
                    db.sql(self.text, params=self.parameters).to_arrow_reader(_BATCH_ROWS), self.relations
                )
            except (duckdb.Error, MemoryError) as error:
                raise query_error(error, self.relations) from None
            yield rows


def open_query_database(folder: Path, memory_bytes: int | None) -> duckdb.DuckDBPyConnection:
    """Open the database in a query's temporary folder; make it if it is not there.

    It uses at most about `memory_bytes`, by default 80% of the machine's memory.
    """
    config: dict[str, Any] = dict(_CONFIG)
    if memory_bytes is not None:
        config["memory_limit"] = f"{memory_bytes * _COUNTED_SHARE:.0f}B"
        config["threads"] = max(1, min(cpu_count(), memory_bytes // _THREAD_BYTES))
    database = duckdb.connect(folder / _DATABASE, config=config)
    # DuckDB draws a progress bar on stdout where Python runs no script
    shown = database.execute("SELECT current_setting('enable_progress_bar')").fetchone()
    if shown != (False,):  # it is off, and cannot be set, in a notebook without ipywidgets
        database.execute("SET enable_progress_bar = false")
    return database


def set_variables(db: duckdb.DuckDBPyConnection, variables: Mapping[str, Any]) -> None:
    """Set variables that views refer to; they belong to the connection."""
    for name, value in variables.items():
        db.execute(f"SET VARIABLE {name} = $value", {"value": value})


def _lock(db: duckdb.DuckDBPyConnection, root: Path, folder: Path) -> None:
    """Restrict the connection, irrevocably, to files of the lake and of the temporary folder."""
    db.execute("SET temp_directory = $spill", {"spill": str(folder / "spill")})
    db.execute("SET allowed_directories = $folders", {"folders": [f"{root}/", f"{folder}/"]})
    db.execute("SET enable_external_access = false")
    db.execute("SET lock_configuration = true")


def query_error(error: Exception, relations: Sequence[str]) -> JitterError:
    """Return the error for the user: what DuckDB reports in one line, and what to do about it."""
    lines = [line for line in str(error).splitlines() if line.strip()] or [""]
    kind, _, what = lines[0].partition(" Error: ")
    if isinstance(error, MemoryError) or kind == "Out of Memory":
        return memory_error()
    lost = re.search(r"""["']([^"']*/rank=[^"']*\.parquet)["']""", what)
    if lost is not None:
        return unreadable_file_error(Path(lost[1]), OSError(what))
    if "file system operations are disabled" in what:
        return UsageError("a query may read the lake's relations and no other file", _SHOW)
    if kind == "Catalog" and what.startswith("Table with name"):
        return UsageError(
            f"the query: {what.partition('!')[0]}",
            f"there are {', '.join(relations)}; their columns: jitter query --relations",
        )
    candidates = next((line for line in lines[1:] if line.startswith("Candidate")), None)
    return UsageError(f"the query: {what or kind}", candidates or _SHOW)


def memory_error() -> JitterError:
    """Return the error of a query that needs more memory than it may use."""
    return UsageError(
        "the query needs more memory than it may use",
        "read fewer steps or columns, as in metrics(2003), or give --memory GB",
    )
