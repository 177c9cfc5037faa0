"""Connect to the scheduler of a running Dask cluster."""

from typing import TYPE_CHECKING

from jitter.core.errors import JitterError, UsageError

if TYPE_CHECKING:
    from distributed import Client


_ANSWERS_WITHIN_S = 30


def connect(scheduler: str) -> "Client":
    """Connect to the scheduler at this address.

    Raises `UsageError` if Dask is not installed, `JitterError` if no scheduler answers within 30 s.
    """
    try:
        from distributed import Client
    except ImportError:
        raise UsageError(
            "a cluster needs Dask, which is not installed", "pip install 'gpu-jitter[cluster]', here and on the workers"
        ) from None
    try:
        return Client(scheduler, timeout=_ANSWERS_WITHIN_S, set_as_default=False)
    except (OSError, ValueError) as error:
        raise JitterError(
            f"{scheduler}: no Dask scheduler answers ({str(error).partition(chr(10))[0]})",
            "start one with `dask scheduler`, and give the address it prints",
        ) from None
