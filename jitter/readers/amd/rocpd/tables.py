"""Tables of a rocpd database in the layouts of several schema versions."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from jitter.core.errors import UnreadableTraceError
from jitter.readers.amd.sqlite_tables import Database

_DISPATCH: Final = re.compile(r"rocpd_kernel_dispatch(?P<suffix>(?:_[0-9A-Za-z_]+)?)")
_READ: Final = ("kernel_dispatch", "memory_copy", "region")
_PLACE: Final = ("pid", "tid", "agent_id", "queue_id", "stream_id")


@dataclass(frozen=True)
class Session:
    """The tables of one guid."""

    suffix: str
    """Suffix of each table name: `_` and the guid."""

    def table(self, name: str) -> str:
        """Return the full name of a table: `region` gives `rocpd_region_0199…`."""
        return f"rocpd_{name}{self.suffix}"

    def has(self, database: Database, name: str, *columns: str) -> bool:
        """Return whether the table exists with these columns."""
        return database.has(self.table(name), *columns)

    def size(self, database: Database) -> int:
        """Return the approximate number of rows to read."""
        return sum(database.count(self.table(name)) for name in _READ if self.has(database, name))

    def check(self, database: Database) -> None:
        """Raise UnreadableTraceError for a schema in which times, processes or agents of kernels are not found."""
        direct = self.has(database, "kernel_dispatch", "start", "end")
        apart = self.has(database, "kernel_dispatch", "start_id", "end_id") and self.has(database, "timestamp", "value")
        placed = self.has(database, "kernel_dispatch", "pid", "agent_id")
        on_tracks = self.has(database, "kernel_dispatch", "track_id") and self.has(database, "track", "pid", "agent_id")
        if not (direct or apart) or not (placed or on_tracks):
            raise UnreadableTraceError(
                f"{database.path}: a rocpd schema that jitter does not know", "record as CSV: rocprofv3 -f csv"
            )

    def source(self, database: Database, name: str) -> tuple[str, dict[str, str]]:
        """Return the SQL after FROM to read a table, and expressions for columns that may be in other tables.

        All joins use row ids, so none needs an index. The alias of the table is `x`, of its event `e`.
        """
        table = self.table(name)
        source = f'"{table}" AS x'
        found = {column: f'x."{column}"' for column in ("start", "end") if database.has(table, column)}
        for column in ("start", "end"):
            if column not in found:
                source += f' LEFT JOIN "{self.table("timestamp")}" AS {column}s ON {column}s.id = x.{column}_id'
                found[column] = f"{column}s.value"
        found |= {column: f'x."{column}"' for column in _PLACE if database.has(table, column)}
        if database.has(table, "track_id") and self.has(database, "track", "id"):
            source += f' LEFT JOIN "{self.table("track")}" AS t ON t.id = x.track_id'
            track = database.tables[self.table("track")]
            found |= {column: f't."{column}"' for column in _PLACE if column not in found and column in track}
        if self.has(database, "event", "id", "stack_id"):
            source += f' LEFT JOIN "{self.table("event")}" AS e ON e.id = x.event_id'
            found |= {"stack_id": "e.stack_id", "category_id": "e.category_id", "extdata": "e.extdata"}
        return source, found


def find_sessions(tables: Mapping[str, frozenset[str]]) -> list[Session]:
    """Return the sessions of a database by guid; RPD's tables have neither a guid nor these columns."""
    suffixes = set()
    for table in tables:
        found = _DISPATCH.fullmatch(table)
        if found and {"guid", "kernel_id", "event_id"} <= tables[table]:
            suffixes.add(found["suffix"])
    # a table without a guid is a view of the others, if there are any
    return [Session(suffix) for suffix in sorted(suffixes - {""} or suffixes)]
