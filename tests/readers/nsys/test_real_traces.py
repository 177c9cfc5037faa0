"""Real exports, against plain SQL."""

import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from jitter.readers.nsys import READER
from tests.support import nsys_exports as nsys
from tests.support.real_recordings import TRACES, needs_traces

EXPORTS = sorted(TRACES.glob("nsys/*.sqlite"))
pytestmark = needs_traces


@pytest.fixture(scope="module", params=EXPORTS, ids=lambda path: path.stem)
def path(request: pytest.FixtureRequest) -> Path:
    return request.param


def test_what_was_read_is_what_sql_sees(path: Path) -> None:
    assert READER.sniff(path)
    recording, rows = nsys.read(path)
    pids = [process.pid for process in recording.processes]
    names = recording.names
    with closing(sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)) as connection:
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}

        def sql(table: str, query: str) -> Counter:
            return Counter(connection.execute(query.format(table=table))) if table in tables else Counter()

        activity = """
            SELECT globalPid >> 24 & 16777215, deviceId, streamId, correlationId, start, end FROM {table}"""
        kernels = sql(
            "CUPTI_ACTIVITY_KIND_KERNEL",
            """SELECT globalPid >> 24 & 16777215, deviceId, streamId, correlationId, start, end, gridX, gridY, gridZ,
                      blockX, blockY, blockZ, value
               FROM {table} LEFT JOIN StringIds ON id = demangledName""",
        )
        copies = sql("CUPTI_ACTIVITY_KIND_MEMCPY", activity) + sql("CUPTI_ACTIVITY_KIND_MEMSET", activity)
        calls = sql(
            "CUPTI_ACTIVITY_KIND_RUNTIME",
            """SELECT globalTid >> 24 & 16777215, globalTid & 16777215, correlationId, start, end, value
               FROM {table} LEFT JOIN StringIds ON id = nameId WHERE eventClass IN (0, 1)""",
        )
        ranges = sql(
            "NVTX_EVENTS",
            """SELECT globalTid >> 24 & 16777215, globalTid & 16777215, start, end, coalesce(text, value)
               FROM {table} LEFT JOIN StringIds ON id = textId WHERE eventType IN (59, 60)""",
        )
    of_activity = ("device", "stream", "correlation", "start_ns", "end_ns")
    shape = ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z")
    assert kernels == Counter(
        (pids[row["process"]], *(row[name] for name in (*of_activity, *shape)), names[row["name"]])
        for row in rows["activities"]
        if not row["is_memory"]
    )
    assert copies == Counter(
        (pids[row["process"]], *(row[name] for name in of_activity)) for row in rows["activities"] if row["is_memory"]
    )
    assert calls == Counter(
        (pids[row["process"]], row["thread"], row["correlation"], row["start_ns"], row["end_ns"], names[row["name"]])
        for row in rows["calls"]
    )
    assert ranges == Counter(
        (pids[row["process"]], row["thread"], row["start_ns"], row["end_ns"], row["text"]) for row in rows["ranges"]
    )
    assert kernels
    assert recording.problems == []


def test_what_an_mpi_job_under_slurm_says_of_itself() -> None:
    recording, rows = nsys.read(TRACES / "nsys" / "pipit_saxpy-mpi-cuda.sqlite")
    (process,) = recording.processes
    assert (process.rank, process.rank_from) == (0, "NVTX 'MPI Rank 0'")
    assert (process.launcher_rank, process.launcher_rank_from) == (0, "PMI_RANK")
    assert process.host == "nid001608"
    assert recording.utc_offset_ns == 1687813257637297504
    assert "MPI_Init" in {row["text"] for row in rows["ranges"]}


def test_no_environment_leaves_a_real_export(path: Path) -> None:
    with closing(sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)) as connection:
        try:
            found = connection.execute(
                "SELECT CAST(value AS BLOB) FROM TARGET_INFO_SYSTEM_ENV WHERE name = 'DeviceEnvironment'"
            ).fetchall()
        except sqlite3.OperationalError:
            found = []
    variables = [variable for (value,) in found for variable in value.replace(b"\0", b";").split(b";")]
    values = {variable.partition(b"=")[2].decode(errors="replace") for variable in variables}
    recording, _ = nsys.read(path)
    said = repr((recording, list(recording.names)))
    hosts = {process.host for process in recording.processes}
    assert not [value for value in values if len(value) > 8 and value in said and value not in hosts]
