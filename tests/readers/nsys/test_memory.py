"""A long export is streamed: memory does not grow with it."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support import nsys_exports as nsys
from tests.support.databases import run_sql
from tests.support.nsys_exports import export, kernel

pytestmark = pytest.mark.slow

_ROWS = 1_200_000
_BOUND_MB = 100
"""Streaming takes 65 to 75 MB, whatever the length; one `fetchall` of these rows takes over 200 MB."""

_READ = """
import sys
from pathlib import Path
from jitter.readers.nsys import READER

def megabytes():
    # not ru_maxrss: a child starts with its parent's
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024

def read(path):
    _, batches = READER.open(Path(path))
    return sum(batch.rows.num_rows for batch in batches(lambda _: None))

read(sys.argv[1])
before = megabytes()
rows = read(sys.argv[2])
print(rows, megabytes() - before)
"""


def lengthen(path: Path, form: str) -> None:
    """Make the export's only kernel `_ROWS` of them, in one row group."""
    if form == "sqlite":
        run_sql(
            path,
            f"""WITH RECURSIVE more(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM more WHERE i < {_ROWS - 1})
                    INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL
                    SELECT kernel.* FROM more, (SELECT * FROM CUPTI_ACTIVITY_KIND_KERNEL) AS kernel""",
        )
        return
    file = path / "CUPTI_ACTIVITY_KIND_KERNEL.parquet"
    one = pq.read_table(file)
    noise = np.random.default_rng(0).integers(0, 1 << 40, _ROWS)  # or it would compress to nothing
    many = one.take(pa.array(np.zeros(_ROWS, np.int64)))
    many = many.set_column(0, "start", pa.array(noise)).set_column(1, "end", pa.array(noise + 9))
    pq.write_table(many, file, row_group_size=_ROWS)


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak from /proc")
@pytest.mark.parametrize("form", nsys.FORMS)
def test_memory_is_bounded(tmp_path: Path, form: str) -> None:
    short = nsys.write(tmp_path / "short.sqlite", form, export(CUPTI_ACTIVITY_KIND_KERNEL=[kernel()]))
    long = nsys.write(tmp_path / "long.sqlite", form, export())
    lengthen(long, form)
    done = subprocess.run(
        [sys.executable, "-c", _READ, str(short), str(long)], capture_output=True, text=True, check=True
    )
    rows, grown_mb = done.stdout.split()
    assert int(rows) == _ROWS + 1
    assert float(grown_mb) < _BOUND_MB
