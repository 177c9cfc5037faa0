"""`jitter export --csv` against the trace itself, and `jitter inspect` against what an ingest does."""

import csv
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

import jitter
from jitter.cli import main
from jitter.core.step_key import StepKey
from jitter.ingestion.inspect import Expectation, MissingSteps, find_missing
from tests.support.databases import open_database, run_sql
from tests.support.forked_command import run_forked
from tests.support.printed import json_of, output_of
from tests.support.records import source_record, step_record

TALK = (
    "nvtx_text,nvtx_start,nvtx_end,device,crt_name,crt_start,crt_end,kernel_demangled_name,kernel_stream,"
    "kernel_start,kernel_end,kernel_duration"
)
# the talk's own way: everything from the export itself, in SQL
QUERY = """
SELECT n.text, n.start, n."end", k.deviceId, c.value, r.start, r."end", s.value, k.streamId, k.start,
    k."end", k."end" - k.start
FROM CUPTI_ACTIVITY_KIND_KERNEL k
JOIN CUPTI_ACTIVITY_KIND_RUNTIME r ON r.correlationId = k.correlationId AND r.globalTid >> 24 = k.globalPid >> 24
JOIN NVTX_EVENTS n ON r.start >= n.start AND r.start < n."end" AND n.text LIKE 'epoch%'
JOIN StringIds s ON s.id = k.demangledName
JOIN StringIds c ON c.id = r.nameId
WHERE n.text LIKE ?
ORDER BY r.start
"""


