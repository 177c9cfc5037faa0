"""The floor for answers: DuckDB reads the columns that a diagnosis needs from the ranks' files, and nothing else.

python -m tests.bench.read_floor LAKE
"""

import sys
from pathlib import Path

import duckdb

_READ = """
    SELECT count(kind), sum(start_ns), sum(end_ns), sum(launch_start_ns), sum(launch_end_ns)
    FROM read_parquet($files, hive_partitioning = false)
"""


def main(lake: Path) -> None:
    """Read."""
    files = [str(path) for path in sorted((lake / "kernels").rglob("*.parquet"))]
    print(duckdb.execute(_READ, {"files": files}).fetchall())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
