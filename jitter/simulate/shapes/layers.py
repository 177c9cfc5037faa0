"""What the shapes made of layers share: how many there are, who is near, and the gradient's norm."""

from itertools import pairwise
from typing import Final, NamedTuple

from jitter.core.errors import UsageError
from jitter.simulate import kernel_names
from jitter.simulate.job import Job
from jitter.simulate.program import MAIN_THREAD, WORLD
from jitter.simulate.shapes.builder import Builder, optimizer_kernel_count

GRADIENT_BYTES: Final = 12 * 2**20
"""Of one layer."""
NORM_KERNELS: Final = 2
"""Of `add_gradient_norm`."""
_LAYER: Final = 28
"""About so many kernels have a layer's forward and backward."""
_SMALLEST: Final = (2, 4)
"""Compute kernels of a layer, forward and backward, at least."""
_NORM_STREAM: Final = 24


class Layer(NamedTuple):
    """Compute kernels of a layer."""

    forward: int
    backward: int


def split_into_layers(
    job: Job, *, forward_extra: int, backward_extra: int, extra: int = 0, least: int = 1
) -> list[Layer]:
    """The layers of a step of `job.kernels` kernels in all.

    Each has `forward_extra` and `backward_extra` collectives beside its compute kernels; the step has an embedding,
    the optimizer and `extra` kernels more. Raises `UsageError` where `least` layers do not fit.
    """
    collectives = forward_extra + backward_extra
    left = job.kernels - 1 - optimizer_kernel_count(job) - extra
    count = max(least, round(left / (_LAYER + collectives)))
    compute = left - count * collectives
    if compute < count * sum(_SMALLEST):
        needed = job.kernels + count * sum(_SMALLEST) - compute
        raise UsageError(f"{job.kernels} kernels a step hold no job of shape {job.shape}", f"give at least {needed}")
    ends = [compute * n // count for n in range(count + 1)]
    sizes = [end - begin for begin, end in pairwise(ends)]
    return [Layer(size // 3, size - size // 3) for size in sizes]


def neighbor_group_size(job: Job, size: int | None, word: str) -> int:
    """The size of a group of neighbours: as told, or half a node's ranks or fewer, so that there are several."""
    if size is None:
        most = min(job.gpus_per_node, max(1, job.ranks // 2))
        size = next(n for n in range(most, 0, -1) if job.ranks % n == 0)
    if job.ranks % size:
        raise UsageError(f"{word}={size} does not divide the {job.ranks} ranks of the job")
    return size


def add_gradient_norm(build: Builder, *awaited: int) -> None:
    """The norm of all gradients, summed over the whole job before the weights are changed."""
    if awaited:
        build.main_waits(*awaited, phase="optimizer", thread=MAIN_THREAD)
    build.kernel(kernel_names.gradient_norm_kernel(), "optimizer", MAIN_THREAD)
    build.blocking("all_reduce", WORLD, _NORM_STREAM, 4, "optimizer", MAIN_THREAD)
