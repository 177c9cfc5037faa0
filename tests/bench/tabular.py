"""rocprofv3's databases and CSV files: rows a second of `jitter ingest` beside the readers of pyarrow, DuckDB and ADBC.

python -m tests.bench.tabular [--quick] [--rounds N]

The others read the same files into columns in memory and do nothing else.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

from jitter.simulate import Job, simulate, write
from tests.bench.answers import JITTER
from tests.bench.measure import Cost, alternating, run

_ARROW = """
import sys
from pyarrow import csv
print(sum(csv.read_csv(path).num_rows for path in sys.argv[1:]))
"""
_DUCKDB_CSV = """
import sys, duckdb
print(sum(duckdb.read_csv(path).to_arrow_table().num_rows for path in sys.argv[1:]))
"""
_SQLITE = """
import sys, adbc_driver_sqlite.dbapi as dbapi
rows = 0
for path in sys.argv[1:]:
    with dbapi.connect(path) as connection, connection.cursor() as cursor:
        cursor.execute("select name from sqlite_master where type = 'table' and name like 'rocpd_%'")
        for (name,) in cursor.fetchall():
            cursor.execute(f'select * from "{name}"')
            rows += cursor.fetch_arrow_table().num_rows
print(rows)
"""


def ingest(work: Path, traces: Path) -> Cost:
    """Ingest into a lake made anew, in one process."""
    shutil.rmtree(work / "lake", ignore_errors=True)
    return run([*JITTER, "ingest", traces, "-o", work / "lake", "--jobs", "1", "--quiet"])


def rows_of(program: str, files: list[Path]) -> int:
    """How many rows a program reads."""
    done = subprocess.run([sys.executable, "-c", program, *files], check=True, capture_output=True, text=True)
    return int(done.stdout)


def measure(work: Path, form: str, suffix: str, others: dict[str, str], size: tuple[int, int], rounds: int) -> None:
    """Print rows a second for one format."""
    traces = work / form
    steps, kernels = size
    write(simulate(Job(ranks=2, steps=steps, kernels=kernels)), traces, form)
    files = sorted(traces.rglob(f"*{suffix}"))
    rows = rows_of(next(iter(others.values())), files)
    contestants = {"jitter": partial(ingest, work, traces)}
    for name, program in others.items():
        contestants[name] = partial(run, [sys.executable, "-c", program, *files])
    costs = alternating(contestants, rounds)
    size_mb = sum(path.stat().st_size for path in files) / 1e6
    for name, cost in costs.items():
        speed, ratio = rows / cost.seconds, cost.seconds / costs["jitter"].seconds
        print(f"{form}: {name}: {speed:,.0f} of {rows:,} rows a second ({size_mb:.0f} MB), {ratio:.2f} × jitter")


def main() -> None:
    """Print both formats."""
    options = argparse.ArgumentParser()
    options.add_argument("--quick", action="store_true", help="a tenth of the size, one round")
    options.add_argument("--rounds", type=int, default=3, help="of alternating runs; medians are printed")
    chosen = options.parse_args()
    rounds = 1 if chosen.quick else chosen.rounds
    size = (20, 300) if chosen.quick else (100, 2_000)
    with tempfile.TemporaryDirectory(prefix="jitter-bench-") as folder:
        work = Path(folder)
        measure(work, "rocprof-csv", ".csv", {"pyarrow": _ARROW, "DuckDB": _DUCKDB_CSV}, size, rounds)
        measure(work, "rocpd", ".db", {"ADBC's SQLite": _SQLITE}, size, rounds)


if __name__ == "__main__":
    main()
