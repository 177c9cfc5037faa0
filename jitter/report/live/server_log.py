"""The log of the live server: each warning or error is one line, without a traceback, whatever a client sends."""

import logging
from collections.abc import Callable
from typing import Final

from jitter.core.formatting import escape_control

_LOGGERS: Final = ("bokeh", "tornado", "asyncio")
_MAX_LENGTH: Final = 300


class OneLineHandler(logging.Handler):
    """Passes each record on as one line of printable text."""

    def __init__(self, say: Callable[[str], None]) -> None:
        """Pass lines to `say`."""
        super().__init__(logging.WARNING)
        self._say = say

    def emit(self, record: logging.LogRecord) -> None:
        """Pass on one record; the same line as before is not repeated."""
        try:
            text = record.getMessage()
        except Exception:  # a message that its arguments do not fit
            text = str(record.msg)
        error = record.exc_info[1] if record.exc_info else None
        first = next(iter(text.splitlines()), "")
        line = first if error is None or str(error) in first else f"{first} ({type(error).__name__}: {error})"
        self._say(f"server: {escape_control(' '.join(line.split()))[:_MAX_LENGTH]}")


def log_in_lines(say: Callable[[str], None]) -> None:
    """Make Bokeh, Tornado and asyncio log through `say`, one line a warning or error."""
    handler = OneLineHandler(say)
    for name in _LOGGERS:
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.propagate = False
        logger.setLevel(logging.WARNING)
