"""Damaged, unfinished and foreign files: an error a person can act on, and never a write beside the user's file."""

import os
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jitter.core.errors import UnreadableTraceError
from jitter.readers.nsys import READER
from tests.support import nsys_exports as nsys
from tests.support.databases import open_database, run_sql
from tests.support.fuzz_depth import fuzz, of_all
from tests.support.nsys_exports import call, export, kernel, marker


def an_export() -> dict[str, list[nsys.Row]]:
    return export(
        CUPTI_ACTIVITY_KIND_KERNEL=[kernel(start=i, end=i + 5) for i in range(300)],
        CUPTI_ACTIVITY_KIND_RUNTIME=[call(start=i, end=i + 5) for i in range(300)],
        NVTX_EVENTS=[marker(start=i, text=f"step {i}") for i in range(100)],
        TARGET_INFO_SYSTEM_ENV=[{"globalVid": 1 << 48, "name": "Hostname", "value": "node17"}],
    )


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return nsys.write(tmp_path_factory.mktemp("sound") / "sound.sqlite", "sqlite", an_export())


@pytest.fixture(scope="module")
def sound_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return nsys.write(tmp_path_factory.mktemp("sound") / "sound_pqtdir", "parquetdir", an_export())


def read_or_refuse(path: Path) -> bool:
    """Whether it can be read; the only error allowed names the file and what to do."""
    assert READER.sniff(path) in {True, False}
    refusal = None
    try:
        nsys.read(path)
    except UnreadableTraceError as error:
        refusal = error
    assert refusal is None or (str(path) in refusal.message and refusal.hint)
    return refusal is None


def names_in(folder: Path) -> list[str]:
    return [file.name for file in folder.iterdir()]


