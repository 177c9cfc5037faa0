"""Traces of several jobs given at once: the clearly largest job is taken, else none, whatever the files' names."""

import re
import shutil
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

import jitter
from jitter.cli import main
from jitter.ingestion.ranks.jobs import OtherJobError
from jitter.simulate import Fault, Job, simulate, write
from tests.support.databases import open_database
from tests.support.lake_content import kernel_files, records
from tests.support.printed import json_of, output_of

pytestmark = pytest.mark.slow

JOB = Job(ranks=8, steps=2, kernels=16)
LARGER = replace(JOB, ranks=16, seed=3)
PROGRAM = replace(JOB, kernels=80, seed=4)


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory):
    """Return the folder of a job's traces, written once."""

    @cache
    def traces(job: Job, form: str = "nsys") -> Path:
        folder = tmp_path_factory.mktemp("job")
        write(simulate(job), folder, form)
        return folder

    return traces


@pytest.fixture
def given(tmp_path: Path) -> Path:
    (tmp_path / "traces").mkdir()
    return tmp_path / "traces"


def put(job: Path, ranks, folder: Path, before: str = "", *, later_ns: int = 0) -> None:
    """Copy the traces of some ranks; `later_ns` moves their wall clock."""
    for path in sorted(job.iterdir()):
        rank = int("".join(filter(str.isdecimal, path.name.split(".")[0])))
        if rank in ranks:
            shutil.copy(path, folder / f"{before}{path.name}")
            if later_ns:
                _move_clock(folder / f"{before}{path.name}", later_ns)


def _move_clock(path: Path, by_ns: int) -> None:
    with open_database(path) as connection:
        connection.execute("UPDATE TARGET_INFO_SESSION_START_TIME SET utcEpochNs = utcEpochNs + ?", [by_ns])


def ingest(folder: Path, *more: str) -> int:
    return main(["ingest", str(folder), "-o", str(folder.parent / "lake"), *more])


def taken(folder: Path) -> set[str]:
    return {Path(record["file"]).name for record in records(folder.parent / "lake") if record["rank"] is not None}


NEW = {f"rank{rank}.sqlite" for rank in range(8)}


@pytest.mark.parametrize(("name", "other"), [("a-", LARGER), ("z-", PROGRAM)])
def test_one_stale_trace(given: Path, jobs, capsys: pytest.CaptureFixture[str], name: str, other: Job):
    put(jobs(JOB), range(8), given)
    put(jobs(other), [1], given, f"{name}old-")
    assert ingest(given) == 0
    err = capsys.readouterr().err
    assert taken(given) == NEW
    (line,) = [line for line in err.splitlines() if line.startswith("left out")]
    assert f"{name}old-rank1.sqlite: recorded in another job" in line
    assert "Taken: 8 ranks" in line
    assert "Left out: rank 1" in line
    assert "8 ranks, 2 steps, 256 kernels added" in err


def test_a_fragment_of_a_larger_job(given: Path, jobs, capsys: pytest.CaptureFixture[str]):
    put(jobs(LARGER), [8, 9], given, "a-")
    put(jobs(JOB), range(8), given)
    assert ingest(given) == 0
    assert taken(given) == NEW
    assert "its world size is 16, and 8 in the job that is taken" in capsys.readouterr().err


@pytest.mark.parametrize("kept", [8, 5])
def test_two_jobs_of_similar_size(given: Path, jobs, capsys: pytest.CaptureFixture[str], kept: int):
    for name, job, ranks in (("a", PROGRAM, kept), ("b", JOB, 8)):
        (given / name).mkdir()
        put(jobs(job), range(ranks), given / name)
    assert ingest(given) == 3
    err = capsys.readouterr().err
    assert not (given.parent / "lake").exists()
    (line,) = [line for line in err.splitlines() if "stand here" in line]
    assert "80 kernels a step" in line
    assert "16 kernels a step" in line
    for folder in "ab":
        assert f"`jitter ingest {given / folder}`" in err
    report = jitter.ingest(given, given.parent / "lake")
    assert [type(error) for error in report.refused] == [OtherJobError] * (8 + kept)
    assert ingest(given / "b") == 0


def test_a_few_ranks_with_many_steps_do_not_replace_many_ranks(given: Path, jobs):
    put(jobs(replace(PROGRAM, steps=40)), [1], given)
    put(jobs(JOB), range(8), given, "new-")
    assert ingest(given) == 3
    assert not (given.parent / "lake").exists()


def test_more_left_out_than_taken_is_no_success(given: Path, jobs):
    """Five small jobs beside one: it is clearly the largest, but most traces are left out."""
    put(jobs(JOB), range(4), given)
    for number in range(5):
        put(jobs(replace(JOB, ranks=20 + number)), [number], given, f"old{number}-")
    assert ingest(given) == 3
    assert taken(given) == {f"rank{rank}.sqlite" for rank in range(4)}


