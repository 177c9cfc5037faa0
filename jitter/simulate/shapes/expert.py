"""Expert parallelism: two blocking all-to-alls per layer, to the experts and back."""

import numpy as np

from jitter.simulate import kernel_names
from jitter.simulate.job import Job
from jitter.simulate.program import MAIN_THREAD, WORLD, Plan, single_program_plan
from jitter.simulate.shapes.builder import Builder
from jitter.simulate.shapes.layers import (
    GRADIENT_BYTES,
    NORM_KERNELS,
    add_gradient_norm,
    neighbor_group_size,
    split_into_layers,
)

_TOKEN_STREAM = 22
_DATA_STREAM = 33
_DENSE_STREAM = 34
_TOKEN_BYTES = 6 * 2**20


def plan(job: Job) -> Plan:
    """Build groups `expert` (`job.experts` neighbours) and `data` (ranks with the same experts)."""
    size = neighbor_group_size(job, job.experts, "experts")
    build = Builder(job)
    autograd = build.backward_thread
    sizes = split_into_layers(job, forward_extra=2, backward_extra=3, extra=1 + NORM_KERNELS)
    build.memory("h2d", 640 * 8, "forward")
    build.kernel(kernel_names.embedding_kernel(), "forward", MAIN_THREAD)
    for layer in sizes:
        _layer(
            build, kernel_names.repeat_layer(kernel_names.forward_layer(job.era), layer.forward), "forward", MAIN_THREAD
        )
    build.loss()
    build.memory("memset", 4 * 2**20, "backward", autograd)
    experts = 0
    for layer in reversed(sizes):
        _layer(
            build, kernel_names.repeat_layer(kernel_names.backward_layer(job.era), layer.backward), "backward", autograd
        )
        experts = build.collective(
            "all_reduce", "data", _DATA_STREAM, GRADIENT_BYTES, "backward", autograd, bytes_a_ns=120
        )
    dense = build.collective(
        "all_reduce", WORLD, _DENSE_STREAM, 2 * GRADIENT_BYTES, "backward", autograd, bytes_a_ns=120
    )
    add_gradient_norm(build, experts, dense)
    build.optimizer()
    ranks = np.arange(job.ranks)
    return single_program_plan(build.program(), job.ranks, {"expert": ranks // size, "data": ranks % size})


def _layer(build: Builder, shapes: list[kernel_names.KernelSpec], phase: str, thread: int) -> None:
    """Add attention, dispatch, experts, combine, and a last kernel."""
    half = len(shapes) // 2
    for part in (shapes[:half], shapes[half:-1]):
        build.kernels(part, phase, thread)
        build.blocking("all_to_all", "expert", _TOKEN_STREAM, _TOKEN_BYTES, phase, thread)
    build.kernels(shapes[-1:], phase, thread)
