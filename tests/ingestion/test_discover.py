"""The recordings under a path, and the reasons given for the other files."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from jitter.ingestion.discovery.discover import discover


@pytest.fixture(scope="module")
def export() -> Callable[[Path], Path]:
    """Make the smallest database that looks like an export."""

    def make(path: Path) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("CREATE TABLE StringIds (id INTEGER, value TEXT)")
            connection.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER)")
            connection.execute("CREATE TABLE TARGET_INFO_GPU (id INTEGER)")
            connection.commit()
        return path

    return make


def test_recursively_in_path_order_each_once(tmp_path: Path, export: Callable[[Path], Path]):
    made = [export(tmp_path / name) for name in ("b/deep/er/2.sqlite", "a/1.db", "c.sqlite")]
    (tmp_path / "a" / "link.sqlite").symlink_to(made[2])
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / ".hidden").write_text("x")
    found = discover([tmp_path, made[2], tmp_path / "b"])
    assert [s.path.name for s in found.sources] == ["1.db", "2.sqlite", "c.sqlite"]
    assert found.unreadable == []
    assert found.others == 1
    assert [s.size for s in found.sources] == [s.path.stat().st_size for s in found.sources]


def test_named_files_must_be_traces(tmp_path: Path, export: Callable[[Path], Path]):
    notes = tmp_path / "notes.txt"
    notes.write_text("x")
    found = discover([notes, tmp_path / "nothing", export(tmp_path / "1.sqlite")])
    assert [(path.name, str(error).split(";")[0]) for path, error in found.unreadable] == [
        ("nothing", f"{tmp_path / 'nothing'}: no such file or directory"),
        ("notes.txt", f"{notes}: not a trace that jitter reads (text, and neither JSON nor CSV of a profiler)"),
    ]
    assert len(found.sources) == 1
    assert discover([tmp_path]).unreadable == []


def test_other_databases_are_nobodys_concern_but_broken_ones_are_said(tmp_path: Path):
    with closing(sqlite3.connect(tmp_path / "mlflow.sqlite")) as connection:
        connection.execute("CREATE TABLE runs (id INTEGER)")
        connection.commit()
    (tmp_path / "empty.sqlite").touch()
    (tmp_path / "text.sqlite").write_text("not a database" * 100)
    found = discover([tmp_path])
    assert sorted(path.name for path, _ in found.unreadable) == ["empty.sqlite", "text.sqlite"]
    assert all("damaged beyond reading" in str(error) for _, error in found.unreadable)
    assert found.others == 1
    assert {p.name for p in tmp_path.iterdir()} == {"mlflow.sqlite", "empty.sqlite", "text.sqlite"}  # no -journal, -shm


@pytest.mark.parametrize("suffix", [".nsys-rep", ".qdrep"])
def test_reports(tmp_path: Path, export: Callable[[Path], Path], suffix: str):
    report = tmp_path / f"report1{suffix}"
    report.write_bytes(b"x")
    ((path, error),) = discover([tmp_path]).unreadable
    assert path == report
    assert f"nsys export -t sqlite --lazy=false -o {tmp_path / 'report1.sqlite'} {report}" in str(error)
    export(tmp_path / "report1.sqlite")
    found = discover([tmp_path])
    assert found.unreadable == []
    assert [s.path.name for s in found.sources] == ["report1.sqlite"]
    ((path, error),) = discover([report]).unreadable
    assert str(tmp_path / "report1.sqlite") in str(error)
    (tmp_path / "report1.sqlite").unlink()
    (tmp_path / "report1_pqtdir").mkdir()
    assert discover([tmp_path]).unreadable == []


def test_broken_links_and_odd_names(tmp_path: Path, export: Callable[[Path], Path]):
    (tmp_path / "gone.sqlite").symlink_to(tmp_path / "nowhere")
    odd = export(tmp_path / "50% of: 'x' #1?.sqlite")
    found = discover([tmp_path])
    assert [s.path for s in found.sources] == [odd]


def test_a_link_to_a_folder_is_not_followed_and_named(tmp_path: Path, export: Callable[[Path], Path]):
    export(tmp_path / "elsewhere" / "rank0.sqlite")
    (tmp_path / "traces").mkdir()
    (tmp_path / "traces" / "latest").symlink_to(tmp_path / "elsewhere")
    found = discover([tmp_path / "traces"])
    assert (found.sources, found.others) == ([], 0)
    assert found.notes == [
        f"{tmp_path}/traces/latest: a link to a folder, which is not followed: name the folder itself"
    ]
    assert len(discover([tmp_path / "traces" / "latest"]).sources) == 1
