"""A compacted step reads as the ranks' own files do, whatever happened to either, and stale parts are never read."""

import multiprocessing
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jitter.lake.derived.compact_step
import jitter.lake.derived.compaction
from jitter.core.errors import LakeError
from jitter.core.step_key import StepKey
from jitter.lake.derived.compact_step import StepCompactor, remove_outdated
from jitter.lake.derived.compacted_file import COLUMNS, RankSpan, write_compacted_file
from jitter.lake.derived.compaction import compact_steps
from jitter.lake.layout import COMPACTED_STEPS, compacted_folder, kernels_file
from jitter.lake.records import records_by_step
from jitter.lake.step_reader import StepColumns, StepFiles, read_step
from tests.support.random_lake import RandomLake, small_files

pytestmark = pytest.mark.slow

ONE, TWO = StepKey(None, 7), StepKey(3, 7)


def read(lake: RandomLake, key: StepKey, **chosen) -> StepColumns:
    return read_step(lake.root, key, records_by_step(lake.folder.records())[key], **chosen)


def assert_reads_as_small_files(lake: RandomLake) -> None:
    for key, held in records_by_step(lake.folder.records()).items():
        found = read_step(lake.root, key, held)
        assert found.ranks == tuple(sorted(held))
        assert found.table.to_pylist() == small_files(lake.root, key, sorted(held))
        for number, rank in enumerate(found.ranks):
            first, end = found.bounds[number : number + 2]
            assert set(found.table["rank"][first:end].to_pylist()) == {rank}


def parts(lake: RandomLake, key: StepKey = ONE) -> list[Path]:
    return sorted((lake.root / compacted_folder(key)).glob("*"))


@pytest.fixture
def lake(tmp_path: Path) -> RandomLake:
    made = RandomLake(tmp_path / "lake")
    for rank in range(6):
        made.put(rank, [ONE, TWO])
    return made


@pytest.fixture
def unreadable_small_files(lake: RandomLake):
    """Compacts, then takes the small files away: what is read now can only come from parts."""
    compact_steps(lake.root)
    rows = {key: small_files(lake.root, key, list(range(6))) for key in (ONE, TWO)}
    shutil.rmtree(lake.root / "kernels")
    return rows


def test_parts_alone_give_every_row_and_column(lake: RandomLake, unreadable_small_files):
    for key, rows in unreadable_small_files.items():
        assert read(lake, key).table.to_pylist() == rows


def test_some_columns_of_some_ranks(lake: RandomLake, unreadable_small_files):
    rows = [row for row in unreadable_small_files[ONE] if row["rank"] in (1, 4, 5)]
    columns = ["duration_ns", "kernel_name", "group_ranks", "rank"]
    found = read(lake, ONE, ranks=[5, 1, 4], columns=columns)
    assert found.table.column_names == columns
    assert found.table.to_pylist() == [{name: row[name] for name in columns} for row in rows]


def test_a_rank_that_lacks_the_step(lake: RandomLake):
    with pytest.raises(KeyError):
        read(lake, ONE, ranks=[0, 6])


def test_nothing_to_do_writes_nothing(lake: RandomLake):
    assert compact_steps(lake.root) == 2
    before = parts(lake)
    assert len(before) == 1
    assert compact_steps(lake.root) == 0
    assert parts(lake) == before


def test_only_the_steps_asked_for(lake: RandomLake):
    assert compact_steps(lake.root, [TWO]) == 1
    assert parts(lake) == []
    assert len(parts(lake, TWO)) == 1


def test_a_replaced_rank_is_not_read_from_its_old_part(lake: RandomLake):
    compact_steps(lake.root)
    lake.put(2, [ONE, TWO])
    assert_reads_as_small_files(lake)
    assert compact_steps(lake.root) == 2
    shutil.copytree(lake.root / "kernels", lake.root.parent / "kernels")
    shutil.rmtree(lake.root / "kernels")
    found = {key: read(lake, key).table.to_pylist() for key in (ONE, TWO)}
    shutil.move(lake.root.parent / "kernels", lake.root / "kernels")
    assert found == {key: small_files(lake.root, key, list(range(6))) for key in (ONE, TWO)}


