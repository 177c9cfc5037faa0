"""Real exports (JITTER_TRACES names their folder): each goes in, or is refused with the way out; no kernel is lost."""

import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import jitter
from tests.support.lake_content import kernel_files, records
from tests.support.real_recordings import TRACES, needs_traces

EXPORTS = sorted(TRACES.glob("nsys/*.sqlite"))
pytestmark = needs_traces

_KERNELS = "SELECT globalPid >> 24 & 16777215, deviceId, count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL GROUP BY 1, 2"
_NAMES = """SELECT s.value, count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL k JOIN StringIds s ON s.id = k.demangledName
WHERE k.globalPid >> 24 & 16777215 = ? AND k.deviceId = ? GROUP BY 1"""


def _sql(path: Path, query: str, *values: int) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(f"{path.as_uri()}?immutable=1", uri=True)) as connection:
        connection.text_factory = lambda text: text.decode("utf-8", "replace")
        return connection.execute(query, values).fetchall()


@pytest.mark.parametrize("path", EXPORTS, ids=lambda path: path.name)
def test_every_kernel_is_accounted_for(path: Path, tmp_path: Path):
    lake = tmp_path / "lake"
    report = jitter.ingest([path], lake)
    assert report.refused == []
    if any(record["rank_told_by"] == "assumption" for record in records(lake)):
        (note,) = [warning for warning in report.warnings if "taken as rank 0" in warning]
        assert all(way in note for way in ("--rank ", "--rank-map", "--rank-pattern"))
    found = records(lake)
    assert {(r["pid"], r["device"], r["kernels"]) for r in found} == set(_sql(path, _KERNELS))
    assert len({r["rank"] for r in found}) == len(found)
    for record in found:
        in_steps = sum(step["kernels"] for step in record["steps"])
        assert in_steps + record["outside_steps"] + record["before_capture"] == record["kernels"]
        names: Counter[str] = Counter()
        for step in record["steps"]:
            rows = pq.read_table(lake / f"kernels/step={step['step']}/rank={record['rank']}.parquet", partitioning=None)
            kernels = rows.filter([kind != "memory" for kind in rows["kind"].to_pylist()])
            assert kernels.num_rows == step["kernels"]
            names.update(kernels["kernel_name"].to_pylist())
        of_export = Counter(dict(_sql(path, _NAMES, record["pid"], record["device"])))
        assert names <= of_export
        if not record["outside_steps"] and not record["before_capture"]:
            assert names == of_export
        said = " ".join(record["problems"])
        for count, words in (("outside_steps", "outside every step"), ("before_capture", "before the capture")):
            assert (words in said) == bool(record[count])
        assert "no step markers" in said or record["steps_from"] == "marker"
    assert len(kernel_files(lake)) == sum(len(record["steps"]) for record in found)
    assert jitter.ingest([path], lake).unchanged == 1
