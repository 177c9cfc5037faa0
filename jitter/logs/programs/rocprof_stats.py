"""`*_stats.csv` of rocprof and rocprofv3: `"Name","Calls","TotalDurationNs","AverageNs","Percentage"` and more.

The file's name separates calls on the host (`hip_stats`, `hsa_stats`, `*_api_stats`) from work on the GPU
(`kernel_stats`, `copy_stats`, rocprof's `results.stats.csv`).
"""

import csv
import re
from typing import Final

from jitter.logs.line_parser import Context, LineParser
from jitter.logs.prefixes import decoded

_HOST_FILE: Final = re.compile(r"(?:hip|hsa|rccl|roctx|marker|api|sysinfo)\w*_?stats", re.IGNORECASE)
_HOST_NAME: Final = re.compile(r"(?:hip|hsa_|rocblas_|nccl|roctx)[A-Za-z_]\w*")


class RocprofStatsParser(LineParser):
    """Kernels, copies and API functions with their calls and total time."""

    format = "rocprof-stats"
    triggers = (b"TotalDurationNs",)

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._columns: list[str] = []
        self._is_host_file = bool(_HOST_FILE.search(context.path.name))

    def line(self, line: bytes, number: int) -> None:
        """Read the header or a row."""
        text = decoded(line)
        if not text.strip():
            return
        cells = next(csv.reader([text], strict=True), []) if text.count('"') % 2 == 0 else []
        if "TotalDurationNs" in text:
            if "Name" in cells and "Calls" in cells:
                self._columns = cells
                self.is_open = True
            return
        if len(cells) != len(self._columns):
            raise ValueError("not the columns of the header")
        row = dict(zip(self._columns, cells, strict=True))
        on_host = self._is_host_file or _HOST_NAME.fullmatch(row["Name"]) is not None
        percentage = row.get("Percentage")
        self.add(
            "operators",
            name=row["Name"],
            calls=int(row["Calls"]),
            share=float(percentage) / 100 if percentage else None,
            **{"self_cpu_ns" if on_host else "self_device_ns": int(row["TotalDurationNs"])},
        )
