"""The lake on disk: layout, records, parquet files, catalog and derived data; nothing of their meaning."""

from pathlib import Path

DEFAULT_LAKE = Path("jitter-lake")
"""Where a lake is, unless its folder is named."""
