"""Whose recording it is, on whole exports: what the user tells, what the file tells, and in which order they count."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

import jitter
from jitter.cli import main
from jitter.simulate import Job, simulate, write
from tests.support.lake_content import records

TRUST = ["--rank", "step marker", "NVTX 'MPI Rank 3'", "environment", "file name", "nothing"]


def _of_four_minds(folder: Path) -> Path:
    """Its marker says rank 0, NVTX says 3, the environment 4, the file name 5."""
    write(simulate(Job(ranks=1, steps=2, kernels=16)), folder, "nsys")
    path = (folder / "rank0.sqlite").rename(folder / "trace_5.sqlite")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(
            "INSERT INTO NVTX_EVENTS (start, eventType, text, globalTid) "
            "SELECT 1, 39, 'MPI Rank 3', globalTid FROM NVTX_EVENTS LIMIT 1"
        )
        connection.execute(
            "UPDATE TARGET_INFO_SYSTEM_ENV SET value = replace(replace(value, 'RANK=0', 'RANK=4'), 'PROCID=0', "
            "'PROCID=4') WHERE name = 'DeviceEnvironment'"
        )
        connection.commit()
    return path


def _forget(path: Path, level: str) -> Path:
    with closing(sqlite3.connect(path)) as connection:
        if level == "step marker":
            connection.execute("UPDATE NVTX_EVENTS SET text = replace(text, '-rank0', '')")
        elif level == "NVTX 'MPI Rank 3'":
            connection.execute("DELETE FROM NVTX_EVENTS WHERE eventType = 39")
        elif level == "environment":
            connection.execute("DELETE FROM TARGET_INFO_SYSTEM_ENV WHERE name = 'DeviceEnvironment'")
        connection.commit()
    return path.rename(path.with_name("report1.sqlite")) if level == "file name" else path


def test_order_of_trust(tmp_path: Path):
    path = _of_four_minds(tmp_path / "t")
    found = []
    for level in TRUST:
        lake = tmp_path / f"lake{TRUST.index(level)}"
        report = jitter.ingest([path], lake, rank=9 if level == "--rank" else None, executor=jitter.LocalExecutor())
        found += [(r.rank, r.rank_told_by) for r in report.added] or [str(report.refused[0])]
        path = _forget(path, level)
    assert "NVTX 'MPI Rank 3' says rank 3, and step marker says rank 0" in found[1]
    assert [found[0], *found[2:5]] == [
        (9, "--rank"),
        (3, "NVTX 'MPI Rank 3'"),
        (4, "RANK"),
        (5, "file name"),
    ]
    assert found[5] == (0, "assumption")


def test_device_order_is_a_guess_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    write(simulate(Job(ranks=2, steps=2, kernels=16, marker="iteration")), tmp_path / "t", "nsys", ranks_per_report=2)
    lake = tmp_path / "lake"
    assert main(["ingest", str(tmp_path / "t"), "-o", str(lake), "--jobs", "1"]) == 0
    assert [(r["rank"], r["device"], r["rank_told_by"]) for r in records(lake)] == [
        (0, 0, "device order"),
        (1, 1, "device order"),
    ]
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "a guess" in line]
    assert "2 GPUs are assumed to be ranks 0 to 1" in line
    assert "--rank-map" in line


def test_two_processes_that_say_the_same_rank(tmp_path: Path):
    write(simulate(Job(ranks=2, steps=2, kernels=16)), tmp_path / "t", "nsys", ranks_per_report=2)
    (path,) = (tmp_path / "t").iterdir()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE NVTX_EVENTS SET text = replace(text, '-rank1', '-rank0')")
        connection.commit()
    report = jitter.ingest([path], tmp_path / "lake", executor=jitter.LocalExecutor())
    assert report.added == []
    assert "two of its GPUs are both rank 0 in epoch 1, step 0 (devices 0 and 1)" in str(report.refused[0])
    (record,) = records(tmp_path / "lake")
    assert record["rank"] is None


def test_one_rank_for_several_files(traces: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["ingest", str(traces), "-o", str(tmp_path / "lake"), "--rank", "1"]) == 2
    assert "--rank 1 is for one file, and there are 3" in capsys.readouterr().err
    assert not (tmp_path / "lake").exists()


@pytest.mark.parametrize(
    ("lines", "complaint"),
    [
        ("rank0.sqlite,0\nrank1.sqlite\n", ":2:"),
        ("rank0.sqlite,0\n\nrank1.sqlite,one\n", ":3:"),
        ("rank0.sqlite,-1\n", ":1:"),
        ("rank0.sqlite,0,1,2\n", ":1:"),
    ],
)
def test_a_map_with_a_bad_line(
    traces: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], lines: str, complaint: str
):
    told = tmp_path / "map.csv"
    told.write_text(lines)
    assert main(["ingest", str(traces), "-o", str(tmp_path / "lake"), "--rank-map", str(told)]) == 2
    assert f"{told}{complaint}" in capsys.readouterr().err
    assert not (tmp_path / "lake").exists()


def test_a_map_that_is_not_there(traces: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["ingest", str(traces), "-o", str(tmp_path / "lake"), "--rank-map", str(tmp_path / "no.csv")]) == 2
    assert "no.csv" in capsys.readouterr().err


def test_a_map_names_files_in_any_way(traces: Path, tmp_path: Path):
    told = tmp_path / "map.csv"
    told.write_text(f"file,rank\n{traces / 'rank0.sqlite'},20\n{traces.name}/rank1.sqlite,21\nrank9.sqlite,29\n")
    report = jitter.ingest([traces], tmp_path / "lake", rank_map=told, executor=jitter.LocalExecutor())
    assert [(r.rank, r.rank_told_by) for r in report.added] == [
        (20, "--rank-map"),
        (21, "--rank-map"),
        (2, "step marker"),
    ]
    assert ["rank9.sqlite" in warning for warning in report.warnings] == [True, False]
    assert "ranks 0-1,3-19 have no recording" in report.warnings[1]


def test_a_map_that_leaves_a_device_out(tmp_path: Path):
    write(simulate(Job(ranks=2, steps=2, kernels=16)), tmp_path / "t", "nsys", ranks_per_report=2)
    (path,) = (tmp_path / "t").iterdir()
    (tmp_path / "map.csv").write_text(f"{path.name},0,4\n")
    report = jitter.ingest([path], tmp_path / "lake", rank_map=tmp_path / "map.csv", executor=jitter.LocalExecutor())
    assert "--rank-map does not name device 1" in str(report.refused[0])


def test_a_map_for_another_device_is_no_guess(traces: Path, tmp_path: Path):
    (tmp_path / "map.csv").write_text("rank1.sqlite,5,4\n")
    report = jitter.ingest(
        [traces / "rank1.sqlite"], tmp_path / "lake", rank_map=tmp_path / "map.csv", executor=jitter.LocalExecutor()
    )
    assert report.added == []
    assert "--rank-map does not name device 1" in str(report.refused[0])


@pytest.mark.parametrize("pattern", [r"node\d+", "(", r"(?P<rank>"])
def test_a_pattern_that_names_no_rank(traces: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], pattern: str):
    assert main(["ingest", str(traces), "-o", str(tmp_path / "lake"), "--rank-pattern", pattern]) == 2
    assert "--rank-pattern" in capsys.readouterr().err


def test_a_step_pattern_without_the_group(traces: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["ingest", str(traces), "-o", str(tmp_path / "lake"), "--step-pattern", r"(\d+)"]) == 2
    assert "no group named step" in capsys.readouterr().err
