"""Text of nccl-tests and rccl-tests, all layouts.

NVIDIA/nccl-tests: 2019 (cbe7f65) `size count type redop time algbw busbw error` twice, the columns `redop` and `root`
only where the operation has them; 2022-08 (51af557) always `redop root`, `#wrong` for `error`; 2024-07 to 2025-09 an
extra column before `#wrong`; 2025-10 `-S` a time at the end; 2026-07 `-I` four columns after each `#wrong`. rccl-tests
(ae3e635) prints the same, and can print the in-place half alone.

JSON (`-J FILE`, 2025-10 on; JSON_FILE_VERSION 3 and 4): times in µs, bandwidths in GB/s.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from jitter.core.bandwidth import bus_factor
from jitter.core.names.kernels import parse_operation
from jitter.logs.line_parser import Context, LineParser, split_prefix
from jitter.logs.nccl_debug import before_nccl_record
from jitter.logs.values import converted

_LEAST_SHARE: Final = 2 / 3
"""Share of the rows that must agree on the ranks: damaged rows must not decide."""
_RANK_COUNTS: Final = range(2, 4_097)
"""Of more ranks, rounded bandwidths do not tell the number."""
_FAMILY: Final = {"all_reduce": "all_reduce"} | dict.fromkeys(
    ("all_gather", "reduce_scatter", "all_to_all"), "all_gather"
)


class Row(NamedTuple):
    """A row as printed, or a half of it: out of place or in place."""

    line: int
    redop: str | None
    root: int | None
    in_place: bool | None
    """None for a row without halves."""
    ratio: tuple[float, float]
    """The least and the largest busbw / algbw that round to what is printed."""
    columns: dict[str, Any]


@dataclass
class Block:
    """A table and its banner."""

    hint: str | None
    """The collective that the program's or the file's name states."""
    ranks: int | None = None
    columns: list[str] = field(default_factory=list)
    in_place_only: bool = False
    rows: list[Row] = field(default_factory=list)

    def resolved(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Return the rows of the relation, each with the number of its line."""
        family, ranks = self._family_and_ranks()
        for row in self.rows:
            in_place = self.in_place_only if row.in_place is None else row.in_place
            stated = {"collective": self._collective(family, row), "ranks": ranks, "in_place": in_place}
            yield row.line, stated | row.columns

    def _family_and_ranks(self) -> tuple[str | None, int | None]:
        """Return whose formula busbw / algbw follows, and for how many ranks: what most rows agree on."""
        ratios = np.array([row.ratio for row in self.rows]).reshape(-1, 2)
        ratios = ratios[ratios[:, 1] - ratios[:, 0] < 0.5]
        hinted = _FAMILY.get(self.hint or "", self.hint)
        if not len(ratios):
            return hinted, self.ranks
        rank_counts = sorted({*_RANK_COUNTS, *([self.ranks] if self.ranks else [])})
        tried = [(family, ranks) for family in ("all_reduce", "all_gather") for ranks in rank_counts]
        factors = [*(bus_factor(family, ranks) for family, ranks in tried), 1.0]
        least, most = np.sort(ratios[:, 0]), np.sort(ratios[:, 1])
        # rows whose range holds the factor: those that begin at it or below, less those that end below it
        counts = np.searchsorted(least, factors, "right") - np.searchsorted(most, factors, "left")
        votes = dict(zip(tried, counts.tolist(), strict=False))
        unit = int(counts[-1])
        if self.ranks:
            votes["broadcast", self.ranks] = unit
        best = max(votes.values())
        if best < _LEAST_SHARE * len(ratios):
            is_unit = unit >= _LEAST_SHARE * len(ratios)
            return (hinted if is_unit and hinted != "all_gather" else None), self.ranks if is_unit else None
        winners = [key for key, count in votes.items() if count == best]
        stated = [key for key in winners if key[1] == self.ranks] or winners
        families = {family for family, _ in stated}
        if len(families) > 1:
            stated = [key for key in stated if key[0] == (hinted if hinted in families else self._family_of_redop())]
        ranks_found = {ranks for _, ranks in stated}
        family_found = {family for family, _ in stated}
        family_name = family_found.pop() if len(family_found) == 1 else None
        if family_name == "broadcast":
            family_name = hinted if hinted not in {"all_reduce", "all_gather"} else None
        return family_name, ranks_found.pop() if len(ranks_found) == 1 else None

    def _family_of_redop(self) -> str:
        """Return the family of a collective where two fit: two ranks make all_reduce's factor 1."""
        reduces = sum(row.redop not in {None, "none"} and (row.root is None or row.root < 0) for row in self.rows)
        return "all_reduce" if 2 * reduces > len(self.rows) else "broadcast"

    def _collective(self, family: str | None, row: Row) -> str | None:
        """Return the collective of a row; the family of all_gather holds three."""
        if family != "all_gather":
            return family
        if self.hint in {"gather", "scatter"} or _FAMILY.get(self.hint or "") == family:
            return self.hint
        if row.redop not in {None, "none"}:
            return "reduce_scatter"
        if not self.columns or row.redop is not None:
            return None
        return "all_to_all" if "redop" in self.columns else "all_gather"


