"""Log formats as declarations: patterns whose named groups are columns, and tables whose header names the columns.

A value's text becomes the type of its column in `SCHEMAS`. A row without a time, a host, a rank or a label of its own
has what stands before it in the line: a date, the host of a syslog line or of NCCL's, the rank of a launcher's prefix.
"""

import csv
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

import pyarrow as pa
import pyarrow.types as kinds

from jitter.logs.line_parser import Context, LineParser, split_prefix
from jitter.logs.schemas import DATED, SCHEMAS
from jitter.logs.values import bus_address, number

Values = Mapping[str, Any]
_SYSLOG: Final = re.compile(
    r"(?:<\d+>)?(?:1 )?(?:\S{2,5} +\d+ (?:\d{4} )?[\d:]{8}(?:\.\d+)?|\d{4}-\d\d-\d\d[T ]\S{1,64}(?: [A-Z]{3,5})?|"
    r"1\d{9}\.\d{6}|\[ *\d+\.\d+\]) "
    r"(?P<host>[A-Za-z0-9][\w.-]*) (?:kernel(?:(?:\[\d+\])?: | - )|[\w./@-]{1,64}\[\d+\]: |\[ *\d+\.\d+\] )"
)
_NCCL: Final = re.compile(
    r"(?P<host>[A-Za-z0-9][\w.-]{0,253}):\d{1,10}:\d{1,10} (?:\[\d{1,4}\] )?\S{0,255} ?(?:\(\w{1,80}\) )?NCCL WARN $"
)
_NODE_EVENT: Final = re.compile(r"\s(?:Warning|Normal)\s+\w{1,64}\s+node/(?P<host>[A-Za-z0-9][\w.-]{0,253})\s")
"""A line of `kubectl get events` about a node, whose message may be a kernel's."""
_NIC_OF_FILE: Final = re.compile(r"(?<![A-Za-z0-9])(?:mlx[45]|bnxt_re|hfi1|irdma|qedr)_?\d{1,3}(?![A-Za-z0-9])")
"""The adapter whose counters a file holds, by its name: `perfquery` and others print none."""
_THOUSANDS: Final = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
"""Another comma stands before decimals, as some locales print them."""


def _from_text(column: pa.Field) -> Callable[[str], Any]:
    """Return what makes of a text a value of a column."""
    if column.name == "bus_id":
        return bus_address
    if kinds.is_integer(column.type):
        return lambda text: int(text.replace(",", ""))
    if kinds.is_floating(column.type):
        return lambda text: number(_THOUSANDS.sub("", text).replace(",", "."))
    return str


_FROM_TEXT: Final = {
    relation: {column.name: _from_text(column) for column in schema} for relation, schema in SCHEMAS.items()
}
KILLED: Final[Values] = {"manner": "lack of memory", "stated_by": "system"}
_OF_GPU: Final = ("time_ns", "host", "device", "bus_id")
"""Columns that rows take from the row of their GPU, which further lines complete."""
_MOST_ROWS: Final = 8_192
"""Rows of one report that are held until it ends: far more than those of a host's GPUs."""


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)  # where a line of the format occurs: most files hold few formats


REAL: Final = r"\d+(?:\.\d+)?(?:[eE][+-]?\d+)?"
_GROUPS: Final = {
    **{
        field.name: r"\d{1,18}" if kinds.is_integer(field.type) else REAL
        for schema in SCHEMAS.values()
        for field in schema
        if kinds.is_integer(field.type) or kinds.is_floating(field.type)
    },
    **dict.fromkeys(("epoch", "at", "of"), r"\d{1,18}"),
    "ms": REAL,
    "bus_id": r"(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-9a-fA-F])?",
    "host": r"[A-Za-z0-9][\w.-]{0,253}",
    "nic": r"[\w.-]{1,64}",
}
"""What `<name>` stands for in a pattern: numbers of columns, parts of a step's number, milliseconds, names."""


@dataclass(frozen=True)
class Rule:
    """What a line states by a pattern; see `rule`."""

    relation: str | None
    pattern: str
    triggers: tuple[bytes, ...]
    values: Callable[[re.Match[str], str], Values | None] | None
    begins: bool
    section: str | None
    numbered: str | None
    gauge: str | None
    fixed: Values


