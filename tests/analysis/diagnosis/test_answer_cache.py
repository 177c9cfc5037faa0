"""The kept answers of a large lake are used again only as long as they are true."""

import shutil
from pathlib import Path

import pytest

import jitter
from jitter.analysis.detection.run_analysis import RunAnalysis
from jitter.analysis.diagnosis import answer_cache
from jitter.lake.folder import LakeFolder
from jitter.lake.layout import ANSWER_CACHE


@pytest.fixture
def lake(small_lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A lake of our own, which counts as large."""
    monkeypatch.setattr(answer_cache, "MIN_ACTIVITIES", 0)
    return Path(shutil.copytree(small_lake, tmp_path / "lake"))


@pytest.fixture
def examined(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows with every lake that is examined, rather than answered from memory."""
    seen: list[int] = []
    begin = RunAnalysis.__init__
    monkeypatch.setattr(RunAnalysis, "__init__", lambda self, *told: (seen.append(1), begin(self, *told))[1])
    return seen


def prepared(root: Path) -> jitter.Lake:
    """Return the lake, opened, with the answers for all steps kept."""
    lake = jitter.open(root)
    lake.prepare(forms=["answers"])
    return lake


def kept(lake: Path) -> list[Path]:
    return sorted((lake / ANSWER_CACHE).glob("*"))


def test_who_asks_again_gets_the_same_without_waiting(lake: Path, examined: list[int]):
    first = prepared(lake).results()
    again = jitter.open(lake).results()
    assert again == first
    assert len(first.diagnosis.steps) == len(first.qualities) == len(jitter.open(lake).step_keys)
    assert len(examined) == len(kept(lake)) == 1
    assert not (lake / ".staging").exists()


def test_other_steps_are_another_question(lake: Path, examined: list[int]):
    opened = prepared(lake)
    opened.prepare(forms=["answers"], steps=opened.step_keys[1:])
    some = opened.results(opened.step_keys[1:])
    assert len(some.diagnosis.steps) == len(opened.step_keys) - 1
    assert len(examined) == len(kept(lake)) == 2
    assert jitter.open(lake).results(opened.step_keys[1:]) == some


def test_another_source_is_another_lake(lake: Path, examined: list[int]):
    opened = prepared(lake)
    before = opened.results()
    assert len(kept(lake)) == 1
    gone = max(opened.sources, key=lambda source: source.rank or 0)
    (lake / "sources" / gone.name).unlink()
    after = prepared(lake).results()
    assert after.team_of.keys() == before.team_of.keys() - {gone.rank}
    assert len(examined) == 2
    assert len(kept(lake)) == 2
    LakeFolder(lake).remove_derived()
    assert kept(lake) == []


def test_what_other_code_made_is_made_again(lake: Path, examined: list[int], monkeypatch: pytest.MonkeyPatch):
    prepared(lake)
    monkeypatch.setattr(answer_cache, "_code", lambda: "another version")
    prepared(lake)
    assert len(examined) == 2
    assert len(kept(lake)) == 2


@pytest.mark.parametrize("damage", [b"", b"{}", b'{"diagnosis": 1}', b"\xff"])
def test_damage_is_mended(lake: Path, examined: list[int], damage: bytes):
    first = prepared(lake).results()
    kept(lake)[0].write_bytes(damage)
    assert jitter.open(lake).results() == first
    assert prepared(lake).results() == first
    assert jitter.open(lake).results() == first
    assert len(examined) == 3


def test_a_lake_that_cannot_be_written_is_answered_all_the_same(lake: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("os.access", lambda path, mode: False)
    assert prepared(lake).results().diagnosis.steps
    assert kept(lake) == []


def test_a_small_lake_keeps_nothing(small_lake: Path, tmp_path: Path):
    lake = Path(shutil.copytree(small_lake, tmp_path / "lake"))
    prepared(lake).results()
    assert kept(lake) == []
