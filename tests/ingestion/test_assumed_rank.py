"""A recording whose rank nothing states: alone it counts as rank 0, and never beside another one."""

import gzip
import json
from pathlib import Path

import pytest

import jitter
from jitter.cli import main
from jitter.core.errors import ExitCode, UnknownRankError
from jitter.ingestion.inspect import inspect
from jitter.simulate import simulate, write
from tests.support.simulated import small

NOTE = "Nothing states the rank of the only recording: it is taken as rank 0."


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a.json, b.json and c.json of ranks 0 to 2, which state no rank, no world and no group."""
    folder = tmp_path_factory.mktemp("traces")
    for name, path in zip("abc", sorted(write(simulate(small(ranks=3)), folder / "told", "kineto")), strict=False):
        trace = json.loads(gzip.decompress(path.read_bytes()))
        del trace["distributedInfo"]
        for event in trace["traceEvents"]:
            event["args"] = {key: value for key, value in event.get("args", {}).items() if "roup" not in key}
        (folder / f"{name}.json").write_text(json.dumps(trace))
    return folder


def take(paths: list[Path], lake: Path, **options: object) -> "jitter.IngestReport":
    return jitter.ingest(paths, lake, **options)  # type: ignore[arg-type]


def told(lake: Path) -> dict[int | None, str | None]:
    """Return what told the rank of each source, by rank; None is a rejected source."""
    found = jitter.open(lake)
    return {record.rank: record.rank_told_by for record in (*found.sources, *found.rejected)}


def test_the_only_recording_counts_as_rank_0_and_says_so(traces: Path, tmp_path: Path):
    report = take([traces / "b.json"], tmp_path / "lake")
    assert report.refused == []
    (warning,) = [line for line in report.warnings if "rank" in line]
    assert "as the only recording it is taken as rank 0" in warning
    assert told(tmp_path / "lake") == {0: "assumption"}
    diagnosis = jitter.open(tmp_path / "lake").diagnose()
    assert NOTE in diagnosis.notes
    assert diagnosis.conclusion.cleared == ()
    assert take([traces / "b.json"], tmp_path / "lake").unchanged == 1


def test_a_second_recording_without_a_rank_is_not_guessed(traces: Path, tmp_path: Path):
    take([traces / "a.json"], tmp_path / "lake")
    (error,) = take([traces / "b.json"], tmp_path / "lake").refused
    assert isinstance(error, UnknownRankError)
    assert told(tmp_path / "lake") == {0: "assumption", None: None}


@pytest.mark.parametrize("names", ["ab", "abc"])
def test_of_several_recordings_none_is_guessed(traces: Path, tmp_path: Path, names: str):
    report = take([traces / f"{name}.json" for name in names], tmp_path / "lake")
    assert [type(error) for error in report.refused] == [UnknownRankError] * len(names)
    assert report.added == []


def test_a_file_that_cannot_be_read_may_be_a_rank_too(traces: Path, tmp_path: Path):
    (tmp_path / "cut.json").write_text('{"traceEvents": [')
    report = take([traces / "a.json", tmp_path / "cut.json"], tmp_path / "lake")
    assert any(isinstance(error, UnknownRankError) for error in report.refused)
    assert report.added == []


@pytest.mark.parametrize("rank", [0, 2])
def test_the_assumption_yields_to_a_recording_that_states_its_rank(traces: Path, tmp_path: Path, rank: int):
    """As if both had come at once: also where the other one is rank 0 in the same steps."""
    lake = tmp_path / "lake"
    take([traces / "a.json"], lake)
    report = take([traces / "b.json"], lake, rank=rank)
    assert [record.rank for record in report.added] == [rank]
    (error,) = report.refused
    assert "it counted as rank 0 until" in str(error)
    assert "--rank N" in str(error)
    assert told(lake) == {rank: "--rank", None: None}
    assert jitter.open(lake).ranks == [rank]
    assert main(["verify", str(lake)]) == ExitCode.DONE
    assert take([traces / "a.json"], lake, rank=1).refused == []
    assert told(lake) == {rank: "--rank", 1: "--rank"}


@pytest.mark.parametrize("rank", [0, 4])
def test_a_rank_that_is_told_later_replaces_the_assumption(traces: Path, tmp_path: Path, rank: int):
    take([traces / "a.json"], tmp_path / "lake")
    report = take([traces / "a.json"], tmp_path / "lake", rank=rank)
    assert report.refused == []
    assert told(tmp_path / "lake") == {rank: "--rank"}
    assert NOTE not in jitter.open(tmp_path / "lake").diagnose().notes


@pytest.mark.parametrize("stated", ["world", "groups"])
def test_one_of_several_ranks_is_not_taken_as_rank_0(traces: Path, tmp_path: Path, stated: str):
    """The trace states that its job has 3 ranks, and not which of them it is."""
    path = sorted((traces / "told").glob("rank-1.*"))[0]
    trace = json.loads(gzip.decompress(path.read_bytes()))
    del trace["distributedInfo"]["rank"]
    if stated == "groups":
        del trace["distributedInfo"]
    (tmp_path / "trace.json").write_text(json.dumps(trace))
    (error,) = take([tmp_path / "trace.json"], tmp_path / "lake").refused
    assert "its job has at least 3 ranks" in str(error)


def test_inspect_tells_what_an_ingest_assumes(traces: Path):
    (one,) = inspect([traces / "a.json"]).sources
    assert [record.rank for record in one.records] == [0]
    assert any("taken as rank 0" in warning for warning in one.warnings)
    both = inspect([traces / "a.json", traces / "b.json"]).sources
    assert [one.records for one in both] == [(), ()]
