"""`prof.key_averages().table()` of PyTorch's profiler: operators, sorted, with times that carry their units.

torch/autograd/profiler_util.py `_build_table`: a dashed ruler gives the columns' widths; which columns there are
follows the activities. ROCm prints CUDA, other devices their name. Tables that lost the ruler are split at tabs, or at
two blanks.
"""

import re
from typing import Final

from jitter.logs.line_parser import Context, LineParser, split_prefix
from jitter.logs.values import duration_ns

_RULER: Final = re.compile(r"-{3,}(?:  -{3,})+\s*")
_DASHES: Final = re.compile(r"-+")
_GAP: Final = re.compile(r"\t+ *| {2,}")
_DEVICE: Final = re.compile(r"Self (?!CPU)([A-Z][A-Za-z]\w*)")
_PERCENT: Final = re.compile(r"(-?\d+(?:\.\d+)?)%")
_END: Final = re.compile(r"Self \w+ time total: ")


class ProfilerTableParser(LineParser):
    """Operators with their calls and their own time on CPU and device."""

    format = "key-averages"
    triggers = (b"Self CPU %", b"Self CPU total %")

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._columns: list[str] = []
        self._spans: list[tuple[int, int]] = []
        self._rulers = 0

    def line(self, line: bytes, number: int) -> None:
        """Read the header, the ruler or a row."""
        text = split_prefix(line)[1].rstrip()
        if "Self CPU" in text and "%" in text and "Name" in text:
            self._columns = [name.strip() for name in _GAP.split(text.strip())]
            self._spans, self._rulers = [], 0
            self.is_open = True
        elif _END.match(text) or (not text.strip() and self._rulers):
            self.is_open = False
        elif _RULER.fullmatch(text):
            self._rulers += 1
            spans = [match.span() for match in _DASHES.finditer(text)]
            self._spans = spans if len(spans) == len(self._columns) else []
            self.is_open = self._rulers < 2
        elif text.strip():
            self._read_row(text)

    def _read_row(self, text: str) -> None:
        cells = self._cells(text)
        if len(cells) != len(self._columns):
            if len(cells) > 2 and "%" in text:
                raise ValueError("not the columns of the header")
            return
        row = dict(zip(self._columns, cells, strict=True))
        name = row.get("Name", "")
        device = next((match[1] for column in row if (match := _DEVICE.fullmatch(column))), None)
        cpu = row.get("Self CPU", row.get("Self CPU total"))
        share = _PERCENT.fullmatch(row.get(f"Self {device} %" if device else "Self CPU %", ""))
        calls = row.get("# of Calls", row.get("Number of Calls"))
        if not name or cpu is None:
            raise ValueError("not a row")
        self.add(
            "operators",
            name=name,
            calls=int(calls) if calls else None,
            self_cpu_ns=duration_ns(cpu),
            self_device_ns=duration_ns(row[f"Self {device}"]) if device else None,
            share=float(share[1]) / 100 if share else None,
        )

    def _cells(self, text: str) -> list[str]:
        if self._spans and len(text) <= self._spans[-1][1] and "\t" not in text:
            return [text[start:end].strip() for start, end in self._spans]
        return [cell.strip() for cell in _GAP.split(text.strip())]
