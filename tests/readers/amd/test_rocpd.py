"""rocpd databases: sessions, ranks from environments, schema variants, damage; no public real file is known."""

import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

import pytest

import jitter
from jitter.core.names.launchers import RANK_VARIABLES, first_number
from jitter.ingestion.inspect import inspect
from jitter.lake.folder import LakeFolder
from jitter.readers import Recording
from jitter.readers.amd.rocpd import Session, find_sessions, read_variables
from jitter.readers.amd.rows import RowBuilder
from jitter.readers.sqlite import Database
from jitter.simulate import Job, simulate, write
from jitter.simulate.formats.rocpd import SECRET
from tests.support.amd_traces import read
from tests.support.databases import open_database, run_sql
from tests.support.reading import refusal

JOB = Job(ranks=2, steps=2, kernels=30, seed=9, epoch=None, marker="profiler")


def sample(folder: Path, **options: object) -> list[Path]:
    return write(simulate(JOB), folder, "rocpd", **({"names": "process"} | options))


def suffix_of(path: Path) -> str:
    with open_database(path) as database:
        (name,) = database.execute("SELECT name FROM sqlite_master WHERE name LIKE 'rocpd_region_%'").fetchone()
    return str(name).removeprefix("rocpd_region")


def merged(path: Path, paths: Iterable[Path]) -> Path:
    """One database with the tables of all, its views over all: what `rocpd merge` makes."""
    views: dict[str, list[str]] = {}
    with closing(sqlite3.connect(path)) as database:
        for one in paths:
            database.execute("ATTACH ? AS one", (str(one),))
            tables = database.execute("SELECT name, sql FROM one.sqlite_master WHERE type = 'table'").fetchall()
            suffix = suffix_of(one)
            for name, sql in tables:
                database.execute(sql)
                database.execute(f'INSERT INTO main."{name}" SELECT * FROM one."{name}"')
                views.setdefault(name.removesuffix(suffix), []).append(f'SELECT * FROM "{name}"')
            database.commit()
            database.execute("DETACH one")
        for view, parts in views.items():
            database.execute(f'CREATE VIEW "{view}" AS {" UNION ALL ".join(parts)}')
        database.commit()
    return path


def test_every_row(tmp_path: Path):
    for path, own in zip(sample(tmp_path), simulate(JOB).ranks(), strict=True):
        found = read(path)
        assert sorted((a["start_ns"], a["end_ns"]) for a in found.activities) == sorted(
            zip(own.start_ns.tolist(), own.end_ns.tolist(), strict=True)
        )
        launches = dict(zip(own.start_ns.tolist(), own.launch_start_ns.tolist(), strict=True))
        for kernel in found.kernels:
            launch = found.launch(kernel)
            assert launch is not None
            assert launch["start_ns"] == launches[kernel["start_ns"]]
        process = found.recording.processes[0]
        assert (process.pid, process.host, process.rank, process.rank_from) == (own.pid, own.host, own.rank, "RANK")
        assert {a["device"] for a in found.activities} == {own.device}
        assert {c["thread"] for c in found.calls} == set(own.threads)
        assert [r["text"] for r in found.ranges if r["text"].startswith("Profiler")] == [r.text for r in own.steps]
        assert found.recording.problems == []
        assert found.recording.utc_offset_ns is None


def test_the_plan_reads_no_table_more_than_once(tmp_path: Path):
    """The databases have no index: every join must go by row id."""
    (path, _) = sample(tmp_path)
    database = Database(path)
    (suffix,) = find_sessions(database.tables)
    session = Session(database, suffix, RowBuilder(Recording(path, "rocpd")))
    for table in ("kernel_dispatch", "memory_copy", "region"):
        source, columns = session.source(table)
        plan = database.rows(f"EXPLAIN QUERY PLAN SELECT {', '.join(columns.values())} FROM {source}")
        steps = [str(row[-1]) for row in plan]
        assert [step for step in steps if step.startswith("SCAN")] == ["SCAN x"]
        assert all("INTEGER PRIMARY KEY" in step for step in steps if step.startswith("SEARCH"))


@pytest.mark.parametrize(
    ("environment", "told"), [("torchrun", "RANK"), ("srun", "SLURM_PROCID"), ("mpirun", "OMPI_COMM_WORLD_RANK")]
)
def test_ranks_of_launchers(tmp_path: Path, environment: str, told: str):
    sample(tmp_path / "traces", environment=environment)
    report = jitter.ingest([tmp_path / "traces"], tmp_path / "lake")
    assert sorted((record.rank, record.rank_told_by) for record in report.added) == [(0, told), (1, told)]
    assert {record.host for record in report.added} == {"node0000"}


