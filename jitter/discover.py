"""What under the given paths is a recording, and of which format."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from jitter.errors import UnreadableTraceError
from jitter.readers import Reader, readers

_REPORTS = {".nsys-rep", ".qdrep"}


@dataclass(frozen=True)
class Source:
    """One recording: a file, a folder where the format is one, or a file with those that belong to it."""

    path: Path
    reader: str
    size: int
    """Bytes of all its files."""
    files: tuple[Path, ...]
    """What is read: the path itself and the files that belong to it."""
    changed_ns: int
    """When it was last changed: of a folder, any of its files."""


@dataclass(frozen=True)
class Findings:
    """Recordings to read, in path order; what cannot be read and why; how many files are no traces."""

    sources: list[Source]
    unreadable: list[UnreadableTraceError]
    others: int


def discover(paths: Sequence[Path]) -> Findings:
    """Look through files and folders, recursively, formats mixed.

    A file named by itself must be a recording or part of one; files in a folder that are none are only counted, and
    of one recording in several forms one is taken. Raises nothing: what is wrong is in the findings.
    """
    sources: dict[Path, Source] = {}
    belonging: set[Path] = set()
    others: dict[Path, bool] = {}
    unreadable: list[UnreadableTraceError] = []
    for path in paths:
        if not path.exists():
            unreadable.append(UnreadableTraceError(f"{path}: no such file or directory", "check the path"))
            continue
        for candidate in _candidates(path):
            if candidate.suffix in _REPORTS:
                if not _exported(candidate):
                    unreadable.append(_export_first(candidate))
                continue
            reader = _reader_of(candidate)
            if reader is None:
                if candidate.is_file():
                    others[candidate] = others.get(candidate, False) or candidate == path
                continue
            files = reader.files(candidate)
            sources.setdefault(candidate.resolve(), _source(candidate, reader, files.read))
            belonging |= {file.resolve() for file in (*files.read[1:], *files.spare)}
    strangers = [path for path in others if path.resolve() not in belonging]
    unreadable += [_no_trace(path) for path in strangers if others[path]]
    alone = [source for path, source in sources.items() if path not in belonging]
    counted = sum(not others[path] for path in strangers)
    return Findings(sorted(alone, key=lambda source: str(source.path)), unreadable, counted)


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
        if (here / "sources").is_dir() and (here / "kernels").is_dir():
            folders.clear()  # a lake is no trace
            continue
        for name in sorted(files):
            if not name.startswith("."):
                yield here / name


def _reader_of(path: Path) -> Reader | None:
    return next((reader for reader in readers().values() if reader.sniff(path)), None)


def _source(path: Path, reader: Reader, files: tuple[Path, ...]) -> Source:
    inner = [file for one in files for file in ([one] if one.is_file() else one.rglob("*")) if file.is_file()]
    states = [file.stat() for file in inner]
    changed_ns = max((state.st_mtime_ns for state in states), default=0)
    return Source(path, reader.name, sum(state.st_size for state in states), files, changed_ns)


def _no_trace(path: Path) -> UnreadableTraceError:
    return UnreadableTraceError(f"{path}: not a trace that jitter reads", f"it reads {', '.join(sorted(readers()))}")


def _exported(report: Path) -> bool:
    return report.with_suffix(".sqlite").exists() or report.with_name(f"{report.stem}_pqtdir").exists()


def _export_first(report: Path) -> UnreadableTraceError:
    return UnreadableTraceError(
        f"{report}: an Nsight Systems report, not an export",
        f"run: nsys export -t sqlite --lazy=false -o '{report.with_suffix('.sqlite')}' '{report}'",
    )
