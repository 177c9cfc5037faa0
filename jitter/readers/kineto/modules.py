"""Events of modules (nn.Module) in a block of text, found without decoding the Python functions around them."""

import re
from collections.abc import Iterator
from typing import Any, Final

from msgspec import Raw

_MODULE: Final = b'"nn.Module: '
_CATEGORY: Final = b'"python_function"'
_BEFORE: Final = 64
"""Bytes between an event's category and its name, at most."""
_FIELDS: Final = re.compile(
    rb'"(nn\.Module: [^"\\]*)"\s*,\s*"pid"\s*:\s*(\d{1,18})\s*,\s*"tid"\s*:\s*(\d{1,18})\s*,'
    rb'\s*"ts"\s*:\s*(\d[\d.]*)\s*,\s*"dur"\s*:\s*(\d[\d.]*)\s*[,}]'
)


def find_modules(text: bytes, event: Any) -> Iterator[Any]:
    """Yield an `event` (a type with name, pid, tid, ts, dur) for each module in the text.

    Only events as PyTorch writes them are found: category, name, pid, tid, ts, dur, in this order.
    """
    at = text.find(_MODULE)
    while at >= 0:
        found = _FIELDS.match(text, at)
        if found is not None and text.rfind(_CATEGORY, max(0, at - _BEFORE), at) >= 0:
            name, pid, tid, start, duration = found.groups()
            yield event(
                name=name.decode("utf-8", "replace"), pid=int(pid), tid=int(tid), ts=Raw(start), dur=Raw(duration)
            )
        at = text.find(_MODULE, at + 1)


def put_modules(text: bytes, events: list[Any], python: type[Any], module: type[Any]) -> None:
    """Replace events of the type `python`, which have no fields, by as many modules of the text.

    The number of events stays as it is; which of these events a module replaces does not matter.
    """
    modules = list(find_modules(text, module))
    if not modules:
        return
    places = (place for place, event in enumerate(events) if type(event) is python)
    for place, one in zip(places, modules, strict=False):
        events[place] = one
