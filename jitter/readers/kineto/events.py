"""Events of a trace: which are decoded, by category, and the kind of row that each becomes.

All other events are skipped, which is several times faster.
"""

import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import cache, lru_cache
from typing import Any, Final, Union

import msgspec
from msgspec import UNSET, Raw, Struct, defstruct

from jitter.readers.chrome_trace import event_decoder
from jitter.readers.json_document import INVALID

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
_FIELDS_OF_KIND: Final = {
    "range": _FIELDS[:-1],
    "operator": _FIELDS[:-1],
    "module": _FIELDS[:-1],
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
KIND_BY_TYPE: Final[dict[object, str]] = {
    _of_category(str(category), _FIELDS_OF_KIND.get(kind, _FIELDS)): kind for category, kind in KIND_BY_CATEGORY.items()
}
"""The kind of row by event type; events of other types become no rows."""


@cache
def _decoder() -> msgspec.json.Decoder[Any]:
    """Return what decodes a list of events of known categories; those that are not wanted have no fields."""
    # types without fields: msgspec skips their values in C
    event_types = (*KIND_BY_TYPE, *(_of_category(category, []) for category in _COMMON))
    return msgspec.json.Decoder(list[Union[event_types]])  # type: ignore[valid-type]  # noqa: UP007


_decode_any: Final = event_decoder(Event)


def decode_events(text: bytes) -> list[Any]:
    """Return the events of a JSON list of any values. Raises `chrome_trace.INVALID` if it is no valid list.

    Events that are not selected may have only their category; values that are no events are events without one.
    """
    if text.rfind(RECORD_PARAM_COMMS) < 0:  # takes a third of the time of `in`
        with suppress(*INVALID):
            return _decoder().decode(text)  # type: ignore[no-any-return]
    return _decode_any(text)


def looks_like_event(event: Any) -> bool:
    """Return whether it looks like an event and not like an object inside one."""
    return event.cat is not None or event.ts is not NULL or (event.name is not NULL and event.pid is not UNSET)


_IS_FRAME: Final = re.compile(r"(.+)\.py\(\d+\): ").match
_LIBRARY: Final = re.compile(
    r"(?:^|-packages/)(?:torch|triton|torchgen)/|<frozen |/python3[\d.]*/(?!(?:site|dist)-packages/)"
)
_MODULE_NAME: Final = "nn.Module: "


@lru_cache(maxsize=65536)
def is_module_or_frame(name: str) -> bool:
    """Return whether a Python function is a module, or a frame outside PyTorch, Triton and the standard library.

    >>> is_module_or_frame("nn.Module: Linear_1"), is_module_or_frame("train.py(12): step")
    (True, True)
    >>> is_module_or_frame("torch/nn/modules/module.py(1501): _call_impl"), is_module_or_frame("threading.py(9): run")
    (False, False)
    """
    match = _IS_FRAME(name)
    if match is None or _LIBRARY.search(name):
        return name.startswith(_MODULE_NAME)
    # PyTorch leaves the path of the library out: `threading.py`, `concurrent/futures/thread.py`
    return match[1].split("/", 1)[0] not in sys.stdlib_module_names
