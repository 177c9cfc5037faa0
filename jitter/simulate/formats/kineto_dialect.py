"""Dialects of Kineto traces: categories, times and names of calls, by year and GPU vendor."""

from dataclasses import dataclass
from typing import Final

from jitter.simulate.program import Operation
from jitter.simulate.recording import RankRecording

_HIP_CALLS: Final = {
    "cudaLaunchKernel": "hipLaunchKernel",
    "cudaLaunchKernelExC": "hipExtLaunchKernel",
    "cudaGraphLaunch": "hipGraphLaunch",
    "cudaMemcpyAsync": "hipMemcpyAsync",
    "cudaMemsetAsync": "hipMemsetAsync",
    "cudaEventRecord": "hipEventRecord",
    "cudaStreamWaitEvent": "hipStreamWaitEvent",
    "cudaStreamSynchronize": "hipStreamSynchronize",
    "cudaDeviceSynchronize": "hipDeviceSynchronize",
    "cudaEventSynchronize": "hipEventSynchronize",
}
_COPIES: Final = {
    "h2d": "Memcpy HtoD (Pageable -> Device)",
    "d2h": "Memcpy DtoH (Device -> Pageable)",
    "memset": "Memset (Device)",
}
_RCCL_KERNEL: Final = "ncclDevKernel_Generic(ncclDevComm*, channelMasks, ncclWork*)"


@dataclass(frozen=True)
class KinetoDialect:
    """Categories, names and units of a layout."""

    kernel: str
    copy: str
    fill: str
    runtime: str
    operator: str
    annotation: str
    is_rocm: bool
    main_stream: int
    first_device: int
    base_ns: int
    """Offset added to every time."""
    whole: bool
    """Whether times are whole microseconds."""

    def stream(self, stream: int) -> int:
        """Return the stream's number in the trace; ROCm's default stream is 0."""
        return 0 if self.is_rocm and stream == self.main_stream else stream

    def call(self, name: str) -> str:
        """Return the name of a host call."""
        return _HIP_CALLS[name] if self.is_rocm else name

    def gpu(self, op: Operation) -> tuple[str, str]:
        """Return category and name of an activity."""
        if op.copy is not None:
            return (self.fill if op.copy == "memset" else self.copy), _COPIES[op.copy]
        return self.kernel, _RCCL_KERNEL if self.is_rocm and op.kind == "collective" else op.name


def kineto_dialect(layout: str, recording: RankRecording, base_ns: int) -> KinetoDialect:
    """Return the dialect of a layout: 2024, 2021 or rocm."""
    rocm = layout == "rocm"
    if layout == "2021":
        words = ("Kernel", "Memcpy", "Memset", "Runtime", "Operator", "Operator")
    else:
        words = ("kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime", "cpu_op", "user_annotation")
    return KinetoDialect(*words, rocm, recording.main_stream, 2 if rocm else 0, base_ns, layout == "2021")


def format_timestamp(time_ns: int, spelled: KinetoDialect) -> str:
    """Format a time in microseconds, exactly: a float would lose digits."""
    micros, nanos = divmod(time_ns + spelled.base_ns, 1000)
    return str(micros) if spelled.whole else f"{micros}.{nanos:03d}"


def format_duration(start_ns: int, end_ns: int, spelled: KinetoDialect) -> str:
    """Format a duration in microseconds; between whole times in a dialect with whole microseconds."""
    if spelled.whole:
        return str((end_ns + spelled.base_ns) // 1000 - (start_ns + spelled.base_ns) // 1000)
    micros, nanos = divmod(end_ns - start_ns, 1000)
    return f"{micros}.{nanos:03d}"
