"""A Chrome trace (JSON) as a source: the list of events, decoded in blocks, and the members around it.

After damage, reading resumes at the next event that can be decoded; the bytes before it are counted.
"""

import re
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import msgspec
from msgspec import Raw

from jitter.core.compression import CHUNK_BYTES, read_chunks
from jitter.core.errors import UnreadableTraceError
from jitter.core.formatting import format_count
from jitter.readers.json_document import INVALID, DecodeFault, decode_list, find_fault

Decode = Callable[[bytes], list[Any]]
"""Returns the events of a valid JSON list of any values, one for each. Raises the errors `INVALID`."""
HEADER_BYTES: Final = 16 << 20
_MOST_LISTS: Final = 64
"""Occurrences of the list's name that are tried as its start."""
_EVENTS: Final = re.compile(rb'(?<!\\)"traceEvents"[ \t\r\n]*:[ \t\r\n]*\[')
_BARE: Final = re.compile(rb"(?:\xef\xbb\xbf)?[ \t\r\n]*\[(?=[ \t\r\n]*[{\]])")
_OBJECT: Final = re.compile(rb"(?:\xef\xbb\xbf)?[ \t\r\n]*\{")
_MEMBERS: Final = msgspec.json.Decoder(dict[str, Raw])

_SALVAGE_BYTES: Final = 8 << 20
"""Bytes that are held in wait for the end of an event; one that does not end in them counts as damaged."""
_LONGEST_EVENT: Final = 128 << 20
"""Bytes that are held in wait for the end of an event in which no other one begins."""
_HELD_BYTES: Final = 64 << 20
"""Bytes held at most after the events."""
_MOST_DAMAGE: Final = 256 << 20
"""Bytes without an event after which the rest of the file is not read: a hole of a terabyte is no trace."""
_MOST_SCANS: Final = 64
"""Times that a text is scanned at most in search of events: those that open something and never close it have no end
before the end of the text."""
_SCAN_OF_DAMAGE: Final = 2048
"""Bytes that a damaged event counts for beside its length: what is scanned in the time that its handling takes."""
_LONGEST_MENDED: Final = 1 << 17
"""Bytes of an event that is mended at most."""
_TRIES: Final = 16
"""Ends of the list tried after a damaged last event, which may contain lists of objects itself."""
_NEAR_BYTES: Final = 1 << 11
"""Bytes at the end of a text in which the border of two events is looked for first."""
_SHOWN: Final = 5
_TAIL_SEEN: Final = 4096
_WORD: Final = 16
"""Bytes at the end of an incomplete text in which a fault may be a word that is cut."""
_BLANKS: Final = b" \t\r\n"
_BORDER: Final = re.compile(rb"\}[ \t\r\n]*,[ \t\r\n]*\{")
_BETWEEN: Final = re.compile(rb"[ \t\r\n,]*")
_START: Final = re.compile(rb",[ \t\r\n]*(?=\{)")
_TAIL: Final = re.compile(rb"[ \t\r\n]*(?:\Z|\}[ \t\r\n]*\Z|,[ \t\r\n]*\")")
_END_OF_LIST: Final = re.compile(rb"\}[ \t\r\n]*(?=\])")
_HOLE: Final = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f]{16}")
"""A run of control characters that is a hole in the file, not text of a string."""
_STRING: Final = rb'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)'
_NO_NUMBER: Final = rb"-?(?:NaN|Infinity|nan|inf(?:inity)?)(?=[ \t\r\n,\]}])"
_STRING_OR_NO_NUMBER: Final = re.compile(_STRING + rb"|(?<=[:,\[ \t\r\n])" + _NO_NUMBER, re.DOTALL)
_NO_NUMBER_NEAR: Final = re.compile(rb".{0,2}?" + _NO_NUMBER, re.DOTALL)
_STRING_OR_COMMA: Final = re.compile(_STRING + rb"|,(?=[ \t\r\n]*[\]}])", re.DOTALL)
"""Strings, and commas before a closing bracket."""
_ESCAPED: Final = re.compile(rb'\\["\\/bfnrt]|\\u[0-9a-fA-F]{4}|[\x00-\x1f\\]')
_UNESCAPED: Final = re.compile(rb"\\|.[\x00-\x1f]", re.DOTALL)
"""A single backslash before a fault, or a control character at it."""
_BRACKET_OR_STRING: Final = re.compile(_STRING + rb"|[{}\[\]]", re.DOTALL)


