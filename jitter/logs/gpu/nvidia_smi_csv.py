"""`nvidia-smi --query-gpu=… --format=csv`, with or without units, once or in a loop.

The header's names follow the driver: `clocks.current.sm [MHz]` or `clocks.sm`, `clocks_event_reasons.active` or
`clocks_throttle_reasons.active`, `power.draw.instant [W]`. Without a header (`noheader`) nothing names the columns.
"""

import csv
import re
from typing import Final

from jitter.logs.gpu.clock_reasons import reason_of_name, reasons_of_mask
from jitter.logs.line_parser import Context, LineParser
from jitter.logs.prefixes import split_prefix
from jitter.logs.values import number, time_ns

_COLUMNS: Final = {
    "timestamp": ("timestamp",),
    "device": ("index",),
    "sm_mhz": ("clocks.current.sm", "clocks.sm", "clocks.current.graphics", "clocks.gr"),
    "power_w": ("power.draw.instant", "power.draw", "power.draw.average"),
    "temp_c": ("temperature.gpu",),
    "mask": ("clocks_event_reasons.active", "clocks_throttle_reasons.active"),
}
_NAME: Final = re.compile(r"[a-z_][\w.]*(?: \[[^\]]*\])?")
_REASON: Final = re.compile(r"clocks_(?:event|throttle)_reasons\.(\w+)")


class NvidiaSmiCsvParser(LineParser):
    """Clocks, power, temperature and reasons of each GPU at each time."""

    format = "nvidia-smi"
    triggers = (b"clocks.", b"power.draw", b"temperature.gpu", b"clocks_event_reasons", b"clocks_throttle_reasons")

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._at: dict[str, int] = {}
        self._reasons: list[tuple[int, str]] = []
        self._width = 0

    def line(self, line: bytes, number: int) -> None:
        """Read a header or a row."""
        text = split_prefix(line)[1].strip()
        values = [value.strip() for value in next(csv.reader([text], skipinitialspace=True), [])]
        if any(trigger.decode() in text for trigger in self.triggers):
            if len(values) > 1 and all(_NAME.fullmatch(value) for value in values):
                self._read_header(values)
        elif len(values) == self._width:
            self._read_row(values)
        elif len(values) > 1 and re.match(r"\d", values[0]) and 2 * len(values) > self._width:
            raise ValueError("not the columns of the header")

    def _read_header(self, names: list[str]) -> None:
        bare = [name.partition(" ")[0] for name in names]
        self._at = {}
        for column, known in _COLUMNS.items():
            found = next((bare.index(name) for name in known if name in bare), None)
            if found is not None:
                self._at[column] = found
        matches = [(at, _REASON.fullmatch(name)) for at, name in enumerate(bare)]
        named = [(at, reason_of_name(found[1])) for at, found in matches if found]
        self._reasons = [(at, reason) for at, reason in named if reason]
        self._width = len(names)
        self.is_open = True

    def _read_row(self, values: list[str]) -> None:
        cells = {column: values[at] for column, at in self._at.items()}
        measured = {key: number(cells.get(key, "")) for key in ("sm_mhz", "power_w", "temp_c")}
        reasons = self._reasons_of(values, cells.get("mask"))
        if all(value is None for value in measured.values()) and not reasons:
            raise ValueError("no measurement")
        index = cells.get("device", "")
        self.add(
            "gpu_clocks",
            time_ns=time_ns(cells.get("timestamp", "")),
            device=int(index) if index.isdigit() else None,
            reasons=reasons,
            **measured,
        )

    def _reasons_of(self, values: list[str], mask: str | None) -> list[str] | None:
        if mask is not None and mask.startswith("0x"):
            return reasons_of_mask(int(mask, 16))
        if not self._reasons:
            return None
        return [reason for at, reason in self._reasons if values[at] == "Active"]
