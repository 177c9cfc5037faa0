"""Discovery: find the recordings under given paths and the reader of each; examine each file in isolation."""

import os
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from jitter.core.errors import JitterError, UnreadableTraceError, reason_of
from jitter.core.files import modified_ns
from jitter.core.formatting import format_count, format_some
from jitter.ingestion.discovery.archives import is_trace_archive, unpack
from jitter.ingestion.discovery.unrecognized_files import UnrecognizedFiles, is_report_without_export
from jitter.ingestion.nsys_export import NsysExporter
from jitter.lake import staging
from jitter.readers import ReaderError, SourceReader, describe_error, files_in, readers

_NSYS: Final = "nsys"
"""The reader of exported reports."""
_TRAINING: Final = ".training_step."
_EVALUATION: Final = re.compile(r"\.(?:validation|test|predict)_step\.")
"""In names such as `fit-NAME-RANK-[Strategy]DDPStrategy.validation_step.TIME.pt.trace.json` of Lightning's profiler."""


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
    nsys: NsysExporter | None = None
    """The program that exports this report; None if the files are read as they are."""


@dataclass(frozen=True)
class DiscoveredFiles:
    """The result of a discovery."""

    sources: list[Source]
    """Recordings to read, in path order."""
    unreadable: list[tuple[Path, JitterError]]
    """Paths that cannot be read, with the error."""
    others: int
    """Number of files that are neither traces nor logs."""
    notes: list[str] = field(default_factory=list)
    """Further messages for the user: readers that failed, files of a known kind that jitter does not read."""
    logs: list[Path] = field(default_factory=list)
    """Logs of the job, in path order."""


def discover(paths: Sequence[Path], nsys: NsysExporter | None = None) -> DiscoveredFiles:
    """Search files and folders recursively for recordings of all formats.

    A path that is a file must be a recording or part of one. Files in folders that are no traces are only counted,
    unless they look like damaged traces. Of one recording in several forms one is taken. Reports of Nsight Systems
    without an export beside them are recordings if `nsys`, which exports them, is given. Raises nothing: errors are in
    the result. Only regular files are opened.
    """
    search = _Search(nsys)
    for path in paths:
        search.add(path)
    return search.result()


