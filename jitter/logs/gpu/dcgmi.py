"""`dcgmi dmon -e 100,112,150,155`: rows `GPU 0  1410  0  45  350.1` under a header of short field names, no times.

DCGM dcgm_fields.cpp: SMCLK SM clock in MHz, DVCCTR clock reasons, TMPTR temperature in °C, POWER in W.
"""

import re
from typing import Final

from jitter.logs.gpu.clock_reasons import reasons_of_mask
from jitter.logs.line_parser import Context, LineParser
from jitter.logs.prefixes import split_prefix
from jitter.logs.values import number

_ROW: Final = re.compile(r"\s*GPU[ -](\d{1,4})\s+(\S.*)")
_FIELDS: Final = {"SMCLK": "sm_mhz", "POWER": "power_w", "TMPTR": "temp_c", "DVCCTR": "mask", "CLKTR": "mask"}


class DcgmiParser(LineParser):
    """Clocks, power, temperature and reasons of each GPU."""

    format = "dcgmi-dmon"
    triggers = (b"Entity",)

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._names: list[str] = []

    def line(self, line: bytes, number_: int) -> None:
        """Read a header or a row."""
        text = split_prefix(line)[1]
        words = text.replace("#", " ").split()
        if words[:1] == ["Entity"]:
            self._names = words[1:]
            self.is_open = any(name in _FIELDS for name in self._names)
        elif found := _ROW.fullmatch(text.rstrip()):
            self._read_row(int(found[1]), found[2].split())

    def _read_row(self, device: int, values: list[str]) -> None:
        if len(values) != len(self._names):
            raise ValueError("not the columns of the header")
        cells = {
            _FIELDS[name]: number(value) for name, value in zip(self._names, values, strict=True) if name in _FIELDS
        }
        mask = cells.pop("mask", None)
        reasons = None if mask is None else reasons_of_mask(int(mask))
        if reasons is None and all(value is None for value in cells.values()):
            raise ValueError("no measurement")
        self.add("gpu_clocks", device=device, reasons=reasons, **cells)
