"""`jitter inspect --expect RANKSxSTEPS` lists the ranks and steps that are missing, in one line."""

import json
import shutil
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from jitter.cli import main
from jitter.core.step_key import StepKey
from jitter.ingestion.inspect import Expectation, MissingSteps, find_missing
from tests.support.records import source_record, step_record


def inspect(capsys: pytest.CaptureFixture[str], folder: Path, expect: str) -> tuple[int, str]:
    status = main(["inspect", str(folder), "--jobs", "1", "--expect", expect])
    return status, capsys.readouterr().out.splitlines()[-1]


@pytest.mark.parametrize("expect", ["3x3", "2x3", "3x2", "1×1"])
def test_a_complete_recording(traces: Path, capsys: pytest.CaptureFixture[str], expect: str):
    status, line = inspect(capsys, traces, expect)
    assert status == 0
    assert line.startswith("all of the expected ")


def test_a_rank_and_a_step_that_are_missing(own_traces: Path, capsys: pytest.CaptureFixture[str]):
    (own_traces / "rank1.sqlite").unlink()
    with closing(sqlite3.connect(own_traces / "rank2.sqlite")) as connection:
        connection.execute("DELETE FROM NVTX_EVENTS WHERE text LIKE '%step2001%'")
        connection.commit()
    status, line = inspect(capsys, own_traces, "5x4")
    assert status == 3
    assert line == (
        "of the expected 5 ranks x 4 steps, missing: ranks 1,3-4 (3 of 5); epoch 1 step 2001 on rank 2; "
        "1 of 4 steps on every rank (recorded: epoch 1 steps 2000-2002)"
    )
    assert main(["inspect", str(own_traces), "--jobs", "1", "--expect", "5x4", "--json"]) == 3
    assert json.loads(capsys.readouterr().out)["expected"] == {
        "ranks": 5,
        "steps": 4,
        "missing_ranks": [1, 3, 4],
        "missing_steps": [{"epoch": 1, "step": 2001, "ranks": [2]}],
        "absent_steps": 1,
    }


def test_nothing_expected_is_null(traces: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["inspect", str(traces / "rank0.sqlite"), "--json", "--jobs", "1"]) == 0
    assert json.loads(capsys.readouterr().out)["expected"] is None


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
