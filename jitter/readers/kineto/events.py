"""The list of events of a trace, decoded in blocks: the text is divided between events, damaged spans are skipped."""

import re
from collections.abc import Iterator
from itertools import zip_longest
from typing import Final, NamedTuple

from jitter.readers.json_faults import DecodeFault
from jitter.readers.kineto.event_selection import ROWS, Event, EventSelection
from jitter.readers.kineto.scanner import (
    EventBoundary,
    decode_events,
    last_boundary,
    looks_like_event,
    next_boundary,
    parse_object_tail,
    repair,
    whitespace_start,
)

_TRIES: Final = 16
"""Boundaries tried from the end before more text is read; an event may contain lists of objects itself."""
_TRIES_AT_ONE: Final = 256
"""Boundaries tried as the end of one event that opens something and never closes it."""
_SALVAGE_BYTES: Final = 8 << 20
"""Bytes without a valid boundary after which an event that does not end counts as damaged."""
_HELD_BYTES: Final = 64 << 20
"""Bytes held at most of text without the end of an event, or after the events."""
_MOST_DAMAGE: Final = 256 << 20
"""Bytes without an event after which the rest of the file is not read: a hole of a terabyte is no trace."""
_MOST_REPAIRS: Final = 1000
"""Repairs of one event, each of which copies the text; an event with more is damaged."""
_SHOWN: Final = 5
_TAIL_SEEN: Final = 4096
_TAIL: Final = re.compile(rb"[ \t\r\n]*(?:\Z|\}[ \t\r\n]*\Z|,[ \t\r\n]*\")")
_END_OF_LIST: Final = re.compile(rb"\}[ \t\r\n]*(?=\])")


class DamagedSpan(NamedTuple):
    """A damaged span of the JSON: byte positions in the decompressed text, and the reason."""

    first: int
    last: int
    at: int
    reason: str


