"""Names of host operations that readers derive from a recording's scheduling of threads."""

from typing import Final

OFF_CPU: Final = "off CPU"
"""The operating system had suspended the thread: it waited, or another thread ran."""
MIGRATION: Final = "off CPU, then on another core"
"""The same, and the thread went on on another core, whose caches are cold."""
