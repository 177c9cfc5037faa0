"""Data parallelism: forward, backward with overlapping all-reduces, optimizer, one sync."""

from itertools import cycle, islice

from jitter.simulate import kernel_names
from jitter.simulate.job import Job
from jitter.simulate.program import MAIN_THREAD, WORLD, Plan, single_program_plan
from jitter.simulate.shapes.builder import Builder, optimizer_kernel_count

_BUCKET_BYTES = 25 * 2**20
_BYTES_A_NS = 120
"""Bandwidth: 120 GB/s."""
_LATENCY_NS = 35_000


def plan(job: Job) -> Plan:
    """Build one program of `job.kernels` kernels per step, and one group."""
    n_compute = job.kernels - job.all_reduces - optimizer_kernel_count(job)
    n_forward = max(1, n_compute // 3)
    n_backward = n_compute - n_forward
    build = Builder(job)
    autograd = build.backward_thread

    build.memory("h2d", 640 * 8, "forward")
    build.memory("h2d", 640 * 8, "forward")
    layer = islice(cycle(kernel_names.forward_layer(job.era)), n_forward - 1)
    build.kernels([kernel_names.embedding_kernel(), *layer], "forward", MAIN_THREAD)
    build.loss()

    build.memory("memset", 4 * 2**20, "backward", autograd)
    # a bucket is reduced once its gradients are computed; the last bucket is small, as in DDP
    shapes = list(islice(cycle(kernel_names.backward_layer(job.era)), n_backward))
    reduced: dict[int, int] = {}
    done = 0
    for number in range(job.all_reduces):
        until = round((number + 1) * n_backward / job.all_reduces)
        build.kernels(shapes[done:until], "backward", autograd)
        done = until
        stream = job.collective_streams[number % len(job.collective_streams)]
        n_bytes = _BUCKET_BYTES // (4 if number == job.all_reduces - 1 else 1)
        reduced[stream] = build.collective(
            "all_reduce",
            WORLD,
            stream,
            n_bytes,
            "backward",
            autograd,
            latency_ns=_LATENCY_NS,
            bytes_a_ns=_BYTES_A_NS,
        )
    build.optimizer(reduced.values())
    build.fetched("")
    return single_program_plan(build.program(), job.ranks)
