"""A real Dask scheduler and workers, in processes of their own."""

import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Protocol, cast

import pytest


class StartCluster(Protocol):
    """Starts a cluster."""

    scheduler: Any

    def __call__(self, count: int, *, forgiven: int, fresh: dict[str, str] | None = None) -> list[Any]:
        """Start a scheduler and `count` workers; return the workers, as processes of `multiprocessing`.

        The scheduler gives up on a task after `forgiven` deaths of workers. With `fresh`, further environment variables
        of the workers, these are processes of `subprocess`, which load their modules themselves.
        """


def address_of(scheduler_file: Path) -> str:
    """Return the address in the file that a scheduler writes."""
    return str(json.loads(scheduler_file.read_bytes())["address"])


@pytest.fixture
def dask_cluster(tmp_path: Path) -> Iterator[StartCluster]:
    """Return a function that starts a cluster; `tmp_path / "scheduler.json"` has its address."""
    from dask import config
    from distributed.cli import dask_scheduler, dask_worker

    started: list[Any] = []
    file = tmp_path / "scheduler.json"
    host = ["--host", "127.0.0.1", "--no-dashboard", "--scheduler-file", str(file)]

    def run(command: Any, words: list[str], settings: dict[str, object]) -> None:
        """Run a command of Dask, in a forked process."""
        nowhere = os.open(os.devnull, os.O_RDWR)
        for number in range(3):
            os.dup2(nowhere, number)
        sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: PTH123, SIM115
        os.chdir("/")
        with config.set(settings):
            command.main(words, standalone_mode=False)

    def start_forked(command: Any, words: list[str], settings: dict[str, object]) -> Any:
        process = get_context("fork").Process(target=run, args=(command, words, settings))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads
            process.start()
        started.append(process)
        return process

    def start_fresh(environment: dict[str, str]) -> Any:
        command = [sys.executable, "-m", "dask", "worker", "--nthreads", "1", "--no-nanny", *host]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": "/"}
        started.append(subprocess.Popen(command, env={**os.environ, **environment}, **quiet))  # type: ignore[call-overload]
        return started[-1]

    def start(count: int, *, forgiven: int, fresh: dict[str, str] | None = None) -> list[Any]:
        settings: dict[str, object] = {"distributed.scheduler.allowed-failures": forgiven}
        start.scheduler = start_forked(dask_scheduler, ["--port", "0", *host], settings)  # type: ignore[attr-defined]
        deadline = time.monotonic() + 60
        while not file.exists() or not file.read_bytes().endswith(b"}"):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        if fresh is not None:
            return [start_fresh(fresh) for _ in range(count)]
        return [start_forked(dask_worker, ["--nthreads", "1", "--no-nanny", *host], {}) for _ in range(count)]

    yield cast("StartCluster", start)
    for process in started:
        process.kill()
    for process in started:
        process.wait(60) if isinstance(process, subprocess.Popen) else process.join(60)
