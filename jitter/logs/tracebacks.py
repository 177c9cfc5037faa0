"""Exceptions that ended ranks: `[rank3]: Traceback (most recent call last):`, as PyTorch (2.2 on) prints uncaught ones.

torch/distributed/__init__.py puts the rank before each line. Without it a traceback may be of a caught exception.
Messages are not kept: they quote whatever the program worked on.
"""

import re
from typing import Final

from jitter.logs.flight_recorder import LIBRARY_FILE
from jitter.logs.line_parser import Context, LineParser

_LINE: Final = re.compile(r"\[rank(\d{1,9})\]: ?(.*)")
"""Whatever launchers put before it."""
_FRAME: Final = re.compile(r'  File "([^"]{1,400})", line (\d{1,9}), in (\S{1,200})')
_ERROR: Final = re.compile(r"([A-Za-z_][\w.]{0,200})(?::|$)")
_OF_OTHERS: Final = re.compile(
    r"torch\.distributed\.|Dist\w{0,64}Error|KeyboardInterrupt|SystemExit|BrokenPipe|Connection|EOFError|NCCL|gloo|"
    r"Socket|TCPStore|Timed out waiting|Watchdog|monitoredBarrier|between collectives"
)
"""Exceptions that follow from the end, or the silence, of another rank."""
_TOLD_APART: Final = re.compile(r"(?:CUDA|HIP) (?:out of memory|error)")
"""Failures that other patterns read, with or without a traceback."""


class TracebackParser(LineParser):
    """The first exception of each rank, with the innermost frame of the program."""

    format = "python-traceback"
    triggers = (b"]: Traceback (most recent call last):",)

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._open: dict[int, str] = {}
        """Of each rank in a traceback the innermost frame so far."""
        self._ended: set[int] = set()

    def line(self, line: bytes, number: int) -> None:
        match = _LINE.search(line.decode("utf-8", "replace"))
        if match is None:
            return
        rank, text = int(match[1]), match[2]
        if text.startswith("Traceback (most recent call last):"):
            self._open[rank] = ""
        elif rank in self._open and (frame := _FRAME.match(text)) is not None:
            if not LIBRARY_FILE.search(frame[1]):
                self._open[rank] = f" at {frame[1]}({frame[2]}): {frame[3]}"
        elif rank in self._open and (error := _ERROR.match(text)) is not None:
            self._end(rank, error[1], text)
        self.is_open = bool(self._open)

    def _end(self, rank: int, error: str, text: str) -> None:
        where = self._open.pop(rank)
        is_first = rank not in self._ended
        self._ended.add(rank)
        if is_first and not _OF_OTHERS.search(text) and not _TOLD_APART.search(text):
            self.add("exits", rank=rank, manner=f"{error}{where}", stated_by="program")
