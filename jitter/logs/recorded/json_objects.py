"""JSON objects in a stream of lines: one a line, or written over several lines, one after another."""

import re
from collections.abc import Iterator
from typing import Any, Final

import msgspec

_LARGEST: Final = 4 << 20
_BETWEEN: Final = re.compile(rb"(?<=\})\s*,?\s*(?=\{\s*\")")


class JsonObjects:
    """Collects the lines of an object that begins with `{` in the first column and ends with `}` there."""

    def __init__(self) -> None:
        self._lines: list[bytes] = []
        self._size = 0
        self.broken: list[int] = []
        """Numbers of the lines that began an object which cannot be read."""
        self._first = 0

    @property
    def is_open(self) -> bool:
        """Return whether an object has begun and not ended."""
        return bool(self._lines)

    def feed(self, line: bytes, number: int) -> Iterator[dict[str, Any]]:
        """Return the objects that end with this line."""
        line = line.rstrip()
        if line.startswith(b"{"):
            if self._lines:
                self.broken.append(self._first)
                self._lines = []
            if line.endswith((b"}", b"},", b"]")):
                yield from self._whole(line, number)
                return
            self._lines, self._size, self._first = [line], len(line), number
        elif self._lines:
            self._lines.append(line)
            self._size += len(line)
            if line.startswith(b"}"):
                content, self._lines = b"\n".join(self._lines), []
                yield from self._whole(content, self._first)
            elif self._size > _LARGEST:
                self.broken.append(self._first)
                self._lines = []

    def end(self) -> None:
        """Take the end of the file: an object that is open is broken."""
        if self._lines:
            self.broken.append(self._first)
            self._lines = []

    def _whole(self, content: bytes, number: int) -> Iterator[dict[str, Any]]:
        content = content.rstrip(b",] \t")
        found = _decoded(content)
        if found is not None:
            yield found
            return
        parts = _BETWEEN.split(content)
        read = [_decoded(part) for part in parts] if len(parts) > 1 else [None]
        if None in read:
            self.broken.append(number)
        yield from (part for part in read if part is not None)


def _decoded(content: bytes) -> dict[str, Any] | None:
    try:
        found = msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
