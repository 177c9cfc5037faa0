"""Interface of a parser of one log format: it takes lines, fills tables and counts lines that it cannot read.

Launchers put prefixes before each line of a log, some with the rank: Open MPI `[1,0]<stdout>:` (5.x
`[prterun-host-1@1,0]<stdout>:`), `srun -l` `0: `, torchrun `[default0]:`, MPICH `[0] `, PyTorch `[rank0]:`, Ray
`(Worker pid=1, ip=…)`, Kubernetes times and CRI's `stdout F`, syslog's and journald's time, host and program.
"""

import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Final

from jitter.logs.schemas import SCHEMAS
from jitter.logs.tables import Tables
from jitter.logs.times import LogTimes

LOCATIONS: Final = 5
"""Locations kept of each kind of problem."""


@dataclass
class Problem:
    """Something in a log that could not be used, or is only partly known."""

    format: str
    reason: str
    count: int = 0
    lines: tuple[int, ...] = ()
    """Numbers of the first lines concerned, from 1; empty where the problem has no line."""

    def __str__(self) -> str:
        """Return it as a person reads it."""
        if not self.lines:
            return f"{self.format}: {self.reason}"
        ellipsis = ", …" if self.count > len(self.lines) else ""
        noun = "line" if self.count == 1 else "lines"
        return f"{self.format}: {self.count} {noun} {self.reason} ({', '.join(map(str, self.lines))}{ellipsis})"


class Problems:
    """The problems of a log by format and reason, in the order of their first occurrence."""

    def __init__(self) -> None:
        self._problems: dict[tuple[str, str], Problem] = {}

    def broken(self, format_: str, line: int, reason: str = "cannot be read") -> None:
        """Count a line that is lost; `reason` continues the sentence "3 lines …"."""
        problem = self._problems.setdefault((format_, reason), Problem(format_, reason))
        problem.count += 1
        if len(problem.lines) < LOCATIONS:
            problem.lines += (line,)

    def note(self, format_: str, reason: str) -> None:
        """State something about the file; said once."""
        self._problems[format_, reason] = Problem(format_, reason, 1)

    def listed(self) -> list[Problem]:
        """Return all."""
        return list(self._problems.values())


_PREFIX: Final = re.compile(
    r"""\s*(?:
        (?:[A-Z][a-z]{2}\ [A-Z][a-z]{2}\ +\d+\ [\d:.]+\ \d{4})?\[[^\[\]\s]{0,64}?\d{1,9},(?P<mpi>\d{1,9})\]<std\w+>:\ ?
      | (?P<srun>\d+):\ (?=\S|\s|$)(?![\w.@-]{1,64}:\ <)  # as `ip link` numbers interfaces
      | \[(?:rank)(?P<rank>\d+)\]:?\ ?
      | \[default\d+\]:\ ?
      | \[\d+\]:?\ (?=[^\[\s]|\s)
      | \([\w.<>-]+(?:\([\w.]+\))?\ pid=\d+(?:,\ ip=[\d.:a-f]+)?\)\ ?
      | \(pid=\d+(?:,\ ip=[\d.:a-f]+)?\)\ ?
      | (?:[A-Z][a-z]{2}\ [\ \d]\d\ [\d:]{8}(?:\.\d+)?|\d{4}-\d\d-\d\dT[\d:.,+Z-]{8,32})\ [\w.-]{1,255}
        \ (?!kernel\b)[\w./@-]{1,64}\[\d+\]:\ ?
      | \d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:?\d\d)\ (?:std(?:out|err)\ [FP]\ )?
      | \[pod/[^\]\s]+\]\ ?
    )""",
    re.VERBOSE,
)
_MOST: Final = 5


def split_prefix(line: bytes) -> tuple[str, str, int | None]:
    """Return the prefixes of a line, the text after them, and the rank that they state.

    Bytes that are no UTF-8 are replaced.
    """
    text = line.decode("utf-8", "replace")
    at = 0
    rank = None
    for _ in range(_MOST):
        match = _PREFIX.match(text, at)
        if match is None:
            break
        stated = match["mpi"] or match["srun"] or match["rank"]
        if stated is not None and len(stated) < 10:
            rank = int(stated)
        at = match.end()
    return text[:at].strip(), text[at:], rank


Lines = Sequence[tuple[int, bytes]]
"""Lines without their ends and without terminal escapes, each with its number in the file, from 1."""


@dataclass
class Context:
    """State shared by the parsers of one file."""

    path: PurePath
    label: str
    tables: Tables
    problems: Problems
    records: dict[str, int] = field(default_factory=dict)
    """Records read, by format."""
    times: LogTimes = field(default_factory=LogTimes)
    hosts: set[str] = field(default_factory=set)
    """Names of hosts met so far."""
    host: str | None = None
    """The host of all lines; None: of whatever host they name."""

    def count(self, format_: str, records: int = 1) -> None:
        """Count records of a format."""
        self.records[format_] = self.records.get(format_, 0) + records

    def add(self, format_: str, relation: str, **values: object) -> None:
        """Add a row, and count it as a record of a format."""
        if self.host is not None and "host" in SCHEMAS[relation].names and values.get("host") is None:
            values["host"] = self.host
        self.tables.add(relation, **values)
        self.count(format_)


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
        """Add a row, and count it as a record of the format."""
        self.context.add(self.format, relation, **values)