@fuzz
@settings(max_examples=of_all(150, 40), deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_flipped_bytes(seed: int, sound: Path) -> None:
    dice = random.Random(seed)
    data = bytearray(sound.read_bytes())
    for _ in range(dice.choice([1, 1, 3, 30, 300])):
        data[dice.randrange(len(data))] = dice.randrange(256)
    path = sound.with_name("flipped.sqlite")
    path.write_bytes(data)
    read_or_refuse(path)


@fuzz
@settings(max_examples=of_all(60, 20), deadline=None)
@given(share=st.floats(0, 0.999))
def test_cut_files(share: float, sound: Path) -> None:
    path = sound.with_name("cut.sqlite")
    path.write_bytes(sound.read_bytes()[: int(sound.stat().st_size * share)])
    assert not read_or_refuse(path)


@fuzz
@settings(max_examples=of_all(60, 20), deadline=None)
@given(seed=st.integers(0, 1 << 32), share=st.floats(0, 1))
def test_damaged_parquet(seed: int, share: float, sound_folder: Path) -> None:
    dice = random.Random(seed)
    folder = sound_folder.with_name("damaged_pqtdir")
    folder.mkdir(exist_ok=True)
    victim = dice.choice(sorted(file.name for file in sound_folder.iterdir()))
    for file in sound_folder.iterdir():
        data = bytearray(file.read_bytes())
        if file.name == victim:
            for _ in range(dice.choice([1, 3, 30])):
                data[dice.randrange(len(data))] = dice.randrange(256)
            if dice.random() < 0.3:
                del data[int(len(data) * share) :]
        (folder / file.name).write_bytes(data)
    read_or_refuse(folder)


def test_damage_met_while_reading(tmp_path: Path) -> None:
    tables = export(CUPTI_ACTIVITY_KIND_KERNEL=[kernel(start=i, end=i) for i in range(80_000)])
    path = nsys.write(tmp_path / "long.sqlite", "sqlite", tables)
    data = bytearray(path.read_bytes())
    with open_database(path) as connection:
        (page_size,) = connection.execute("PRAGMA page_size").fetchone()
    middle = len(data) * 9 // 10 // page_size * page_size
    data[middle : middle + page_size] = b"\xaa" * page_size
    path.write_bytes(data)
    _, batches = READER.open(path)
    stream = batches(lambda _: None)
    assert next(stream).rows.num_rows > 0
    with pytest.raises(UnreadableTraceError, match=r"long\.sqlite: the export is damaged.*malformed.*nsys export"):
        list(stream)


@pytest.mark.parametrize("suffix", ["-wal", "-journal"])
def test_an_export_that_is_still_being_written(tmp_path: Path, suffix: str) -> None:
    path = nsys.write(tmp_path / "open.sqlite", "sqlite", an_export())
    rest = tmp_path / f"open.sqlite{suffix}"
    rest.write_bytes(b"")
    assert read_or_refuse(path)
    rest.write_bytes(b"something")
    with pytest.raises(UnreadableTraceError, match="still being written"):
        nsys.read(path)


def test_a_database_left_in_wal_mode(tmp_path: Path) -> None:
    path = nsys.write(tmp_path / "wal.sqlite", "sqlite", an_export())
    run_sql(path, "PRAGMA journal_mode = wal")
    assert read_or_refuse(path)
    assert names_in(tmp_path) == ["wal.sqlite"]


@pytest.mark.parametrize("form", nsys.FORMS)
def test_names_that_an_address_would_misread(tmp_path: Path, form: str) -> None:
    folder = tmp_path / "a b?c#d%20e&mode=rwc;f'g\"h"
    folder.mkdir()
    path = nsys.write(folder / "rank 1#2?3%41.sqlite", form, an_export())
    assert READER.sniff(path)
    _, rows = nsys.read(path)
    assert len(rows["activities"]) == 300
    assert names_in(folder) == [path.name]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_write_permission(tmp_path: Path) -> None:
    path = nsys.write(tmp_path / "report.sqlite", "sqlite", an_export())
    tmp_path.chmod(0o500)
    try:
        assert read_or_refuse(path)
    finally:
        tmp_path.chmod(0o700)


def test_nothing_is_written_beside_the_file_nor_into_it(sound: Path) -> None:
    before = (sound.read_bytes(), sound.stat().st_mtime_ns)
    nsys.read(sound)
    assert (sound.read_bytes(), sound.stat().st_mtime_ns) == before
    assert not [name for name in names_in(sound.parent) if name.endswith(("-wal", "-shm", "-journal"))]


def test_what_is_not_an_export(tmp_path: Path) -> None:
    text, rocpd, folder, other = (tmp_path / name for name in ("a.txt", "b.db", "folder", "parquet"))
    text.write_text("SQLite format 2")
    run_sql(rocpd, "CREATE TABLE rocpd_string (id INTEGER, string TEXT)", "CREATE TABLE rocpd_info_node (id INTEGER)")
    folder.mkdir()
    nsys.write(other, "parquetdir", {"rank=1": [{"x": 1}], "CUPTI_ACTIVITY_KIND_KERNEL_copy": [{"x": 1}]})
    for path in (text, rocpd, folder, other, tmp_path / "absent.sqlite", tmp_path / "nul\x00name"):
        assert READER.sniff(path) is False


def test_a_file_with_nothing_behind_the_magic(tmp_path: Path) -> None:
    path = tmp_path / "short.sqlite"
    path.write_bytes(b"SQLite format 3\x00")
    assert not read_or_refuse(path)


def test_a_cut_export_is_still_known_as_one(sound: Path) -> None:
    # so that the error says what it is, instead of passing over the file
    path = sound.with_name("known.sqlite")
    path.write_bytes(sound.read_bytes()[:20_000])
    assert READER.sniff(path)
    with pytest.raises(UnreadableTraceError, match="damaged or cut short"):
        nsys.read(path)


def test_an_absent_file(tmp_path: Path) -> None:
    with pytest.raises(UnreadableTraceError, match="cannot be read"):
        nsys.read(tmp_path / "absent.sqlite")
