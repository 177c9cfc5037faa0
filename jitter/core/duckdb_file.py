"""DuckDB databases in files: what does not fit into memory goes to disk."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import duckdb


def open_duckdb(path: Path, config: Mapping[str, Any]) -> duckdb.DuckDBPyConnection:
    """Open a database without a progress bar, which DuckDB draws on stdout where Python runs no script."""
    database = duckdb.connect(path, config=dict(config))
    shown = database.execute("SELECT current_setting('enable_progress_bar')").fetchone()
    if shown != (False,):  # it is off, and cannot be set, in a notebook without ipywidgets
        database.execute("SET enable_progress_bar = false")
    return database
