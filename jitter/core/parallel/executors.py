"""Executors: where an ingest or a diagnosis runs, for ingestion and detection to interpret; the processors here."""

import os
from dataclasses import dataclass

from jitter.core.errors import UsageError


def cpu_count() -> int:
    """Return the number of processors that this process may use, which a scheduler such as Slurm may limit."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True)
class LocalExecutor:
    """Do the work in the calling process, one piece after the other."""


@dataclass(frozen=True)
class PoolExecutor:
    """Do the work on this machine with several workers.

    `workers` is their number; None means one per processor that this process may use. Raises `UsageError` for a
    number below 1.
    """

    workers: int | None = None

    def __post_init__(self) -> None:
        if self.workers is not None and self.workers < 1:
            raise UsageError(f"PoolExecutor({self.workers}): needs at least one worker")


@dataclass(frozen=True)
class DaskExecutor:
    """Do the work on a running Dask cluster.

    `address` is its scheduler's, such as "tcp://head-node:8786". The workers must see traces and lake under the same
    paths as this process, and have the same version of jitter. Without a worker the executor gives up after `wait_s`
    seconds. Needs `pip install 'gpu-jitter[cluster]'`.
    """

    address: str
    wait_s: float = 60.0


Executor = LocalExecutor | PoolExecutor | DaskExecutor