def test_the_reading_counts_not_only_the_file(lake: RandomLake):
    """The same trace, cut at other markers or read by a newer reader, gives other rows."""
    held = records_by_step(lake.folder.records())[ONE]
    compact_steps(lake.root)
    for change in ({"step_pattern": "x"}, {"reader_version": 2}):
        record = lake.folder.records()[0]
        before = {name: getattr(record, name) for name in change}
        for name, value in change.items():
            setattr(record, name, value)
        lake.folder.write_record(record)
        assert compact_steps(lake.root) == 2, change
        for name, value in before.items():
            setattr(record, name, value)
        lake.folder.write_record(record)
        compact_steps(lake.root)
    assert records_by_step(lake.folder.records())[ONE] == held


def test_a_step_that_left_the_lake_leaves_the_compacted_ones(lake: RandomLake):
    compact_steps(lake.root)
    for rank in range(6):
        lake.put(rank, [ONE])
    compact_steps(lake.root)
    remove_outdated(lake.root, lake.folder.records())
    assert not (lake.root / compacted_folder(TWO)).exists()
    assert_reads_as_small_files(lake)


def test_ranks_one_by_one_make_few_parts_and_little_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    written = []

    def counted(path, groups):
        kept = list(groups)
        written.append(sum(len(pieces) for pieces, _ in kept))
        write_compacted_file(path, kept)

    monkeypatch.setattr(jitter.lake.derived.compact_step, "write_compacted_file", counted)
    lake = RandomLake(tmp_path / "lake")
    ranks = list(range(40))
    random.Random(2).shuffle(ranks)
    for rank in ranks:
        lake.put(rank, [ONE])
        remove_outdated(lake.root, lake.folder.records())
        compact_steps(lake.root)
        remove_outdated(lake.root, lake.folder.records())
        assert len(parts(lake)) <= len(ranks).bit_length()
    assert sum(written) <= len(ranks) * len(ranks).bit_length()
    assert_reads_as_small_files(lake)


def test_row_groups_hold_whole_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(jitter.lake.derived.compact_step, "GROUP_ROWS", 20)
    lake = RandomLake(tmp_path / "lake")
    for rank in range(17):
        lake.put(rank, [ONE])
    compact_steps(lake.root)
    assert_reads_as_small_files(lake)
    [part] = parts(lake)
    sizes = [group.num_rows for group in _groups(part)]
    assert sum(sizes) == sum(len(small_files(lake.root, ONE, [rank])) for rank in range(17))
    assert len(sizes) > 3
    assert all(20 <= size < 20 + 12 for size in sizes[:-1])
    shutil.copytree(lake.root / "kernels", tmp_path / "kernels")
    shutil.rmtree(lake.root / "kernels")
    chance = random.Random(3)
    for _ in range(30):
        ranks = sorted(chance.sample(range(17), chance.randint(1, 17)))
        found = read(lake, ONE, ranks=ranks, columns=["rank", "start_ns", "kernel_name"]).table.to_pylist()
        slow = [
            {name: row[name] for name in ("rank", "start_ns", "kernel_name")}
            for rank in ranks
            for row in small_files(tmp_path, ONE, [rank])
        ]
        assert found == slow


def _groups(part: Path) -> list[pq.RowGroupMetaData]:
    metadata = pq.read_metadata(part)
    return [metadata.row_group(number) for number in range(metadata.num_row_groups)]


def test_a_part_whose_list_of_ranks_does_not_fit_its_rows(lake: RandomLake):
    held = records_by_step(lake.folder.records())[ONE]
    read = read_step(lake.root, ONE, held, COLUMNS)
    digests = StepFiles(lake.root, ONE, held).digests
    pieces = [RankSpan(rank, rows + 1, digests[rank]) for rank, rows in zip(read.ranks, read.rows, strict=True)]
    path = lake.root / compacted_folder(ONE) / "wrong.parquet"
    path.parent.mkdir(parents=True)
    write_compacted_file(path, [(pieces, read.table)])
    assert_reads_as_small_files(lake)


