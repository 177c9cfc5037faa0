"""The line parsers. NCCL_DEBUG's is not among them: it reads a file's lines first and passes on the rest."""

from typing import Final

from jitter.logs.bindings import BindingParser
from jitter.logs.dcgmi import DcgmiParser
from jitter.logs.hello_jobstep import JobstepParser
from jitter.logs.inspector import InspectorParser
from jitter.logs.kernel_log import KernelLogParser
from jitter.logs.line_parser import Context, LineParser
from jitter.logs.mpitrace import MpitraceParser
from jitter.logs.nccl_tests import NcclTestsParser
from jitter.logs.nvidia_smi_csv import NvidiaSmiCsvParser
from jitter.logs.nvidia_smi_query import NvidiaSmiQueryParser
from jitter.logs.nvidia_topology import NvidiaTopologyParser
from jitter.logs.profiler_plugin import ProfilerPluginParser
from jitter.logs.profiler_table import ProfilerTableParser
from jitter.logs.rocm_smi import RocmSmiParser
from jitter.logs.rocm_topology import RocmTopologyParser
from jitter.logs.rocprof_stats import RocprofStatsParser
from jitter.logs.training_result import TrainingResultParser

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
)


def line_parsers(context: Context) -> list[LineParser]:
    """Return a parser of each format for one file."""
    return [parser(context) for parser in _PARSERS]