class EventList:
    """Iterates over the events in blocks. `text` is the text after the list's bracket, `pieces` yields the rest.

    `position` is the position of `text` in the decompressed file, in bytes. Events that are not selected are counted,
    but may lack their values.
    """

    def __init__(self, pieces: Iterator[bytes], text: bytes, position: int, selection: EventSelection = ROWS) -> None:
        self._pieces = pieces
        self._selection = selection
        self._text = text
        self._is_lost = False  # True after damage, until the next valid event
        self._repairs = 0  # since the last valid event
        self.position = position
        """Position after the events read so far, in bytes of the decompressed file."""
        self.count = 0
        """Number of events read so far, of any kind."""
        self.damage: list[DamagedSpan] = []
        self.tail: bytes | None = None
        """The text after the list; None if the list does not end."""
        self.unfinished = 0
        """Bytes of an incomplete event at the end of the text."""

    def __iter__(self) -> Iterator[list[Event]]:
        wanted = 0
        waiting: list[bytes] = []  # joined at once: appending each chunk to a long text copies that again and again
        waiting_bytes = 0
        piece: bytes | None = b""
        while piece is not None and not self._is_given_up():
            if len(self._text) + waiting_bytes >= wanted:
                self._text = b"".join((self._text, *waiting)) if waiting else self._text
                waiting, waiting_bytes = [], 0
                size = len(self._text)
                while (some := self._next(at_end=False)) is not None:
                    if some:
                        yield some
                # without this, one long event would be decoded again with every chunk
                wanted = 2 * size if len(self._text) == size else 0
            piece = next(self._pieces, None)
            if piece is not None and not waiting and (some := self._behind(piece)) is not None:
                yield some
            elif piece is not None and self.tail is not None and len(self._text) + waiting_bytes > _HELD_BYTES:
                break
            elif piece is not None:
                waiting.append(piece)
                waiting_bytes += len(piece)
        self._text = b"".join((self._text, *waiting))
        while (some := self._next(at_end=True)) is not None:
            if some:
                yield some
        if self.tail is None:
            self.unfinished = len(self._text) if self._text.strip(b" \t\r\n,") else 0
        else:
            self.tail = self._text

    def _is_given_up(self) -> bool:
        """Return whether so many bytes hold no event that the rest is not read."""
        if self.tail is not None or not self._is_lost or not self.damage:
            return False
        return self.damage[-1].last - self.damage[-1].first > _MOST_DAMAGE

    def problems(self) -> list[str]:
        """Return what is missing or damaged, in events and bytes."""
        found = []
        if self.damage:
            lost = sum(one.last - one.first for one in self.damage)
            places = ", ".join(f"byte {one.at:,} ({one.reason})" for one in self.damage[:_SHOWN])
            more = f" and {len(self.damage) - _SHOWN:,} more" if len(self.damage) > _SHOWN else ""
            found.append(
                f"the JSON is damaged at {places}{more}: {lost:,} bytes were left out, at least "
                f"{len(self.damage):,} events; the other {self.count:,} were read"
            )
        if self.tail is None and self._is_given_up():
            found.append(
                f"no event begins in {_MOST_DAMAGE >> 20} MB: the trace was read to byte {self.position:,}, "
                "and how many events came after cannot be known"
            )
        elif self.tail is None:
            unfinished = f"1 unfinished event of {self.unfinished:,} bytes is lost, and " if self.unfinished else ""
            found.append(
                f"the trace is cut: {self.count:,} complete events were read, to byte {self.position:,} of the JSON; "
                f"{unfinished}how many events came after cannot be known"
            )
        return found

    def _behind(self, piece: bytes) -> list[Event] | None:
        """Return the events up to the last boundary in the next chunk; None, without effect, if anything is damaged.

        A fast path of `_next` that does not copy the chunk to the end of the text first.
        """
        # the text of a long event grows: it must not be decoded again with every chunk
        if self._is_lost or self.tail is not None or len(self._text) > len(piece):
            return None
        border = last_boundary(piece, len(piece))
        if border is None:
            return None
        events, fault = decode_events(
            b"".join((b"[", self._text, memoryview(piece)[: border.end], b"]")), self._selection
        )
        if fault is not None or not events:
            return None
        self.count += len(events)
        self.position += len(self._text) + border.start
        self._text = piece[border.start :]
        return events

    def _next(self, *, at_end: bool) -> list[Event] | None:
        """Remove events or a damaged span from the text; None if that needs more text or nothing is left."""
        if self.tail is not None or not self._text:
            return None
        border = None if at_end else last_boundary(self._text, len(self._text))
        if border is not None:
            text, start = self._upto(border.end), border.start
        elif at_end or len(self._text) > _HELD_BYTES:
            text, start = b"[" + self._text, len(self._text)
        else:
            return None
        events, fault = decode_events(text, self._selection)
        if fault is None:
            if border is None:
                self.tail = b""  # a bare list that ends with the file
            return self._take(events, start)
        if fault.kind == "ended":
            return self._end(text[: fault.at], at_end=at_end)
        if fault.kind == "open":
            return self._open(start, at_end=at_end)
        before = self._before(fault)
        return before if before is not None else self._step_over(fault, at_end=at_end)

    def _upto(self, end: int) -> bytes:
        return b"".join((b"[", memoryview(self._text)[:end], b"]"))

    def _take(self, events: list[Event], start: int) -> list[Event]:
        if self._is_lost and events and not looks_like_event(events[0]):
            border = next_boundary(self._text, 0)
            return self._leave_out(start if border is None else min(border.start, start), 0, "")
        self._is_lost = False
        self._repairs = 0
        self.count += len(events)
        self._drop(start)
        return events

    def _drop(self, length: int) -> None:
        self.position += length
        self._text = self._text[length:]

    def _end(self, text: bytes, *, at_end: bool) -> list[Event] | None:
        """Handle the end of the list after `text`, unless its closing bracket is misplaced."""
        after = self._text[len(text) - 1 :]
        if not at_end and len(after) < _TAIL_SEEN:
            return None
        events, _ = decode_events(text, self._selection)
        if not _TAIL.match(after):
            bracket = len(text.rstrip()) - 2
            if events:
                return self._take(events, bracket)
            brace = self._text.find(b"{")
            return self._leave_out(
                len(self._text) if brace < 0 else brace, bracket, "the list of events ends and continues"
            )
        some = self._take(events, len(text) - 1)
        if not self._is_lost:
            self.tail = b""
        return some

    def _open(self, limit: int, *, at_end: bool) -> list[Event] | None:
        """Handle text that stops within an event or at a false boundary: find the last valid boundary."""
        if at_end:
            # cut directly after an event or its comma
            events, fault = decode_events(self._upto(len(self._text.rstrip().removesuffix(b","))), self._selection)
            if fault is None:
                return self._take(events, limit)
        for _ in range(_TRIES):
            border = last_boundary(self._text, limit)
            if border is None:
                break
            text = self._upto(border.end)
            events, fault = decode_events(text, self._selection)
            if fault is None:
                return self._take(events, border.start)
            limit = border.start
        return self._first(at_end=at_end) if at_end or len(self._text) > _SALVAGE_BYTES else None

    def _first(self, *, at_end: bool) -> list[Event] | None:
        """Take the first event alone, or skip it because something in it opens and never closes."""
        borders: list[EventBoundary] = []
        border = next_boundary(self._text, 0)
        while border is not None and len(borders) < _TRIES_AT_ONE:
            text = self._upto(border.end)
            events, fault = decode_events(text, self._selection)
            if fault is None:
                return self._take(events, border.start)
            borders.append(border)
            border = next_boundary(self._text, border.start)
        for this, following in zip_longest(borders, borders[1:]):
            end = len(self._text) if following is None else following.end
            events, fault = decode_events(b"[" + self._text[this.start : end] + b"]", self._selection)
            if fault is None and looks_like_event(events[0]):
                return self._leave_out(this.start, 0, "something opens and is never closed")
        # at the end it is the incomplete event of a cut trace
        return None if at_end else self._leave_out(len(self._text), 0, "something opens and is never closed")

    def _before(self, fault: DecodeFault) -> list[Event] | None:
        """Take the events before a fault."""
        limit = fault.at
        for _ in range(_TRIES):
            border = last_boundary(self._text, limit)
            if border is None:
                return None
            text = self._upto(border.end)
            events, inner = decode_events(text, self._selection)
            if inner is None:
                return self._take(events, border.start)
            limit = border.start
        return None

    def _step_over(self, fault: DecodeFault, *, at_end: bool) -> list[Event] | None:
        """Repair the first event, which is invalid, or skip it."""
        at = fault.at - 1
        mended = repair(self._text, at) if self._repairs < _MOST_REPAIRS else None
        if mended is not None:
            self._repairs += 1
            self.position -= len(mended) - len(self._text)
            self._text = mended
            return []
        reason = fault.reason
        quote = whitespace_start(self._text, at, 0) - 1
        if quote >= 0 and self._text[quote] == 0x22 and reason.startswith("expected ','"):
            at, reason = quote, "unescaped quote"
        border = next_boundary(self._text, at)
        if border is not None:
            return self._leave_out(border.start, at, reason)
        if not at_end and len(self._text) <= _SALVAGE_BYTES:
            return None
        for end in _END_OF_LIST.finditer(self._text, at):
            after = self._text[end.end() + 1 :]
            if at_end and _TAIL.match(after) and (not after.strip() or parse_object_tail(after) is not None):
                return self._leave_out(end.end(), at, reason)
        return self._leave_out(len(self._text), at, reason)

    def _leave_out(self, length: int, at: int, reason: str) -> list[Event]:
        """Drop the first `length` bytes as damaged at `at`."""
        first, last = self.position, self.position + length
        if self._is_lost and self.damage:  # the previous span continues
            self.damage[-1] = self.damage[-1]._replace(last=last)
        else:
            self.damage.append(DamagedSpan(first, last, first + at, reason))
        self._is_lost = True
        self._drop(length)
        return []
