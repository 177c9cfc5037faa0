"""Interface of a parser of one log format: it takes lines, fills tables and counts lines that it cannot read."""

import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePath

from jitter.logs.problems import Problems
from jitter.logs.tables import Tables

Lines = Sequence[tuple[int, bytes]]
"""Lines without their ends, each with its number in the file, from 1."""


@dataclass
class Context:
    """State shared by the parsers of one file."""

    path: PurePath
    label: str
    tables: Tables
    problems: Problems
    records: dict[str, int] = field(default_factory=dict)
    """Records read, by format."""
    hosts: set[str] = field(default_factory=set)
    """Names of hosts met so far."""

    def count(self, format_: str, records: int = 1) -> None:
        """Count records of a format."""
        self.records[format_] = self.records.get(format_, 0) + records


class LineParser:
    """A parser of one format, which takes a file's lines in their order.

    It gets the lines that hold one of its triggers, and all lines while `is_open`: inside a table or an object.
    """

    format: str
    triggers: tuple[bytes, ...]

    def __init__(self, context: Context, format_: str | None = None, triggers: tuple[bytes, ...] = ()) -> None:
        """Start at the beginning of a file; a declared format gives its name and its triggers."""
        self.context = context
        self.is_open = False
        self.format = format_ or self.format
        self.triggers = triggers or self.triggers
        self._trigger = re.compile(b"|".join(map(re.escape, self.triggers)))

    def wants(self, chunk: bytes) -> bool:
        """Return whether lines of this part of the file may concern the format."""
        return self.is_open or any(trigger in chunk for trigger in self.triggers)

    def read(self, lines: Lines) -> None:
        """Read lines that follow each other."""
        triggered = self._trigger.search
        for number, line in lines:
            if self.is_open or triggered(line):
                self.read_line(line, number)

    def read_line(self, line: bytes, number: int) -> None:
        """Read a line; a broken one is counted and skipped."""
        try:
            self.line(line, number)
        except (ValueError, OverflowError, csv.Error):
            self.context.problems.broken(self.format, number)

    def line(self, line: bytes, number: int) -> None:
        """Read a line that holds a trigger; ValueError where it is broken."""
        raise NotImplementedError

    def finish(self) -> None:
        """Add what the last lines complete; ValueError where it is broken."""

    def end(self) -> None:
        """Take the end of the file; what the last lines complete is lost if it is broken."""
        try:
            self.finish()
        except (ValueError, OverflowError):
            self.context.problems.note(self.format, "what its last lines state cannot be read")

    def add(self, relation: str, **values: object) -> None:
        """Add a row and count it as a record of the format."""
        self.context.tables.add(relation, **values)
        self.context.count(self.format)
