"""The talk's way from exports to files: pandas.read_sql, merge, one CSV a GPU a step. Compared with by `ingest.py`.

python -m tests.bench.talk FOLDER EXPORT…
"""

import re
import sys
from pathlib import Path

import pandas as pd

from tests.support.databases import open_database

_STEP = re.compile(r"step(\d+)")
_KERNELS = """
    SELECT start AS kernel_start, "end" AS kernel_end, deviceId AS device, streamId AS kernel_stream, correlationId,
           value AS kernel_demangled_name
    FROM CUPTI_ACTIVITY_KIND_KERNEL JOIN StringIds ON demangledName = id
"""
_CALLS = """
    SELECT start AS crt_start, "end" AS crt_end, correlationId, value AS crt_name
    FROM CUPTI_ACTIVITY_KIND_RUNTIME JOIN StringIds ON nameId = id
"""
_RANGES = "SELECT start AS nvtx_start, \"end\" AS nvtx_end, text AS nvtx_text FROM NVTX_EVENTS WHERE text LIKE '%step%'"
_COLUMNS = [
    *("nvtx_text", "nvtx_start", "nvtx_end", "device", "crt_name", "crt_start", "crt_end", "kernel_demangled_name"),
    *("kernel_stream", "kernel_start", "kernel_end", "kernel_duration"),
]


def convert(export: Path, folder: Path) -> None:
    """Write the talk's rows of one GPU, a file a step."""
    with open_database(export) as connection:
        kernels = pd.read_sql(_KERNELS, connection)
        calls = pd.read_sql(_CALLS, connection)
        ranges = pd.read_sql(_RANGES, connection)
    rows = kernels.merge(calls, on="correlationId").sort_values("crt_start")
    rows["kernel_duration"] = rows["kernel_end"] - rows["kernel_start"]
    for one in ranges.itertuples():
        step = rows[(rows["crt_start"] >= one.nvtx_start) & (rows["crt_start"] < one.nvtx_end)]
        step = step.assign(nvtx_text=one.nvtx_text, nvtx_start=one.nvtx_start, nvtx_end=one.nvtx_end)
        found = _STEP.search(str(one.nvtx_text))
        assert found is not None
        place = folder / f"step{found[1]}"
        place.mkdir(parents=True, exist_ok=True)
        step[_COLUMNS].to_csv(place / f"{export.stem}.csv", index=False)


def main(folder: Path, exports: list[Path]) -> None:
    """Convert the exports, one after the other."""
    for export in exports:
        convert(export, folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Path(word) for word in sys.argv[2:]])
