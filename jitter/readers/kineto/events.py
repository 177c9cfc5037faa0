"""Events of a trace: which are decoded, by category, and the kind of row that each becomes.

All other events are skipped, which is several times faster. Modules (nn.Module) and frames of the program in the
recorded Python stack are found in the text: most Python functions of a trace are neither, and are not decoded.
"""

import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache, lru_cache
from typing import Any, Final, Union

import msgspec
from msgspec import UNSET, Raw, Struct, defstruct

from jitter.readers.chrome_trace import INVALID, event_decoder

NULL: Final = Raw(b"null")


class Event(Struct, gc=False):
    """One event; values that need exact decoding stay JSON text.

    Undamaged events have other types, one per category (`KIND_BY_TYPE`), whose names are strings.
    """

    cat: str | None = None
    name: Raw = NULL
    pid: Any = UNSET
    tid: Any = UNSET
    ts: Raw = NULL
    dur: Raw = NULL
    args: Raw = NULL
    ph: Any = UNSET
    id: Any = UNSET


RECORD_PARAM_COMMS: Final = b"record_param_comms"
"""The operator whose arguments describe a collective where its kernel's do not."""
CATEGORIES: Final = {
    "memory": ("gpu_memcpy", "gpu_memset", "Memcpy", "Memset"),
    "kernel": ("kernel", "Kernel"),
    "call": (
        *("cuda_runtime", "cuda_driver", "Runtime", "Driver", "hip_runtime", "hip_driver"),
        *("xpu_runtime", "xpu_driver", "privateuse1_runtime", "privateuse1_driver"),
        "CudaRuntime",
    ),
    "range": (
        *("user_annotation", "ProfileStep", "Forward", "Backward", "Optimization", "Dataloader"),
        *("UserDefined", "PythonUserDefined"),
    ),
    "old operator": ("Operator",),
    "operator": ("cpu_op", "OperatorInner", "PythonOp"),
    "module": ("python_function",),
    "overhead": ("overhead",),
    "pass link": ("fwdbwd",),
}
"""The categories that become rows, by kind of row: of PyTorch, and those of Paddle, which writes traces of this form.

Old traces of PyTorch have operators and ranges in one category.
"""
FOREIGN_DEVICES: Final = {
    "mtia": "MTIA",
    "hpu": "Habana (HPU)",
    "glow": "Glow",
    "gpu_op": "Intel (unitrace)",
} | dict.fromkeys(("async_npu", "HostToDevice", "enqueue", "dequeue"), "Ascend (NPU)")
"""Devices whose activities are not read, by a category of their traces or its first word (`mtia_ccp_events`)."""
_COMMON: Final = (
    "ac2g",
    "cpu_instant_event",
    "gpu_user_annotation",
    "Trace",
    "cuda_sync",
    "async_cpu_to_gpu",
    "external_correlation",
    "collective_comm",
    "gpu_pm_counter",
    "cuda_profiler_range",
)
"""Other common categories."""
_FIELDS: Final = [
    ("name", str, ""),
    ("pid", Any, UNSET),
    ("tid", Any, UNSET),
    ("ts", Raw, NULL),
    ("dur", Raw, NULL),
    ("args", Raw, NULL),
]
_PYTHON: Final = "python_function"
_FIELDS_OF_KIND: Final = {
    "range": _FIELDS[:-1],
    "operator": _FIELDS[:-1],
    "overhead": _FIELDS[:-1],
    "pass link": [("ph", Any, UNSET), ("id", Any, UNSET), *_FIELDS[1:4]],
}
"""The fields that are decoded, of kinds that need not all."""


def _of_category(category: str, fields: Sequence[tuple[str, Any, Any]]) -> type[Struct]:
    """Return a type for events of one category; the category is an attribute of the type."""
    name = f"Event_{category}"
    return defstruct(name, fields, tag_field="cat", tag=category, namespace={"cat": category}, gc=False)


KIND_BY_CATEGORY: Final[dict[object, str]] = {
    category: kind for kind, those in CATEGORIES.items() for category in those
}
_MODULE_TYPE: Final = _of_category(_PYTHON, _FIELDS[:-1])
"""The type of modules and of frames of the program."""
_PYTHON_TYPE: Final = _of_category(_PYTHON, [])
"""The type of Python functions, without fields."""
_DECODED: Final[dict[object, str]] = {
    _of_category(str(category), _FIELDS_OF_KIND.get(kind, _FIELDS)): kind
    for category, kind in KIND_BY_CATEGORY.items()
    if category != _PYTHON
}
KIND_BY_TYPE: Final = {**_DECODED, _MODULE_TYPE: KIND_BY_CATEGORY[_PYTHON]}
"""The kind of row by event type; events of other types become no rows."""