def _ratio(algorithm: str, bus: str) -> tuple[float, float]:
    (algbw, algbw_error), (busbw, busbw_error) = _rounded(algorithm), _rounded(bus)
    if algbw <= algbw_error:
        return 0.0, float("inf")
    return max((busbw - busbw_error) / (algbw + algbw_error), 0.0), (busbw + busbw_error) / (algbw - algbw_error)


def _rounded(text: str) -> tuple[float, float]:
    """Return a number as printed, and by how much it may be off."""
    number, decimals = float(text), text.partition(".")[2]
    return number, abs(number) * 0.05 if "e" in text else 0.50005 * 10.0 ** -len(decimals)


_TYPES: Final = (
    "int8|uint8|char|int32|uint32|int64|uint64|int|half|float16|bfloat16|float32|float64|float|double|"
    "fp8_e4m3|fp8_e5m2|f8e4m3|f8e5m2|fp8"
)
_ROW: Final = re.compile(rf"\s*(\d{{1,18}})\s+\d+\s+({_TYPES})\s+(\S.*)")
_ROW_START: Final = re.compile(rf"\s*\d+\s+\d+\s+(?:{_TYPES})\s")
_TIMESTAMP: Final = re.compile(r"(?<!\s)\s+\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\s*$")
_NUMBER: Final = re.compile(r"-?\d+(?:\.\d*)?(?:[eE][+-]?\d+)?")
_RANK: Final = re.compile(r"#\s*Rank\s+(\d{1,7})\s+(?:Group\s+\d+\s+)?Pid\s+\d+ on(?:\s+(\S+)\s+device\s+(\d{1,5}))?")
_PROGRAM: Final = re.compile(
    r"(all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|broadcast|reduce|gather|scatter|sendrecv)_perf(?:_mpi)?\b"
)
_GROUP: Final = 4
"""Columns of a half: time, algbw, busbw, #wrong."""


class NcclTestsParser(LineParser):
    """Rows of the tables, one table at a time for each prefix: ranks that are not built with MPI print one each."""

    format = "nccl-tests"
    triggers = (
        b"busbw", b"-place", b"# Rank", b"#  Rank", b"#   Rank", b"_perf", b"# Avg bus", b"# nThread",
        *(b" " + name.encode() + b" " for name in _TYPES.split("|")),
        *(b"\t" + name.encode() + b"\t" for name in ("float", "half", "bfloat16", "double")),
    )  # fmt: skip

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._blocks: dict[str, Block] = {}
        self._hint = parse_operation(context.path.name)

    def line(self, line: bytes, number: int) -> None:
        task, text, _ = split_prefix(before_nccl_record(line, self.context.hosts))
        if match := _PROGRAM.search(text):
            self._hint = parse_operation(match[1])
            if "Collective test starting" in text:
                self._end(task)
            return
        block = self._blocks.setdefault(task, Block(self._hint))
        if text.lstrip().startswith("#"):
            self._read_comment(text, task, block)
        elif _ROW_START.match(text):
            self._read_row(text, block, number)

    def finish(self) -> None:
        for task in list(self._blocks):
            self._end(task)

    def _read_comment(self, text: str, task: str, block: Block) -> None:
        if match := _RANK.match(text.strip()):
            block.ranks = max(block.ranks or 0, int(match[1]) + 1)
            if match[2]:
                where = {"host": match[2], "device": int(match[3])}
                self.context.tables.add("benchmark_ranks", rank=int(match[1]), **where)
        elif "nThread" in text or "Avg bus" in text:
            self._end(task)
        elif "algbw" in text or "busbw" in text:
            if block.rows:
                self._end(task)
                block = self._blocks.setdefault(task, Block(self._hint))
            words = text.split()
            block.columns = words
        elif "-place" in text:
            block.in_place_only = "out-of-place" not in text

    def _read_row(self, text: str, block: Block, line: int) -> None:
        match = _ROW.fullmatch(_TIMESTAMP.sub("", text.rstrip()))
        if match is None:
            raise ValueError("not a row")
        size, dtype, rest = match.groups()
        values = rest.split()
        redop = None
        if not _NUMBER.fullmatch(values[0]):
            redop = values.pop(0)
        has_root, width = _layout(len(values), block.columns)
        root = int(values.pop(0)) if has_root else None
        block.hint = self._hint if block.hint is None else block.hint
        halves = [_measured(values[at : at + width]) for at in range(0, len(values), width)]
        for half, (ratio, measured) in enumerate(halves):
            in_place = half == 1 if len(halves) == 2 else None
            columns = {"size_bytes": int(size), "dtype": dtype, **measured}
            block.rows.append(Row(line, redop, root, in_place, ratio, columns))

    def _end(self, task: str) -> None:
        block = self._blocks.pop(task, None)
        if block is None:
            return
        for line, row in block.resolved():
            try:
                self.add("bandwidth", label=self.context.label, **row)
            except (ValueError, OverflowError):
                self.context.problems.broken(self.format, line)


