"""Derived data, which make reading a large lake faster: disposable, and never needed for an answer."""

from typing import Final

MANY_FILES: Final = 10_000
"""Derived data are worth making from this number of parquet files on; fewer are read in a few seconds."""
