"""A large JSON document as a source: read member by member in bounded memory, long lists in parts of a few MB."""

import re
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, Final, Literal, NamedTuple, TypeVar

import msgspec
from msgspec import Raw

from jitter.core.compression import UnpackedLimit

Value = TypeVar("Value")

_READ_BYTES: Final = 1 << 20
_PART_BYTES: Final = 1 << 22
_FIRST_BYTES: Final = 1 << 10
"""Bytes of a value that are tried first; most values beside the lists are short."""
_MOST_BYTES: Final = 1 << 28
"""Longest value that is held in memory; lists of records are longer and read in parts."""
# a record starts with its size or key; a quote inside a string is escaped
_BETWEEN: Final = re.compile(rb"\}(\s*,\s*)\{\s*\"(?:size|key)\"\s*:")
_BETWEEN_BYTES: Final = 256
_NEAR_TRIES: Final = 8
_BLANKS: Final = b" \t\r\n"
_CLOSING: Final = b'"]}el'
"""The last characters of all values but numbers: a text, a list, an object, true, false and null."""
_FAULT: Final = re.compile(r"(?:JSON is malformed: )?(?P<reason>.*) \(byte (?P<at>\d+)\)$")
_ANY: Final = msgspec.json.Decoder(Raw)
INVALID: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Errors of msgspec for what is no JSON."""


class DecodeFault(NamedTuple):
    """Reason why a text is not the value expected; `at` is the byte position in the text."""

    kind: Literal["open", "ended", "bad"]
    """open: the text stops early; ended: the value ends at `at` and text follows; bad: invalid at `at`."""
    at: int
    reason: str


def find_fault(text: bytes | memoryview) -> DecodeFault | None:
    """Return why a text is not one JSON value; None if it is."""
    try:
        _ANY.decode(text)
    except msgspec.DecodeError as error:
        return _describe_fault(error)
    except RecursionError:
        return DecodeFault("bad", 0, "nested too deeply")
    return None


def _describe_fault(error: msgspec.DecodeError) -> DecodeFault:
    match = _FAULT.match(str(error))
    if match is None:
        return DecodeFault("open", 0, "cut")
    at, reason = int(match["at"]), match["reason"]
    # the decoder states the position of the second character after the end
    return DecodeFault("ended", at - 1, reason) if reason == "trailing characters" else DecodeFault("bad", at, reason)


def decode_list(text: bytes, kind: Any, other: Callable[[], Any]) -> list[Any]:
    """Return the values of a JSON list as `kind`; one of another type, or of bytes that are no UTF-8, is `other()`.

    Raises an error of `INVALID` for what is no list.
    """
    try:
        return msgspec.json.decode(text, type=list[kind])
    except (msgspec.ValidationError, UnicodeDecodeError):
        return [_decode_value(value, kind, other) for value in msgspec.json.decode(text, type=list[Raw])]


def _decode_value(text: Raw, kind: Any, other: Callable[[], Any]) -> Any:
    try:
        return msgspec.json.decode(text, type=kind)
    except INVALID:
        return other()


class JsonStream:
    """Reads the values of a document in their order, from any position of a file that can be sought in.

    Raises `msgspec.DecodeError` for invalid or cut JSON, and the errors of the file.
    """

    def __init__(
        self, file: BinaryIO, limit: UnpackedLimit | None = None, packed: Callable[[], int] = lambda: 0
    ) -> None:
        """Start at the beginning; `limit` counts the bytes read until it is set to None.

        `packed` returns the number of bytes that were read from the packed file.
        """
        self._packed = packed
        self._file = file
        self.limit = limit
        self.invalid = 0
        """Number of values left out of lists so far because they have members of another type."""
        self._held = b""
        self._at = 0
        self._end = 0
        """Position of the end of `_held` in the file."""

    @property
    def position(self) -> int:
        """The position of the next byte, in bytes of the document."""
        return self._end - len(self._held) + self._at

    def seek(self, position: int) -> None:
        """Continue at a position."""
        self._file.seek(position)
        self._held, self._at, self._end = b"", 0, position

    def members(self) -> Iterator[str]:
        """Yield the name of each member of the object that comes next; read or skip its value before the next name."""
        self._expect(b"{")
        while self.peek() != b"}":
            name = self.value(str)
            self._expect(b":")
            yield name
            if self.peek() != b"}":
                self._expect(b",")
        self._expect(b"}")

    def items(self) -> Iterator[None]:
        """Yield once before each value of the list that comes next; read or skip the value before the next one."""
        self._expect(b"[")
        while self.peek() != b"]":
            yield
            if self.peek() != b"]":
                self._expect(b",")
        self._expect(b"]")

    def value(self, kind: type[Value]) -> Value:
        """Return the value that comes next."""
        self.peek()
        size = _FIRST_BYTES
        while True:
            is_whole = not self._hold(size)
            text = self._held[self._at : self._at + size]
            end = _value_end(text, is_whole=is_whole)
            if end is not None:
                decoded = msgspec.json.decode(text[:end], type=kind)
                self._at += end
                return decoded
            if is_whole:
                raise msgspec.DecodeError("Input data was truncated")
            size *= 4
            _check_size(size)

    def parts(self, kind: type[Value]) -> Iterator[list[Value]]:
        """Yield the values of the list that comes next, a few MB at a time."""
        self._expect(b"[")
        size, tries = _PART_BYTES, 0
        while True:
            stop, following = self._border(size)
            text = b"[" + self._held[self._at : stop] + (b"" if following is None else b"]")
            try:
                values = self._decode_list(text, kind)
            except msgspec.DecodeError as error:
                fault = _describe_fault(error)
                if fault.kind == "ended":
                    self._at += fault.at - 1
                    yield self._decode_list(text[: fault.at], kind)
                    return
                if fault.kind == "bad" or following is None:
                    raise
                # the border is inside a value; try the next ones, and soon ones that are further away
                tries += 1
                size = following - self._at if tries % _NEAR_TRIES else 2 * size
                _check_size(size)
                continue
            self._at = stop if following is None else following
            size, tries = _PART_BYTES, 0
            yield values
            if following is None:
                return

    def _decode_list(self, text: bytes, kind: type[Value]) -> list[Value]:
        """Return the values of a list; those with members of another type are left out and counted."""
        values = decode_list(text, kind, lambda: None)
        self.invalid += values.count(None)
        return list(filter(None, values))

    def skip(self) -> None:
        """Pass over the value that comes next."""
        first = self.peek()
        if first == b"{":
            for _ in self.members():
                self.skip()
        elif first == b"[":
            for _ in self.parts(Raw):
                pass
        else:
            self.value(Raw)

    def peek(self) -> bytes:
        """Move to the next byte that is no blank, and return it; empty at the end of the file."""
        while self._hold(1):
            text = self._held[self._at : self._at + _FIRST_BYTES]
            rest = text.lstrip(_BLANKS)
            self._at += len(text) - len(rest)
            if rest:
                return rest[:1]
        return b""

    def _border(self, size: int) -> tuple[int, int | None]:
        """Return the end of a value at least `size` bytes ahead and the start of the next one, as places in `_held`.

        Without such a border: the end of the file and None.
        """
        self._hold(size)
        first = self._at + size
        while (match := _BETWEEN.search(self._held, first)) is None:
            held = len(self._held) - self._at
            _check_size(held)
            self._hold(2 * held)
            if len(self._held) - self._at == held:
                return len(self._held), None
            first = self._at + max(size, held - _BETWEEN_BYTES)
        return match.start() + 1, match.end(1)

    def _expect(self, byte: bytes) -> None:
        next_byte = self.peek()
        if next_byte != byte:
            reason = f"expected {byte.decode()!r}" if next_byte else "Input data was truncated"
            raise msgspec.DecodeError(f"{reason} (byte {self.position})")
        self._at += 1

    def _hold(self, size: int) -> bool:
        """Read until `size` bytes from the next one on are held; return whether the file has that many."""
        if len(self._held) - self._at >= size:
            return True
        pieces = [self._held[self._at :]]
        missing = size - len(pieces[0])
        while missing > 0 and (piece := self._file.read(_READ_BYTES)):
            pieces.append(piece)
            missing -= len(piece)
            self._end += len(piece)
            if self.limit is not None:
                self.limit.add(len(piece), self._packed())
        self._held, self._at = b"".join(pieces), 0
        return missing <= 0


def _value_end(text: bytes, *, is_whole: bool) -> int | None:
    """Return the length of the value at the start of a text; None if the text stops within it."""
    fault = find_fault(text)
    if fault is None:
        return len(text) if is_whole or text[-1:] in _CLOSING else None
    if fault.kind == "bad":
        raise msgspec.DecodeError(f"JSON is malformed: {fault.reason} (byte {fault.at})")
    return fault.at if fault.kind == "ended" else None


def _check_size(size: int) -> None:
    if size > _MOST_BYTES:
        raise msgspec.DecodeError(f"a value of more than {_MOST_BYTES:,} bytes")
