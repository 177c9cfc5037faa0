"""The formats of logs: documents, which are read as a whole, and the line parsers.

NCCL_DEBUG's parser is not among them: it reads a file's lines first and passes on the rest.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from jitter.logs.benchmark import json_report
from jitter.logs.benchmark.text_table import NcclTestsParser
from jitter.logs.gpu.dcgmi import DcgmiParser
from jitter.logs.gpu.kernel_log import KernelLogParser
from jitter.logs.gpu.nvidia_smi_csv import NvidiaSmiCsvParser
from jitter.logs.gpu.nvidia_smi_query import NvidiaSmiQueryParser
from jitter.logs.gpu.rocm_smi import RocmSmiParser
from jitter.logs.line_parser import Context, LineParser
from jitter.logs.nccl import ras
from jitter.logs.placement.bindings import BindingParser
from jitter.logs.placement.hello_jobstep import JobstepParser
from jitter.logs.placement.nvidia_topology import NvidiaTopologyParser
from jitter.logs.placement.rocm_topology import RocmTopologyParser
from jitter.logs.programs.mpitrace import MpitraceParser
from jitter.logs.programs.profiler_table import ProfilerTableParser
from jitter.logs.programs.rocprof_stats import RocprofStatsParser
from jitter.logs.programs.training_result import TrainingResultParser
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
_PARSERS: Final[tuple[type[LineParser], ...]] = (
    NcclTestsParser,
    InspectorParser,
    ProfilerPluginParser,
    NvidiaSmiCsvParser,
    NvidiaSmiQueryParser,
    DcgmiParser,
    RocmSmiParser,
    KernelLogParser,
    BindingParser,
    JobstepParser,
    NvidiaTopologyParser,
    RocmTopologyParser,
    MpitraceParser,
    ProfilerTableParser,
    RocprofStatsParser,
    TrainingResultParser,
    WatchdogParser,
    ras.RasParser,
)


def line_parsers(context: Context) -> list[LineParser]:
    """Return a parser of each format for one file."""
    return [parser(context) for parser in _PARSERS]


def document_of(head: bytes) -> Document | None:
    """Return the format of a file that begins like this, or None where it is read line by line."""
    return next((document for recognised, document in _DOCUMENTS if recognised(head)), None)