def has_phase(event: Any) -> bool:
    """Return whether it looks like an event, and not like an object inside one: whether it has the member `ph`."""
    return event.ph is not None


def event_decoder(kind: type[Any]) -> Decode:
    """Return what decodes events as `kind`; values that are no such events become ones with its defaults."""
    return partial(decode_list, kind=kind, other=kind)


class TraceHeader(NamedTuple):
    """The start of the list of events (byte position), and the members before it."""

    start: int
    members: dict[str, Raw]
    is_damaged: bool
    is_bare: bool = False
    """Whether the file is a bare list of events."""


def parse_header(text: bytes) -> TraceHeader | None:
    """Return the header of a trace; None if the list of events does not start in `text`.

    The members of a damaged header are not given.
    """
    bare = _BARE.match(text)
    if bare:
        return TraceHeader(bare.end(), {}, False, is_bare=True)
    opening = _OBJECT.match(text)
    if opening is None:
        return None
    damaged: TraceHeader | None = None
    for match in islice(_EVENTS.finditer(text, opening.end() - 1), _MOST_LISTS):
        # closed here it must be a JSON object, else the match is inside another value
        members = parse_object_tail(b"," + text[opening.end() : match.end()] + b"]}")
        if members is not None:
            return TraceHeader(match.end(), members, False)
        damaged = damaged or TraceHeader(match.end(), {}, True)
    return damaged


def has_event_list(text: bytes) -> bool:
    """Return whether the list of events of a trace begins in a text."""
    return _EVENTS.search(text) is not None


def opening_bracket(text: bytes) -> bytes:
    """Return `[` for a text that begins with a list of objects, `{` for one with an object, else nothing."""
    return b"[" if _BARE.match(text) else b"{" if _OBJECT.match(text) else b""


def parse_object_tail(tail: bytes) -> dict[str, Raw] | None:
    """Return the members in the rest of a JSON object after a value; None if it is damaged or cut."""
    try:
        members: dict[str, Raw] = _MEMBERS.decode(b'{"":0' + tail)
    except INVALID:
        return None
    return members


class DamagedSpan(NamedTuple):
    """A damaged span of the JSON: byte positions in the decompressed text, and the reason."""

    first: int
    last: int
    at: int
    reason: str
    holds_event: bool
    """Whether more was lost than brackets and commas."""


