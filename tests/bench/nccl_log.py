"""A NCCL_DEBUG log of 1 GB: processor time and memory of reading it, alone and into a lake.

python -m tests.bench.nccl_log LOG [--megabytes 1024]    (LOG is repeated up to the size)
"""

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

from tests.bench.measure import run

_PARSE = "import sys; from jitter.logs import parse; parse(sys.argv[1])"
LIMIT_S = 60.0
LIMIT_MB = 300.0


def repeat_log(log: Path, target: Path, size: int) -> None:
    """Write the log again and again until the target has this many bytes."""
    text = log.read_bytes()
    with target.open("wb") as file:
        for _ in range(-(-size // len(text))):
            file.write(text)


def main() -> int:
    """Print both costs; return 1 if reading takes longer or more memory than it may."""
    options = argparse.ArgumentParser()
    options.add_argument("log", type=Path)
    options.add_argument("--megabytes", type=int, default=1024)
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="jitter-bench-") as folder:
        target, lake = Path(folder, "nccl.log"), Path(folder, "lake")
        repeat_log(chosen.log, target, chosen.megabytes << 20)
        parsed = run([sys.executable, "-c", _PARSE, target])
        print(f"parse: {parsed}")
        ingested = run([sys.executable, "-m", "jitter", "ingest", target, "-o", lake, "--quiet"])
        print(f"ingest: {ingested}")
        shutil.rmtree(lake)
    return int(parsed.cpu_seconds > LIMIT_S or parsed.peak_mb > LIMIT_MB)


if __name__ == "__main__":
    sys.exit(main())
