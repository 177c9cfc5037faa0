"""`pat_report` of HPE's Perftools: the table "Time and Bytes Transferred for Accelerator Regions".

Cells stand between bars, and a column's name is what its cells in the lines of the head say, one below the other. Rows
of inner regions begin with one bar more than rows of outer ones. Columns such as `HtoA 16<= <256 Count` count copies by
size: HtoA to the GPU, AtoH from it, AtoA within it.
"""

import re
from typing import Final

from jitter.logs.line_parser import Context, LineParser, split_prefix
from jitter.logs.values import number

_TITLE: Final = "Time and Bytes Transferred for Accelerator Regions"
_BARS: Final = re.compile(r"\s*(?:\d+)?(\|*)")
_ROW: Final = re.compile(r"\s*(?:\d*\|+)?\s*\d+(?:\.\d+)?%")
_COPIES: Final = re.compile(r"(HtoA|AtoH|AtoA) (?:CpySz )?(\S+<=)? ?(<\S+)? ?Count")
_SIZE: Final = re.compile(r"<?(\d+)(KiB|MiB|GiB)?(?:<=)?")
_UNITS: Final = {None: 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_MEBI: Final = 1 << 20
_COLUMNS: Final = {
    "seconds": ("Time", "Host Time"),
    "device_seconds": ("Acc Time",),
    "share": ("Acc Time%",),
    "events": ("Events",),
    "bytes_in": ("Acc Copy In (MiBytes)", "Acc Copy In (MBytes)"),
    "bytes_out": ("Acc Copy Out (MiBytes)", "Acc Copy Out (MBytes)"),
}


class PerftoolsParser(LineParser):
    """Regions with their times and copies, and copies by size."""

    format = "perftools"
    triggers = (_TITLE.encode(),)

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._head: list[list[str]] = []
        self._names: list[str] = []

    def line(self, line: bytes, number: int) -> None:
        text = split_prefix(line)[1].rstrip()
        if _TITLE in text:
            self._head, self._names, self.is_open = [], [], True
        elif text.startswith("Table ") or (self._names and not text.strip()):
            self.is_open = False
        elif _ROW.match(text):
            self._names = self._names or _column_names(self._head)
            self._read_row(text)
        elif not self._names and "|" in text:
            self._head.append([cell.strip() for cell in text.split("|")])

    def _read_row(self, text: str) -> None:
        bars = _BARS.match(text)
        depth = len(bars[1]) if bars else 0
        cells = [cell.strip() for cell in text[bars.end() if bars else 0 :].split("|")]
        if len(cells) != len(self._names):
            raise ValueError("not the columns of the head")
        row = dict(zip(self._names, cells, strict=True))
        region = cells[-1]
        values = {
            column: next((_value(row[name]) for name in names if name in row), None)
            for column, names in _COLUMNS.items()
        }
        events, sizes = values["events"], {name: values[name] for name in ("bytes_in", "bytes_out")}
        self.add(
            "regions",
            region=region,
            depth=depth,
            seconds=values["seconds"],
            device_seconds=values["device_seconds"],
            share=None if values["share"] is None else values["share"] / 100,
            events=None if events is None else round(events),
            **{name: None if size is None else round(size * _MEBI) for name, size in sizes.items()},
        )
        for name, cell in row.items():
            count = _value(cell)
            if (match := _COPIES.fullmatch(name)) and count:
                low, high = (_bytes(bound) for bound in match.groups()[1:])
                self.context.tables.add(
                    "copy_sizes", region=region, depth=depth, direction=match[1], least_bytes=low, below_bytes=high,
                    copies=count,
                )  # fmt: skip


def _column_names(head: list[list[str]]) -> list[str]:
    width = max(map(len, head), default=0)
    lines = [line for line in head if len(line) == width]
    return [" ".join(filter(None, cells)) for cells in zip(*lines, strict=True)]


def _value(cell: str) -> float | None:
    return None if cell in ("", "--") else number(cell.replace(",", ""))


def _bytes(bound: str | None) -> int | None:
    match = _SIZE.fullmatch(bound or "")
    return int(match[1]) * _UNITS[match[2]] if match else None
