"""The formats of logs: documents, which are read as a whole, and the line parsers.

NCCL_DEBUG's parser is not among them: it reads a file's lines first and passes on the rest.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from jitter.logs import gpu, placement
from jitter.logs.benchmark import json_report
from jitter.logs.benchmark.text_table import NcclTestsParser
from jitter.logs.line_parser import Context, LineParser
from jitter.logs.nccl import ras
from jitter.logs.programs import throughput
from jitter.logs.programs.mpitrace import MpitraceParser
from jitter.logs.programs.perftools import PerftoolsParser
from jitter.logs.programs.profiler_table import ProfilerTableParser
from jitter.logs.programs.watchdog import WatchdogParser
from jitter.logs.recorded import flight_recorder
from jitter.logs.recorded.inspector import InspectorParser
from jitter.logs.recorded.profiler_plugin import ProfilerPluginParser


class Document(NamedTuple):
    """A format and what reads a file of it."""

    format: str
    read: Callable[[bytes, Context], None]


_DOCUMENTS: Final = (
    (flight_recorder.is_json, Document(flight_recorder.FORMAT, flight_recorder.read_json)),
    (flight_recorder.is_pickle, Document(flight_recorder.FORMAT, flight_recorder.read_pickle)),
    (ras.is_json, Document(ras.FORMAT, ras.read_json)),
    (json_report.is_report, Document(json_report.FORMAT, json_report.read)),
)
_PARSERS: Final[tuple[Callable[[Context], LineParser], ...]] = (
    NcclTestsParser,
    InspectorParser,
    ProfilerPluginParser,
    MpitraceParser,
    ProfilerTableParser,
    PerftoolsParser,
    WatchdogParser,
    ras.RasParser,
    placement.JobstepParser,
    placement.NvidiaTopologyParser,
    placement.RocmTopologyParser,
    *(declared.parser for declared in (placement.BINDINGS, *gpu.FORMATS, *throughput.FORMATS)),
)


def line_parsers(context: Context) -> list[LineParser]:
    """Return a parser of each format for one file."""
    return [parser(context) for parser in _PARSERS]


def document_of(head: bytes) -> Document | None:
    """Return the format of a file that begins like this, or None where it is read line by line."""
    return next((document for recognised, document in _DOCUMENTS if recognised(head)), None)
