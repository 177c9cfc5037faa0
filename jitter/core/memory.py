"""Settings of this process's memory. Those of the C library have an effect on Linux with glibc only."""

import gc
import os
import sys
from functools import cache
from pathlib import Path
from typing import Any, Final

_TRIM_THRESHOLD: Final = -1
_MMAP_MAX: Final = -4
_ARENA_MAX: Final = -8
_KEPT_BYTES: Final = 1 << 30
_GC_THRESHOLDS: Final = (100_000, 20, 100)


def reduce_gc() -> None:
    """Run the garbage collector seldom. Only for processes that belong to jitter.

    Modules and a large lake's records live until the end; traversing them again and again takes a tenth of the time.
    """
    gc.set_threshold(*_GC_THRESHOLDS)


def keep_freed_memory() -> None:
    """Let the C library reuse the memory of freed arrays. Only for processes that belong to jitter.

    Otherwise each array of some megabytes is new memory, which the kernel has to clear: a sixth of the time of a report
    on a large lake.
    """
    library = _library()
    if hasattr(library, "mallopt"):
        # Arrow's own pool would keep freed memory from numpy's arrays; it is chosen when pyarrow is imported
        os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
        if "pyarrow" in sys.modules:
            import pyarrow as pa

            pa.set_memory_pool(pa.system_memory_pool())
        library.mallopt(_ARENA_MAX, 1)  # what one thread frees another one reuses
        library.mallopt(_MMAP_MAX, 0)  # a threshold would spare no array above 32 MiB
        library.mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)


def release_freed_memory() -> None:
    """Give the memory of freed arrays back to the system."""
    library = _library()
    if hasattr(library, "malloc_trim"):
        library.malloc_trim(0)


def limit_memory(more_bytes: int) -> None:
    """Let this process use at most `more_bytes` more than now; an allocation beyond fails."""
    if sys.platform != "linux":
        return
    import resource

    release_freed_memory()
    used = int(Path("/proc/self/status").read_text().partition("VmData:")[2].split()[0]) << 10
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    if most == resource.RLIM_INFINITY or used + more_bytes < most:
        resource.setrlimit(resource.RLIMIT_DATA, (used + more_bytes, most))


@cache
def _library() -> Any:
    import ctypes

    return ctypes.CDLL(None) if sys.platform == "linux" else None
