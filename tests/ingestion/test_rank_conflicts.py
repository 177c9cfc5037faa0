"""The same rank and step from two sources, and ranks that several claim."""

from functools import partial
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import jitter
from jitter.cli import main
from jitter.lake.layout import times_file
from jitter.simulate import Job, simulate, write
from tests.support.databases import run_sql
from tests.support.fuzz_depth import fuzz, of_all
from tests.support.killed_process import KILLED, run_killed
from tests.support.lake_content import content, kernel_files, records

pytestmark = pytest.mark.slow


@pytest.fixture
def rivals(tmp_path: Path) -> Path:
    """a/rank0..2.sqlite of steps 0 to 2, and b/rank1.sqlite, recorded an hour later, of steps 1 to 3."""
    write(simulate(Job(ranks=3, steps=3, kernels=16)), tmp_path / "a", "nsys")
    write(simulate(Job(ranks=3, steps=3, kernels=16, seed=5, first_step=1)), tmp_path / "b", "nsys")
    for rank in (0, 2):
        (tmp_path / "b" / f"rank{rank}.sqlite").unlink()
    return tmp_path


def test_refused_with_both_names(rivals: Path, capsys: pytest.CaptureFixture[str]):
    lake = rivals / "lake"
    arguments = ["ingest", str(rivals / "a"), str(rivals / "b"), "-o", str(lake)]
    assert main(arguments) == 0
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = [line for line in err.splitlines() if line.startswith("left out")]
    assert str(rivals / "a/rank1.sqlite") in line
    assert str(rivals / "b/rank1.sqlite") in line
    assert "rank 1 has 2 steps (epoch 1, step 1 to epoch 1, step 2) in " in line
    assert line.endswith("too, which was recorded nearer in time to the other ranks")
    assert "--replace" in err
    jitter.ingest([rivals / "a"], rivals / "alone")
    assert kernel_files(lake) == kernel_files(rivals / "alone")
    assert main([*arguments, "--strict"]) == 3
    assert main(["ingest", str(rivals / "b"), "-o", str(lake)]) == 3  # nothing of it is in
    assert kernel_files(lake) == kernel_files(rivals / "alone")


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_replace_takes_the_newer(rivals: Path, order: str):
    _make_newer(rivals / "b/rank1.sqlite")
    lake = rivals / "lake"
    for folder in order:
        assert jitter.ingest([rivals / folder], lake, replace=True).refused == []
    _check_replaced(rivals, lake)


def _make_newer(path: Path) -> None:

    run_sql(path, "UPDATE TARGET_INFO_SESSION_START_TIME SET utcEpochNs = utcEpochNs + 3600000000000")


def _check_replaced(rivals: Path, lake: Path) -> None:
    jitter.ingest([rivals / "b"], rivals / "newer")
    jitter.ingest([rivals / "a"], rivals / "older")
    for path in kernel_files(lake):
        newer = path in kernel_files(rivals / "newer")
        source = rivals / ("newer" if newer else "older") / path
        assert pq.read_table(lake / path).equals(pq.read_table(source)), path
    assert kernel_files(lake) == kernel_files(rivals / "newer") | kernel_files(rivals / "older")
    of_rank_1 = {Path(r["file"]).parent.name: [s["step"] for s in r["steps"]] for r in records(lake) if r["rank"] == 1}
    assert of_rank_1 == {"a": [0], "b": [1, 2, 3]}
    claims = [(s["step"], r["rank"]) for r in records(lake) for s in r["steps"]]
    assert len(claims) == len(set(claims)) == len(kernel_files(lake))


@fuzz
def test_killed_while_replacing(rivals: Path):
    _make_newer(rivals / "b/rank1.sqlite")
    lake = rivals / "lake"
    jitter.ingest([rivals / "a"], lake)
    deaths = 0
    replace = partial(jitter.ingest, [rivals / "b"], lake, replace=True)
    while run_killed(replace, lake, deaths) == KILLED:
        # whatever is there is told of by exactly one record
        jitter.ingest([rivals / "a"], lake)
        accounted = {
            f"kernels/epoch=1/step={s['step']}/rank={r['rank']}.parquet" for r in records(lake) for s in r["steps"]
        }
        assert kernel_files(lake) == accounted
        assert set((lake / "times").iterdir()) == {lake / times_file(record["digest"]) for record in records(lake)}
        deaths += of_all(1, 4)
    assert deaths > 4
    _check_replaced(rivals, lake)


def test_a_refused_source_takes_nothing_from_others(rivals: Path, capsys: pytest.CaptureFixture[str]):
    """Two processes of one report claim rank 1, which another source holds: not even --replace lets it in."""
    lake = rivals / "lake"
    jitter.ingest([rivals / "a"], lake)
    before = content(lake)
    write(simulate(Job(ranks=2, steps=3, kernels=16, seed=9)), rivals / "c", "nsys", ranks_per_report=2)
    (report,) = (rivals / "c").iterdir()
    (rivals / "map.csv").write_text(f"{report.name},0,1\n{report.name},1,1\n")
    arguments = ["ingest", str(report), "-o", str(lake), "--rank-map", str(rivals / "map.csv")]
    assert main([*arguments, "--replace"]) == 3
    err = capsys.readouterr().err
    assert "two of its GPUs are both rank 1" in err
    assert "devices 0 and 1" in err
    after = content(lake)
    assert {path for path in after if after[path] != before.get(path)} - {"catalog.sqlite"} == {
        path for path in after if path not in before
    }
    assert kernel_files(lake) == {path for path in before if path.startswith("kernels/")}
