"""Memory of large steps: what is dropped before the next step is read."""

import weakref
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jitter
from jitter.analysis.account import step_account
from jitter.analysis.execution import run_reader
from jitter.analysis.execution.run_reader import ActivityReader
from jitter.analysis.execution.self_times import follow_steps
from jitter.analysis.replay import run_steps
from jitter.analysis.thresholds import THRESHOLDS
from jitter.comparison.runs import build_document
from jitter.simulate import Fault, simulate
from tests.support.simulated import ingest_run, small

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = simulate(small(steps=6, ranks=5, syncs=frozenset({"loss"})), [Fault.parse("slow_gpu:rank=1,factor=1.3")])
    return ingest_run(run, tmp_path_factory.mktemp("memory")).root


def test_self_times_of_one_step_at_most_are_kept_while_the_next_one_is_read(
    root: Path, monkeypatch: pytest.MonkeyPatch
):
    """The account of large steps keeps the step before, whose tail delays the next one; nothing else keeps any."""
    steps: list[list[weakref.ref[Any]]] = []
    kept: list[int] = []

    def followed(*step: Any) -> Any:
        kept.append(sum(any(values() is not None for values in own) for own in steps))
        own = follow_steps(*step)
        steps.append([weakref.ref(values) for values in own[0]])
        return own

    monkeypatch.setattr(run_reader, "_ROWS_KEPT", 0)
    monkeypatch.setattr(step_account, "_LIMITS", THRESHOLDS.account._replace(cells_kept=0))
    monkeypatch.setattr(run_steps, "_CELLS_AT_ONCE", 0)
    monkeypatch.setattr(run_steps, "follow_steps", followed)
    lake = jitter.open(root)
    assert lake.diagnose().culprits
    build_document(lake)
    assert len(kept) > 4 * len(lake.step_keys)
    assert max(kept) == 1
    # in one pass of several
    assert sum(kept) == len(lake.step_keys) - 1


def test_times_of_a_large_step_leave_memory_and_come_from_a_file(root: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(run_reader, "_ROWS_KEPT", 0)
    monkeypatch.setattr(run_reader, "_ROWS_TOGETHER", 0)
    analysis = jitter.open(root).analyze()
    for key in analysis.run.keys:
        read = [(weakref.ref(group.times), group.times.copy()) for group in analysis.lake.rank_groups(key)]
        assert [held() for held, _ in read] == [None] * len(read)
        again = [group.times for group in analysis.lake.rank_groups(key)]
        np.testing.assert_equal(again, [times for _, times in read])


def test_of_a_large_step_the_wanted_ranks_alone_are_read(root: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(run_reader, "_ROWS_KEPT", 0)
    monkeypatch.setattr(run_reader, "_ROWS_TOGETHER", 0)
    reader = jitter.open(root).analyze().lake
    key = reader.steps[-1]
    (wanted, *others) = [member.rank for member in reader.members(key)]
    assert others
    read: list[list[int]] = []
    read_activities = ActivityReader.read

    def note_read(activities: ActivityReader, held: Any) -> Any:
        read.append([step_record.record.rank for step_record in held.values()])
        return read_activities(activities, held)

    monkeypatch.setattr(ActivityReader, "read", note_read)
    (alone,) = reader.rank_groups(key, [wanted])
    assert read == [[wanted]]
    assert alone.ranks.tolist() == [wanted]
    # what was read of some ranks does not stand for the step
    (group,) = [group for group in reader.rank_groups(key) if wanted in group.ranks]
    np.testing.assert_array_equal(alone.times[0], group.times[group.ranks.tolist().index(wanted)])


def test_steps_of_a_small_run_are_read_once_and_followed_once(root: Path, monkeypatch: pytest.MonkeyPatch):
    large = jitter.open(root)
    with monkeypatch.context() as patch:
        patch.setattr(run_reader, "_ROWS_KEPT", 0)
        of_large = large.analyze()
        expected = [of_large.measured.step_ns.tolist(), of_large.account.loss_ns.tolist()]
    read: Counter[tuple[int, int | None]] = Counter()
    followed: list[int] = []
    read_activities = ActivityReader.read

    def count_read(reader: ActivityReader, held: Any) -> Any:
        read.update((step_record.step.step, step_record.record.rank) for step_record in held.values())
        return read_activities(reader, held)

    def count_followed(*step: Any) -> Any:
        followed.append(step[-1])
        return follow_steps(*step)

    monkeypatch.setattr(ActivityReader, "read", count_read)
    monkeypatch.setattr(run_steps, "follow_steps", count_followed)
    lake = jitter.open(root)
    analysis = lake.analyze()
    np.testing.assert_equal([analysis.measured.step_ns.tolist(), analysis.account.loss_ns.tolist()], expected)
    list(analysis.steps.steps())
    assert set(read.values()) == {1}
    assert sum(followed) == len(lake.step_keys)
