"""A real Dask scheduler and workers, in processes of their own."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol, cast

import pytest


class StartCluster(Protocol):
    """Starts a cluster."""

    scheduler: "subprocess.Popen[bytes]"

    def __call__(self, count: int, *, forgiven: int, **environment: str) -> list["subprocess.Popen[bytes]"]:
        """Start a scheduler and `count` workers; return the workers' processes."""


def address_of(scheduler_file: Path) -> str:
    """Return the address in the file that a scheduler writes."""
    return str(json.loads(scheduler_file.read_bytes())["address"])


@pytest.fixture
def dask_cluster(tmp_path: Path) -> Iterator[StartCluster]:
    """Return a function that starts a scheduler and `count` workers, and returns the workers' processes.

    Other arguments are environment variables of the workers.

    The scheduler gives up on a task after `forgiven` deaths of workers; `tmp_path / "scheduler.json"` has its address.
    """
    started: list[subprocess.Popen[bytes]] = []
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": "/"}
    file = tmp_path / "scheduler.json"

    def dask(*words: str, **environment: str) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", "dask", *words, "--no-dashboard", "--scheduler-file", str(file)]
        started.append(subprocess.Popen(command, env={**os.environ, **environment}, **quiet))  # type: ignore[call-overload]
        return started[-1]

    def start(count: int, *, forgiven: int, **environment: str) -> list["subprocess.Popen[bytes]"]:
        start.scheduler = dask(  # type: ignore[attr-defined]
            "scheduler",
            "--host",
            "127.0.0.1",
            "--port",
            "0",
            DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES=str(forgiven),
        )
        deadline = time.monotonic() + 60
        while not file.exists() or not file.read_bytes().endswith(b"}"):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        return [
            dask("worker", "--nthreads", "1", "--no-nanny", "--host", "127.0.0.1", **environment) for _ in range(count)
        ]

    yield cast("StartCluster", start)
    for process in started:
        process.kill()
    for process in started:
        process.wait(60)