def test_the_talks_csv(small_lake: Path, traces: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    said = output_of(capsys, "export", small_lake, "--csv", tmp_path / "out").splitlines()
    files = sorted((tmp_path / "out").iterdir())
    assert sorted(said) == [str(path) for path in files]
    assert [path.name for path in files] == [
        f"epoch1_step{step}-rank{rank}.csv" for step in (2000, 2001, 2002) for rank in range(3)
    ]
    for path in files:
        step, rank = path.stem.removeprefix("epoch1_step").split("-rank")
        with open_database(traces / f"rank{rank}.sqlite") as connection:
            expected = connection.execute(QUERY, [f"epoch1_step{step}-rank{rank}-%"]).fetchall()
        assert len(expected) >= 16
        with path.open(newline="") as lines:
            assert lines.readline().strip() == TALK
            assert list(csv.reader(lines)) == [[str(cell) for cell in row] for row in expected]


def test_export_chooses(small_lake: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out = tmp_path / "out"
    assert main(["export", str(small_lake), "--csv", str(out), "--step", "2000-2001", "--ranks", "2"]) == 0
    assert {path.name for path in out.iterdir()} == {"epoch1_step2000-rank2.csv", "epoch1_step2001-rank2.csv"}
    assert main(["export", str(small_lake), "--csv", str(out), "--step", "7"]) == 2
    assert "epoch 1, step 2000 to epoch 1, step 2002" in capsys.readouterr().err
    (out / "epoch1_step2000-rank0.csv").write_text("mine")
    assert main(["export", str(small_lake), "--csv", str(out)]) == 2
    assert (out / "epoch1_step2000-rank0.csv").read_text() == "mine"
    assert len(list(out.iterdir())) == 3  # all or nothing


def _state(folder: Path) -> dict[str, tuple[int, int]]:
    return {str(p): (p.stat().st_size, p.stat().st_mtime_ns) for p in sorted(folder.rglob("*"))}


def test_inspect_writes_nothing(traces: Path, tmp_path: Path):
    for name in ("here", "tmp"):
        (tmp_path / name).mkdir()
    before = _state(traces)
    done = run_forked("inspect", traces, cwd=tmp_path / "here", temporary=tmp_path / "tmp")
    assert (done.returncode, done.stderr) == (0, "")
    assert [line.split("  ")[0] for line in done.stdout.splitlines() if not line.startswith("    ")] == [
        str(traces / f"rank{rank}.sqlite") for rank in range(3)
    ]
    assert "3 steps (epoch 1, step 2000 to epoch 1, step 2002, by marker)" in done.stdout
    assert _state(traces) == before
    assert _state(tmp_path) == {
        str(p): (p.stat().st_size, p.stat().st_mtime_ns) for p in (tmp_path / "here", tmp_path / "tmp")
    }


def test_inspect_tells_what_ingest_does(traces: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    mixed = tmp_path / "mixed"
    shutil.copytree(traces, mixed)
    (mixed / "copy-of-0.sqlite").write_bytes((mixed / "rank0.sqlite").read_bytes())
    shutil.copy(mixed / "rank1.sqlite", mixed / "zz.sqlite")
    with open_database(mixed / "zz.sqlite") as connection:  # a less complete recording that claims rank 1
        connection.execute(
            "DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE start = "
            "(SELECT start FROM CUPTI_ACTIVITY_KIND_KERNEL ORDER BY start LIMIT 1 OFFSET 24)"
        )
    (mixed / "cut.sqlite").write_bytes((mixed / "rank2.sqlite").read_bytes()[:20_000])
    (mixed / "report.qdrep").write_bytes(b"x")
    said = json_of(capsys, "inspect", mixed, "--json")
    assert said["schema_version"] == 1
    report = jitter.ingest([mixed], tmp_path / "lake")
    promised = {
        (file["file"], rank["rank"], step["step"], step["kernels"])
        for file in said["files"]
        for rank in file["ranks"]
        for step in rank["steps"]
    }
    done = {(r.file, r.rank, step.step, step.kernels) for r in report.added for step in r.steps}
    assert promised == done
    assert {rank for _, rank, _, _ in done} == {0, 1, 2}
    assert {file["error"] for file in said["files"]} - {None} == {error.message for error in report.refused}
    assert {Path(file["file"]).name for file in said["files"] if file["error"]} == {
        "cut.sqlite",
        "report.qdrep",
        "zz.sqlite",
    }
    assert main(["inspect", str(tmp_path / "nowhere")]) == 3


def test_inspect_has_the_notes_of_an_ingest(traces: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    folder = tmp_path / "one"
    folder.mkdir()
    shutil.copy(traces / "rank0.sqlite", folder)
    (folder / "linked").symlink_to(traces)
    assert main(["inspect", str(folder), "--json"]) == 0
    printed = capsys.readouterr()
    notes = json.loads(printed.out)["notes"]
    assert notes[0] == f"{folder / 'linked'}: a link to a folder, which is not followed: name the folder itself"
    assert [line for line in printed.err.splitlines() if line.startswith("note: ")] == [f"note: {n}" for n in notes]
    report = jitter.ingest([folder], tmp_path / "lake")
    assert set(notes) <= set(report.warnings)


def inspect(capsys: pytest.CaptureFixture[str], folder: Path, expect: str) -> tuple[int, str]:
    status = main(["inspect", str(folder), "--expect", expect])
    return status, capsys.readouterr().out.splitlines()[-1]


@pytest.mark.parametrize("expect", ["3x3", "2x3", "3x2", "1×1"])
def test_a_complete_recording(traces: Path, capsys: pytest.CaptureFixture[str], expect: str):
    status, line = inspect(capsys, traces, expect)
    assert status == 0
    assert line.startswith("all of the expected ")


def test_a_rank_and_a_step_that_are_missing(own_traces: Path, capsys: pytest.CaptureFixture[str]):
    (own_traces / "rank1.sqlite").unlink()
    run_sql(own_traces / "rank2.sqlite", "DELETE FROM NVTX_EVENTS WHERE text LIKE '%step2001%'")
    status, line = inspect(capsys, own_traces, "5x4")
    assert status == 3
    assert line == (
        "of the expected 5 ranks x 4 steps, missing: ranks 1,3-4 (3 of 5); epoch 1 step 2001 on rank 2; "
        "1 of 4 steps on every rank (recorded: epoch 1 steps 2000-2002)"
    )
    assert json_of(capsys, "inspect", own_traces, "--expect", "5x4", "--json", exit_code=3)["expected"] == {
        "ranks": 5,
        "steps": 4,
        "missing_ranks": [1, 3, 4],
        "missing_steps": [{"epoch": 1, "step": 2001, "ranks": [2]}],
        "absent_steps": 1,
    }


def test_nothing_expected_is_null(traces: Path, capsys: pytest.CaptureFixture[str]):
    assert json_of(capsys, "inspect", traces / "rank0.sqlite", "--json")["expected"] is None


def test_a_refused_file_records_nothing(own_traces: Path, capsys: pytest.CaptureFixture[str]):
    shutil.copy(own_traces / "rank0.sqlite", own_traces / "rank3.sqlite")
    (own_traces / "rank1.sqlite").write_bytes(b"")
    status, line = inspect(capsys, own_traces, "3x3")
    assert status == 3
    assert "missing: rank 1 (1 of 3)" in line


@pytest.mark.parametrize("text", ["512", "x10", "0x5", "5x0", "-1x5", "1x2x3", "9999999x1", "a x b"])
def test_an_expectation_that_is_none(traces: Path, capsys: pytest.CaptureFixture[str], text: str):
    assert main(["inspect", str(traces), f"--expect={text}"]) == 2
    assert "512x10" in capsys.readouterr().err


def missing(
    steps: Mapping[int, Sequence[int]], expect: Expectation, cut: Sequence[tuple[int, int]] = ()
) -> MissingSteps:
    """Return what is missing where each rank recorded these steps, of which some (rank, step) are cut."""
    records = [
        source_record(
            f"{rank}",
            rank=rank,
            steps=[step_record(StepKey(None, one), [], cut=(rank, one) in cut) for one in recorded],
        )
        for rank, recorded in steps.items()
    ]
    return find_missing(records, expect)


def test_ranks_must_record_the_same_steps():
    """Three ranks record 10 to 12, one 11 to 13: of these 3 steps one is missing on it, though it has three."""
    found = missing({0: [10, 11, 12], 1: [10, 11, 12], 2: [10, 11, 12], 3: [11, 12, 13]}, Expectation(4, 3))
    assert found.steps == {StepKey(None, 10): (3,)}
    assert str(found) == "of the expected 4 ranks x 3 steps, missing: step 10 on rank 3"


def test_a_cut_step_is_missing():
    found = missing({0: [1, 2], 1: [1, 2]}, Expectation(2, 2), cut=[(1, 2)])
    assert str(found) == "of the expected 2 ranks x 2 steps, missing: step 2 on rank 1"
    assert missing({0: [1], 1: [1]}, Expectation(2, 1), cut=[(1, 1)]).ranks == (1,)


def test_more_than_expected_is_complete():
    assert not missing({0: range(20), 1: range(5, 25), 9: []}, Expectation(2, 10))


def test_many_different_gaps_stay_one_line():
    steps = {rank: [step for step in range(60) if step != rank] for rank in range(51)}
    line = str(missing(steps, Expectation(60, 60)))
    assert line == (
        "of the expected 60 ranks x 60 steps, missing: ranks 51-59 (9 of 60); step 0 on rank 0; "
        "step 1 on rank 1; step 2 on rank 2; step 3 on rank 3; 47 more steps on other ranks"
    )