def rule(
    relation: str | None,
    pattern: str,
    *triggers: bytes,
    values: Callable[[re.Match[str], str], Values | None] | None = None,
    begins: bool = False,
    section: str | None = None,
    numbered: str | None = None,
    gauge: str | None = None,
    **fixed: Any,
) -> Rule:
    """Return the rule that a line which holds `pattern`, once or several times, states a row of `relation`.

    `triggers` are bytes of which such a line holds one, where those of the format do not tell.
    The named groups of the pattern are columns; `<step>` is short for a group of this name with the values that the
    column has (`_GROUPS`). Without a relation the values belong to the rows of the lines that follow. `values` returns
    them in place of the groups, from the match and the text before it; None: the line states none. `begins`: the lines
    that follow complete the row. `section` is the title of the section in which the rule counts, `numbered` the column
    with the number of the row since the beginning of the report: null in a report that states by a group `of` of a rule
    without a relation that there are more. `gauge` is a column whose last value the source repeats: see
    `Columns`. `fixed` are values of every row; `{name}` in a text is what that group matched.
    """
    written = re.sub(
        r"(?<!P)<(\w+)>", lambda name: f"(?P{name[0]}{_GROUPS[name[1]]})" if name[1] in _GROUPS else name[0], pattern
    )
    return Rule(relation, written, triggers, values, begins, section, numbered, gauge, fixed)


@dataclass(frozen=True)
class Patterns:
    """A format whose lines match patterns; the first rule that matches counts."""

    format: str
    rules: tuple[Rule, ...]
    triggers: tuple[bytes, ...] = ()
    """Bytes of which one stands in each line that is read, or that opens a report; default: those of the rules."""
    mention: str | None = None
    """A line that holds it more often than a rule matches is broken."""
    opens: str | None = None
    """The line from which on all lines are read."""
    closes: str | None = None
    section: str | None = None
    """The title of a section."""

    def parser(self, context: Context) -> LineParser:
        """Return a parser for one file."""
        return _PatternParser(context, self)


@dataclass(frozen=True)
class Columns:
    """A format with a header that names the columns, and rows of as many values."""

    format: str
    triggers: tuple[bytes, ...]
    relation: str
    columns: Mapping[str, str]
    """By column of the relation, a pattern of its names in headers, the best first."""
    header: str
    row: str
    """The beginning of a row; a row without as many values is broken."""
    words: str | None = None
    """The values are words, and what this matches is no word."""
    gaps: str | None = None
    """What separates the values; without `words` and `gaps` they are separated by commas."""
    values: Callable[[Values, Context], Values | None] = lambda row, context: {}
    """Returns more values of a row, which is by name in the header; None: it states none."""
    closes: str | None = None
    begins_with_mean: bool = False
    """Whether the first row below the first header is no sample, but a mean over the time before."""
    banner: str | None = None
    """A line above headers whose named groups are values of all rows that follow."""
    gauge: str | None = None
    """A column whose last value the source repeats, 0 for none: a GPU's rows are those in which it changes, and the
    first, whose time is not known."""

    def parser(self, context: Context) -> LineParser:
        """Return a parser for one file."""
        return ColumnsParser(context, self)


class _DeclaredParser(LineParser):
    def __init__(self, context: Context, format_: str, triggers: tuple[bytes, ...]) -> None:
        super().__init__(context, format_, triggers)
        self._shown: dict[tuple[Any, ...], Any] = {}
        """What gauges of GPUs show."""

    def add_row(
        self, relation: str, values: Values, before: str = "", rank: int | None = None, gauge: str | None = None
    ) -> None:
        """Add a row with the values as the columns hold them; one of a `gauge` where it has changed."""
        row = {"label": self.context.label, "rank": rank}
        if values.get("time_ns") is None:  # else that before it is of another clock, maybe of another zone
            row["time_ns"] = self.context.times.read(before, yearless=relation in DATED)
        if host := _SYSLOG.search(before) or _NCCL.search(before[-600:]) or _NODE_EVENT.search(before):
            row["host"] = host["host"]
        of_columns = _FROM_TEXT[relation]
        for name, value in values.items():
            if name in of_columns and value is not None:
                if name == "time_ns":
                    row[name] = self._time(value)
                else:
                    row[name] = of_columns[name](value) if isinstance(value, str) else value
        if gauge is not None:
            gpu = (gauge, rank, *(row.get(name) for name in _OF_GPU[1:]))
            shown, self._shown[gpu] = self._shown.get(gpu), row[gauge]
            if row[gauge] in (0, shown):
                return
            row["time_ns"] = None if shown is None else row["time_ns"]
        if relation == "links" and row.get("nic") is None and row.get("device") is None:
            row["nic"] = next(iter(_NIC_OF_FILE.findall(self.context.path.name)), None)
        self.add(relation, **row)

    def _time(self, stated: str | int) -> int | None:
        if isinstance(stated, str):
            return self.context.times.read(stated)
        self.context.times.note_zone()
        return stated


