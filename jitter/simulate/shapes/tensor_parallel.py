"""Tensor parallelism: two blocking all-reduces per layer and direction."""

from jitter.simulate import kernel_names
from jitter.simulate.job import Job
from jitter.simulate.program import MAIN_THREAD, WORLD, Plan, single_program_plan
from jitter.simulate.shapes.builder import Builder
from jitter.simulate.shapes.layers import split_into_layers

_STREAM = 20
_BYTES = 8 * 2**20


def plan(job: Job) -> Plan:
    """Build one program and one group of all ranks."""
    build = Builder(job)
    sizes = split_into_layers(job, forward_extra=2, backward_extra=2)
    build.memory("h2d", 640 * 8, "forward")
    build.kernel(kernel_names.embedding_kernel(), "forward", MAIN_THREAD)
    for size in sizes:
        forward(build, size.forward, WORLD)
    build.loss()
    build.memory("memset", 4 * 2**20, "backward", build.backward_thread)
    for size in reversed(sizes):
        backward(build, size.backward, WORLD)
    build.optimizer()
    return single_program_plan(build.program(), job.ranks)


def forward(build: Builder, kernels: int, group: str) -> None:
    """Add one layer: attention and feed-forward, each with an all-reduce."""
    shapes = kernel_names.repeat_layer(kernel_names.forward_layer(build.job.era), kernels)
    for part in (shapes[: kernels // 2], shapes[kernels // 2 :]):
        build.kernels(part, "forward", MAIN_THREAD)
        build.blocking("all_reduce", group, _STREAM, _BYTES, "forward", MAIN_THREAD)


def backward(build: Builder, kernels: int, group: str) -> None:
    """Add the gradients of one layer, with two all-reduces."""
    shapes = kernel_names.repeat_layer(kernel_names.backward_layer(build.job.era), kernels)
    for part in (shapes[: kernels // 2], shapes[kernels // 2 :]):
        build.kernels(part, "backward", build.backward_thread)
        build.blocking("all_reduce", group, _STREAM, _BYTES, "backward", build.backward_thread)
