"""PyTorch's profiler, set up so that recordings of all ranks can be compared. Imports torch only when it is used."""

import json
import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from jitter.core.errors import UsageError
from jitter.core.names.launchers import RANK_VARIABLES, SIZE_VARIABLES, first_number

HOST_MEMBER: Final = "jitter_host"
"""Member of the trace that states the host's name."""


def torch_profiler(
    folder: str | os.PathLike[str],
    steps: Sequence[int],
    *,
    warmup: int = 3,
    stacks: bool = False,
    rank: int | None = None,
    world_size: int | None = None,
) -> Any:
    """Return a `torch.profiler.profile` that records these steps of this rank into one file in `folder`.

    Use it as a context manager and call its `step()` after each training step. Steps count from 0, the first step after
    entering; `steps` must be consecutive numbers, such as `range(100, 110)`. Before them the profiler warms up for
    `warmup` steps. The file `rank-<R>-of-<N>-steps<A>-<B>-<HOST>.json.gz` is written when the last step ends, or on
    leaving. Rank and world size come from `torch.distributed` if it is initialized, else from the launcher's
    environment variables; `rank` and `world_size` overrule both. `stacks` adds Python stacks and modules, which make
    files several times larger.

    Raises `UsageError` for steps that are not consecutive, or if the rank is not known; ImportError without torch.
    """
    first, last = _range(steps)
    recorded_rank, size = _rank(rank, world_size)

    from torch import profiler

    target = Path(folder) / file_name(recorded_rank, size, first, last)
    active = last - first + 1
    warm = min(warmup, first)

    def save(recorded: Any) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        unfinished = target.with_name(f".{os.getpid()}-{target.name}")
        recorded.export_chrome_trace(str(unfinished))
        unfinished.replace(target)  # an interrupted export leaves no half trace under the name that is read

    profile = profiler.profile(
        activities=profiler.supported_activities(),
        schedule=profiler.schedule(wait=first - warm, warmup=warm, active=active, repeat=1),
        on_trace_ready=save,
        record_shapes=False,
        with_stack=stacks,
        with_modules=stacks,
    )
    _add_metadata(profile, recorded_rank, size)
    return profile


def file_name(rank: int, world_size: int | None, first: int, last: int) -> str:
    """Return the name of a rank's recording."""
    of = "" if world_size is None else f"-of-{world_size}"
    return f"rank-{rank}{of}-steps{first}-{last}-{_host()}.json.gz"


def _add_metadata(profile: Any, rank: int, world_size: int | None) -> None:
    """Make the profiler state rank, world size and host in its trace."""
    from torch import distributed

    profile.preset_metadata_json(HOST_MEMBER, json.dumps(_host()))
    if not (distributed.is_available() and distributed.is_initialized()):  # else torch states it itself
        info = {"rank": rank} if world_size is None else {"rank": rank, "world_size": world_size}
        profile.preset_metadata_json("distributedInfo", json.dumps(info))


def _range(steps: Sequence[int]) -> tuple[int, int]:
    numbers = list(steps)
    if not numbers or numbers != list(range(numbers[0], numbers[0] + len(numbers))) or numbers[0] < 0:
        raise UsageError("the steps to record are not consecutive numbers", "give a range, such as range(100, 110)")
    return numbers[0], numbers[-1]


def _rank(rank: int | None, world_size: int | None) -> tuple[int, int | None]:
    """Return the global rank and the world size; raise `UsageError` if the rank is not known."""
    from torch import distributed

    if distributed.is_available() and distributed.is_initialized():
        rank = distributed.get_rank() if rank is None else rank
        world_size = distributed.get_world_size() if world_size is None else world_size
    rank = first_number(os.environ, RANK_VARIABLES)[0] if rank is None else rank
    world_size = first_number(os.environ, SIZE_VARIABLES)[0] if world_size is None else world_size
    if rank is None:
        raise UsageError(
            "the rank of this process is not known",
            "launch with torchrun, srun or mpirun, or give rank= (0 for one GPU)",
        )
    return rank, world_size


def _host() -> str:
    return socket.gethostname().partition(".")[0] or "localhost"