def test_stages_of_a_pipeline_are_one_job(given: Path, jobs):
    pipeline = Job(ranks=8, steps=2, kernels=160, shape="pipeline", seed=9)
    put(jobs(pipeline), range(8), given)
    put(jobs(replace(pipeline, kernels=700, seed=10)), [1, 6], given, "a-")
    assert ingest(given) == 0
    assert taken(given) == NEW


def test_the_more_likely_of_two_recordings_of_a_rank(given: Path, jobs, capsys: pytest.CaptureFixture[str]):
    """Both share more than half of their kernels; only one runs the sequence of the other ranks."""
    put(jobs(JOB), range(8), given)
    put(jobs(replace(JOB, kernels=20, seed=4)), [1], given, "a-")
    assert ingest(given) == 0
    assert taken(given) == NEW
    assert "rank 1 has 2 steps" in capsys.readouterr().err


def test_two_runs_of_the_same_steps(given: Path, jobs, capsys: pytest.CaptureFixture[str]):
    put(jobs(JOB), range(8), given)
    put(jobs(replace(JOB, seed=6)), range(8), given, "again-", later_ns=300 * 10**9)
    assert ingest(given) == 3
    said = capsys.readouterr().err
    assert "it ran epoch 1, step 0 300 s after rank 0" in said
    assert "`--replace` takes the newer ones" in said
    assert "--same-job" not in said  # it would leave out both: the steps are the same ones
    for rank in range(2, 8):
        (given / f"again-rank{rank}.sqlite").unlink()
    assert ingest(given) == 0
    assert taken(given) == NEW


def test_a_rank_that_only_one_of_two_runs_has(given: Path, jobs):
    """Rank 7 of the second run goes with the second run."""
    put(jobs(JOB), range(2), given)
    put(jobs(replace(JOB, seed=6)), range(8), given, "again-", later_ns=300 * 10**9)
    assert ingest(given) == 0
    assert taken(given) == {f"again-rank{rank}.sqlite" for rank in range(8)}


ON_TWO_HOSTS = replace(JOB, gpus_per_node=4, steps=3)


@pytest.mark.parametrize(("job", "later_s", "words"), [
    (ON_TWO_HOSTS, 1000, "the clocks of hosts differ by up to 1000 s (node0000 to node0001), or these are two runs"),
    (ON_TWO_HOSTS, 120, "the clocks of hosts differ by up to 120 s (node0000 to node0001), or these are two runs"),
    (replace(JOB, steps=3), 120, "begin up to 120 s apart (rank 3 to rank 7): the ranks number them apart, or these"),
])  # fmt: skip
def test_a_host_whose_clock_is_wrong(
    given: Path, jobs, capsys: pytest.CaptureFixture[str], job: Job, later_s: int, words: str
):
    put(jobs(job), range(4), given)
    put(jobs(job), range(4, 8), given, later_ns=later_s * 10**9)
    assert ingest(given) == 0
    assert taken(given) == NEW
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("other", [
    replace(JOB, steps=3),  # on the host of the first ranks
    replace(ON_TWO_HOSTS, gpu_scale=3.0),  # at another pace
])  # fmt: skip
def test_ranks_of_another_run_are_no_wrong_clock(given: Path, jobs, other: Job):
    put(jobs(ON_TWO_HOSTS), range(4), given)
    put(jobs(other), range(4, 8), given, later_ns=1000 * 10**9)
    assert ingest(given) == 3


def test_later_steps_and_other_formats_are_the_same_job(given: Path, jobs):
    for rank, first in ((0, 0), (1, 0), (0, 10), (1, 10)):
        put(jobs(replace(JOB, ranks=2, first_step=first)), [rank], given, f"from{first}-")
    put(jobs(replace(JOB, ranks=4), "kineto"), [2, 3], given)
    report = jitter.ingest(given, given.parent / "lake", same_job=False)
    assert [type(error) for error in report.refused] == [OtherJobError] * 2  # world size 4
    assert ingest(given, "--same-job") == 0
    assert len(taken(given)) == 6


def test_gpus_of_two_vendors_are_of_two_jobs(given: Path, jobs, capsys: pytest.CaptureFixture[str]):
    """On other ranks, without a wall clock and in another form: nothing else tells them apart."""
    put(jobs(JOB), range(6), given)
    put(jobs(replace(JOB, steps=1), "rocpd"), [6, 7], given)
    assert ingest(given) == 0
    assert taken(given) == {f"rank{rank}.sqlite" for rank in range(6)}
    err = capsys.readouterr().err
    assert re.search(r"rank 6 ran on AMD's GPUs, and rank \d on NVIDIA's in the job that is taken", err)


def test_a_lake_that_holds_the_stale_fragment(given: Path, jobs, capsys: pytest.CaptureFixture[str]):
    put(jobs(LARGER), [0, 1], given, "a-")
    assert ingest(given) == 0
    put(jobs(JOB), range(8), given)
    before = kernel_files(given.parent / "lake")
    assert ingest(given) == 3
    err = capsys.readouterr().err
    assert "the job in the lake is the smaller one" in err
    command = f"jitter ingest {given} -o {given.parent / 'lake'} --replace"
    assert command in err
    assert kernel_files(given.parent / "lake") == before
    assert main([*command.split()[1:]]) == 0
    assert taken(given) == NEW


