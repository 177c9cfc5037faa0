"""A run examined on a Dask cluster that runs already; its workers see the lake under the same path as we.

What the whole run tells is inferred here; the steps are looked at and walked stretch by stretch there, and each worker
replays some of the scenarios over all steps. The code is that of `passes`.
"""

import socket
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from jitter.analysis import open_lake
from jitter.cluster import connect
from jitter.errors import JitterError, LakeError
from jitter.examined_steps import ExaminedSteps, Shared
from jitter.passes import Gone, Passes, PassesHere, SeenStep, StepPath, look, walk
from jitter.steps import StepKey
from jitter.what_if import Scenario

if TYPE_CHECKING:
    from distributed import Client, Future

_STRETCHES_A_WORKER = 2


@contextmanager
def examined_on(scheduler: str, root: Path) -> Iterator[Callable[[ExaminedSteps], Passes]]:
    """Connect to a cluster; gives what `Lake.examination` takes as `passes`, for the lake in this folder.

    Raises `UsageError` without Dask, `JitterError` if no scheduler answers, or stops to, or its workers die of it.
    """
    with connect(scheduler) as client:
        yield lambda steps: _PassesThere(client, root.absolute(), steps)


class _Run(NamedTuple):
    """What a worker needs to make the run's steps for itself."""

    name: str
    root: Path
    steps: tuple[StepKey, ...]
    shared: Shared


class _PassesThere:
    """Goes through the steps on a cluster."""

    def __init__(self, client: "Client", root: Path, steps: ExaminedSteps) -> None:
        self._client, self._root, self._steps = client, root, steps
        self._sent: Future | None = None

    def look(self) -> list[SeenStep]:
        """Do as `Passes` says."""
        found = self._gather([self._submit(_look, *stretch) for stretch in self._stretches()])
        return [seen for stretch in found for seen in stretch]

    def go(self, usual: Mapping[int, float], scenarios: Sequence[Scenario], *, walk: bool) -> Gone:
        """Do as `Passes` says."""
        shares = [part.tolist() for part in np.array_split(np.arange(len(scenarios)), self._workers()) if len(part)]
        replays = [self._submit(_replay, [scenarios[at] for at in part], usual) for part in shares]
        walks = [self._submit(_walk, *stretch, usual) for stretch in self._stretches()] if walk else []
        found = self._gather([*replays, *walks])
        gained, paths = found[: len(replays)], found[len(replays) :]
        return Gone(np.concatenate(gained, axis=1), [path for stretch in paths for path in stretch])

    def _workers(self) -> int:
        return max(1, len(self._client.ncores()))

    def _stretches(self) -> list[tuple[int, int]]:
        steps = len(self._steps.run.keys)
        number = min(steps, _STRETCHES_A_WORKER * self._workers())
        return list(pairwise(np.linspace(0, steps, number + 1).astype(int).tolist()))

    def _submit(self, work: Callable[..., Any], *told: Any) -> "Future":
        if self._sent is None:
            run = _Run(uuid.uuid4().hex, self._root, tuple(self._steps.run.keys), self._steps.shared)
            # not scattered: data that lie on a worker are lost with it, what a task made is made again
            self._sent = self._client.submit(_itself, run, pure=False)
        return self._client.submit(work, self._sent, *told, pure=False)

    def _gather(self, futures: "Sequence[Future]") -> list[Any]:
        from distributed import KilledWorker
        from distributed.client import FutureCancelledError

        try:
            return [future.result() for future in futures]
        except KilledWorker as error:
            raise JitterError(
                f"{self._root}: workers that examined it died, one after the other ({error.allowed_failures + 1})",
                "give each about 2 GB of memory",
            ) from None
        except FutureCancelledError:
            raise JitterError("the Dask scheduler is gone", "run it again") from None


def _itself(run: _Run) -> _Run:
    return run


def _look(run: _Run, first: int, last: int) -> list[SeenStep]:
    return look(_opened(run), first, last)


def _walk(run: _Run, first: int, last: int, usual: Mapping[int, float]) -> list[StepPath]:
    return walk(_opened(run), first, last, usual)


def _replay(run: _Run, scenarios: Sequence[Scenario], usual: Mapping[int, float]) -> Any:
    return PassesHere(_opened(run)).go(usual, scenarios, walk=False).gained_ns


_open: dict[str, ExaminedSteps] = {}
_one_opens = Lock()


def _opened(run: _Run) -> ExaminedSteps:
    """The run's steps, for all that this worker does with them."""
    with _one_opens:
        if run.name not in _open:
            _open.clear()
            if not run.root.exists():
                raise LakeError(
                    f"{run.root}: the worker on {socket.gethostname()} does not see it",
                    "the lake must lie on a file system that all workers share, under the same path",
                )
            _open[run.name] = ExaminedSteps(open_lake(run.root).run_of(run.steps), run.shared)
        return _open[run.name]
