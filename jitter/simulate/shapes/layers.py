"""Shared parts of the layered shapes: number of layers, neighbour groups, gradient norm."""

from itertools import pairwise
from typing import Final, NamedTuple

from jitter.core.errors import UsageError
from jitter.simulate import kernel_names
from jitter.simulate.job import Job
from jitter.simulate.program import MAIN_THREAD, WORLD
from jitter.simulate.shapes.builder import Builder, optimizer_kernel_count

GRADIENT_BYTES: Final = 12 * 2**20
"""Gradient bytes of one layer."""
NORM_KERNELS: Final = 2
"""Kernels of `add_gradient_norm`."""
_LAYER: Final = 28
"""Approximate number of kernels of a layer, forward and backward."""
_SMALLEST: Final = (2, 4)
"""Fewest compute kernels of a layer, forward and backward."""
_NORM_STREAM: Final = 24


class Layer(NamedTuple):
    """Numbers of compute kernels of a layer."""

    forward: int
    backward: int


def split_into_layers(
    job: Job, *, forward_extra: int, backward_extra: int, extra: int = 0, least: int = 1
) -> list[Layer]:
    """Divide a step of `job.kernels` kernels into layers.

    Each layer has `forward_extra` and `backward_extra` collectives in addition to its compute kernels; the step also
    has an embedding, the optimizer and `extra` kernels. Raises `UsageError` if `least` layers do not fit.
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
    """Return the size of a group of neighbours: as given, or the largest of a node that leaves several groups."""
    if size is None:
        most = min(job.gpus_per_node, max(1, job.ranks // 2))
        size = next(n for n in range(most, 0, -1) if job.ranks % n == 0)
    if job.ranks % size:
        raise UsageError(f"{word}={size} does not divide the {job.ranks} ranks of the job")
    return size


def add_gradient_norm(build: Builder, *awaited: int) -> None:
    """Add the norm of all gradients, summed over the whole job before the weight update."""
    if awaited:
        build.main_waits(*awaited, phase="optimizer", thread=MAIN_THREAD)
    build.kernel(kernel_names.gradient_norm_kernel(), "optimizer", MAIN_THREAD)
    build.blocking("all_reduce", WORLD, _NORM_STREAM, 4, "optimizer", MAIN_THREAD)
