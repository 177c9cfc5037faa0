"""Windows of one process: files of their own, whose numbers are no ranks where the process is one."""

import shutil
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

import jitter
from jitter.cli import main
from jitter.core.step_key import StepKey
from jitter.ingestion.ranks.windows import Window, find_windows
from jitter.simulate import Job, simulate, write
from tests.support.databases import run_sql

S = 10**9
WINDOW_S, STEPS = 5, 3


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[int, int], Path]:
    """Return recordings that state no rank, by rank (of 2) and window (of 3), as of `--capture-range-end=repeat:3`."""
    folder = tmp_path_factory.mktemp("recorded")
    return {
        (rank, window): path
        for window in range(3)
        for rank, path in enumerate(_write(folder / str(window), Job(ranks=2, first_step=10 * window), window))
    }


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Return four windows of the only process of a job."""
    folder = tmp_path_factory.mktemp("alone")
    return [_write(folder / str(window), Job(ranks=1, first_step=10 * window), window)[0] for window in range(4)]


def _write(folder: Path, job: Job, window: int) -> list[Path]:
    job = replace(job, steps=STEPS, kernels=16, marker="iteration")
    paths = sorted(write(simulate(job), folder, "nsys"))
    for path in paths:
        run_sql(path, "DELETE FROM TARGET_INFO_SYSTEM_ENV WHERE name = 'DeviceEnvironment'")
        _move(path, WINDOW_S * window)
    return paths


def _move(path: Path, time_s: int) -> None:
    run_sql(path, f"UPDATE TARGET_INFO_SESSION_START_TIME SET utcEpochNs = utcEpochNs + {time_s * S}")


def _copy(sources: Mapping[str, Path], folder: Path) -> None:
    for name, source in sources.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, folder / name)


def _steps(lake: Path) -> dict[int, list[int]]:
    """Return the steps of each rank."""
    found: dict[int, list[int]] = {}
    for record in jitter.open(lake).sources:
        found.setdefault(record.rank or 0, []).extend(step.step for step in record.steps)
    return {rank: sorted(steps) for rank, steps in found.items()}


def _of_windows(*windows: int) -> list[int]:
    return [10 * window + step for window in windows for step in range(STEPS)]


@pytest.mark.parametrize("name", ["report.{}.sqlite", "node1_4242.{}.sqlite"])
def test_windows_of_the_only_process_are_of_rank_0(alone: list[Path], tmp_path: Path, name: str):
    traces, lake = tmp_path / "traces", tmp_path / "lake"
    for given in (1, 2, 4):  # the first is of rank 1 by its name, until there are more
        _copy({name.format(window + 1): alone[window] for window in range(given)}, traces)
        report = jitter.ingest(traces, lake)
        assert report.refused == []
        assert {record.rank_told_by for record in report.added} <= {"file name", "assumption"}
    assert _steps(lake) == {0: _of_windows(0, 1, 2, 3)}
    assert sum("as the only process it is taken as rank 0" in warning for warning in report.warnings) == 1
    assert jitter.ingest(traces, lake).unchanged == 4
    assert main(["verify", str(lake)]) == 0


@pytest.mark.parametrize(("name", "is_window"), [("report.3.sqlite", True), ("rank1.sqlite", False)])
def test_a_damaged_file_that_is_named_like_windows_is_one(
    alone: list[Path], tmp_path: Path, name: str, is_window: bool
):
    _copy({"report.1.sqlite": alone[0], "report.2.sqlite": alone[1]}, tmp_path / "traces")
    (tmp_path / "traces" / name).write_bytes(alone[2].read_bytes()[:20_000])
    report = jitter.ingest(tmp_path / "traces", tmp_path / "lake")
    assert {record.rank for record in report.added} == ({0} if is_window else set())
    assert len(report.refused) == (1 if is_window else 3)


def test_a_window_that_is_given_alone_joins_those_in_the_lake(alone: list[Path], tmp_path: Path):
    traces, lake = tmp_path / "traces", tmp_path / "lake"
    _copy({f"report.{window + 1}.sqlite": path for window, path in enumerate(alone)}, traces)
    jitter.ingest([traces / "report.1.sqlite", traces / "report.2.sqlite"], lake)
    jitter.ingest(traces / "report.3.sqlite", lake)
    assert _steps(lake) == {0: _of_windows(0, 1, 2)}


def test_a_window_of_a_process_whose_first_one_was_called_by_its_number_is_no_other_rank(
    alone: list[Path], tmp_path: Path
):
    traces, lake = tmp_path / "traces", tmp_path / "lake"
    _copy({f"report.{window + 1}.sqlite": path for window, path in enumerate(alone)}, traces)
    jitter.ingest(traces / "report.1.sqlite", lake)
    (error,) = jitter.ingest(traces / "report.2.sqlite", lake).refused
    assert "the file name (its number is that of a window of its process)" in str(error)
    assert _steps(lake) == {1: _of_windows(0)}


@pytest.mark.parametrize(
    "name", ["gpu{rank}/report.{window}.sqlite", "rank{rank}/report.{window}.sqlite", "report_{rank}.{window}.sqlite"]
)
def test_windows_of_several_ranks(recorded: dict[tuple[int, int], Path], tmp_path: Path, name: str):
    names = {name.format(rank=rank, window=window + 1): path for (rank, window), path in recorded.items()}
    _copy(names, tmp_path / "traces")
    assert jitter.ingest(tmp_path / "traces", tmp_path / "lake").refused == []
    assert _steps(tmp_path / "lake") == dict.fromkeys(range(2), _of_windows(0, 1, 2))


def test_a_process_whose_rank_nothing_states_beside_another_one(recorded: dict[tuple[int, int], Path], tmp_path: Path):
    """Two windows each of two processes in one folder: `-o %p`, or the names are those of reports one after another."""
    names = {f"report.{2 * window + rank}.sqlite": path for (rank, window), path in recorded.items()}
    _copy(names, tmp_path / "traces")
    report = jitter.ingest(tmp_path / "traces", tmp_path / "lake")
    assert len(report.refused) == len(recorded)
    assert report.added == []
    assert all("(its number is that of a window of its process)" in str(error) for error in report.refused)


def test_ranks_of_a_job_keep_the_numbers_of_their_names(recorded: dict[tuple[int, int], Path], tmp_path: Path):
    _copy({f"report.{rank}.sqlite": recorded[rank, 0] for rank in range(2)}, tmp_path / "traces")
    jitter.ingest(tmp_path / "traces", tmp_path / "lake")
    assert _steps(tmp_path / "lake") == dict.fromkeys(range(2), _of_windows(0))


def test_containers_that_seem_one_process_are_told_how_to_give_their_ranks(tmp_path: Path):
    """Equal host names and process numbers, and clocks 5 s apart: these may be windows whose steps begin anew."""
    paths = _write(tmp_path / "recorded", Job(ranks=2, gpus_per_node=1), 0)
    for path in paths:
        run_sql(path, "UPDATE TARGET_INFO_SYSTEM_ENV SET value = 'localhost' WHERE name = 'Hostname'")
    _move(paths[1], 5)
    _copy({f"trace_{rank}.sqlite": path for rank, path in enumerate(paths)}, tmp_path / "traces")
    refused = jitter.ingest(tmp_path / "traces", tmp_path / "lake").refused
    assert any("--rank-pattern" in (error.hint or "") for error in refused)
    pattern = r"trace_(?P<rank>\d+)"
    assert jitter.ingest(tmp_path / "traces", tmp_path / "lake", rank_pattern=pattern).refused == []
    assert _steps(tmp_path / "lake") == dict.fromkeys(range(2), _of_windows(0))


def test_a_window_that_was_copied_again(recorded: dict[tuple[int, int], Path], tmp_path: Path):
    traces, lake = tmp_path / "traces", tmp_path / "lake"
    for windows in ((0,), (0, 1)):
        named = {f"a/report.{1 + window}.sqlite": recorded[0, window] for window in windows}
        _copy({**named, "rank5/rank5.sqlite": recorded[1, 0]}, traces)
        report = jitter.ingest(traces, lake)
    assert ["window of its process" in error.message for error in report.refused] == [True, True]


def test_windows_without_markers_are_epochs_of_the_same_job(recorded: dict[tuple[int, int], Path], tmp_path: Path):
    """One rank lost its file of the second; the third is given later."""
    traces, lake = tmp_path / "traces", tmp_path / "lake"
    for given in (2, 3):
        names = {f"rank{rank}.{window}.sqlite": path for (rank, window), path in recorded.items() if window < given}
        del names["rank1.1.sqlite"]
        _copy(names, traces)
        for name in names:
            run_sql(traces / name, "DELETE FROM NVTX_EVENTS")
        if given == 2:
            refused = jitter.ingest(traces, tmp_path / "unasked").refused
            assert any("--same-job into a new lake" in (error.hint or "") for error in refused)
        assert jitter.ingest(traces, lake, same_job=True).refused == []
    found = {(record.rank, step.key) for record in jitter.open(lake).sources for step in record.steps}
    in_all = {(rank, StepKey(epoch, step)) for rank in range(2) for epoch in (1, 2, 3) for step in range(STEPS)}
    assert found == {(rank, key) for rank, key in in_all if (rank, key.epoch) != (1, 2)}
    assert main(["verify", str(lake)]) == 0


@pytest.mark.parametrize(("ahead_s", "moved_to"), [(3600, None), (0, "elsewhere")])
def test_windows_of_hosts_with_clocks_of_their_own(tmp_path: Path, ahead_s: int, moved_to: str | None):
    """Steps are numbered anew in each window; one host's clock is an hour ahead, or the job moves to another host."""
    traces = tmp_path / "traces"
    for window in range(2):
        for rank, path in enumerate(
            _write(traces / str(window), Job(ranks=2, gpus_per_node=2 if moved_to else 1), window)
        ):
            _move(path, ahead_s * rank)
            if moved_to and window:
                run_sql(path, f"UPDATE TARGET_INFO_SYSTEM_ENV SET value = '{moved_to}' WHERE name = 'Hostname'")
    report = jitter.ingest(traces, tmp_path / "lake", same_job=True)
    assert any("epochs 1 to 2" in warning for warning in report.warnings)
    found = {(record.rank, Path(record.file).parent.name, step.key) for record in report.added for step in record.steps}
    windows = ((rank, window, step) for rank in range(2) for window in range(2) for step in range(STEPS))
    assert found == {(rank, str(window), StepKey(window + 1, step)) for rank, window, step in windows}