def _layout(values: int, header: list[str]) -> tuple[bool, int]:
    """Return whether a row of so many values has a root, and the columns of its halves.

    The header decides between layouts of equal length; where it is lost, the older layout is assumed.
    """
    widths = [_GROUP, _GROUP + 1, 2 * _GROUP]
    if "i_min" in header:
        widths = [2 * _GROUP, 2 * _GROUP + 1]
    elif "copybw" in header:
        widths = [_GROUP + 1]
    for halves in (2, 1):
        for width in widths:
            if values == halves * width + 1:
                return True, width
            if values == halves * width and width == _GROUP:
                return False, width
    raise ValueError("not the columns of a row")


def _measured(values: list[str]) -> tuple[tuple[float, float], dict[str, Any]]:
    """Return a row's ratio, and its time, bandwidths and wrong elements, which the 2019 layout does not count."""
    time, algorithm, bus = (float(value) for value in values[:3])
    if min(time, algorithm, bus) < 0:
        raise ValueError("not a measurement")
    wrong = values[-1] if len(values) <= _GROUP + 1 else values[len(values) - _GROUP - 1]
    counted = int(wrong) if wrong.isdigit() else None
    return _ratio(values[1], values[2]), {"time_us": time, "algbw": algorithm, "busbw": bus, "wrong": counted}


JSON_FORMAT: Final = "nccl-tests-json"
_KNOWN_VERSIONS: Final = range(1, 5)


class _Report(msgspec.Struct):
    results: list[Any]
    version: Any = None
    args: Any = None
    config: Any = None


class _Half(msgspec.Struct):
    alg_bw: float
    bus_bw: float
    time: float | None = None
    cpu_time: float | None = None
    nwrong: Any = None


class _Result(msgspec.Struct):
    size: int
    type: str
    out_of_place: _Half | None = None
    in_place: _Half | None = None
    experiment_name: Any = None


def read_report(answer: Any, context: Context) -> None:
    """Read the report; a result that cannot be read loses itself."""
    report = converted(answer, _Report)
    if report.version is not None and report.version not in _KNOWN_VERSIONS:
        context.problems.note(JSON_FORMAT, f"version {str(report.version)[:20]} is unknown; read as version 4")
    devices = report.config.get("devices") if isinstance(report.config, dict) else None
    ranks = len(devices) if isinstance(devices, list) and devices else None
    program = report.args[0] if isinstance(report.args, list) and report.args else None
    named = parse_operation(str(program).rpartition("/")[2]) if program else None
    named = named or parse_operation(context.path.name)
    for at, result in enumerate(report.results):
        try:
            _add(converted(result, _Result), named, ranks, context)
        except ValueError:
            context.problems.broken(JSON_FORMAT, at + 1, "of the results cannot be read")


def _add(result: _Result, named: str | None, ranks: int | None, context: Context) -> None:
    for in_place, half in ((False, result.out_of_place), (True, result.in_place)):
        if half is None:
            continue
        wrong = half.nwrong
        context.add(
            JSON_FORMAT,
            "bandwidth",
            label=context.label,
            collective=parse_operation(str(result.experiment_name)) or named,
            size_bytes=result.size,
            dtype=result.type,
            ranks=ranks,
            in_place=in_place,
            time_us=half.time if half.time is not None else half.cpu_time,
            algbw=half.alg_bw,
            busbw=half.bus_bw,
            wrong=int(wrong) if isinstance(wrong, int | float) else None,
        )
