"""DuckDB: a package's `.sql` files, and databases in files, for what does not fit into memory."""

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import duckdb


@cache
def load_sql(package: str, name: str) -> str:
    """Return the text of `sql/<name>.sql` in a package: `load_sql("jitter.query", "ranks")`."""
    return files(package).joinpath(f"sql/{name}.sql").read_text(encoding="utf-8")


def open_duckdb(path: Path, config: Mapping[str, Any]) -> duckdb.DuckDBPyConnection:
    """Open a database without a progress bar, which DuckDB draws on stdout where Python runs no script."""
    database = duckdb.connect(path, config=dict(config))
    shown = database.execute("SELECT current_setting('enable_progress_bar')").fetchone()
    if shown != (False,):  # it is off, and cannot be set, in a notebook without ipywidgets
        database.execute("SET enable_progress_bar = false")
    return database