@pytest.mark.parametrize("name", ["a-", "z-"])
def test_replace_does_not_let_a_stale_trace_replace_the_job(given: Path, jobs, name: str):
    put(jobs(JOB), range(8), given)
    assert ingest(given) == 0
    put(jobs(LARGER), [1], given, f"{name}old-")
    assert ingest(given, "--replace") == 0
    assert taken(given) == NEW


def test_ranks_without_markers_beside_one_with_markers(given: Path, jobs, capsys: pytest.CaptureFixture[str]):
    put(jobs(replace(JOB, ranks=4, steps=6)), [0], given)
    put(jobs(replace(JOB, ranks=4, steps=6, marker="none")), [1, 2, 3], given)
    assert ingest(given) == 0
    assert taken(given) == {f"rank{rank}.sqlite" for rank in range(4)}
    assert "rank0.sqlite: its step markers are not used: most recordings have none" in capsys.readouterr().err


def test_ranks_count_and_not_recordings_where_few_have_markers(given: Path, jobs):
    """Ranks 0 to 3 are in one report without markers, ranks 4 and 5 have reports with markers of their own."""
    job = replace(JOB, ranks=6, steps=6)
    whole = given.parent / "whole"
    write(simulate(replace(job, marker="none")), whole, "nsys", ranks_per_report=4)
    shutil.copy(min(whole.glob("*.sqlite")), given / "ranks0-3.sqlite")
    put(jobs(job), [4, 5], given)
    assert ingest(given) == 0
    assert taken(given) == {"ranks0-3.sqlite", "rank4.sqlite", "rank5.sqlite"}


def test_a_rank_with_markers_is_added_to_ranks_without(given: Path, jobs):
    """The markers' numbers were taken, which are other ones."""
    job = replace(JOB, ranks=4, steps=6, first_step=100)
    put(jobs(replace(job, marker="none")), [1, 2, 3], given)
    assert ingest(given) == 0
    put(jobs(job), [0], given)
    assert ingest(given) == 0
    found = records(given.parent / "lake")
    assert {tuple(step["step"] for step in record["steps"]) for record in found} == {(0, 1, 2, 3, 4, 5)}


def test_a_rank_whose_pauses_hide_that_its_kernels_repeat_is_cut_as_the_others(given: Path):
    job = replace(JOB, ranks=4, steps=2, kernels=60, marker="none")
    write(simulate(job, [Fault.parse("cpu_stall:rank=2,kernel=30,ms=3")]), given, "nsys")
    assert ingest(given) == 0
    assert taken(given) == {f"rank{rank}.sqlite" for rank in range(4)}
    assert {len(record["steps"]) for record in records(given.parent / "lake") if record["rank"] is not None} == {2}


def test_a_rank_that_recorded_two_steps_where_the_others_have_one_is_no_whole_capture(
    given: Path, jobs, capsys: pytest.CaptureFixture[str]
):
    put(jobs(replace(JOB, ranks=4, steps=1, marker="none")), [0, 1, 2], given)
    put(jobs(replace(JOB, ranks=4, steps=2, marker="none")), [3], given)
    assert ingest(given) == 0
    assert taken(given) == {f"rank{rank}.sqlite" for rank in range(3)}
    assert "rank3.sqlite: its steps are found where kernels repeat, and those of most" in capsys.readouterr().err


def test_inspect_shows_the_jobs(given: Path, jobs, capsys: pytest.CaptureFixture[str]):
    put(jobs(JOB), range(4), given)
    put(jobs(LARGER), [1], given, "a-old-")
    out = output_of(capsys, "inspect", given)
    assert "2 jobs, of which a lake holds one" in out
    assert "1. taken: 4 ranks, world size 8" in out
    assert "2. left out: rank 1, world size 16" in out
    assert "a-old-rank1.sqlite  nsys" in out
    found = json_of(capsys, "inspect", given, "--json")
    assert [job["taken"] for job in found["jobs"]] == [True, False]
    assert {Path(file["file"]).name: file["job"] for file in found["files"]} == {
        "a-old-rank1.sqlite": 1,
        **{f"rank{rank}.sqlite": 0 for rank in range(4)},
    }
    put(jobs(LARGER), range(4, 8), given, "a-old-")
    assert "none is clearly the largest" in output_of(capsys, "inspect", given, exit_code=3)


def test_nothing_is_written_into_a_lake_of_logs(given: Path, jobs):
    """An undecided ingest leaves a lake that was there as it was."""
    put(jobs(JOB), range(8), given)
    assert ingest(given) == 0
    lake = given.parent / "lake"
    before = {path: path.stat().st_mtime_ns for path in lake.rglob("*") if path.is_file()}
    shutil.rmtree(given)
    given.mkdir()
    for name, job in (("b-", PROGRAM), ("c-", LARGER)):
        put(jobs(job), range(8), given, name)
    assert ingest(given, "--replace") == 3
    assert {path: path.stat().st_mtime_ns for path in lake.rglob("*") if path.is_file()} == before
