"""Tensor and data parallelism: blocking all-reduces among neighbours, overlapping ones across groups."""

import numpy as np

from jitter.simulate import kernel_names
from jitter.simulate.job import Job
from jitter.simulate.program import MAIN_THREAD, Plan, single_program_plan
from jitter.simulate.shapes.builder import Builder
from jitter.simulate.shapes.layers import (
    GRADIENT_BYTES,
    NORM_KERNELS,
    add_gradient_norm,
    neighbor_group_size,
    split_into_layers,
)
from jitter.simulate.shapes.tensor_parallel import backward, forward

_STREAM = 33


def plan(job: Job) -> Plan:
    """Build groups `tensor` (`job.tensor` neighbours) and `data` (the ranks at the same position of each)."""
    size = neighbor_group_size(job, job.tensor, "tensor")
    build = Builder(job)
    autograd = build.backward_thread
    sizes = split_into_layers(job, forward_extra=2, backward_extra=3, extra=NORM_KERNELS)
    build.memory("h2d", 640 * 8, "forward")
    build.kernel(kernel_names.embedding_kernel(), "forward", MAIN_THREAD)
    for layer in sizes:
        forward(build, layer.forward, "tensor")
    build.loss()
    build.memory("memset", 4 * 2**20, "backward", autograd)
    reduced = 0
    for layer in reversed(sizes):
        backward(build, layer.backward, "tensor")
        reduced = build.collective("all_reduce", "data", _STREAM, GRADIENT_BYTES, "backward", autograd, bytes_a_ns=120)
    add_gradient_norm(build, reduced)
    build.optimizer()
    ranks = np.arange(job.ranks)
    return single_program_plan(build.program(), job.ranks, {"tensor": ranks // size, "data": ranks % size})
