"""Connect to a running Dask cluster, and wait for its workers as long as there are some."""

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from jitter._version import __version__
from jitter.core.errors import JitterError, UsageError
from jitter.core.formatting import escape_control
from jitter.core.parallel.executors import DaskExecutor

if TYPE_CHECKING:
    from distributed import Client, Future


_log = logging.getLogger(__name__)
_ANSWERS_WITHIN_S = 30
_CLOSES_WITHIN_S: Final = 5
_TOLD_AFTER_S: Final = 3.0
"""Time without a worker after which stderr says so."""
_CHECK_EVERY_S: Final = 0.5
_RESULT_WITHIN_S: Final = 10
"""Time to bring a result here, after which workers are looked for."""
_POLL_S: Final = 0.02
_DASK_LOGGERS: Final = (
    "distributed.client",
    "distributed.comm",
    "distributed.core",
    "distributed.batched",
    "tornado",
)


class Cluster:
    """A cluster with workers of the same version of jitter as this process."""

    def __init__(self, client: "Client", address: str, wait_s: float) -> None:
        """Use this client of the scheduler at `address`; give up after `wait_s` seconds without a worker."""
        self.client = client
        self._address = address
        self._wait_s = wait_s
        self._seen_s = time.monotonic()
        self._is_told = False

    def wait_for_workers(self) -> None:
        """Wait until a worker has connected; raise as `completed` does."""
        while not self._has_workers():
            time.sleep(_CHECK_EVERY_S)

    def completed(self, futures: "Sequence[Future]") -> "Iterator[Future]":
        """Yield the futures as they complete.

        Raises `JitterError` if the scheduler is gone, or if there was no worker for `wait_s` seconds.
        """
        from distributed import as_completed

        pending = as_completed(list(futures), loop=self.client.loop)
        checked_s = time.monotonic()
        while not pending.is_empty():
            if pending.has_ready():
                yield next(pending)
            elif time.monotonic() - checked_s < _CHECK_EVERY_S:
                time.sleep(_POLL_S)
            else:
                self._has_workers()
                checked_s = time.monotonic()

    def result(self, future: "Future") -> object:
        """Return the result of a completed future; raise its error, or `JitterError` as `completed` does."""
        from distributed.client import FutureCancelledError

        while True:
            try:
                return future.result(timeout=_RESULT_WITHIN_S)
            except TimeoutError:
                if future.status == "error":  # of the task itself
                    raise
                self._has_workers()  # the worker that held the result may be lost, and the task waits for another one
            except FutureCancelledError:
                raise self.gone() from None

    def check_versions(self) -> None:
        """Raise `JitterError` that names a worker with another version of jitter."""

        def version() -> str | None:  # sent by value: the worker's jitter may lack a function of this one
            with suppress(ImportError):
                from jitter._version import __version__

                return __version__
            return None

        versions: dict[str, object] = self.client.run(version, on_error="return")
        others = {worker: release for worker, release in sorted(versions.items()) if release != __version__}
        if not others:
            return
        worker, release = next(iter(others.items()))
        suffix = f" (and {len(others) - 1} more of {len(versions)} workers)" if len(others) > 1 else ""
        raise JitterError(
            f"the Dask worker {worker} has {'no jitter' if release is None else f'jitter {release}'}{suffix}, "
            f"and this process has jitter {__version__}",
            f"install one version everywhere: pip install 'gpu-jitter[cluster]=={__version__}'",
        )

    def _has_workers(self) -> bool:
        if self.client.status != "running":
            raise self.gone()
        now_s = time.monotonic()
        if self.client.ncores():
            self._seen_s, self._is_told = now_s, False
            return True
        if now_s - self._seen_s > self._wait_s:
            raise JitterError(
                f"{self._address}: the Dask scheduler has had no worker for {self._wait_s:g} s",
                f"start workers with `dask worker {self._address}`, or wait longer with --wait",
            )
        if not self._is_told and now_s - self._seen_s > min(_TOLD_AFTER_S, self._wait_s / 2):
            self._is_told = True
            _log.warning(
                "%s: the Dask scheduler has no worker; waiting for one, %g s in all (--wait)",
                escape_control(self._address),
                self._wait_s,
            )
        return False

    def gone(self) -> JitterError:
        """Return the error of a scheduler that no longer answers."""
        return JitterError(
            f"{self._address}: the Dask scheduler is gone", "run it again: what was written already is kept"
        )


@contextmanager
def connect(executor: DaskExecutor) -> Iterator[Cluster]:
    """Connect to the scheduler of an executor, and wait for its workers.

    Raises `UsageError` if Dask is not installed, `JitterError` if no scheduler answers within 30 s, if no worker comes
    within the executor's time, if a worker has another version of jitter, or if the scheduler is lost inside the block.
    """
    from asyncio import CancelledError  # as Dask does; takes long to import

    try:
        from distributed import Client
        from distributed.comm import CommClosedError
    except ImportError:
        raise UsageError(
            "a cluster needs Dask, which is not installed", "pip install 'gpu-jitter[cluster]', here and on the workers"
        ) from None
    with _dask_is_quiet():
        try:
            client = Client(executor.address, timeout=_ANSWERS_WITHIN_S, set_as_default=False)
        except (OSError, ValueError) as error:
            raise JitterError(
                f"{executor.address}: no Dask scheduler answers ({str(error).partition(chr(10))[0]})",
                "start one with `dask scheduler`, and give the address it prints",
            ) from None
        # a request that was given up tells its error when it is collected, perhaps after this block
        client.loop.asyncio_loop.set_exception_handler(lambda loop, context: None)
        try:
            cluster = Cluster(client, executor.address, executor.wait_s)
            try:
                cluster.wait_for_workers()
                cluster.check_versions()
            except OSError:
                raise cluster.gone() from None
            yield cluster
        except CommClosedError:  # at any request: the client learns later that its scheduler died
            raise cluster.gone() from None
        finally:
            with suppress(TimeoutError, CancelledError):  # the scheduler may be gone
                client.close(timeout=_CLOSES_WITHIN_S)


@contextmanager
def _dask_is_quiet() -> Iterator[None]:
    """Keep Dask from logging tracebacks while this process says in one line what is wrong."""
    loggers = [logging.getLogger(name) for name in _DASK_LOGGERS]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)