def test_nothing_else_of_the_environment_leaves(tmp_path: Path):
    sample(tmp_path / "traces")
    jitter.ingest([tmp_path / "traces"], tmp_path / "lake")
    for file in (tmp_path / "lake").rglob("*"):
        if file.is_file():
            content = file.read_bytes()
            assert SECRET.encode() not in content
            assert b"PMI_SHARED" not in content
    assert len(LakeFolder(tmp_path / "lake").records()) == 2


def test_ranks_nobody_recorded(tmp_path: Path):
    sample(tmp_path / "traces", environment="none")
    report = jitter.ingest([tmp_path / "traces"], tmp_path / "lake")
    assert [(record.rank, record.device, record.rank_told_by) for record in report.added] == [
        (0, 0, "device order"), (1, 1, "device order")
    ]  # fmt: skip
    sample(tmp_path / "named", environment="none", names="rank")
    report = jitter.ingest([tmp_path / "named"], tmp_path / "other")
    assert [(record.rank, record.rank_told_by) for record in report.added] == [(0, "file name"), (1, "file name")]


@pytest.mark.parametrize(
    ("environment", "told"),
    [
        ('{"PMI_RANK": "5", "OMPI_COMM_WORLD_RANK": "4"}', (4, "OMPI_COMM_WORLD_RANK")),
        ('{"RANK": 7, "SLURM_PROCID": "0"}', (7, "RANK")),
        ('{"RANK": "", "SLURM_PROCID": "3"}', (3, "SLURM_PROCID")),
        ('{"SLURM_PROCID": "0", "OMPI_COMM_WORLD_RANK": "5"}', (5, "OMPI_COMM_WORLD_RANK")),
        ('{"RANK": "12345678901"}', (None, None)),
        ('{"RANK": "-1", "LOCAL_RANK": "2", "MY_RANK": "9"}', (None, None)),
        ('{"RANK": true}', (None, None)),
        ("[1]", (None, None)),
        ("not json", (None, None)),
        (None, (None, None)),
    ],
)
def test_variables(environment: str | None, told: tuple[int | None, str | None]):
    assert first_number(read_variables(environment), RANK_VARIABLES) == told


def test_several_sessions_in_one_database(tmp_path: Path):
    """Row ids and correlations repeat in each; each process has its own environment, so its own rank."""
    paths = sample(tmp_path / "apart")
    path = merged(tmp_path / "all_results.db", paths)
    found = read(path)
    apart = [read(one) for one in paths]
    assert len(found.activities) == sum(len(one.activities) for one in apart)
    assert sorted(p.rank or 0 for p in found.recording.processes) == [0, 1]
    starts = {k["start_ns"]: (one.launch(k) or {})["start_ns"] for one in apart for k in one.kernels}
    assert {k["start_ns"]: (found.launch(k) or {})["start_ns"] for k in found.kernels} == starts
    report = jitter.ingest([path], tmp_path / "lake")
    assert sorted(record.rank or 0 for record in report.added) == [0, 1]


def test_two_databases_of_one_guid(tmp_path: Path):
    """A copy is taken once; one that was changed since claims the same steps, which is said."""
    (path, other) = sample(tmp_path / "traces")
    copy = path.with_name("copy_results.db")
    copy.write_bytes(path.read_bytes())
    report = jitter.ingest([tmp_path / "traces"], tmp_path / "lake")
    assert sorted(record.rank or 0 for record in report.added) == [0, 1]
    assert any("the same content" in warning for warning in report.warnings)
    suffix = suffix_of(copy)
    run_sql(copy, f'DELETE FROM "rocpd_kernel_dispatch{suffix}" WHERE id > 40')
    report = jitter.ingest([copy, other], tmp_path / "second")
    report = jitter.ingest([path], tmp_path / "second")
    (error,) = report.refused
    assert "rank 0 has" in str(error)
    assert copy.name in str(error)


