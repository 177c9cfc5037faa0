"""The lake on disk: where things lie, and how they get there whole or not at all.

Files are written into a staging folder under `LAKE/.staging` and renamed into place. A source's record is written
last, so a source without a record did not happen: running ingest again does it again, with the same result.
"""

import json
import os
import shutil
import socket
import uuid
from collections.abc import Iterable
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from jitter.errors import LakeError
from jitter.lake_paths import kernels_file
from jitter.records import SourceRecord, decode, encode
from jitter.schema import HOST, KERNELS

_MARK = "jitter.json"
_LAYOUT_VERSION = 1


def write_kernels(path: Path, rows: pa.Table) -> None:
    """Write one rank's step (`schema.KERNELS`) as one row group."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(rows.cast(KERNELS), path, compression="zstd", write_statistics=False, store_schema=False)


def write_host(path: Path, rows: pa.Table) -> None:
    """Write what a host did (`schema.HOST`)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(rows.cast(HOST), path, compression="zstd", store_schema=False)


class LakeFolder:
    """A lake's folder: its records, and the way into it."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @property
    def sources(self) -> Path:
        """Where the records lie."""
        return self.root / "sources"

    def create(self) -> None:
        """Make the folder a lake, or accept it if it is one; raise `LakeError` if it is something else."""
        if self.root.exists() and not self.root.is_dir():
            raise LakeError(f"{self.root}: is a file", "name another place with -o")
        if self.root.exists() and not (self.root / _MARK).exists() and any(self.root.iterdir()):
            raise LakeError(f"{self.root}: is not empty and no lake of jitter's", "name another place with -o")
        self.sources.mkdir(parents=True, exist_ok=True)
        (self.root / "kernels").mkdir(exist_ok=True)
        if not (self.root / _MARK).exists():
            _write(self.root / _MARK, json.dumps({"layout_version": _LAYOUT_VERSION}).encode())

    def require(self) -> None:
        """Raise `LakeError` unless this is a lake of a layout that this version reads."""
        mark = self.root / _MARK
        if not mark.exists():
            raise LakeError(f"{self.root}: no lake here", f"make one: jitter ingest TRACES -o {self.root}")
        try:
            found = json.loads(mark.read_bytes())["layout_version"]
        except (ValueError, KeyError, TypeError):
            raise LakeError(f"{mark}: is damaged", "ingest the traces again into another lake") from None
        if found != _LAYOUT_VERSION:
            raise LakeError(
                f"{self.root}: was written by another version of jitter (layout {found}, this one reads "
                f"{_LAYOUT_VERSION})",
                "ingest the traces again into another lake",
            )

    def records(self) -> list[SourceRecord]:
        """All records, by name. One that cannot be read counts as absent: its source is ingested again."""
        found = []
        for path in sorted(self.sources.glob("*.json")):
            try:
                found.append(decode(path.read_bytes()))
            except (msgspec.DecodeError, OSError):
                continue
        return found

    def write_record(self, record: SourceRecord) -> None:
        """Put a record in place of the one of the same name."""
        _write(self.sources / record.name, encode(record))

    def staging(self) -> Path:
        """Make a folder on the lake's file system for one run's unfinished work."""
        folder = self.root / ".staging" / f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        folder.mkdir(parents=True)
        return folder

    def publish(self, staged: Path, moves: Iterable[tuple[Path, Path]], record: SourceRecord) -> None:
        """Move staged files to their places (pairs of paths, from `staged` and from the root), then the record.

        The places are noted first, so that a run killed between the moves leaves nothing unaccounted for.
        """
        pairs = list(moves)
        _write(
            staged / "moves.json",
            json.dumps({"record": record.name, "places": [str(p) for _, p in pairs]}).encode(),
        )
        for folder in {place.parent for _, place in pairs}:
            (self.root / folder).mkdir(parents=True, exist_ok=True)
        for source, place in pairs:
            (staged / source).replace(self.root / place)
        self.write_record(record)
        (staged / "moves.json").unlink()

    def remove(self, places: Iterable[Path]) -> None:
        """Remove files of the lake (from its root) and the folders they leave empty."""
        for place in places:
            path = self.root / place
            path.unlink(missing_ok=True)
            for folder in path.parents:
                if folder == self.root or not folder.exists() or any(folder.iterdir()):
                    break
                folder.rmdir()

    def sweep(self) -> None:
        """Clear away what runs that died on this machine left unfinished."""
        staging = self.root / ".staging"
        if not staging.exists():
            return
        for run in staging.iterdir():
            host, pid, _ = run.name.rsplit("-", 2)
            if host != socket.gethostname() or _alive(int(pid)):
                continue
            for note in run.rglob("moves.json"):
                self._undo(note)
            shutil.rmtree(run, ignore_errors=True)
        if not any(staging.iterdir()):
            staging.rmdir()

    def _undo(self, note: Path) -> None:
        moves = json.loads(note.read_bytes())
        owned = {
            str(kernels_file(step.key, record.rank))
            for record in self.records()
            if record.rank is not None
            for step in record.steps
        }
        if not (self.sources / moves["record"]).exists():
            self.remove(Path(place) for place in moves["places"] if place not in owned)


def _write(path: Path, content: bytes) -> None:
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
    temporary.write_bytes(content)
    temporary.replace(path)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