class EventList:
    """Iterates over the events in blocks. `text` is the text after the list's bracket, `pieces` yields the rest.

    `position` is the position of `text` in the decompressed file, in bytes; `is_event` returns whether what `decode`
    returns looks like an event and not like an object inside one.
    """

    def __init__(
        self, pieces: Iterator[bytes], text: bytes, position: int, decode: Decode, is_event: Callable[[Any], bool]
    ) -> None:
        self._pieces = pieces
        self._decode = decode
        self._is_event = is_event
        self._text = text
        self._at = 0  # position in the text of what is not read yet
        self._is_mended = False  # whether the words of this text that are no numbers were replaced
        self._scanned = 0  # bytes of values in this text that did not end or were invalid
        self._position = position  # of the text
        self.count = 0
        """Number of events read so far, of any kind."""
        self.damage: list[DamagedSpan] = []
        self.tail: bytes | None = None
        """The text after the list; None if the list does not end."""
        self.unfinished = 0
        """Bytes of an incomplete event at the end of the text."""
        self.is_followed = False
        """Whether the list of another trace begins after this one."""

    @classmethod
    def of_file(
        cls,
        path: Path,
        decode: Decode,
        is_event: Callable[[Any], bool],
        advance: Callable[[int], None],
        problems: list[str],
        piece_bytes: int = CHUNK_BYTES,
    ) -> "tuple[Self, TraceHeader, bytes]":
        """Return the events of a whole file, its header, and the text in which it was found.

        `problems` is about the file's packing. Raises OSError, and UnreadableTraceError for a file in whose beginning
        no list of events begins.
        """
        pieces, text = read_chunks(path, piece_bytes, advance, problems), b""
        for piece in pieces:
            text += piece
            # a cheap test first: the search is slow on a long file of another kind
            header = parse_header(text) if len(text) == len(piece) or b'"traceEvents"' in text else None
            if header is not None:
                return cls(pieces, text[header.start :], header.start, decode, is_event), header, text
            if len(text) > HEADER_BYTES:
                break
        details = f" ({'; '.join(problems)})" if problems else ""
        raise UnreadableTraceError(
            f"{path}: no list of trace events begins in its first {len(text):,} bytes{details}",
            "is it a whole trace? copy it again, or record again",
        )

    @property
    def position(self) -> int:
        """Position after the events read so far, in bytes of the decompressed file."""
        return self._position + self._at

    def __iter__(self) -> Iterator[list[Any]]:
        yield from self._read(self._text, at_end=False)
        waiting, held, wanted = [self._text], len(self._text), 0
        for piece in self._pieces:
            waiting.append(piece)
            held += len(piece)
            if self.tail is not None and held > _HELD_BYTES:
                break
            if self.tail is not None or held < wanted:
                continue  # joined at once: appending each piece to a long text copies that again and again
            yield from self._read(b"".join(waiting), at_end=False)
            waiting, held = [self._text], len(self._text)
            # without this, one long event would be scanned again with every piece
            wanted = 2 * held if held > len(piece) else 0
            if self._is_given_up():
                break
        text = b"".join(waiting)
        if self.tail is None:
            yield from self._read(text, at_end=True)
            text = self._text
        if self.tail is None:
            self.unfinished = len(text) if text.strip(b" \t\r\n,") else 0
        else:
            self.tail = text
            self.is_followed |= has_event_list(text)

    def problems(self) -> list[str]:
        """Return what is missing or damaged, in events and bytes."""
        sentences = []
        if self.damage:
            lost = sum(damaged_part.last - damaged_part.first for damaged_part in self.damage)
            places = ", ".join(
                f"byte {damaged_part.at:,} ({damaged_part.reason})" for damaged_part in self.damage[:_SHOWN]
            )
            rest_text = f" and {len(self.damage) - _SHOWN:,} more" if len(self.damage) > _SHOWN else ""
            events = sum(damaged_part.holds_event for damaged_part in self.damage)
            lost_events = f", at least {format_count(events, 'event')}; the other"
            at_least = f"{lost_events} {self.count:,}" if events else f"; {self.count:,} events"
            sentences.append(
                f"the JSON is damaged at {places}{rest_text}: {lost:,} bytes were left out{at_least} were read"
            )
        if self.tail is None and self._is_given_up():
            sentences.append(
                f"no event begins in {_MOST_DAMAGE >> 20} MB: the trace was read to byte {self.position:,}, "
                "and how many events came after cannot be known"
            )
        elif self.tail is None:
            unfinished = f"1 unfinished event of {self.unfinished:,} bytes is lost, and " if self.unfinished else ""
            sentences.append(
                f"the trace is cut: {self.count:,} complete events were read, to byte {self.position:,} of the JSON; "
                f"{unfinished}how many events came after cannot be known"
            )
        return sentences

    def _is_given_up(self) -> bool:
        """Return whether so many bytes hold no event that the rest is not read."""
        if self.tail is not None or not self.damage or self.damage[-1].last != self.position:
            return False
        return self.damage[-1].last - self.damage[-1].first > _MOST_DAMAGE

    def _read(self, text: bytes, *, at_end: bool) -> Iterator[list[Any]]:
        """Yield the events of a text, up to the last one that is complete; what remains is the text then."""
        self._text, self._at, self._scanned, self._is_mended = text, 0, 0, False
        if stop := _last_end(text):
            try:
                events = self._decode(b"".join((b"[", memoryview(text)[:stop], b"]")))
            except INVALID:
                pass
            else:
                yield self._take(events, stop)
        while self.tail is None and (some := self._next(at_end=at_end)) is not None:
            if some:
                yield some
        self._position += self._at
        self._text, self._at = self._text[self._at :], 0

    def _take(self, events: list[Any], end: int) -> list[Any]:
        self.count += len(events)
        self._at = end
        return events

    def _next(self, *, at_end: bool) -> list[Any] | None:
        """Take the events up to the next fault, or pass over it; None if that needs more text or nothing is left."""
        values, at, fault = self._whole_values()
        if values:
            text = memoryview(self._text)
            return self._take(
                self._decode(b"[" + b",".join(text[first:last] for first, last in values) + b"]"), values[-1][1]
            )
        self._at = at
        if at == len(self._text):
            return None
        if fault is None:
            return self._end_list(at, at_end=at_end)
        if fault.kind == "bad":
            self._scanned += _SCAN_OF_DAMAGE
            # the decoder stops up to two characters inside the word
            if not self._is_mended and _NO_NUMBER_NEAR.match(self._text, max(0, at + fault.at - 2)):
                # in all events from here on: some traces have them in each
                self._text = self._text[:at] + _STRING_OR_NO_NUMBER.sub(_null, self._text[at:])
                self._is_mended = True
                return []
            before = self._text[at : at + fault.at].rstrip(_BLANKS)
            is_harmless = _UNESCAPED.match(self._text, at + fault.at - 1) is not None or before.endswith(b",")
            if is_harmless and not _HOLE.match(self._text, at + fault.at):
                end = self._event_end(at)
                if end is None and len(self._text) - at <= _LONGEST_MENDED:
                    fault = fault._replace(kind="open")
                elif end is not None and (events := self._mended_event(at, end)):
                    return events
        return self._skip(at, fault, at_end=at_end)

    def _whole_values(self) -> tuple[list[tuple[int, int]], int, DecodeFault | None]:
        """Return the values that come next and are valid (start, end), where they stop, and why.

        They stop at a bracket or at the end of the text, or at a fault.
        """
        values: list[tuple[int, int]] = []
        at = self._at
        while True:
            at = _BETWEEN.match(self._text, at).end()  # type: ignore[union-attr]  # it matches an empty text, too
            if at == len(self._text) or self._text[at] == 0x5D:  # a closing bracket
                return values, at, None
            end, fault = self._value_end(at)
            if end is None:
                return values, at, fault
            values.append((at, end))
            at = end

    def _value_end(self, at: int) -> tuple[int | None, DecodeFault | None]:
        """Return where the value at `at` ends; None and the fault if it does not or is invalid."""
        fault = find_fault(memoryview(self._text)[at:])
        if fault is None or fault.kind == "ended":
            return len(self._text) if fault is None else at + fault.at, None
        self._scanned += fault.at if fault.kind == "bad" else len(self._text) - at
        return None, fault

    def _end_list(self, at: int, *, at_end: bool) -> list[Any] | None:
        """End the list at a bracket, unless that is misplaced."""
        if not at_end and len(self._text) - at <= _TAIL_SEEN:
            return None
        if not _TAIL.match(self._text, at + 1):
            return self._skip(at, DecodeFault("bad", 0, "the list of events ends and continues"), at_end=at_end)
        self._at = at + 1
        self.tail = b""
        return []

    def _event_end(self, at: int) -> int | None:
        """Return where the brackets of the event at `at` are closed, whatever else is wrong with it; None: nowhere."""
        depth, last = 0, min(len(self._text), at + _LONGEST_MENDED)
        for match in _BRACKET_OR_STRING.finditer(self._text, at, last):
            depth += {b"{": 1, b"[": 1, b"}": -1, b"]": -1}.get(match[0], 0)
            if depth <= 0:
                self._scanned += match.end() - at
                return match.end()
        self._scanned += last - at
        return None

    def _mended_event(self, at: int, end: int) -> list[Any] | None:
        """Take an event whose only faults are characters that are not escaped, or commas before brackets; else None."""
        try:
            events = self._decode(b"[%s]" % _STRING_OR_COMMA.sub(_mend, self._text[at:end]))
        except INVALID:
            return None
        return self._take(events, end)

    def _skip(self, at: int, fault: DecodeFault, *, at_end: bool) -> list[Any] | None:
        """Leave out the text up to the next event that can be decoded, or that the text cuts.

        None if that needs more text, or if the trace is cut here.
        """
        rest = len(self._text) - at
        if self._scanned > _MOST_SCANS * len(self._text) + _SALVAGE_BYTES:
            return self._leave_out(len(self._text), at, "too much that opens is never closed")
        can_wait = not at_end and rest <= _SALVAGE_BYTES
        if can_wait and (fault.kind == "open" or fault.at > rest - _WORD):
            return None
        end = self._next_event(at)
        if fault.kind == "open":
            is_alone = rest <= _LONGEST_EVENT and _START.search(self._text, at) is None
            if end is None and (at_end or is_alone):
                return None
            return self._leave_out(end or len(self._text), at, "something opens and is never closed")
        if end is None and can_wait:
            return None
        place, reason = at + fault.at, fault.reason
        before = self._text[at:place].rstrip(_BLANKS)
        if before.endswith(b'"') and reason.startswith("expected ','"):
            place, reason = at + len(before) - 1, "unescaped quote"
        return self._leave_out(end or self._last_event_end(at), place, reason)

    def _next_event(self, at: int) -> int | None:
        """Return the start of the first event after the one at `at` that is whole, else of one that has no end."""
        unfinished = None
        for match in _START.finditer(self._text, at):
            end, fault = self._value_end(match.end())
            if end is not None:
                if self._is_event(self._decode(b"[%s]" % self._text[match.end() : end])[0]):
                    return match.end()
            elif fault is not None and fault.kind == "open":
                unfinished = unfinished or match.end()
            if self._scanned > _MOST_SCANS * len(self._text) + _SALVAGE_BYTES:
                break
        return unfinished

    def _last_event_end(self, at: int) -> int:
        """Return the end of the damaged event at `at`, after which none begins: at the list's end, or the text's."""
        for end in islice(_END_OF_LIST.finditer(self._text, at), _TRIES):
            after = self._text[end.end() + 1 :]
            if _TAIL.match(after) and (not after.strip() or parse_object_tail(after) is not None):
                return end.end()
        return len(self._text)

    def _leave_out(self, end: int, at: int, reason: str) -> list[Any]:
        """Drop the text up to `end` as damaged at `at`."""
        self.is_followed |= has_event_list(self._text[self._at : end])
        last, holds_event = self._position + end, b'"' in self._text[self._at : end]
        if self.damage and self.damage[-1].last == self.position:  # the previous span continues
            before = self.damage.pop()
            self.damage.append(before._replace(last=last, holds_event=holds_event or before.holds_event))
        else:
            self.damage.append(DamagedSpan(self.position, last, self._position + at, reason, holds_event))
        self._at = end
        return []


def _last_end(text: bytes) -> int:
    """Return where the last event before another one seems to end; 0 if there is none."""
    for size in (_NEAR_BYTES, len(text)):
        for border in deque(_BORDER.finditer(text, max(0, len(text) - size)), maxlen=1):
            return border.start() + 1
    return 0


def _null(match: re.Match[bytes]) -> bytes:
    word = match[0]
    if word.startswith(b'"'):
        return word
    return (b"null" if len(word) >= 4 else b'""').ljust(len(word))  # same length, so that positions stay valid


def _mend(match: re.Match[bytes]) -> bytes:
    """Return a string with its control characters and single backslashes escaped; nothing for a comma."""
    if _HOLE.search(match[0]):
        return match[0]
    return _ESCAPED.sub(
        lambda match: match[0] if len(match[0]) > 1 else b"\\\\" if match[0] == b"\\" else b"\\u%04x" % match[0][0],
        match[0].removeprefix(b","),
    )