def test_places_and_times_in_tables_apart(tmp_path: Path):
    """Later schemas keep them in rocpd_track and rocpd_timestamp."""
    (path, _) = sample(tmp_path)
    whole = read(path)
    s = suffix_of(path)
    dispatch = f'"rocpd_kernel_dispatch{s}"'
    kept = "id, guid, kernel_id, event_id, workgroup_size_x, workgroup_size_y, workgroup_size_z, grid_size_x"
    run_sql(
        path,
        f'CREATE TABLE "rocpd_track{s}" (id INTEGER PRIMARY KEY, guid, nid, pid, tid, agent_id, queue_id, stream_id)',
        f'INSERT INTO "rocpd_track{s}" SELECT id, guid, nid, pid, tid, agent_id, queue_id, stream_id FROM {dispatch}',
        f'CREATE TABLE "rocpd_timestamp{s}" (id INTEGER PRIMARY KEY, guid, value)',
        f'INSERT INTO "rocpd_timestamp{s}" SELECT 2 * id, guid, "start" FROM {dispatch}',
        f'INSERT INTO "rocpd_timestamp{s}" SELECT 2 * id + 1, guid, "end" FROM {dispatch}',
        f"CREATE TABLE moved AS SELECT {kept}, grid_size_y, grid_size_z, id AS track_id, 2 * id AS start_id, "
        f"2 * id + 1 AS end_id FROM {dispatch}",
        "DROP VIEW rocpd_kernel_dispatch",
        f"DROP TABLE {dispatch}",
        f"ALTER TABLE moved RENAME TO {dispatch}",
        f'CREATE TABLE "rocpd_info_category{s}" (id INTEGER PRIMARY KEY, guid, name)',
        f'INSERT INTO "rocpd_info_category{s}" SELECT id, guid, string FROM "rocpd_string{s}"',
    )
    found = read(path)
    assert [k | {"name": None} for k in found.kernels] == [k | {"name": None} for k in whole.kernels]
    assert (found.calls, found.ranges) == (whole.calls, whole.ranges)


def test_names_that_are_missing(tmp_path: Path):
    (path, _) = sample(tmp_path)
    whole = read(path)
    run_sql(path, f'DELETE FROM "rocpd_info_kernel_symbol{suffix_of(path)}" WHERE id = 1')
    found = read(path)
    assert len(found.kernels) == len(whole.kernels)
    assert "[kernel 1 is not in the database]" in {found.name(k) for k in found.kernels}


def test_no_calls_and_no_ranges(tmp_path: Path):
    (path, _) = sample(tmp_path)
    whole = read(path)
    run_sql(path, f'DELETE FROM "rocpd_region{suffix_of(path)}"')
    found = read(path)
    assert len(found.kernels) == len(whole.kernels)
    assert (found.calls, found.ranges) == ([], [])
    assert [problem.split(":")[0] for problem in found.recording.problems] == [
        "no HIP API calls recorded",
        "no roctx ranges recorded; record with --marker-trace",
    ]


def test_packed_texts(tmp_path: Path):
    (path, _) = sample(tmp_path)
    whole = read(path)
    run_sql(
        path,
        f"UPDATE \"rocpd_event{suffix_of(path)}\" SET extdata = x'0422' || extdata WHERE extdata LIKE '%Profiler%'",
    )
    found = read(path)
    lost = [r for r in whole.ranges if r["text"].startswith("ProfilerStep")]
    assert len(found.ranges) == len(whole.ranges) - len(lost)
    assert any(f"{len(lost)} roctx ranges' texts are packed" in problem for problem in found.recording.problems)


def test_texts_beside_the_region(tmp_path: Path):
    """Some versions keep the message with the region, others with its event."""
    (path, _) = sample(tmp_path)
    whole = read(path)
    s = suffix_of(path)
    run_sql(
        path,
        f'UPDATE "rocpd_region{s}" SET extdata = (SELECT e.extdata FROM "rocpd_event{s}" e WHERE e.id = event_id)',
        f"UPDATE \"rocpd_event{s}\" SET extdata = '{{}}'",
    )
    assert read(path).ranges == whole.ranges