@dataclass
class _Stream:
    """State of the lines of one rank, or of those without one: a launcher mixes the lines of several."""

    head: dict[str, Any] = field(default_factory=dict)
    """Values for all rows that follow."""
    row: tuple[str, dict[str, Any]] | None = None
    """A row that further lines complete, with its relation."""
    section: str = ""
    number: int = 0
    of: int | None = None
    """How many numbered rows there are, by the report."""
    rows: list[tuple[str, dict[str, Any], str, int | None, int]] = field(default_factory=list)
    """Rows of a report with numbered ones, each with its relation, the text before it, its rank and its line."""
    is_open: bool = False


class _PatternParser(_DeclaredParser):
    def __init__(self, context: Context, declared: Patterns) -> None:
        triggers = declared.triggers or tuple(trigger for rule in declared.rules for trigger in rule.triggers)
        super().__init__(context, declared.format, triggers)
        self._declared = declared
        self._streams: dict[int | None, _Stream] = defaultdict(_Stream)

    def line(self, line: bytes, number: int) -> None:
        declared = self._declared
        prefix, text, rank = split_prefix(line)
        stream = self._streams[rank]
        if declared.opens and _compiled(declared.opens).search(text):
            self._close(stream)
            self._streams[rank] = stream = _Stream(is_open=True)
            self.is_open = True
        elif declared.closes and _compiled(declared.closes).search(text):
            self._close(stream)
            stream.is_open = False
            self.is_open = any(one.is_open for one in self._streams.values())
        if declared.closes and not stream.is_open:
            return
        if declared.section and (title := _compiled(declared.section).fullmatch(text)):
            stream.section = title[1]
            return
        match_count = 0
        for rule in declared.rules:
            at = 0
            may_match = not rule.triggers or any(trigger in line for trigger in rule.triggers)
            if may_match and (rule.section is None or _compiled(rule.section).search(stream.section)):
                for match in _compiled(rule.pattern).finditer(text):
                    self._take(rule, match, text[at : match.start()], prefix, rank, number)
                    at, match_count = match.end(), match_count + 1
            if at:
                break
        if declared.mention and len(_compiled(declared.mention).findall(text)) > match_count:
            self.context.problems.broken(self.format, number)

    def finish(self) -> None:
        for stream in self._streams.values():
            self._close(stream)

    def _close(self, stream: _Stream) -> None:
        """Add the rows that the end of a report completes."""
        self._complete(stream, 0)
        self._add_rows(stream)

    def _add_rows(self, stream: _Stream) -> None:
        """Add the rows of a report, as far as it was read."""
        is_part = stream.of is not None and stream.of != stream.number  # of some GPUs: their places are no numbers
        unknown = {rule.numbered: None for rule in self._declared.rules if rule.numbered and is_part}
        rows, stream.rows = stream.rows, []
        for relation, values, before, rank, line in rows:
            try:
                self.add_row(relation, values | unknown, before, rank)
            except (ValueError, OverflowError):
                self.context.problems.broken(self.format, line)

    def _complete(self, stream: _Stream, line: int) -> None:
        row, stream.row = stream.row, None
        if row is not None and stream.number:
            stream.rows.append((*row, "", None, line))
        elif row is not None:
            self.add_row(*row)

    def _take(self, rule: Rule, match: re.Match[str], before: str, prefix: str, rank: int | None, line: int) -> None:
        groups = match.groupdict()
        values = rule.values(match, before) if rule.values else groups
        if values is None:
            return
        if rule.fixed:
            fixed = {name: one.format(**groups) if isinstance(one, str) else one for name, one in rule.fixed.items()}
            values = {**fixed, **values}
        stream = self._streams[rank]
        if len(stream.rows) >= _MOST_ROWS:
            self._add_rows(stream)
        if rule.relation is None:
            stream.of = int(values.get("of") or 0) or stream.of
            _update(stream.head if stream.row is None else stream.row[1], values, is_new=stream.row is None)
            return
        open_row = {} if stream.row is None else {name: stream.row[1].get(name) for name in _OF_GPU}
        values = {**stream.head, **open_row, **values}
        if rule.begins:
            self._complete(stream, line)
        if rule.numbered:
            values[rule.numbered] = stream.number
            stream.number += 1
        if rule.begins:
            stream.row = (rule.relation, {key: value for key, value in values.items() if value is not None})
        elif stream.number:
            stream.rows.append((rule.relation, values, f"{prefix} {before}", rank, line))
        else:
            self.add_row(rule.relation, values, f"{prefix} {before}", rank, rule.gauge)


