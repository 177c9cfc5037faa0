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
    """One recording: a file, or a folder where the format is one."""

    path: Path
    reader: str
    size: int


@dataclass(frozen=True)
class Findings:
    """Recordings to read, in path order; what cannot be read and why; how many files are no traces."""

    sources: list[Source]
    unreadable: list[UnreadableTraceError]
    others: int


def discover(paths: Sequence[Path]) -> Findings:
    """Look through files and folders, recursively, formats mixed.

    A file named by itself must be a recording; files in a folder that are none are only counted. Raises nothing:
    what is wrong is in the findings.
    """
    sources: dict[Path, Source] = {}
    unreadable: list[UnreadableTraceError] = []
    others = 0
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
            if reader is not None:
                sources.setdefault(candidate.resolve(), Source(candidate, reader.name, _size(candidate)))
            elif candidate == path:
                unreadable.append(
                    UnreadableTraceError(
                        f"{path}: not a trace that jitter reads", f"it reads {', '.join(sorted(readers()))}"
                    )
                )
            elif candidate.is_file():
                others += 1
    return Findings(sorted(sources.values(), key=lambda source: str(source.path)), unreadable, others)


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


def _size(path: Path) -> int:
    if path.is_file():
        return path.stat().st_size
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def _exported(report: Path) -> bool:
    return report.with_suffix(".sqlite").exists() or report.with_name(f"{report.stem}_pqtdir").exists()


def _export_first(report: Path) -> UnreadableTraceError:
    return UnreadableTraceError(
        f"{report}: an Nsight Systems report, not an export",
        f"run: nsys export -t sqlite --lazy=false -o '{report.with_suffix('.sqlite')}' '{report}'",
    )
