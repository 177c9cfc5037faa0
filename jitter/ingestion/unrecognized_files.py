"""Files that no reader accepts: which of them are probably traces, and the message for each."""

import shlex
import sqlite3
from contextlib import closing
from pathlib import Path

from jitter.core.errors import UnreadableTraceError

_REPORTS = {".nsys-rep", ".qdrep"}


def is_nsys_report(path: Path) -> bool:
    """Return whether the file is an Nsight Systems report, which only nsys can read."""
    return path.suffix in _REPORTS


def explain_report(report: Path, named: bool) -> UnreadableTraceError | None:
    """Return an error with the export command; None if an export exists and the user did not name this file."""
    export = next((path for path in _exports(report) if path.exists()), None)
    if export is None:
        target = shlex.quote(str(report.with_suffix(".sqlite")))
        return UnreadableTraceError(
            f"{report}: an Nsight Systems report, not an export",
            f"run: nsys export -t sqlite --lazy=false -o {target} {shlex.quote(str(report))}",
        )
    if named:
        return UnreadableTraceError(f"{report}: an Nsight Systems report, not an export", f"its export is {export}")
    return None


def explain_unrecognized(path: Path, named: bool, formats: str) -> UnreadableTraceError | None:
    """Return the error for a file that no reader accepts; None if the file is probably no trace.

    `named`: the user named this file itself, so it was meant to be a trace. `formats` lists the supported formats.
    """
    try:
        with path.open("rb"):
            pass
    except OSError as error:
        return UnreadableTraceError(f"{path}: {error.strerror or error}", "make it readable")
    if path.suffix == ".sqlite" and not _is_database(path):
        return UnreadableTraceError(
            f"{path}: damaged beyond reading ({path.stat().st_size:,} bytes, no list of tables)",
            "copy it again, or export the report again: nsys export --type sqlite REPORT.nsys-rep",
        )
    return UnreadableTraceError(f"{path}: not a trace that jitter reads", f"it reads {formats}") if named else None


def _is_database(path: Path) -> bool:
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)) as connection:
            return bool(connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0])
    except sqlite3.Error:
        return False


def _exports(report: Path) -> tuple[Path, Path]:
    return report.with_suffix(".sqlite"), report.with_name(f"{report.stem}_pqtdir")
