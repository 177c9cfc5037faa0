"""The position and kind of a fault in JSON, from the error of its decoder."""

import re
from typing import Final, Literal, NamedTuple

import msgspec

_FAULT: Final = re.compile(r"(?:JSON is malformed: )?(?P<reason>.*) \(byte (?P<at>\d+)\)$")


class DecodeFault(NamedTuple):
    """Reason why a text is not the value expected; `at` is the byte position in the text."""

    kind: Literal["open", "ended", "bad"]
    """open: the text stops early; ended: the value ends at `at` and text follows; bad: invalid at `at`."""
    at: int
    reason: str


def decode_fault(error: msgspec.DecodeError) -> DecodeFault:
    """Return the fault that an error states."""
    found = _FAULT.match(str(error))
    if found is None:
        return DecodeFault("open", 0, "cut")
    at, reason = int(found["at"]), found["reason"]
    # the decoder states the position of the second character after the end
    return DecodeFault("ended", at - 1, reason) if reason == "trailing characters" else DecodeFault("bad", at, reason)
