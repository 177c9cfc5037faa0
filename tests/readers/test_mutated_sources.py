"""Mutated sources of every reader: each is read or refused in one line, never with a bug or a traceback."""

import random
import shutil
from pathlib import Path

import pytest

import jitter
from tests.readers.test_contract import SOURCES


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: make(tmp_path_factory.mktemp("source")) for name, (_, make) in SOURCES.items()}


def mutate(content: bytes, pick: random.Random) -> bytes:
    """Flip bits, set, remove, insert and overwrite bytes, and sometimes cut the end; seldom in unused space."""
    changed = bytearray(content)
    tries = pick.choice((0, 8))
    for _ in range(pick.choice((1, 1, 2, 8, 64))):
        if not changed:
            break
        at = pick.randrange(len(changed))
        for _ in range(tries):
            at = at if changed[at] else pick.randrange(len(changed))
        kind = pick.random()
        if kind < 0.5:
            changed[at] ^= 1 << pick.randrange(8)
        elif kind < 0.7:
            changed[at] = pick.randrange(256)
        elif kind < 0.8:
            del changed[at : at + pick.randrange(1, 64)]
        elif kind < 0.9:
            changed[at:at] = pick.randbytes(pick.randrange(1, 16))
        else:
            changed[at : at + 8] = b"\xff" * 8
    return bytes(changed[: pick.randrange(len(changed) + 1)]) if pick.random() < 0.1 else bytes(changed)


@pytest.mark.parametrize("name", SOURCES)
def test_mutated(name: str, sources: dict[str, Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    source = sources[name]
    for seed in range(12):
        pick = random.Random(f"{name} {seed}")
        copy = tmp_path / f"{seed}"
        shutil.copytree(source.parent, copy)
        files = sorted(path for path in copy.rglob("*") if path.is_file())
        target = pick.choice(files) if source.is_dir() or pick.random() < 0.3 else copy / source.name
        target.write_bytes(mutate(target.read_bytes(), pick))
        report = jitter.ingest(copy, tmp_path / f"lake{seed}", rank=0)
        for error in report.refused:
            assert "bug" not in str(error)
            assert "\n" not in str(error)
        assert report.added or report.refused or report.other_files
    assert capfd.readouterr() == ("", "")
