"""Classification of CUDA and HIP API calls: launches, synchronising calls, graph capture."""

import re
from functools import lru_cache

LONG_OPERATION_NS = 50_000
"""Duration in ns from which host operations that launch nothing are kept: shorter ones explain no gap."""
_LAUNCH = re.compile(
    r"^(?:cuda|cu|hip)(?:Ext|Hcc)?(?:Module)?Launch(?!Host)\w*|^(?:cuda|cu|hip)GraphLaunch|^hipExtLaunch"
)
_SYNCHRONISE = re.compile(
    r"^(?:cuda|cu|hip)(?:Device|Stream|Event|Ctx|Context|Thread)Synchronize"
    r"|^(?:cuda|cu|hip)Memcpy(?!\w*Async)"
    r"|^(?:cuda|cu|hip)Free(?!\w*Async)"
)
_BEGIN_CAPTURE = re.compile(r"^(?:cuda|cu|hip)StreamBeginCapture")
_END_CAPTURE = re.compile(r"^(?:cuda|cu|hip)StreamEndCapture")


@lru_cache(maxsize=8192)
def is_launch(name: str) -> bool:
    """Return whether the call enqueues a kernel or a graph of kernels on a stream."""
    return _LAUNCH.match(name) is not None


@lru_cache(maxsize=8192)
def is_synchronising(name: str) -> bool:
    """Return whether the call blocks its thread until the GPU has done something: synchronise, blocking copy, free."""
    return _SYNCHRONISE.match(name) is not None


@lru_cache(maxsize=8192)
def is_operation(name: str) -> bool:
    """Return whether the call neither launches nor synchronises: an allocation, a module load, an enqueued copy."""
    return not is_launch(name) and not is_synchronising(name)


def capture_boundary(name: str) -> str | None:
    """Return `begin` or `end` for calls that begin or end a graph capture, in which launches run nothing; else None."""
    if _BEGIN_CAPTURE.match(name):
        return "begin"
    return "end" if _END_CAPTURE.match(name) else None