@pytest.mark.parametrize("damage", ["cut", "empty", "text", "pages"])
def test_a_damaged_part_is_no_part(lake: RandomLake, damage: str):
    compact_steps(lake.root)
    for path in [*parts(lake), *parts(lake, TWO)]:
        content = bytearray(path.read_bytes())
        if damage == "pages":
            content[4:200] = b"\xff" * 196
        path.write_bytes({"cut": content[:-9], "empty": b"", "text": b"no parquet", "pages": content}[damage])
    assert_reads_as_small_files(lake)


def test_a_parquet_file_of_somebody_else(lake: RandomLake):
    compact_steps(lake.root)
    shutil.copy(lake.root / kernels_file(ONE, 3), lake.root / compacted_folder(ONE) / "other.parquet")
    assert_reads_as_small_files(lake)


def test_a_missing_rank_file_is_said(lake: RandomLake):
    (lake.root / kernels_file(ONE, 3)).unlink()
    with pytest.raises(LakeError, match=r"step=7/rank=3\.parquet: cannot be read"):
        compact_steps(lake.root)
    with pytest.raises(LakeError, match=r"step=7/rank=3\.parquet: cannot be read"):
        read(lake, ONE)
    assert not (lake.root / ".staging").exists()


def test_a_source_replaced_while_it_is_read(lake: RandomLake, monkeypatch: pytest.MonkeyPatch):
    """Rows that may be of two readings are not kept under either's name."""
    old = lake.folder.records()

    def meanwhile(path, groups):
        write_compacted_file(path, groups)
        lake.put(2, [ONE, TWO])

    monkeypatch.setattr(jitter.lake.derived.compact_step, "write_compacted_file", meanwhile)
    assert compact_steps(lake.root) == 0
    assert parts(lake) == []
    assert_reads_as_small_files(lake)
    monkeypatch.undo()
    assert old != lake.folder.records()
    assert compact_steps(lake.root) == 2
    assert_reads_as_small_files(lake)


def test_several_processes_at_once(tmp_path: Path):
    lake = RandomLake(tmp_path / "lake")
    steps = [StepKey(None, number) for number in range(12)]
    for rank in range(8):
        lake.put(rank, steps, rows=40)
    program = (
        "import sys, pathlib\n"
        "from jitter.lake.derived.compaction import compact_steps\n"
        "compact_steps(pathlib.Path(sys.argv[1]))"
    )
    running = [subprocess.Popen([sys.executable, "-c", program, str(lake.root)]) for _ in range(3)]
    for rank in range(8, 12):
        lake.put(rank, steps, rows=40)
    assert [process.wait() for process in running] == [0, 0, 0]
    assert_reads_as_small_files(lake)
    compact_steps(lake.root)
    assert_reads_as_small_files(lake)
    assert not (lake.root / ".staging").exists()


@pytest.fixture
def long_lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RandomLake:
    """One that several processes compact."""
    lake = RandomLake(tmp_path / "lake")
    for rank in range(6):
        lake.put(rank, [StepKey(None, number) for number in range(24)])
    monkeypatch.setattr(jitter.lake.derived, "MANY_FILES", 6 * 24)
    monkeypatch.setattr(jitter.lake.derived.compaction, "cpu_count", lambda: 3)
    return lake


@pytest.fixture
def done_here(monkeypatch: pytest.MonkeyPatch) -> list[StepKey]:
    """The steps that this process compacts."""
    seen: list[StepKey] = []
    refresh = StepCompactor.refresh
    monkeypatch.setattr(StepCompactor, "refresh", lambda self, key: seen.append(key) or refresh(self, key))
    return seen


def contents(lake: RandomLake) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in (lake.root / COMPACTED_STEPS).rglob("*.parquet")}


