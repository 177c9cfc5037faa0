"""Operators of real recordings, kernel by kernel, against plain SQL on the exports."""

import os
import re
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

import jitter

TRACES = os.environ.get("JITTER_TRACES")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(TRACES is None, reason="no real traces: set JITTER_TRACES")]
DETAIL = re.compile(r", (?:seq|op_id|sizes|input_op_ids) = .*", re.DOTALL)
OPERATOR = re.compile(r"[\w.$]+(?:::[\w.$]+)+|nccl[A-Z]\w*|\w+Backward\d*|record_param_comms")


@pytest.mark.parametrize("name", ["nsysai_h100_2gpu_1s", "nsysai_mfu_2gpu_before", "extrap_concurrent16"])
def test_nsys_against_plain_sql(name: str, tmp_path: Path):
    path = Path(TRACES or "", "nsys", f"{name}.sqlite")
    with closing(sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)) as connection:
        kernels = connection.execute(
            """SELECT k.start, k.end, r.start, r.globalTid FROM CUPTI_ACTIVITY_KIND_KERNEL k
               JOIN CUPTI_ACTIVITY_KIND_RUNTIME r
                 ON r.correlationId = k.correlationId AND (r.globalTid >> 24) = (k.globalPid >> 24)"""
        ).fetchall()
        ranges = connection.execute(
            """SELECT n.start, n.end, n.globalTid, coalesce(n.text, s.value) FROM NVTX_EVENTS n
               LEFT JOIN StringIds s ON s.id = n.textId WHERE n.eventType IN (59, 60) AND n.end IS NOT NULL
               ORDER BY n.start, n.end DESC"""
        ).fetchall()
    start, end, thread = (np.array([row[column] for row in ranges]) for column in range(3))
    expected: dict[tuple[int, int], set[tuple[str | None, str | None]]] = {}
    for kernel_start, kernel_end, at, own in kernels:
        texts = [ranges[row][3] for row in np.flatnonzero((start <= at) & (at <= end) & (thread == own))]
        names = [DETAIL.sub("", text) for text in texts]
        operators = [text for text in names if OPERATOR.fullmatch(text)]
        others = [text for text in names if not OPERATOR.fullmatch(text)]
        found = (operators[-1] if operators else None), ("/".join(others) or None)
        expected.setdefault((kernel_start, kernel_end), set()).add(found)
    lake = tmp_path / "lake"
    jitter.ingest(path, lake, executor=jitter.LocalExecutor(), rank=0 if name.startswith("extrap") else None)
    rows = jitter.open(lake).sql("select start_ns, end_ns, operator, scope from kernels where kind <> 'memory'")
    assert len(rows) >= 7
    assert sum(text is not None for text in rows["operator"].to_pylist()) > len(rows) * name.startswith("nsysai") * 0.9
    for row in rows.to_pylist():
        assert (row["operator"], row["scope"]) in expected[row["start_ns"], row["end_ns"]]
