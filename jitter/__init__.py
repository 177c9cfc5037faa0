"""Why a training job on hundreds of GPUs runs slower than its GPUs could.

import jitter

jitter.ingest(["traces/"], "jitter-lake")
lake = jitter.open("jitter-lake")
lake.table("gap", step=2003, deviation=True)  # pandas, kernels x ranks
jitter.Figures(lake).step(2003)  # the report's figures, for bokeh.plotting.show
"""

from typing import TYPE_CHECKING, Any

from jitter._version import __version__

if TYPE_CHECKING:
    from jitter.api import Lake as Lake
    from jitter.api import open_lake as open  # noqa: A004  # the name users type: jitter.open
    from jitter.ingestion.ingest import ingest as ingest
    from jitter.report.notebook import Figures as Figures

__all__ = ["Figures", "Lake", "__version__", "ingest", "open"]

_WHERE = {
    "Figures": ("jitter.report.notebook", "Figures"),
    "Lake": ("jitter.api", "Lake"),
    "open": ("jitter.api", "open_lake"),
    "ingest": ("jitter.ingestion.ingest", "ingest"),
}


def __getattr__(name: str) -> Any:
    """Load what is asked for on first use: `jitter --help` must not wait for pandas."""
    if name not in _WHERE:
        raise AttributeError(f"module 'jitter' has no attribute {name!r}")
    from importlib import import_module

    module, attribute = _WHERE[name]
    return getattr(import_module(module), attribute)