def test_processes_write_what_one_does(long_lake: RandomLake, done_here: list[StepKey]):
    told: list[tuple[int, int]] = []
    assert compact_steps(long_lake.root, progress=lambda done, total: told.append((done, total))) == 24
    assert done_here == []
    assert told == [(done, 24) for done in range(25)]
    together = contents(long_lake)
    assert compact_steps(long_lake.root) == 0
    shutil.rmtree(long_lake.root / COMPACTED_STEPS)
    assert sum(compact_steps(long_lake.root, [StepKey(None, number)]) for number in range(24)) == len(done_here) == 24
    assert contents(long_lake) == together
    assert_reads_as_small_files(long_lake)


def test_processes_that_die_leave_nothing_undone(long_lake: RandomLake, done_here: list[StepKey]):
    def kill(done: int, total: int) -> None:
        if done == 1:
            for process in multiprocessing.active_children():
                process.kill()

    compact_steps(long_lake.root, progress=kill)
    assert done_here
    assert done_here == [StepKey(None, number) for number in range(24 - len(done_here), 24)]
    assert len(contents(long_lake)) == 24
    assert_reads_as_small_files(long_lake)


def test_a_file_that_a_process_cannot_read(long_lake: RandomLake, done_here: list[StepKey]):
    (long_lake.root / kernels_file(StepKey(None, 3), 4)).unlink()
    with pytest.raises(LakeError, match=r"step=3/rank=4\.parquet: cannot be read"):
        compact_steps(long_lake.root)
    assert done_here == []
    assert not (long_lake.root / ".staging").exists()


def test_progress_is_told(lake: RandomLake):
    told: list[tuple[int, int]] = []
    compact_steps(lake.root, progress=lambda done, total: told.append((done, total)))
    assert told == [(0, 2), (1, 2), (2, 2)]


def test_numbers_and_codes(lake: RandomLake):
    compact_steps(lake.root)
    rows = small_files(lake.root, ONE, list(range(6)))
    found = read(lake, ONE)
    for name in ("start_ns", "launch_start_ns", "grid_x"):
        assert found.known(name).tolist() == [row[name] is not None for row in rows]
        assert found.values(name).tolist() == [row[name] or 0 for row in rows]
    codes, texts = found.codes("launch_name")
    assert [None if code < 0 else texts[code] for code in codes] == [row["launch_name"] for row in rows]
    with pytest.raises(ValueError, match="different numbers of rows"):
        found.grid(found.values("start_ns"))


def test_ranks_of_one_length_lie_in_a_grid(tmp_path: Path):
    lake = RandomLake(tmp_path / "lake")
    for rank in (2, 0, 5):
        lake.put(rank, [ONE], rows=4)
    compact_steps(lake.root)
    found = read(lake, ONE)
    grid = found.grid(found.values("end_ns"))
    assert grid.tolist() == [[row["end_ns"] for row in small_files(lake.root, ONE, [rank])] for rank in (0, 2, 5)]


change = st.one_of(
    st.tuples(st.sampled_from(("put", "put", "forget", "compact", "lose")), st.integers(0, 5), st.booleans())
)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.lists(change, min_size=2, max_size=14), st.integers(0, 10**6))
def test_any_history(tmp_path_factory: pytest.TempPathFactory, changes, seed: int):
    lake = RandomLake(tmp_path_factory.mktemp("any") / "lake", seed)
    for what, rank, both in changes:
        if what == "put":
            lake.put(rank, [ONE, TWO] if both else [TWO])
        elif what == "forget":
            lake.forget(rank)
        elif what == "compact":
            compact_steps(lake.root)
        else:
            for path in parts(lake, TWO)[:1]:
                path.unlink()
        assert_reads_as_small_files(lake)
    compact_steps(lake.root)
    held = records_by_step(lake.folder.records())
    assert {path.parent for path in (lake.root / COMPACTED_STEPS).rglob("*.parquet")} == {
        lake.root / compacted_folder(key) for key in held
    }
