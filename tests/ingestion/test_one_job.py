"""A lake holds one job: recordings of another job are refused with both described, replaced, or taken if told."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import jitter
from jitter.cli import main
from jitter.ingestion.ingest import IngestReport
from jitter.ingestion.ranks.jobs import OtherJobError
from jitter.simulate import Job, simulate, write
from tests.support.databases import open_database
from tests.support.lake_content import kernel_files, records

pytestmark = pytest.mark.slow

JOB = Job(ranks=2, steps=2, kernels=16)


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """A lake of steps 0 and 1 of two ranks."""
    write(simulate(JOB), tmp_path / "a", "nsys")
    assert take(tmp_path / "a", tmp_path / "lake").refused == []
    return tmp_path / "lake"


def take(folder: Path, lake: Path, **options: bool) -> IngestReport:
    return jitter.ingest(folder, lake, **options)  # type: ignore[arg-type]


def later_steps(folder: Path, **changes: object) -> Path:
    """Write recordings of the same program, steps 10 and 11."""
    write(simulate(replace(JOB, first_step=10, **changes)), folder, "nsys")  # type: ignore[arg-type]
    return folder


def edit(folder: Path, statement: str, *values: object) -> None:
    for path in folder.glob("*.sqlite"):
        with open_database(path) as connection:
            connection.execute(statement, values)


def rename_kernels(folder: Path, share: float) -> None:
    """Give this share of the kernels (the first of each step) a name of its own."""
    for path in folder.glob("*.sqlite"):
        with open_database(path) as connection:
            (first,) = connection.execute("SELECT max(id) + 1 FROM StringIds").fetchone()
            connection.execute("INSERT INTO StringIds (id, value) VALUES (?, 'void another_program(float*)')", [first])
            rows = [row for (row,) in connection.execute("SELECT rowid FROM CUPTI_ACTIVITY_KIND_KERNEL ORDER BY start")]
            half = len(rows) // 2  # two steps
            chosen = [row for step in (rows[:half], rows[half:]) for row in step[: round(share * len(step))]]
            marks = ",".join("?" * len(chosen))
            connection.execute(
                f"UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET demangledName = ? WHERE rowid IN ({marks})", [first, *chosen]
            )


def test_more_steps_of_the_same_job(lake: Path, tmp_path: Path):
    report = take(later_steps(tmp_path / "b"), lake)
    assert report.refused == []
    assert len(kernel_files(lake)) == 8


def test_another_program_on_the_same_rank(lake: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    rename_kernels(later_steps(tmp_path / "b"), 0.8)
    before = kernel_files(lake)
    assert main(["ingest", str(tmp_path / "b"), "-o", str(lake)]) == 3
    err = capsys.readouterr().err
    (line,) = [line for line in err.splitlines() if line.startswith("left out")]
    assert "rank 0 shares 2" in line
    assert "2 ranks" in line
    assert f"from {tmp_path / 'a'}" in line
    assert f"from {tmp_path / 'b'}" in line
    assert "steps 10 to 11" in line
    assert "(and 1 more recording for the same reason)" in line
    for way in ("-o LAKE", "--replace", "--same-job"):
        assert way in err
    assert kernel_files(lake) == before
    assert all(record["rank"] is not None for record in records(lake))  # the refusal leaves nothing behind


def test_a_program_that_shares_more_than_half(lake: Path, tmp_path: Path):
    rename_kernels(later_steps(tmp_path / "b"), 0.3)
    assert take(tmp_path / "b", lake).refused == []


def test_same_job_takes_it(lake: Path, tmp_path: Path):
    rename_kernels(later_steps(tmp_path / "b"), 0.8)
    assert take(tmp_path / "b", lake, same_job=True).refused == []
    assert len(kernel_files(lake)) == 8


def test_replace_replaces_the_job(lake: Path, tmp_path: Path):
    rename_kernels(later_steps(tmp_path / "b"), 0.8)
    report = take(tmp_path / "b", lake, replace=True)
    assert report.refused == []
    assert any("2 sources of another job removed" in text for text in report.warnings)
    assert {Path(record["file"]).parent.name for record in records(lake)} == {"b"}
    assert kernel_files(lake) == kernel_files_of(tmp_path / "b", tmp_path)


def test_replace_by_an_older_job_keeps_all_its_steps(lake: Path, tmp_path: Path):
    write(simulate(JOB), tmp_path / "b", "nsys")
    rename_kernels(tmp_path / "b", 0.8)
    edit(tmp_path / "b", "UPDATE TARGET_INFO_SESSION_START_TIME SET utcEpochNs = utcEpochNs - ?", 3600 * 10**9)
    take(tmp_path / "b", lake, replace=True)
    assert [len(record["steps"]) for record in records(lake)] == [2, 2]


def test_replace_removes_ranks_that_the_new_job_lacks(lake: Path, tmp_path: Path):
    rename_kernels(later_steps(tmp_path / "b"), 0.8)
    (tmp_path / "b" / "rank1.sqlite").unlink()
    take(tmp_path / "b", lake, replace=True)
    assert kernel_files(lake) == kernel_files_of(tmp_path / "b", tmp_path)


def kernel_files_of(folder: Path, scratch: Path) -> object:
    take(folder, scratch / "alone")
    return kernel_files(scratch / "alone")


def _another_world(folder: Path) -> None:
    edit(
        folder,
        "UPDATE TARGET_INFO_SYSTEM_ENV SET value = replace(value, 'WORLD_SIZE=2', 'WORLD_SIZE=64') "
        "WHERE name = 'DeviceEnvironment'",
    )


def _another_day(folder: Path) -> None:
    edit(folder, "UPDATE TARGET_INFO_SESSION_START_TIME SET utcEpochNs = utcEpochNs + ?", 50 * 3600 * 10**9)


def _another_gpu(folder: Path) -> None:
    edit(folder, "UPDATE TARGET_INFO_GPU SET name = 'NVIDIA Later GPU'")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_another_world, "its world size is 64, and 2 in the lake"),
        (_another_day, "2 days after"),
        (_another_gpu, "rank 0 ran on NVIDIA Later GPU, and on NVIDIA Earlier GPU in the lake"),
    ],
)
def test_another_world_day_or_gpu(tmp_path: Path, change: Callable[[Path], None], words: str):
    write(simulate(JOB), tmp_path / "a", "nsys")
    for folder in (tmp_path / "a", later_steps(tmp_path / "b")):
        edit(folder, "UPDATE TARGET_INFO_GPU SET name = 'NVIDIA Earlier GPU'")
    lake = tmp_path / "lake"
    assert take(tmp_path / "a", lake).refused == []
    change(tmp_path / "b")
    errors = take(tmp_path / "b", lake).refused
    assert [type(error) for error in errors] == [OtherJobError] * 2
    assert words in errors[0].message
    assert take(tmp_path / "b", lake, same_job=True).refused == []


def test_stages_of_a_pipeline_run_other_kernels(tmp_path: Path):
    write(simulate(JOB), tmp_path / "a", "nsys")
    write(simulate(JOB), tmp_path / "b", "nsys")
    (tmp_path / "a" / "rank1.sqlite").unlink()
    (tmp_path / "b" / "rank0.sqlite").unlink()
    rename_kernels(tmp_path / "b", 0.9)
    lake = tmp_path / "lake"
    assert take(tmp_path / "a", lake).refused == []
    assert take(tmp_path / "b", lake).refused == []  # another rank


def test_a_restart_of_the_job(lake: Path, tmp_path: Path):
    """A restart an hour later, on other hosts and processes, records later steps."""
    later_steps(tmp_path / "b", seed=7)
    edit(tmp_path / "b", "UPDATE TARGET_INFO_SESSION_START_TIME SET utcEpochNs = utcEpochNs + ?", 3600 * 10**9)
    assert take(tmp_path / "b", lake).refused == []


def test_report_of_another_jobs_traces(lake: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    rename_kernels(later_steps(tmp_path / "b"), 0.8)
    page = tmp_path / "page.html"
    assert main(["report", str(tmp_path / "b"), "-L", str(lake), "-o", str(page)]) == 3
    out, err = capsys.readouterr()
    assert "recorded in another job than the one in the lake" in err
    assert not page.exists()
    assert out == ""


def test_other_steps_of_one_rank_at_the_same_time(lake: Path, tmp_path: Path):
    """No process runs two steps at once: the recordings of two jobs that ran side by side."""
    later_steps(tmp_path / "b")
    edit(tmp_path / "b", "UPDATE TARGET_INFO_SESSION_START_TIME SET utcEpochNs = utcEpochNs - ?", 10 * 10**9)
    errors = take(tmp_path / "b", lake).refused
    assert [type(error) for error in errors] == [OtherJobError] * 2
    assert "step 10 to epoch 1, step 11 at the time at which it ran epoch 1, step 0" in errors[0].message


def test_the_same_steps_again(lake: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """What a user types after a change of the program: one refusal for all ranks, and how to see the second run."""
    write(simulate(replace(JOB, seed=3)), tmp_path / "b", "nsys")
    assert main(["report", str(tmp_path / "b"), "-L", str(lake)]) == 3
    (line, hint, _) = capsys.readouterr().err.splitlines()
    assert "(and 1 more recording for the same reason)" in line
    assert "report -L LAKE" in hint


def test_report_names_the_other_steps_of_the_lake(lake: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    later_steps(tmp_path / "b")
    page = str(tmp_path / "report.md")
    assert main(["report", str(tmp_path / "b"), "-L", str(lake), "-o", page]) == 0
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "the whole lake" in line]
    assert "steps 0 to 1" in line
    assert f"from {tmp_path / 'a'}" in line
    both = [str(tmp_path / "a"), str(tmp_path / "b")]
    assert main(["report", *both, "-L", str(lake), "-o", page, "--force"]) == 0
    assert "the whole lake" not in capsys.readouterr().err
