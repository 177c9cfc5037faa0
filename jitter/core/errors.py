"""What can go wrong, said to a person: what is wrong with which file, and what to do about it."""

from enum import IntEnum


class ExitCode(IntEnum):
    """What the command returns to the shell; scripts rely on these."""

    DONE = 0
    GATE_EXCEEDED = 1
    USAGE = 2
    UNUSABLE_INPUT = 3
    BUG = 70
    INTERRUPTED = 130


class JitterError(Exception):
    """An error a person can act on: one line of what is wrong, one of what to do."""

    exit_code = ExitCode.UNUSABLE_INPUT

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}; {self.hint}" if self.hint else self.message

    def __reduce__(self) -> tuple[type["JitterError"], tuple[str, str | None]]:
        """Survive the way back from a worker process with the hint."""
        return type(self), (self.message, self.hint)


class UnreadableTraceError(JitterError):
    """A file that no reader can make sense of, or that is damaged beyond use."""


class UnknownRankError(JitterError):
    """A rank that cannot be told, or that several sources claim."""


class LakeError(JitterError):
    """A lake that is missing, empty or not ours."""


class UsageError(JitterError):
    """A request that the given data cannot answer as it was put."""

    exit_code = ExitCode.USAGE
