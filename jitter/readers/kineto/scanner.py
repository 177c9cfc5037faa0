"""Decoding of JSON events from text that may be cut or damaged: events, boundaries between them, repairs."""

import re
from contextlib import suppress
from typing import Final, NamedTuple

import msgspec
from msgspec import UNSET, Raw

from jitter.readers.json_faults import DecodeFault, decode_fault
from jitter.readers.kineto.event_selection import NULL, RECORD_PARAM_COMMS, Event, EventSelection
from jitter.readers.kineto.python_functions import put_python_functions


class EventBoundary(NamedTuple):
    """The end of one object of a list and the start of the next, as byte positions."""

    end: int
    start: int


_EVENTS: Final = msgspec.json.Decoder(list[Event])
_RAWS: Final = msgspec.json.Decoder(list[Raw])
_EVENT: Final = msgspec.json.Decoder(Event)
_OBJECT: Final = msgspec.json.Decoder(dict[str, Raw])
_BLANKS: Final = b" \t\r\n"
_BLOCK_BYTES: Final = 4096
_MOST_BRACES: Final = 50_000
"""Braces tried as the start of an event; a list inside an event may have many."""
_BORDER: Final = re.compile(rb"\}[ \t\r\n]*,[ \t\r\n]*(?=\{)")
_CONTROL: Final = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f]")
_HOLE: Final = re.compile(_CONTROL.pattern + rb"{16}")
"""A run of control characters that is a hole in the file, not text of a string."""
_NO_NUMBER: Final = rb"-?(?:NaN|Infinity|nan|inf(?:inity)?)(?=[ \t\r\n,\]}])"
_STRING_OR_NO_NUMBER: Final = re.compile(rb'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)|(?<=[:,\[ \t\r\n])' + _NO_NUMBER, re.DOTALL)
_NO_NUMBER_HERE: Final = re.compile(_NO_NUMBER)


def decode_events(text: bytes, selection: EventSelection) -> tuple[list[Event], DecodeFault | None]:
    """Decode a JSON list of events; values that are no events are left out. Never raises on invalid input.

    Events that are not selected may have only their category.
    """
    if text.rfind(RECORD_PARAM_COMMS) < 0:  # takes a third of the time of `in`
        with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            events = selection.decoder.decode(text)
            if selection.module_type is not None:
                put_python_functions(text, events, selection.python_type, selection.module_type)
            return events, None
    try:
        return _EVENTS.decode(text), None
    except (msgspec.ValidationError, UnicodeDecodeError):
        return _one_by_one(text)
    except msgspec.DecodeError as error:
        return [], decode_fault(error)
    except RecursionError:
        return [], DecodeFault("open", len(text), "nested too deeply")


def _one_by_one(text: bytes) -> tuple[list[Event], DecodeFault | None]:
    try:
        raws = _RAWS.decode(text)
    except msgspec.DecodeError as error:
        return [], decode_fault(error)
    events = []
    for raw in raws:
        try:
            events.append(_EVENT.decode(raw))
        except (msgspec.DecodeError, UnicodeDecodeError):
            events.append(Event())  # counted, without a category
    return events, None


def last_boundary(text: bytes, limit: int) -> EventBoundary | None:
    """Return the last possible boundary in text[:limit]; only decoding shows whether it is one."""
    brace = text.rfind(b"{", 0, limit)
    for _ in range(_MOST_BRACES):
        if brace <= 0:
            break
        at = whitespace_start(text, brace, 0)
        if at > 0 and text[at - 1] == 0x2C:  # a comma
            at = whitespace_start(text, at - 1, 0)
            if at > 0 and text[at - 1] == 0x7D:  # a closing brace
                return EventBoundary(at, brace)
        brace = text.rfind(b"{", 0, brace)
    return None


def next_boundary(text: bytes, first: int) -> EventBoundary | None:
    """Return the first possible boundary from `first` on."""
    found = _BORDER.search(text, first)
    return None if found is None else EventBoundary(found.start() + 1, found.end())


def whitespace_start(text: bytes, at: int, first: int) -> int:
    """Return the start of the whitespace that ends at `at`, not before `first`."""
    while at > first and text[at - 1] in _BLANKS:
        block = text[max(first, at - _BLOCK_BYTES) : at]
        at -= len(block) - len(block.rstrip(_BLANKS))
    return at


def looks_like_event(event: Event) -> bool:
    """Return whether it looks like an event and not like an object inside one."""
    return event.cat is not None or event.ts is not NULL or (event.name is not NULL and event.pid is not UNSET)


def parse_object_tail(tail: bytes) -> dict[str, Raw] | None:
    """Return the members in the rest of a JSON object after a value; None if it is damaged or cut."""
    try:
        found: dict[str, Raw] = _OBJECT.decode(b'{"":0' + tail)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return found


def repair(text: bytes, at: int) -> bytes | None:
    """Return the text with the fault at `at` repaired; None if it is not one of the known harmless faults.

    Harmless and common are control characters in strings, NaN and Infinity, commas before a closing bracket, and
    single backslashes. Repairing control characters and backslashes makes the text longer.
    """
    if at < len(text) and text[at] < 0x20:
        return _escape_controls(text, at)
    # the decoder stops up to two characters inside the word
    if any(_NO_NUMBER_HERE.match(text, start) for start in range(max(0, at - 2), at + 1)):
        changed = _STRING_OR_NO_NUMBER.sub(_null, text)
        return changed if changed != text else None
    comma = whitespace_start(text, at, 0) - 1
    if comma > 0 and text[comma] == 0x2C and text[at : at + 1] in (b"]", b"}"):
        return b"%s %s" % (text[:comma], text[comma + 1 :])
    if text[at - 1 : at] == b"\\":
        return b"%s\\%s" % (text[:at], text[at:])
    return None


def _escape_controls(text: bytes, at: int) -> bytes | None:
    if _HOLE.match(text, at):
        return None
    if text[at] in b"\t\r\n":
        return b"%s\\u%04x%s" % (text[:at], text[at], text[at + 1 :])
    return _CONTROL.sub(lambda found: b"\\u%04x" % found[0][0], text)


def _null(found: re.Match[bytes]) -> bytes:
    word = found[0]
    if word.startswith(b'"'):
        return word
    return (b"null" if len(word) >= 4 else b'""').ljust(len(word))  # same length, so that positions stay valid
