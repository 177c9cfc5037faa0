"""`nvidia-smi -q`: an indented report, GPU after GPU; the number of a GPU is its place in the report."""

import re
from typing import Any, Final

from jitter.logs.gpu.clock_reasons import reason_of_name
from jitter.logs.line_parser import Context, LineParser
from jitter.logs.prefixes import split_prefix
from jitter.logs.values import number, time_ns

_GPU: Final = re.compile(r"GPU [0-9A-Fa-f]{8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f]")
_POWER: Final = ("Instantaneous Power Draw", "Power Draw", "Average Power Draw")


class NvidiaSmiQueryParser(LineParser):
    """Clocks, power, temperature and reasons of each GPU of each report."""

    format = "nvidia-smi-q"
    triggers = (b"NVSMI LOG",)

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._time: int | None = None
        self._device = -1
        self._gpu: dict[str, Any] | None = None
        self._section = ""

    def line(self, line: bytes, number: int) -> None:
        """Read a line of the report."""
        text = split_prefix(line)[1].rstrip()
        key, colon, value = (part.strip() for part in text.partition(" : "))
        if "NVSMI LOG" in text:
            self._end_gpu()
            self.is_open, self._device, self._section = True, -1, ""
        elif key == "Timestamp" and self._gpu is None:
            self._time = time_ns(value)
        elif _GPU.fullmatch(text.strip()):
            self._end_gpu()
            self._device += 1
            self._gpu = {"reasons": None}
        elif self._gpu is not None:
            if not colon:
                self._section = key if key else self._section
            else:
                self._read_value(self._gpu, key, value)

    def finish(self) -> None:
        """Add the last GPU."""
        self._end_gpu()

    def _read_value(self, gpu: dict[str, Any], key: str, value: str) -> None:
        reason = reason_of_name(key)
        if reason is not None and value in {"Active", "Not Active"}:
            gpu["reasons"] = [*(gpu["reasons"] or []), *([reason] if value == "Active" else [])]
        elif key == "GPU Current Temp":
            gpu["temp_c"] = number(value)
        elif key in _POWER and "module" not in self._section.lower() and "memory" not in self._section.lower():
            gpu.setdefault("power_w", number(value))
            if gpu["power_w"] is None:
                del gpu["power_w"]
        elif key == "SM" and self._section == "Clocks":
            gpu["sm_mhz"] = number(value)

    def _end_gpu(self) -> None:
        gpu, self._gpu = self._gpu, None
        if gpu and (gpu["reasons"] is not None or len(gpu) > 1):
            self.add("gpu_clocks", time_ns=self._time, device=self._device, **gpu)
