"""Export of Nsight Systems reports with the user's `nsys` into a cache folder.

The cache is keyed by the report's content, so that an unchanged report is exported once, wherever it lies.
"""

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

from jitter.core.compression import MOST_RATIO, SMALL_BYTES
from jitter.core.errors import JitterError, UnreadableTraceError, UsageError, reason_of
from jitter.core.files import cache_folder
from jitter.readers.columns import Progress

_EXPECTED_RATIO: Final = 5
"""Expected bytes of an SQLite export per byte of its report; so much space must be free before an export begins."""
_KEPT_S: Final = 7 * 24 * 3600
"""Exports that no ingest has used for this time are removed when another one is made."""
_ABANDONED_S: Final = 3600
"""An unfinished export that has not grown for this time is that of a process that was killed."""
_POLL_S: Final = 0.1
_OUTPUT_BYTES: Final = 1 << 16
"""Bytes at the end of nsys' output in which its error is looked for."""
_MOST_CHARACTERS: Final = 300
_PR_SET_PDEATHSIG: Final = 1


class NsysExporter(NamedTuple):
    """The program that exports reports, and where exports go."""

    program: Path
    folder: Path
    """In the cache of the user who ingests: a worker process may have another environment."""


def find_nsys(given: str | os.PathLike[str] | None) -> NsysExporter | None:
    """Return how reports are exported, by the given `nsys` or that on PATH; None without one.

    Raises `UsageError` if the given one cannot run.
    """
    program = shutil.which("nsys" if given is None else Path(given).expanduser().absolute())
    if program is None and given is not None:
        raise UsageError(f"--nsys {os.fspath(given)} is not a program", "give the path of the nsys command")
    return None if program is None else NsysExporter(Path(program).absolute(), cache_folder("nsys-exports"))


@contextmanager
def open_export(
    report: Path, digest: str, nsys: NsysExporter, advance: Callable[[int], None]
) -> Iterator[tuple[Path, Callable[[int], None]]]:
    """Yield the SQLite export of a report whose content has this digest, and a function for bytes read of the export.

    `advance` is called with bytes of the report: half of them for the export, the others for its reading. Errors of the
    block name the report. Raises `UnreadableTraceError` with nsys' own error, and `JitterError` if the cache cannot be
    written or has too little space.
    """
    size = report.stat().st_size
    exporting = Progress(size // 2, advance, _EXPECTED_RATIO * size)
    export = _exported(report, digest, nsys, exporting)
    exporting.finish()
    reading = Progress(size - size // 2, advance, export.stat().st_size)
    try:
        yield export, reading.rows
    except JitterError as error:
        if isinstance(error, UnreadableTraceError):  # made again next time: the export may be damaged
            export.unlink(missing_ok=True)
        raise type(error)(error.message.replace(str(export), str(report)), error.hint) from error


def _exported(report: Path, digest: str, nsys: NsysExporter, progress: Progress) -> Path:
    """Return the export; make it unless the cache holds it."""
    folder = nsys.folder
    export = folder / f"{digest}.sqlite"
    try:
        if export.is_file():
            os.utime(export)
            return export
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        _remove_old(folder)
        size = report.stat().st_size
        # the name states the size of the report, for other exports' check of the space
        with tempfile.TemporaryDirectory(prefix=f"{size}-", dir=folder, ignore_cleanup_errors=True) as unfinished:
            _check_space(report, folder)
            target = Path(unfinished, "export.sqlite")
            _run(nsys.program, report.absolute(), target, size, progress)
            target.replace(export)
    except OSError as error:
        raise JitterError(
            f"{report}: its export cannot be written into {folder} ({reason_of(error)})",
            "set XDG_CACHE_HOME to a folder with space, or export it yourself beside the report",
        ) from None
    return export


def _check_space(report: Path, folder: Path) -> None:
    """Raise `JitterError` unless the disk has space for all unfinished exports, that of `report` included."""
    needed = 0
    for export in folder.iterdir():
        size = export.name.partition("-")[0]
        with suppress(OSError):  # other processes finish theirs meanwhile
            if size.isdecimal() and export.is_dir() and time.time() - _last_change(export) < _ABANDONED_S:
                needed += max(0, _EXPECTED_RATIO * int(size) - _bytes_in(export))
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise JitterError(
            f"{report}: its export needs about {needed / 1e9:,.3f} GB, other exports that run now included, and "
            f"{folder} has {free / 1e9:,.3f} GB free",
            "free space on that disk, or set XDG_CACHE_HOME to a folder on another disk",
        )


def _remove_old(folder: Path) -> None:
    now_s = time.time()
    for path in folder.iterdir():
        with suppress(OSError):  # other processes remove them too
            if path.is_dir() and not path.is_symlink():
                if now_s - _last_change(path) > _ABANDONED_S:
                    shutil.rmtree(path)
            elif now_s - path.lstat().st_mtime > _KEPT_S:
                path.unlink()


def _last_change(folder: Path) -> float:
    return max((path.lstat().st_mtime for path in (folder, *folder.iterdir())), default=0.0)


def _bytes_in(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.iterdir())


def _run(nsys: Path, report: Path, target: Path, size: int, progress: Progress) -> None:
    """Run `nsys export`; raise `UnreadableTraceError` if it fails or writes suspiciously much."""
    words = [str(nsys), "export", "--type", "sqlite", "--lazy=false", "--output", str(target), str(report)]
    log_path = target.with_name("output")
    with log_path.open("wb") as log:
        try:
            process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=target.parent,
                # a worker is killed when the ingest is interrupted, and nsys must end with it
                preexec_fn=_end_with_parent if sys.platform == "linux" else None,  # noqa: PLW1509
            )
        except OSError as error:
            raise JitterError(f"{report}: {nsys} cannot be run ({reason_of(error)})", "give its path: --nsys") from None
        most = 0
        try:
            while process.poll() is None:
                time.sleep(_POLL_S)
                written = _bytes_in(target.parent)
                if written > max(MOST_RATIO * size, SMALL_BYTES):
                    raise UnreadableTraceError(
                        f"{report}: its export grows to more than {written:,} bytes, over {MOST_RATIO} times its size",
                        "export it yourself if that is right, and give the export",
                    )
                progress.rows(max(0, written - most))
                most = max(most, written)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    if process.returncode != 0 or not target.is_file():
        raise UnreadableTraceError(
            f"{report}: nsys cannot export it: {_error_line(log_path, process.returncode)}",
            "record again, or give an nsys that is as new as the one that recorded it: --nsys PATH",
        )


def _error_line(output: Path, status: int) -> str:
    """Return the line of nsys' output that states its error, else its last line, else its exit status."""
    with output.open("rb") as file:
        file.seek(max(0, output.stat().st_size - _OUTPUT_BYTES))
        text = file.read(_OUTPUT_BYTES).decode("utf-8", "replace")
    lines = [line for part in text.splitlines() if (line := " ".join(part.split()))]
    message = next((line for line in lines if "error" in line.lower()), lines[-1] if lines else "")
    if not message:
        return f"killed by {signal.Signals(-status).name}" if status < 0 else f"exit status {status} without a message"
    return message[:_MOST_CHARACTERS]


# loaded before the fork: the child of a process with threads may load nothing
_libc: Final = ctypes.CDLL(None) if sys.platform == "linux" else None


def _end_with_parent() -> None:
    """Let the kernel kill this process when the thread that started it ends."""
    if _libc is not None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
