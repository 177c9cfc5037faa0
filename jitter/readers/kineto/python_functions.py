"""Modules (nn.Module) and frames of the program in the recorded Python stack, found in the text of a trace.

Most Python functions of a trace are neither, and are not decoded.
"""

import re
import sys
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final

from msgspec import Raw

_MODULE: Final = b'"nn.Module: '
_CATEGORY: Final = b'"python_function"'
_BEFORE: Final = 64
"""Bytes between an event's category and its name, at most."""
_TIMES: Final = (
    rb'\s*,\s*"pid"\s*:\s*(\d{1,18})\s*,\s*"tid"\s*:\s*(\d{1,18})\s*,'
    rb'\s*"ts"\s*:\s*(\d[\d.]*)\s*,\s*"dur"\s*:\s*(\d[\d.]*)\s*[,}]'
)
_FIELDS: Final = re.compile(rb'"(nn\.Module: [^"\\]*)"' + _TIMES)
_FRAME_EVENT: Final = re.compile(
    rb'"python_function"\s*,\s*"name"\s*:\s*"(?!torch/|nn\.Module|<)([^"\\]*\.py\(\d+\): [^"\\]*)"' + _TIMES
)
_IS_FRAME: Final = re.compile(r"(.+)\.py\(\d+\): ").match
_LIBRARY: Final = re.compile(
    r"(?:^|-packages/)(?:torch|triton|torchgen)/|<frozen |/python3[\d.]*/(?!(?:site|dist)-packages/)"
)
_MODULE_NAME: Final = "nn.Module: "


def find_python_functions(text: bytes, event: Any) -> Iterator[Any]:
    """Yield an `event` (a type with name, pid, tid, ts, dur) for each module and each frame of the program.

    Only events as PyTorch writes them are found: category, name, pid, tid, ts, dur, in this order.
    """
    if text.rfind(_CATEGORY) < 0:  # most traces record no Python stack; takes a third of the time of `in`
        return
    at = text.find(_MODULE)
    while at >= 0:
        found = _FIELDS.match(text, at)
        if found is not None and text.rfind(_CATEGORY, max(0, at - _BEFORE), at) >= 0:
            yield _event(found, event)
        at = text.find(_MODULE, at + 1)
    for found in _FRAME_EVENT.finditer(text):
        if _is_program_frame(found[1]):
            yield _event(found, event)


def _event(found: re.Match[bytes], event: Any) -> Any:
    name, pid, tid, start, duration = found.groups()
    return event(name=name.decode("utf-8", "replace"), pid=int(pid), tid=int(tid), ts=Raw(start), dur=Raw(duration))


def put_python_functions(text: bytes, events: list[Any], python: type[Any], wanted: type[Any]) -> None:
    """Replace events of the type `python`, which have no fields, by as many modules and frames of the text.

    The number of events stays as it is; which of these events a module or frame replaces does not matter.
    """
    functions = list(find_python_functions(text, wanted))
    if not functions:
        return
    places = (place for place, event in enumerate(events) if type(event) is python)
    for place, one in zip(places, functions, strict=False):
        events[place] = one


def is_module_or_frame(name: str) -> bool:
    """Return whether a Python function is a module, or a frame outside PyTorch, Triton and the standard library.

    >>> is_module_or_frame("nn.Module: Linear_1"), is_module_or_frame("train.py(12): step")
    (True, True)
    >>> is_module_or_frame("torch/nn/modules/module.py(1501): _call_impl"), is_module_or_frame("threading.py(9): run")
    (False, False)
    """
    return name.startswith(_MODULE_NAME) or is_program_frame(name)


@lru_cache(maxsize=65536)
def is_program_frame(name: str) -> bool:
    """Return whether a Python function is a frame outside PyTorch, Triton and the standard library."""
    found = _IS_FRAME(name)
    if found is None or _LIBRARY.search(name):
        return False
    # PyTorch leaves the path of the library out: `threading.py`, `concurrent/futures/thread.py`
    return found[1].split("/", 1)[0] not in sys.stdlib_module_names


@lru_cache(maxsize=65536)
def _is_program_frame(name: bytes) -> bool:
    return is_program_frame(name.decode("utf-8", "replace"))
