"""Why a training job on hundreds of GPUs runs slower than its GPUs could.

import jitter

jitter.ingest(["traces/"], "jitter-lake")
lake = jitter.open("jitter-lake")
lake.table("gap", step=2003, deviation=True)  # pandas, kernels x ranks
lake.report("page.html")
jitter.Figures(lake).step(2003)  # the report's figures, for bokeh.plotting.show
jitter.record.torch_profiler("traces/", range(100, 110))  # in the training script: records these steps
"""

from jitter._version import __version__

TYPE_CHECKING = False  # importing typing takes several ms, before signals are handled
if TYPE_CHECKING:
    from typing import Any

    from jitter import record as record
    from jitter.api import Lake as Lake
    from jitter.api import open as open  # noqa: A004  # the name users type: jitter.open
    from jitter.comparison.runs import compare as compare
    from jitter.core.errors import JitterError as JitterError
    from jitter.core.parallel.executors import DaskExecutor as DaskExecutor
    from jitter.core.parallel.executors import LocalExecutor as LocalExecutor
    from jitter.core.parallel.executors import PoolExecutor as PoolExecutor
    from jitter.ingestion.ingest import ingest as ingest
    from jitter.report.notebook import Figures as Figures

__all__ = [
    "DaskExecutor",
    "Figures",
    "JitterError",
    "Lake",
    "LocalExecutor",
    "PoolExecutor",
    "__version__",
    "compare",
    "ingest",
    "open",
    "record",
]

_MODULES = {
    "DaskExecutor": "jitter.core.parallel.executors",
    "Figures": "jitter.report.notebook",
    "JitterError": "jitter.core.errors",
    "Lake": "jitter.api",
    "LocalExecutor": "jitter.core.parallel.executors",
    "PoolExecutor": "jitter.core.parallel.executors",
    "compare": "jitter.comparison.runs",
    "ingest": "jitter.ingestion.ingest",
    "open": "jitter.api",
}


def __getattr__(name: str) -> "Any":
    """Import a public name at its first use: `jitter --help` must not wait for numpy."""
    from importlib import import_module

    if name == "record":
        return import_module("jitter.record")
    if name not in _MODULES:
        raise AttributeError(f"module 'jitter' has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
