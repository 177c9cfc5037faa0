"""Two recordings of the same rank and step, given at once: names and order decide nothing."""

import gzip
import json
import shutil
from pathlib import Path

import pytest

import jitter
from jitter.cli import main
from jitter.ingestion.ingest import IngestReport
from jitter.simulate import Job, simulate, write
from tests.support.databases import open_database, run_sql
from tests.support.lake_content import kernel_files
from tests.support.recorded_events import list_events, remove_events

RANKS = 6
GPU_TABLES = [f"CUPTI_ACTIVITY_KIND_{kind}" for kind in ("KERNEL", "MEMCPY", "MEMSET")]


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    write(simulate(Job(ranks=RANKS, steps=3, kernels=16)), tmp_path / "traces", "nsys")
    return tmp_path / "traces"


def ingest(traces: Path) -> IngestReport:
    return jitter.ingest([traces], traces.parent / "lake")


@pytest.mark.parametrize("name", ["a-rank1.sqlite", "z-rank1.sqlite"])
def test_the_more_complete_recording_is_taken(traces: Path, name: str):
    """Of names that come last, the other recording was published before."""
    shutil.move(traces / "rank1.sqlite", traces / "whole.sqlite")
    shutil.copy(traces / "whole.sqlite", traces / "rank1.sqlite")
    events = sorted(event.start_ns for event in list_events([traces / "rank1.sqlite"]))
    remove_events([traces / "rank1.sqlite"], lambda event: event.end_ns > events[len(events) // 2])
    shutil.move(traces / "whole.sqlite", traces / name)
    report = ingest(traces)
    (error,) = report.refused
    assert str(error).startswith(f"{traces / 'rank1.sqlite'}: rank 1 has ")
    assert f"in {traces / name} too, which holds more whole steps" in str(error)
    assert {Path(record.file).name for record in report.added if record.rank == 1} == {name}
    assert len(report.added) == RANKS
    assert len(kernel_files(traces.parent / "lake")) == 3 * RANKS


def test_of_two_recordings_of_the_same_time_one_is_taken_whatever_its_name(traces: Path):
    first, second = traces / "rank1.sqlite", traces / "z-rank1.sqlite"
    shutil.copy(first, second)
    run_sql(second, "PRAGMA user_version = 7")
    taken = []
    for _ in range(2):
        report = ingest(traces)
        (error,) = report.refused
        assert "a second recording of about the same time, of which one is enough" in str(error)
        taken += [record.file_digest for record in report.added if record.rank == 1]
        shutil.rmtree(traces.parent / "lake")
        first.rename(traces / "other")
        second.rename(first)
        (traces / "other").rename(second)
    assert len(taken) == 2
    assert len(set(taken)) == 1


def test_of_a_recording_and_its_unpacked_copy_one_is_taken_also_without_a_wall_clock(tmp_path: Path):
    """Kineto states none before PyTorch 2.3."""
    traces = tmp_path / "traces"
    write(simulate(Job(ranks=3, steps=3, kernels=16)), traces, "kineto", layout="2021")
    for path in sorted(traces.glob("*.json.gz")):
        (traces / path.stem).write_bytes(gzip.decompress(path.read_bytes()))
    report = ingest(traces)
    assert [record.rank for record in report.added] == [0, 1, 2]
    assert all("of which one is enough" in str(error) for error in report.refused)
    assert len(report.refused) == 3


def test_of_two_gpus_that_are_called_one_rank_the_one_that_states_it_is_taken(tmp_path: Path):
    write(simulate(Job(ranks=4, steps=6, kernels=60, gpus_per_node=2)), tmp_path / "traces", "nsys", ranks_per_report=2)
    run_sql(
        tmp_path / "traces/node0001-2.sqlite", "UPDATE NVTX_EVENTS SET text = substr(text, 1, instr(text, '-') - 1)"
    )
    report = ingest(tmp_path / "traces")
    assert [record.rank for record in report.added] == [0, 1]
    (error,) = report.refused
    assert "run at the same time on another GPU, and stated there" in str(error)


@pytest.mark.parametrize("is_cut", [False, True])
def test_of_two_gpus_that_are_called_one_rank_none_is_taken(tmp_path: Path, is_cut: bool):
    """Files named by the local rank, in a folder of each node, which state nothing else."""
    job = Job(ranks=4, steps=6, kernels=60, gpus_per_node=2, marker="profiler")
    write(simulate(job), tmp_path / "traces", "kineto", zipped=False)
    for rank in range(4):
        name = tmp_path / f"traces/node{rank // 2}/rank{rank % 2}.json"
        name.parent.mkdir(exist_ok=True)
        trace = json.loads((tmp_path / f"traces/rank-{rank}.pt.trace.json").read_text())
        name.write_text(json.dumps(trace | {"distributedInfo": None}))
        (tmp_path / f"traces/rank-{rank}.pt.trace.json").unlink()
    if is_cut:
        path = tmp_path / "traces/node0/rank0.json"
        events = sorted(event.start_ns for event in list_events([path]))
        remove_events([path], lambda event: event.end_ns > events[len(events) // 2])
    report = ingest(tmp_path / "traces")
    assert report.added == []
    assert len(report.refused) == 4
    assert all("another rank, or of another job: neither is taken" in str(error) for error in report.refused)


def test_of_two_hosts_whose_steps_take_as_long_none_is_taken(tmp_path: Path):
    """Ranks that wait for each other in every step may keep step to the microsecond."""
    traces = tmp_path / "traces"
    write(simulate(Job(ranks=4, steps=3, kernels=16, marker="profiler")), traces, "nsys")
    (traces / "other").mkdir()
    shutil.copy(traces / "rank1.sqlite", traces / "other/rank1.sqlite")
    run_sql(traces / "other/rank1.sqlite", "UPDATE TARGET_INFO_SYSTEM_ENV SET value = 'other' WHERE name = 'Hostname'")
    report = ingest(traces)
    assert [record.rank for record in report.added] == [0, 2, 3]
    assert all("another rank, or of another job: neither is taken" in str(error) for error in report.refused)
    assert len(report.refused) == 2


def test_of_two_recordings_that_nothing_tells_apart_none_is_taken(traces: Path):
    shutil.copy(traces / "rank1.sqlite", traces / "a-rank1.sqlite")
    for table in (*GPU_TABLES, "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS"):  # another run, a second later
        run_sql(traces / "a-rank1.sqlite", f'UPDATE {table} SET start = start + 1000000000, "end" = "end" + 1000000000')
    for path in traces.iterdir():
        run_sql(path, "DROP TABLE TARGET_INFO_SESSION_START_TIME")
    report = ingest(traces)
    assert len(report.refused) == 2
    assert all("nothing tells which of the two is right: neither is taken" in str(error) for error in report.refused)
    assert {record.rank for record in report.added} == set(range(RANKS)) - {1}
    assert len(kernel_files(traces.parent / "lake")) == 3 * (RANKS - 1)


@pytest.mark.parametrize("name", ["a", "z"])
def test_of_two_cycles_with_equal_steps_every_rank_has_the_first(traces: Path, name: str):
    """Recorded a second later, as by a profiler's schedule whose steps are numbered anew."""
    again = traces / name
    again.mkdir()
    for path in sorted(traces.glob("*.sqlite")):
        shutil.copy(path, again / path.name)
        run_sql(again / path.name, "UPDATE TARGET_INFO_SESSION_START_TIME SET utcEpochNs = utcEpochNs + 1000000000")
    report = ingest(traces)
    assert {Path(record.file).parent for record in report.added} == {traces}
    assert len(report.refused) == len(report.added) == RANKS


def test_windows_that_number_their_steps_anew_are_epochs_of_the_same_job(tmp_path: Path):
    """Profilers made anew for each window; one rank lost its file of the second."""
    job = Job(ranks=2, steps=3, kernels=16, marker="profiler")
    for window in range(3):
        folder = tmp_path / f"traces/{'zyx'[window]}"
        write(simulate(job), folder, "nsys")
        for path in folder.glob("*.sqlite"):
            run_sql(path, f"UPDATE TARGET_INFO_SESSION_START_TIME SET utcEpochNs = utcEpochNs + {window} * 10000000000")
    (tmp_path / "traces/y/rank1.sqlite").unlink()
    report = ingest(tmp_path / "traces")
    assert report.added == []
    assert "`--same-job`, if they are windows of one run, all as epochs" in (report.refused[0].hint or "")
    (tmp_path / "traces/x").rename(tmp_path / "later")
    added = jitter.ingest([tmp_path / "traces"], tmp_path / "lake", same_job=True).added
    (tmp_path / "later").rename(tmp_path / "traces/x")
    report = jitter.ingest([tmp_path / "traces"], tmp_path / "lake", same_job=True)
    assert "windows number their steps anew: they are epochs 1 to 3, in order of time" in report.warnings
    added += report.added
    steps = {(record.rank, Path(record.file).parent.name, step.key) for record in added for step in record.steps}
    assert steps == {
        (rank, "zyx"[epoch - 1], (epoch, step))
        for rank in range(2)
        for epoch in (1, 2, 3)
        for step in range(3)
        if (rank, epoch) != (1, 2)
    }
    assert main(["verify", str(tmp_path / "lake")]) == 0


@pytest.mark.parametrize("is_ahead", [False, True])
def test_steps_without_a_number_are_those_of_the_other_ranks(tmp_path: Path, is_ahead: bool):
    """Rank 1 began to record a step later; or its host runs ahead of its GPU by a step, which moves no step."""
    traces = tmp_path / "traces"
    write(simulate(Job(ranks=2, steps=8, kernels=60)), traces, "nsys")
    for path in traces.glob("*.sqlite"):
        run_sql(path, "UPDATE NVTX_EVENTS SET text = 'train_step' WHERE text LIKE '%step%'")
    with open_database(traces / "rank1.sqlite") as connection:
        selected = "SELECT start FROM NVTX_EVENTS WHERE text = 'train_step' ORDER BY start"
        starts = [start for (start,) in connection.execute(selected)]
        before = [2 * starts[0] - starts[1], *starts]
        for table in ("NVTX_EVENTS", "CUPTI_ACTIVITY_KIND_RUNTIME"):
            for earlier, start, end in zip(before, starts, [*starts[1:], 2**62], strict=False):
                if is_ahead:
                    connection.execute(
                        f"UPDATE {table} SET start = start + {earlier - start}, end = end + {earlier - start} "
                        f"WHERE start >= {start} AND start < {end}"
                    )
        for table in ("NVTX_EVENTS", "CUPTI_ACTIVITY_KIND_RUNTIME", *GPU_TABLES):
            if not is_ahead:
                connection.execute(f"DELETE FROM {table} WHERE start < {starts[1] - 1000}")
    report = ingest(traces)
    assert [record.steps[0].step for record in report.added] == [0, int(not is_ahead)]
    assert ("1 rank began to record later: their steps are numbered on" in report.warnings) is not is_ahead
    assert len(report.added[1].steps) == 7 + is_ahead


def test_windows_whose_steps_have_no_number_are_aligned_each_by_itself(tmp_path: Path):
    """Rank 1 began to record a step later, in all windows; the last one is ingested by itself."""
    traces = tmp_path / "traces"
    write(simulate(Job(ranks=2, steps=8, kernels=60)), traces / "a", "nsys")
    for path in (traces / "a").glob("*.sqlite"):
        run_sql(path, "UPDATE NVTX_EVENTS SET text = 'train_step' WHERE text LIKE '%step%'")
    with open_database(traces / "a/rank1.sqlite") as connection:
        selected = "SELECT start FROM NVTX_EVENTS WHERE text = 'train_step' ORDER BY start"
        second = connection.execute(selected).fetchall()[1][0]
        for table in ("NVTX_EVENTS", "CUPTI_ACTIVITY_KIND_RUNTIME", *GPU_TABLES):
            connection.execute(f"DELETE FROM {table} WHERE start < {second - 1000}")
    for before, window in ("ab", "bc"):
        shutil.copytree(traces / before, traces / window)
        for path in (traces / window).glob("*.sqlite"):
            run_sql(path, "UPDATE TARGET_INFO_SESSION_START_TIME SET utcEpochNs = utcEpochNs + 10000000000")
    for windows, epochs in (("ab", (1, 2)), ("c", (3,))):
        report = jitter.ingest([traces / window for window in windows], tmp_path / "lake", same_job=True)
        first = {(record.rank, record.steps[0].key) for record in report.added}
        assert first == {(rank, (epoch, rank)) for rank in range(2) for epoch in epochs}
        assert "1 rank began to record later: their steps are numbered on" in report.warnings
    assert main(["verify", str(tmp_path / "lake")]) == 0