def _update(collected: dict[str, Any], values: Values, *, is_new: bool) -> None:
    """Add values: lists grow, the first of other values counts unless `is_new`."""
    for name, value in values.items():
        if isinstance(value, list):
            collected[name] = [*collected.get(name, ()), *value]
        elif is_new or collected.get(name) is None:
            collected[name] = value


class ColumnsParser(_DeclaredParser):
    """Reads the rows below a header."""

    def __init__(self, context: Context, declared: Columns) -> None:
        super().__init__(context, declared.format, declared.triggers)
        self._declared = declared
        self._names: list[str] = []
        self._at: dict[str, int] = {}
        self._stated: dict[str, str] = {}
        """By the banner."""
        self._is_before_samples = False

    def line(self, line: bytes, number: int) -> None:
        declared = self._declared
        prefix, text, rank = split_prefix(line)
        if declared.banner and (match := _compiled(declared.banner).search(text)):
            self._stated = match.groupdict()
        elif _compiled(declared.header).search(text):
            names = list(self._cells(text.strip()))
            at = dict(_columns_of(names, declared.columns))
            if at:
                self._is_before_samples = declared.begins_with_mean and not self._names
                self._names, self._at, self.is_open = names, at, True
        elif declared.closes and _compiled(declared.closes).search(text):
            self.is_open = False
        elif self._names and text.strip():
            self._read_row(
                list(self._cells(text.strip())), bool(_compiled(declared.row).match(text)), f"{prefix} ", rank
            )

    def _read_row(self, cells: list[str], is_like_row: bool, before: str, rank: int | None) -> None:
        if len(cells) != len(self._names):
            if is_like_row and 2 * len(cells) >= len(self._names):
                raise ValueError("not the columns of the header")
            return
        if not is_like_row and (self._declared.words or self._declared.gaps):
            return
        row = {**self._stated, **dict(zip(self._names, cells, strict=True))}
        more = None if self._is_before_samples else self._declared.values(row, self.context)
        self._is_before_samples = False
        if more is None:
            return
        values = {**self._stated, **{name: cells[at] for name, at in self._at.items()}, **more}
        schema = SCHEMAS[self._declared.relation]
        measured = [name for name in values if name in schema.names and kinds.is_floating(schema.field(name).type)]
        known = (number(value) if isinstance(value := values[name], str) else value for name in measured)
        if measured and not values.get("reasons") and all(value is None for value in known):
            raise ValueError("no measurement")
        self.add_row(self._declared.relation, values, before, rank, self._declared.gauge)

    def _cells(self, text: str) -> Iterator[str]:
        if self._declared.words:
            yield from _compiled(self._declared.words).sub("", text).split()
        elif self._declared.gaps:
            yield from _compiled(self._declared.gaps).split(text)
        elif text.count('"') % 2 == 0:
            yield from (cell.strip() for cell in next(csv.reader([text], skipinitialspace=True, strict=True), []))


def _columns_of(names: list[str], columns: Mapping[str, str]) -> Iterator[tuple[str, int]]:
    """Return each column with its place in a header; alternatives of a pattern are tried in their order."""
    for column, pattern in columns.items():
        for alternative in pattern.split("|"):
            place = next((at for at, name in enumerate(names) if re.fullmatch(alternative, name)), None)
            if place is not None:
                yield column, place
                break
