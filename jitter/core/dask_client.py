"""Converts sources on a Dask cluster that runs already; its workers see traces and lake under the same paths as we."""

from typing import TYPE_CHECKING

from jitter.core.errors import JitterError, UsageError

if TYPE_CHECKING:
    from distributed import Client


_ANSWERS_WITHIN_S = 30


def connect(scheduler: str) -> "Client":
    """Connect to the cluster of this scheduler; raises `UsageError` without Dask, `JitterError` if none answers."""
    try:
        from distributed import Client
    except ImportError:
        raise UsageError(
            "--scheduler needs Dask, which is not installed", "pip install 'gpu-jitter[cluster]', here and there"
        ) from None
    try:
        return Client(scheduler, timeout=_ANSWERS_WITHIN_S, set_as_default=False)
    except (OSError, ValueError) as error:
        raise JitterError(
            f"{scheduler}: no Dask scheduler answers ({str(error).partition(chr(10))[0]})",
            "start one with `dask scheduler`, and give the address it prints",
        ) from None