class _Search:
    """One discovery: collects sources, errors and unrecognized files."""

    def __init__(self, nsys: NsysExporter | None) -> None:
        self._nsys = nsys
        self._sources: dict[Path, Source] = {}
        self._companions: set[Path] = set()
        self._read: set[Path] = set()
        self._logs: dict[Path, Path] = {}
        self._others: dict[Path, bool] = {}
        """Files that no reader accepts, and whether the user named them."""
        self._failures: dict[Path, JitterError] = {}
        """Errors of readers that examined one."""
        self._errors: dict[Path, JitterError] = {}
        self._broken: dict[str, ReaderError] = {}
        self._sniff_errors: dict[str, list[str]] = {}
        self._notes: list[str] = []
        self._links: list[Path] = []
        self._broken_links: list[Path] = []

    def add(self, path: Path, *, is_member: bool = False) -> None:
        """Search one path; an archive in an archive (`is_member`) is not unpacked."""
        try:
            mode = path.stat().st_mode
        except OSError as error:
            missing = isinstance(error, FileNotFoundError)
            reason = "no such file or directory" if missing else reason_of(error)
            self._refuse(path, reason, "check the path")
            return
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            kind = "a pipe" if stat.S_ISFIFO(mode) else "a socket" if stat.S_ISSOCK(mode) else "a device"
            self._refuse(path, f"{kind}, not a file", "write it to a file first")
        elif _is_lake(path):
            self._refuse(path, "is a lake, not a trace", "give the folder of the traces")
        else:
            for candidate, reader in self._candidates(path):
                if reader is not None:
                    self._add_source(candidate, reader)
                elif not _is_regular(candidate):
                    continue
                elif self._nsys is not None and is_report_without_export(candidate):
                    self._add_source(candidate, readers()[_NSYS], self._nsys)
                elif not is_member and is_trace_archive(candidate, named=candidate == path):
                    self._add_archive(candidate)
                elif _is_utf8(candidate) and _is_log(candidate):
                    self._logs.setdefault(candidate.resolve(), candidate)
                else:
                    self._others[candidate] = self._others.get(candidate, False) or candidate == path

    def _add_archive(self, path: Path) -> None:
        before = len(self._sources) + len(self._logs)
        try:
            unpacked = unpack(path)
        except JitterError as error:
            self._errors[path] = error
            return
        self.add(unpacked.folder, is_member=True)
        if unpacked.error is not None:
            self._errors[path] = unpacked.error
        elif len(self._sources) + len(self._logs) == before and not any(
            is_report_without_export(member) for member in unpacked.folder.rglob("*")
        ):
            self._refuse(path, "an archive without a trace that jitter reads", "give the traces")
        if unpacked.skipped:
            left_out = f"{format_count(unpacked.skipped, 'member')} left out"
            self._notes.append(f"{path}: {left_out}: links, devices, unsafe or repeated names")

    def result(self) -> DiscoveredFiles:
        """Return everything found; decide which unrecognized files are damaged traces."""
        alone = self._training([source for path, source in self._sources.items() if path not in self._companions])
        files = {path: named for path, named in self._others.items() if path.resolve() not in self._companions}
        recordings, formats = [source.path for source in alone], ", ".join(sorted(readers()))
        others = UnrecognizedFiles(files, self._failures, recordings, formats)
        notes = [*self._notes, *(str(error) for error in self._broken.values())]
        notes += [
            f"reader {name!r} failed to examine {format_some(paths, 1)}" for name, paths in self._sniff_errors.items()
        ]
        for links, what in (
            (self._links, "a link to a folder, which is not followed: name the folder itself"),
            (self._broken_links, "a link to a file that is not there: copy the file itself"),
        ):
            if links:
                suffix = f" (and {len(links) - 1} more)" if len(links) > 1 else ""
                notes.append(f"{_shown(links[0])}{suffix}: {what}")
        notes += others.notes()
        if not (alone or self._logs or others.errors or self._errors or notes):
            notes = others.describe()
        return DiscoveredFiles(
            sorted(alone, key=lambda source: str(source.path)),
            [*self._errors.items(), *others.errors.items()],
            others.others,
            notes,
            sorted(path for resolved, path in self._logs.items() if resolved not in self._read),
        )

    def _training(self, sources: list[Source]) -> list[Source]:
        """Return the sources without Lightning's recordings of other steps that lie beside those of training steps."""
        folders = {source.path.parent for source in sources if _TRAINING in source.path.name}
        kept: list[Source] = []
        others: list[Source] = []
        for source in sources:
            is_other = source.path.parent in folders and _EVALUATION.search(source.path.name)
            (others if is_other else kept).append(source)
        if others:
            paths = format_some([str(source.path) for source in others], 1)
            self._notes.append(
                f"{paths}: recorded by Lightning in steps that do not train, and left out; for these "
                "alone, name the files"
            )
        return kept

    def _candidates(self, path: Path) -> Iterator[tuple[Path, SourceReader | None]]:
        """Yield the path itself if it is a file or a folder recording, else the files and recordings under it."""
        reader = self._reader_of(path)
        if reader is not None or not path.is_dir():
            yield path, reader
            return
        for folder, folders, files in os.walk(path, onerror=self._note_unlistable):
            folders.sort()
            here = Path(folder)
            self._links += [here / name for name in folders if (here / name).is_symlink()]
            for name in list(folders):
                reader = self._reader_of(here / name)
                if reader is not None:
                    folders.remove(name)
                    yield here / name, reader
            if _is_lake(here) or here.name == staging.NAME:  # also of a lake that a cut ingest left without records
                folders.clear()
                continue
            for name in sorted(files):
                if not name.startswith("."):
                    if not os.path.exists(here / name) and os.path.islink(here / name):  # noqa: PTH110, PTH114 (never raise)
                        self._broken_links.append(here / name)
                    yield here / name, self._reader_of(here / name)

    def _refuse(self, path: Path, why: str, hint: str) -> None:
        self._errors[path] = UnreadableTraceError(f"{_shown(path)}: {why}", hint)

    def _note_unlistable(self, error: OSError) -> None:
        self._refuse(Path(error.filename), f"cannot be listed ({error.strerror})", "make it readable")

    def _reader_of(self, path: Path) -> SourceReader | None:
        """Return the first reader that accepts the path; a reader that fails on it is noted and skipped."""
        if not _is_regular(path) and not path.is_dir():
            return None
        for name in readers():
            try:
                reader = readers()[name]
            except ReaderError as error:
                self._broken.setdefault(name, error)
                continue
            try:
                if reader.sniff(path):
                    return reader
            except Exception as error:  # a reader may be of another package and raise anything
                self._sniff_errors.setdefault(name, []).append(f"{_shown(path)} ({describe_error(error)})")
                self._failures.setdefault(path, UnreadableTraceError(
                    f"{_shown(path)}: reader {name!r} failed to examine it: {describe_error(error)}",
                    "the file may be damaged: copy it again, or record again",
                ))  # fmt: skip
        return None

    def _add_source(self, path: Path, reader: SourceReader, nsys: NsysExporter | None = None) -> None:
        if not _is_utf8(path):
            self._refuse(path, "its name is not UTF-8, in which a lake keeps it", "rename it, or its folder")
            return
        try:
            files = reader.files(path)
            states = [file.stat() for file in files_in(*files.read)]
            size, changed_ns = sum(state.st_size for state in states), max(map(modified_ns, states), default=0)
            self._sources.setdefault(path.resolve(), Source(path, reader.name, size, files.read, changed_ns, nsys))
            self._companions |= {file.resolve() for file in (*files.read[1:], *files.spare)}
            self._read |= {file.resolve() for file in files.read}
        except OSError as error:
            self._refuse(path, f"cannot be read ({reason_of(error)})", "check the path and its permissions")
        except Exception as error:
            self._errors[path] = ReaderError(
                f"{path}: reader {reader.name!r} failed to list its files: {describe_error(error)}",
                "this is a bug of the reader: please report it",
            )


def _is_lake(folder: Path) -> bool:
    return (folder / "sources").is_dir() and (folder / "kernels").is_dir()


def _is_log(path: Path) -> bool:
    """Return whether a file holds a record of a log format, or may; an unreadable file, or a bomb, is none."""
    from jitter.logs import sniff  # imported here: most folders of traces hold no other files

    try:
        return sniff(path) is not None
    except (OSError, JitterError):
        return False
    except Exception:  # a bug of a parser, which the ingest of the log reports
        return True


def _is_regular(path: Path) -> bool:
    """Return whether the path is a regular file or a link to one; opening anything else may block."""
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except (OSError, ValueError):
        return False


def _is_utf8(path: Path) -> bool:
    try:
        str(path.resolve()).encode()
    except UnicodeEncodeError:
        return False
    return True


def _shown(path: Path) -> str:
    return str(path).encode("utf-8", "replace").decode()
