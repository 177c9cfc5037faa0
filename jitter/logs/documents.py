"""Formats whose file is one object: read as a whole, not line by line."""

from collections.abc import Callable
from typing import Final, NamedTuple

from jitter.logs.benchmark import json_report
from jitter.logs.line_parser import Context
from jitter.logs.recorded import flight_recorder


class Document(NamedTuple):
    """A format and what reads a file of it."""

    format: str
    read: Callable[[bytes, Context], None]


_DOCUMENTS: Final = (
    (flight_recorder.is_json, Document(flight_recorder.FORMAT, flight_recorder.read_json)),
    (flight_recorder.is_pickle, Document(flight_recorder.FORMAT, flight_recorder.read_pickle)),
    (json_report.is_report, Document(json_report.FORMAT, json_report.read)),
)


def document_of(head: bytes) -> Document | None:
    """Return the format of a file that begins like this, or None where it is read line by line."""
    return next((document for recognised, document in _DOCUMENTS if recognised(head)), None)
