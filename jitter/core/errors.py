"""Errors with a message for people: what is wrong with which file, and what to do about it."""

from enum import IntEnum
from pathlib import Path


class ExitCode(IntEnum):
    """Exit codes of the command; scripts rely on them."""

    DONE = 0
    GATE_EXCEEDED = 1
    USAGE = 2
    UNUSABLE_INPUT = 3
    BUG = 70
    INTERRUPTED = 130
    TERMINATED = 143


class JitterError(Exception):
    """An error that the user can act on: `message` states what is wrong, `hint` what to do."""

    exit_code = ExitCode.UNUSABLE_INPUT
    reason = "unusable"
    """Why a recording with this error is left out, in a word of its record."""
    files = 1
    """How many files it is about, if it is about files."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}; {self.hint}" if self.hint else self.message

    def __reduce__(self) -> tuple[type["JitterError"], tuple[str, str | None]]:
        """Keep the hint when the error is sent from a worker process."""
        return type(self), (self.message, self.hint)


class UnreadableTraceError(JitterError):
    """A trace file that no reader accepts, or that is damaged."""


class UnknownRankError(JitterError):
    """A recording whose rank is unknown, or is also that of another recording."""

    reason = "unknown rank"


class RejectedForAnotherError(UnknownRankError):
    """A recording that is left out in favour of others. Errors with the same `cause` are told once."""

    reason = "another recording"
    cause = ""


class LakeError(JitterError):
    """A lake that is missing, empty, damaged or of another version."""


class DamagedFileError(LakeError):
    """A file of a lake that is missing, cut or damaged."""

    def __init__(self, path: Path, what: str, hint: str) -> None:
        """Say `what` is wrong with the file at `path`."""
        super().__init__(f"{path}: {what}", hint)
        self.path, self.what = path, what

    def __reduce__(self) -> tuple[type["DamagedFileError"], tuple[Path, str, str | None]]:  # type: ignore[override]
        return type(self), (self.path, self.what, self.hint)


class FullDiskError(JitterError):
    """A disk without space, on which no other source would fit either."""


class UsageError(JitterError):
    """A request that is not valid for the given data."""

    exit_code = ExitCode.USAGE


def reason_of(error: BaseException) -> str:
    """Return what an error says: the operating system's words, without number and path, else the first line of text."""
    words = error.strerror if isinstance(error, OSError) else None
    return words or next(iter(str(error).splitlines()), "") or type(error).__name__
