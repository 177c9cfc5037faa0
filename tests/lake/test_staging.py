"""Places that change: what becomes of them when the run that changes them ends in the middle, or has refused."""

from pathlib import Path

import pytest

from jitter.core.errors import LakeError, UsageError
from jitter.lake import staging
from jitter.lake.folder import LakeFolder

NEW, OTHER = Path("kernels/step=1/rank=0.parquet"), Path("kernels/step=2/rank=0.parquet")


@pytest.fixture
def lake(tmp_path: Path) -> LakeFolder:
    folder = LakeFolder(tmp_path / "lake")
    folder.create()
    return folder


def put(lake: LakeFolder, *places: Path) -> None:
    for place in places:
        (lake.root / place).parent.mkdir(parents=True, exist_ok=True)
        (lake.root / place).write_bytes(b"rows")


def there(lake: LakeFolder) -> list[Path]:
    return sorted(path.relative_to(lake.root) for path in (lake.root / "kernels").rglob("*.parquet"))


def change(lake: LakeFolder, place: Path, ends: BaseException | None = None) -> None:
    with lake.journal([], [place]):
        put(lake, place)
        if ends is not None:
            raise ends


@pytest.mark.parametrize("ends", [OSError("No space left on device"), KeyboardInterrupt(), MemoryError()])
def test_what_was_put_there_is_removed_when_the_run_ends_in_the_middle(lake: LakeFolder, ends: BaseException):
    put(lake, OTHER)
    with pytest.raises(type(ends)):
        change(lake, NEW, ends)
    assert there(lake) == [NEW, OTHER]
    lake.close()
    assert there(lake) == [OTHER]
    assert not (lake.root / ".staging").exists()


def test_who_refuses_removes_nothing(lake: LakeFolder):
    """The file is that of another run, which is about to write its record."""
    with pytest.raises(UsageError):
        change(lake, NEW, UsageError("no", "ask otherwise"))
    lake.close()
    assert there(lake) == [NEW]


def test_what_is_done_is_not_undone(lake: LakeFolder):
    """Neither when the run ends well, nor when it ends in the middle of the next change."""
    change(lake, NEW)
    with pytest.raises(OSError, match="full"):
        change(lake, OTHER, OSError("full"))
    lake.close()
    assert there(lake) == [NEW]
    change(lake, NEW)
    lake.close()
    assert there(lake) == [NEW]


def test_who_ends_clears_away_for_those_who_died(lake: LakeFolder):
    """A run of a process that is no more, which was cut off in its note, and one in its change."""

    def died(name: str, note: str) -> None:
        mine = staging.new_run_folder(lake.root).name
        place, _, token = mine.rpartition("-")
        run = lake.root / ".staging" / f"{place.rpartition('-')[0]}-{2**22 + 1}-{token[:-1]}{name}"
        run.mkdir(parents=True)
        (run / "places.json").write_text(note)

    put(lake, NEW, OTHER)
    died("a", f'["{NEW}"')
    died("b", f'["{OTHER}"]')
    lake.close()
    assert there(lake) == [NEW]
    assert not (lake.root / ".staging").exists()


def test_a_folder_that_cannot_be_made_is_refused_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def mkdir(path: Path, **options: bool) -> None:
        raise FileNotFoundError(2, "No such file or directory", str(path))

    monkeypatch.setattr(Path, "mkdir", mkdir)  # as in /proc
    with pytest.raises(LakeError, match="lake: cannot be made here: No such file or directory"):
        LakeFolder(tmp_path / "lake").create()