NEXT, AT_ONCE, SHORTLY, LATER = (4 * S, 5 * S), (2 * S, 6 * S), (3.5 * S, 5 * S), (9 * S, 12 * S)


@pytest.mark.parametrize(
    ("times", "step", "rank", "pid", "is_window"),
    [
        (NEXT, 3, 2, 1, True),
        (NEXT, 3, None, 1, True),
        ((0, 3 * S), 0, None, 1, True),  # in another form
        (NEXT, 3, 1, 1, False),  # what has one rank needs no other
        (NEXT, 3, 2, 7, False),
        (AT_ONCE, 3, 2, 1, False),  # process 1 of two containers
        (SHORTLY, 0, 2, 1, False),  # likewise, and the clocks of their hosts differ
        (SHORTLY, 3, 2, 1, True),
        (LATER, 0, 2, 1, True),
        (None, 3, 2, 1, True),
        (None, 0, 2, 1, False),
    ],
)
def test_windows_are_of_one_process_and_follow_each_other(
    times: tuple[int, int] | None, step: int, rank: int | None, pid: int, is_window: bool
):
    def window(times: tuple[int, int] | None, step: int, rank: int | None, pid: int) -> Window:
        return Window((Path(), "host", pid, 0, None), times, frozenset([StepKey(None, step)]), rank)

    first = window(times and (0, 3 * S), 0, None if rank is None else 1, 1)
    found = find_windows({Path("a"): first, Path("b"): window(times, step, rank, pid)})
    assert found == ([[Path("a"), Path("b")]] if is_window else [])


def test_thousands_of_windows_are_not_compared_each_with_each():
    process, steps = (Path(), "host", 1, 0, None), frozenset([StepKey(None, 0)])
    windows = {Path(str(n)): Window(process, (5 * n * S, (5 * n + 3) * S), steps, n) for n in range(3000)}
    start = time.process_time()
    assert find_windows(windows) == [list(windows)]
    assert time.process_time() - start < 1