@cache
def _decoder() -> msgspec.json.Decoder[Any]:
    """Return what decodes a list of events of known categories; those that are not wanted have no fields."""
    # types without fields: msgspec skips their values in C
    event_types = (*_DECODED, _PYTHON_TYPE, *(_of_category(category, []) for category in _COMMON))
    return msgspec.json.Decoder(list[Union[event_types]])  # type: ignore[valid-type]  # noqa: UP007


_decode_any: Final = event_decoder(Event)


def decode_events(text: bytes) -> list[Any]:
    """Return the events of a JSON list of any values. Raises `chrome_trace.INVALID` if it is no valid list.

    Events that are not selected may have only their category; values that are no events are events without one.
    """
    if text.rfind(RECORD_PARAM_COMMS) < 0:  # takes a third of the time of `in`
        with suppress(*INVALID):
            events: list[Any] = _decoder().decode(text)
            _put_python_functions(text, events)
            return events
    return _decode_any(text)


def looks_like_event(event: Any) -> bool:
    """Return whether it looks like an event and not like an object inside one."""
    return event.cat is not None or event.ts is not NULL or (event.name is not NULL and event.pid is not UNSET)


_MODULE: Final = b'"nn.Module: '
_PYTHON_CATEGORY: Final = b'"python_function"'
_BEFORE: Final = 64
"""Bytes between an event's category and its name, at most."""
_PYTHON_TIMES: Final = (
    rb'\s*,\s*"pid"\s*:\s*(\d{1,18})\s*,\s*"tid"\s*:\s*(\d{1,18})\s*,'
    rb'\s*"ts"\s*:\s*(\d[\d.]*)\s*,\s*"dur"\s*:\s*(\d[\d.]*)\s*[,}]'
)
_MODULE_EVENT: Final = re.compile(rb'"(nn\.Module: [^"\\]*)"' + _PYTHON_TIMES)
_FRAME_EVENT: Final = re.compile(
    rb'"python_function"\s*,\s*"name"\s*:\s*"(?!torch/|nn\.Module|<)([^"\\]*\.py\(\d+\): [^"\\]*)"' + _PYTHON_TIMES
)
_IS_FRAME: Final = re.compile(r"(.+)\.py\(\d+\): ").match
_LIBRARY: Final = re.compile(
    r"(?:^|-packages/)(?:torch|triton|torchgen)/|<frozen |/python3[\d.]*/(?!(?:site|dist)-packages/)"
)
_MODULE_NAME: Final = "nn.Module: "


def find_python_functions(text: bytes) -> Iterator[Any]:
    """Yield an event with name, pid, tid, ts and dur for each module and each frame of the program.

    Only events as PyTorch writes them are found: category, name, pid, tid, ts, dur, in this order.
    """
    if text.rfind(_PYTHON_CATEGORY) < 0:  # most traces record no Python stack; takes a third of the time of `in`
        return
    at = text.find(_MODULE)
    while at >= 0:
        match = _MODULE_EVENT.match(text, at)
        if match is not None and text.rfind(_PYTHON_CATEGORY, max(0, at - _BEFORE), at) >= 0:
            yield _python_event(match)
        at = text.find(_MODULE, at + 1)
    for match in _FRAME_EVENT.finditer(text):
        if is_program_frame(match[1].decode("utf-8", "replace")):
            yield _python_event(match)


def _python_event(match: re.Match[bytes]) -> Any:
    name, pid, tid, start, duration = match.groups()
    return _MODULE_TYPE(
        name=name.decode("utf-8", "replace"), pid=int(pid), tid=int(tid), ts=Raw(start), dur=Raw(duration)
    )


def _put_python_functions(text: bytes, events: list[Any]) -> None:
    """Replace Python functions, which have no fields, by as many modules and frames of the text.

    The number of events stays as it is; which of these events a module or frame replaces does not matter.
    """
    functions = list(find_python_functions(text))
    if not functions:
        return
    places = (place for place, event in enumerate(events) if type(event) is _PYTHON_TYPE)
    for place, function in zip(places, functions, strict=False):
        events[place] = function


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
    match = _IS_FRAME(name)
    if match is None or _LIBRARY.search(name):
        return False
    # PyTorch leaves the path of the library out: `threading.py`, `concurrent/futures/thread.py`
    return match[1].split("/", 1)[0] not in sys.stdlib_module_names
