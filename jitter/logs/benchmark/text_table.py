"""Text of nccl-tests and rccl-tests, all layouts.

NVIDIA/nccl-tests: 2019 (cbe7f65) `size count type redop time algbw busbw error` twice, the columns `redop` and `root`
only where the operation has them; 2022-08 (51af557) always `redop root`, `#wrong` for `error`; 2024-07 to 2025-09 an
extra column before `#wrong`; 2025-10 `-S` a time at the end; 2026-07 `-I` four columns after each `#wrong`. rccl-tests
(ae3e635) prints the same, and can print the in-place half alone.
"""

import re
from typing import Final

from jitter.core.names.kernels import parse_operation
from jitter.logs.benchmark.measured_block import Block, Measurement, Row
from jitter.logs.line_parser import Context, LineParser
from jitter.logs.nccl.record_head import before_nccl_record
from jitter.logs.prefixes import split_prefix

_TYPES: Final = (
    "int8|uint8|char|int32|uint32|int64|uint64|int|half|float16|bfloat16|float32|float64|float|double|"
    "fp8_e4m3|fp8_e5m2|f8e4m3|f8e5m2|fp8"
)
_ROW: Final = re.compile(rf"\s*(\d{{1,18}})\s+\d+\s+({_TYPES})\s+(\S.*)")
_ROW_START: Final = re.compile(rf"\s*\d+\s+\d+\s+(?:{_TYPES})\s")
_TIMESTAMP: Final = re.compile(r"\s+\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\s*$")
_NUMBER: Final = re.compile(r"-?\d+(?:\.\d*)?(?:[eE][+-]?\d+)?")
_RANK: Final = re.compile(r"#\s*Rank\s+(\d{1,7})\s+(?:Group\s+\d+\s+)?Pid\s+\d+ on(?:\s+(\S+)\s+device\s+(\d{1,5}))?")
_PROGRAM: Final = re.compile(
    r"(all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|broadcast|reduce|gather|scatter|sendrecv)_perf\b"
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
        """Read a banner, a header or a row."""
        task, text, _ = split_prefix(before_nccl_record(line, self.context.hosts))
        if found := _PROGRAM.search(text):
            self._hint = parse_operation(found[1])
            if "Collective test starting" in text:
                self._end(task)
            return
        block = self._blocks.setdefault(task, Block(self._hint))
        if text.lstrip().startswith("#"):
            self._read_comment(text, task, block)
        elif _ROW_START.match(text):
            self._read_row(text, block, number)

    def finish(self) -> None:
        """Add the tables that have no end."""
        for task in list(self._blocks):
            self._end(task)

    def _read_comment(self, text: str, task: str, block: Block) -> None:
        if found := _RANK.match(text.strip()):
            block.ranks = max(block.ranks or 0, int(found[1]) + 1)
            if found[2]:
                where = {"host": found[2], "device": int(found[3])}
                self.context.tables.add("benchmark_ranks", rank=int(found[1]), **where)
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
        found = _ROW.fullmatch(_TIMESTAMP.sub("", text.rstrip()))
        if found is None:
            raise ValueError("not a row")
        size, dtype, rest = found.groups()
        values = rest.split()
        redop = None
        if not _NUMBER.fullmatch(values[0]):
            redop = values.pop(0)
        has_root, width = _layout(len(values), block.columns)
        root = int(values.pop(0)) if has_root else None
        block.hint = self._hint if block.hint is None else block.hint
        halves = [_measurement(values[at : at + width]) for at in range(0, len(values), width)]
        block.rows.append(Row(line, int(size), dtype, redop, root, tuple(halves)))

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


def _measurement(values: list[str]) -> Measurement:
    """Return time, bandwidths and wrong elements; the 2019 layout's error is no count of them."""
    time, algorithm, bus = (float(value) for value in values[:3])
    if min(time, algorithm, bus) < 0:
        raise ValueError("not a measurement")
    wrong = values[-1] if len(values) <= _GROUP + 1 else values[len(values) - _GROUP - 1]
    return Measurement(time, algorithm, bus, values[1], values[2], int(wrong) if wrong.isdigit() else None)
