"""Ctrl-C and SIGTERM: the command ends in one line, wherever it is. Imports nothing large: it is loaded first."""

import os
import signal
import sys
import time
from _thread import get_ident

TYPE_CHECKING = False  # importing typing takes several ms
if TYPE_CHECKING:
    from types import FrameType, TracebackType
    from typing import Any, Final

_SIGNALS: "Final" = (signal.SIGINT, signal.SIGTERM)
_PATIENCE_S: "Final" = 1.0
"""A signal that comes this much later than the first ends the process at once."""
_SOON_S: "Final" = 0.05
"""What could not be raised is tried again after this time."""
_IMPORT_SYSTEM: "Final" = "<frozen importlib._bootstrap>"
"""An exception between two of its lines can leave its lock held, for which all other threads wait forever."""


class Interrupted(KeyboardInterrupt):
    """The process was asked to end. A subclass: of `KeyboardInterrupt` itself Python may die by the signal."""


class DeferInterrupts:
    """A block in which a signal raises `Interrupted` only at the end of the block; in the main thread only.

    For code that an exception between any two of its lines would leave inconsistent, such as the start of a process.
    """

    def __enter__(self) -> None:
        if get_ident() == _main_thread:
            _deferrals.append(self)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: "TracebackType | None"
    ) -> None:
        if get_ident() == _main_thread:
            _deferrals.remove(self)
            if not _deferrals and _pending:
                _pending.clear()
                raise Interrupted


class TimeLimitReached(KeyboardInterrupt):
    """The time of a `time_limit` is over. A subclass of `KeyboardInterrupt`: libraries do not catch it."""


class TimeLimit:
    """A block that `TimeLimitReached` ends after some seconds; in the main thread only, without effect elsewhere."""

    def __init__(self, seconds: float | None) -> None:
        """Limit the block to this time; None: no limit."""
        self._seconds = seconds
        self._before: Any = None

    def __enter__(self) -> None:
        if self._seconds is not None and get_ident() == _main_thread:
            self._before = signal.signal(signal.SIGALRM, _raise_due)
            _limits.append(self)
            signal.setitimer(signal.ITIMER_REAL, max(self._seconds, _SOON_S))

    def __exit__(
        self, kind: "type[BaseException] | None", error: "BaseException | None", traceback: "TracebackType | None"
    ) -> None:
        if self._before is not None:
            _limits.remove(self)
            if not _pending:
                signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, self._before)


_received: list[tuple[int, float]] = []
_pending: list[int] = []
"""The signal that came where it could not be raised, until it is raised."""
_deferrals: list[DeferInterrupts] = []
_limits: list[TimeLimit] = []
_main_thread: "Final" = get_ident()


def handle_signals() -> None:
    """Raise `Interrupted` in the main thread at the first SIGINT or SIGTERM."""
    for number in _SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup and background jobs ignore SIGINT
            signal.signal(number, _raise)
    signal.signal(signal.SIGALRM, _raise_due)
    sys.unraisablehook = _raise_again


def note_signal(number: int) -> None:
    """Record that a signal was received, for code that handles signals itself, such as an event loop."""
    _received.append((number, time.monotonic()))


def received_signal() -> int | None:
    """Return the number of the first signal received; None if there was none."""
    return _received[0][0] if _received else None


def signal_line(number: int | None) -> str:
    """Return what the command prints when it ends by this signal."""
    return "terminated" if number == signal.SIGTERM else "interrupted"


def signal_exit_code(number: int | None) -> int:
    """Return the exit code of a command that a signal ends: 130 or 143."""
    return 128 + (signal.SIGINT if number is None else number)


def _raise(number: int, frame: "FrameType | None") -> None:
    if _received and time.monotonic() - _received[0][1] > _PATIENCE_S:
        os._exit(signal_exit_code(number))
    if not _received:
        note_signal(number)
        _pending.append(number)
        _raise_due(number, frame)


def _raise_due(number: int, frame: "FrameType | None") -> None:
    """Raise what a signal or a time limit asks for; later, where it would leave a lock held."""
    if frame is not None and frame.f_code.co_filename == _IMPORT_SYSTEM:
        signal.setitimer(signal.ITIMER_REAL, _SOON_S)
    elif _deferrals:
        if _limits and not _pending:
            signal.setitimer(signal.ITIMER_REAL, _SOON_S)
    elif _pending:
        _pending.clear()
        raise Interrupted
    elif _limits and number == signal.SIGALRM:
        raise TimeLimitReached


def _raise_again(unraisable: "Any") -> None:
    """Raise `Interrupted` after a place where Python cannot raise it, such as a destructor; hide what follows it."""
    if isinstance(unraisable.exc_value, TimeLimitReached):
        signal.setitimer(signal.ITIMER_REAL, _SOON_S)
    elif isinstance(unraisable.exc_value, KeyboardInterrupt):
        number = received_signal() or signal.SIGINT
        _received.clear()
        signal.raise_signal(number)
    elif not _received:
        sys.__unraisablehook__(unraisable)
