"""`rocm-smi`'s concise table (ROCm 5 and 6): a GPU a line, `0  46.0c  92.0W  800Mhz  1600Mhz  0%  manual  500.0W …`.

ROCm 6 puts node, ids and partitions (`NPS1, SPX, 0`) between. Power follows the temperature, the clock follows both.
"""

import re
from typing import Final

from jitter.logs.line_parser import LineParser
from jitter.logs.prefixes import split_prefix
from jitter.logs.values import number

_ROW: Final = re.compile(
    r"\s*(?P<gpu>\d{1,4})\s+(?:\d+\s+0x\w+,\s+\w+\s+)?(?P<temp>\d+(?:\.\d+)?\s?°?[cC]|N/A)\s+(?P<power>\d+(?:\.\d+)?W|N/A)\s+"
    r"(?:\S+, \S+, \S+\s+)?(?P<clock>\d+M[hH]z|None|N/A)\s+.*"
)
_ROW_START: Final = re.compile(r"\s*\d{1,4}\s+\S+.*\d%")


class RocmSmiParser(LineParser):
    """Clock, power and temperature of each GPU."""

    format = "rocm-smi"
    triggers = (b"Concise Info", b"SCLK")

    def line(self, line: bytes, number_: int) -> None:
        """Read a title, a header or a row."""
        text = split_prefix(line)[1].rstrip()
        if any(trigger.decode() in text for trigger in self.triggers):
            self.is_open = self.is_open or "MCLK" in text or "Concise" in text
        elif "End of ROCm" in text:
            self.is_open = False
        elif found := _ROW.fullmatch(text):
            self.add(
                "gpu_clocks",
                device=int(found["gpu"]),
                temp_c=number(found["temp"]),
                power_w=number(found["power"]),
                sm_mhz=number(found["clock"]),
            )
        elif _ROW_START.match(text):
            raise ValueError("not a row")