def test_damage(tmp_path: Path):
    (path, other) = sample(tmp_path)
    run_sql(path, f'DELETE FROM "rocpd_kernel_dispatch{suffix_of(path)}"')
    assert "no kernels in this database" in refusal("rocpd", path)
    content = other.read_bytes()
    other.write_bytes(content[: len(content) // 2])
    assert "damaged or cut short" in refusal("rocpd", other)
    other.write_bytes(content)
    other.with_name(other.name + "-wal").write_bytes(b"x")
    assert "still being written" in refusal("rocpd", other)


def test_an_empty_database_is_no_trace(tmp_path: Path):
    path = tmp_path / "rank-0_results.db"
    run_sql(path, "CREATE TABLE mine (id)")
    path.with_name("zero_results.db").write_bytes(b"")
    sample(tmp_path / "good")
    report = jitter.ingest([tmp_path], tmp_path / "lake")
    assert (len(report.added), report.other_files) == (2, 1)
    assert ["zero_results.db: a damaged trace (0 bytes)" in str(error) for error in report.refused] == [True]
    report = jitter.ingest([path], tmp_path / "lake")
    assert "not a trace that jitter reads" in str(report.refused[0])


def test_tables_of_an_unknown_schema(tmp_path: Path):
    path = tmp_path / "x_results.db"
    run_sql(path, "CREATE TABLE rocpd_kernel_dispatch_0199 (id, guid, kernel_id, event_id, moment)")
    assert "schema" in refusal("rocpd", path)


def test_the_same_run_as_csv_is_no_second_recording(tmp_path: Path):
    write(simulate(JOB), tmp_path, "rocprof-csv")
    sample(tmp_path, names="rank")
    report = jitter.ingest([tmp_path], tmp_path / "lake")
    assert {record.format for record in report.added} == {"rocpd"}
    assert (len(report.added), report.refused, report.other_files) == (2, [], 0)


def test_copies_have_sizes(tmp_path: Path):
    for path in sample(tmp_path):
        copies = {a["start_ns"]: a["size_bytes"] for a in read(path).activities if a.get("size_bytes") is not None}
        with open_database(path) as database:
            rows = database.execute(f"SELECT start, size FROM rocpd_memory_copy{suffix_of(path)}").fetchall()
        assert copies == dict(rows)
        assert copies


def _with_arguments(path: Path, arguments: dict[str, str]) -> list[int]:
    """Give every RCCL call of a database these arguments; return the correlation ids of the calls."""
    suffix = suffix_of(path)
    with open_database(path) as database:
        table = f"rocpd_arg{suffix}"
        database.execute(
            f'CREATE TABLE IF NOT EXISTS "{table}" '
            "(id INTEGER PRIMARY KEY, guid TEXT, event_id INTEGER, position INTEGER, type TEXT, name TEXT, value TEXT)"
        )
        calls = database.execute(
            f"SELECT e.id, e.stack_id FROM rocpd_region{suffix} r JOIN rocpd_event{suffix} e ON e.id = r.event_id "
            f"JOIN rocpd_string{suffix} c ON c.id = e.category_id WHERE c.string = 'RCCL_API'"
        ).fetchall()
        for event, _ in calls:
            for position, (name, value) in enumerate(arguments.items()):
                database.execute(
                    f'INSERT INTO "{table}" (event_id, position, type, name, value) VALUES (?, ?, ?, ?, ?)',
                    (event, position, "x", name, value),
                )
    return [correlation for _, correlation in calls]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sendbuff": "0x7f", "count": "1000", "datatype": "7", "op": "0"}, 4000),
        ({"count": "1000", "datatype": "ncclBfloat16"}, 2000),
        ({"count": "1000", "datatype": "(ncclDataType_t) 9"}, 2000),
        ({"count": "1000", "datatype": "ncclMadeUp"}, None),
        ({"count": "1000"}, None),
        ({"count": "-1", "datatype": "7"}, None),
        ({"datatype": "7"}, None),
        ({}, None),
    ],
)
def test_rccl_arguments_tell_sizes(tmp_path: Path, arguments: dict[str, str], message: int | None):
    (path, _) = sample(tmp_path)
    launches = _with_arguments(path, arguments)
    found = read(path)
    kernels = [kernel for kernel in found.kernels if kernel["collective"] is not None]
    assert len(kernels) == len(launches) > 0
    for kernel in kernels:
        is_part = kernel["collective"] in {"all_gather", "reduce_scatter", "all_to_all"}
        assert kernel.get("message_bytes") == message
        assert kernel.get("size_bytes") == (None if is_part else message)


@pytest.mark.parametrize("name", ["run.rocpd3", "results", "trace.dat"])
def test_a_database_is_known_by_its_tables_not_by_its_suffix(tmp_path: Path, name: str):
    (path,) = sample(tmp_path / "made")[:1]
    odd = tmp_path / "traces" / name
    odd.parent.mkdir()
    path.rename(odd)
    (source,) = inspect([tmp_path / "traces"]).sources
    assert (source.path, source.format) == (odd, "rocpd")
    assert source.records
