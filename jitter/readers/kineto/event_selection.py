"""Events of a trace: which are decoded, by category, and the kind of row that each becomes."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any, Final, Union

import msgspec
from msgspec import UNSET, Raw, Struct, defstruct

from jitter.readers.chrome_trace import INVALID
from jitter.readers.kineto.python_functions import put_python_functions

NULL: Final = Raw(b"null")


class Event(Struct, gc=False):
    """One event; values that need exact decoding stay JSON text.

    Undamaged events have other types, one per category (`EventSelection.kind_by_type`), whose names are strings.
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
    ),
    "range": ("user_annotation",),
    "old operator": ("Operator",),
    "operator": ("cpu_op",),
    "module": ("python_function",),
    "pass link": ("fwdbwd",),
}
"""The categories that become rows, by kind of row. Old traces have operators and ranges in one category."""
FOREIGN_DEVICES: Final = {"mtia": "MTIA", "hpu": "Habana (HPU)", "glow": "Glow"}
"""Devices whose activities have categories of their own (`mtia_ccp_events`) and are not read, by their prefix."""
_COMMON: Final = (
    "ac2g",
    "cpu_instant_event",
    "gpu_user_annotation",
    "overhead",
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
    "pass link": [("ph", Any, UNSET), ("id", Any, UNSET), *_FIELDS[1:4]],
}
"""The fields that are decoded, of kinds that need not all."""


def _of_category(category: str, fields: Sequence[tuple[str, Any, Any]]) -> type[Struct]:
    """Return a type for events of one category; the category is an attribute of the type."""
    name = f"Event_{category}"
    return defstruct(name, fields, tag_field="cat", tag=category, namespace={"cat": category}, gc=False)


class EventSelection:
    """The wanted categories, by kind of row. All other events are skipped, which is several times faster.

    To read more of a trace, add categories under a kind of their own; `KinetoBatches` then gets the events of that
    kind. A category has one kind.
    """

    def __init__(self, categories: Mapping[str, Sequence[str]] = CATEGORIES) -> None:
        self.kinds: Final = tuple(categories)
        self.kind_by_category: Final[dict[object, str]] = {
            category: kind for kind, those in categories.items() for category in those
        }
        self.skipped: Final = tuple(category for category in _COMMON if category not in self.kind_by_category)
        """Known categories that are not wanted."""
        self.module_type: Final = _of_category(_PYTHON, _FIELDS[:-1]) if _PYTHON in self.kind_by_category else None
        """The type of modules and of frames of the program, which are found in the text: decoding all Python functions
        would take longer."""
        self.python_type: Final = _of_category(_PYTHON, [])
        """The type of Python functions, without fields."""

    @cached_property
    def kind_by_type(self) -> dict[object, str]:
        """The kind of row by event type; events of other types become no rows."""
        types: dict[object, str] = {
            _of_category(str(category), _FIELDS_OF_KIND.get(kind, _FIELDS)): kind
            for category, kind in self.kind_by_category.items()
            if category != _PYTHON
        }
        return types if self.module_type is None else types | {self.module_type: self.kind_by_category[_PYTHON]}

    @cached_property
    def decoder(self) -> msgspec.json.Decoder[Any]:
        """Decodes a list of events of known categories; those that are not wanted have no fields."""
        # types without fields: msgspec skips their values in C
        decoded = [one for one in self.kind_by_type if one is not self.module_type]
        passed = (_of_category(category, []) for category in self.skipped if category != _PYTHON)
        known = (*decoded, self.python_type, *passed)
        return msgspec.json.Decoder(list[Union[known]])  # type: ignore[valid-type]  # noqa: UP007


ROWS: Final = EventSelection()
"""The events that become rows."""
_ANY_EVENTS: Final = msgspec.json.Decoder(list[Event])
_ANY_EVENT: Final = msgspec.json.Decoder(Event)
_VALUES: Final = msgspec.json.Decoder(list[Raw])


def decode_events(text: bytes, selection: EventSelection) -> list[Any]:
    """Return the events of a JSON list of any values. Raises `chrome_trace.INVALID` if it is no valid list.

    Events that are not selected may have only their category; values that are no events are events without one.
    """
    if text.rfind(RECORD_PARAM_COMMS) < 0:  # takes a third of the time of `in`
        with suppress(*INVALID):
            events: list[Any] = selection.decoder.decode(text)
            if selection.module_type is not None:
                put_python_functions(text, events, selection.python_type, selection.module_type)
            return events
    try:
        return _ANY_EVENTS.decode(text)
    except (msgspec.ValidationError, UnicodeDecodeError):
        return [_decode_event(one) for one in _VALUES.decode(text)]


def _decode_event(text: Raw) -> Event:
    try:
        return _ANY_EVENT.decode(text)
    except INVALID:
        return Event()


def looks_like_event(event: Any) -> bool:
    """Return whether it looks like an event and not like an object inside one."""
    return event.cat is not None or event.ts is not NULL or (event.name is not NULL and event.pid is not UNSET)
