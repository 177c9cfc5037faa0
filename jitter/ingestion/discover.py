"""Discovery: find the recordings under given paths and the reader of each."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from jitter.core.errors import UnreadableTraceError
from jitter.ingestion.unrecognized_files import explain_report, explain_unrecognized, is_nsys_report
from jitter.readers import Reader, readers


@dataclass(frozen=True)
class Source:
    """One recording: a file, a folder (for folder formats), or a file with its companion files."""

    path: Path
    reader: str
    size: int
    """Bytes of all its files."""
    files: tuple[Path, ...]
    """The files to read: the path itself first, then its companion files."""
    changed_ns: int
    """Time of the last change of any of the files, in ns since 1970."""


@dataclass(frozen=True)
class DiscoveredFiles:
    """Recordings to read, in path order; what cannot be read and why; how many files are no traces."""

    sources: list[Source]
    unreadable: list[tuple[Path, UnreadableTraceError]]
    others: int


def discover(paths: Sequence[Path]) -> DiscoveredFiles:
    """Look through files and folders, recursively, formats mixed.

    A file named by itself must be a recording or part of one; files in a folder that are none are only counted, and
    of one recording in several forms one is taken. Raises nothing: what is wrong is in the findings.
    """
    sources: dict[Path, Source] = {}
    belonging: set[Path] = set()
    others: dict[Path, bool] = {}  # whether it was named by itself
    wrong: dict[Path, UnreadableTraceError | None] = {}
    for path in paths:
        if not path.exists():
            wrong[path] = UnreadableTraceError(f"{path}: no such file or directory", "check the path")
            continue
        if _is_lake(path):
            wrong[path] = UnreadableTraceError(f"{path}: is a lake, not a trace", "give the folder of the traces")
            continue
        for candidate in _candidates(path):
            reader = None if is_nsys_report(candidate) else _reader_of(candidate)
            if reader is None:
                if candidate.is_file():
                    others[candidate] = others.get(candidate, False) or candidate == path
                continue
            if not _is_utf8(candidate):
                wrong[candidate] = UnreadableTraceError(
                    f"{_shown(candidate)}: its name is not UTF-8, in which a lake keeps it", "rename it, or its folder"
                )
                continue
            files = reader.files(candidate)
            sources.setdefault(candidate.resolve(), _source(candidate, reader, files.read))
            belonging |= {file.resolve() for file in (*files.read[1:], *files.spare)}
    strangers = [path for path in others if path.resolve() not in belonging]
    formats = ", ".join(sorted(readers()))
    for path in strangers:
        named = others[path]
        wrong[path] = (
            explain_report(path, named) if is_nsys_report(path) else explain_unrecognized(path, named, formats)
        )
    unreadable = [(path, error) for path, error in wrong.items() if error is not None]
    alone = [source for path, source in sources.items() if path not in belonging]
    counted = len(wrong) - len(unreadable)
    return DiscoveredFiles(sorted(alone, key=lambda source: str(source.path)), unreadable, counted)


def _candidates(path: Path) -> Iterator[Path]:
    """The path itself if it is a file or a folder of a format; else what lies under it."""
    if path.is_file() or (path.is_dir() and _reader_of(path) is not None):
        yield path
        return
    for folder, folders, files in os.walk(path):
        folders.sort()
        here = Path(folder)
        recordings = [name for name in folders if _reader_of(here / name) is not None]
        for name in recordings:
            folders.remove(name)
            yield here / name
        if _is_lake(here):
            folders.clear()
            continue
        for name in sorted(files):
            if not name.startswith("."):
                yield here / name


def _is_lake(folder: Path) -> bool:
    return (folder / "sources").is_dir() and (folder / "kernels").is_dir()


def _is_utf8(path: Path) -> bool:
    try:
        str(path.resolve()).encode()
    except UnicodeEncodeError:
        return False
    return True


def _shown(path: Path) -> str:
    return str(path).encode("utf-8", "replace").decode()


def _reader_of(path: Path) -> Reader | None:
    return next((reader for reader in readers().values() if reader.sniff(path)), None)


def _source(path: Path, reader: Reader, files: tuple[Path, ...]) -> Source:
    inner = [file for one in files for file in ([one] if one.is_file() else one.rglob("*")) if file.is_file()]
    states = [file.stat() for file in inner]
    changed_ns = max((state.st_mtime_ns for state in states), default=0)
    return Source(path, reader.name, sum(state.st_size for state in states), files, changed_ns)
