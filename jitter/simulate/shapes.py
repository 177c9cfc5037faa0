"""The shapes of jobs: kinds of parallelism. A new one is a function here and an entry in `SHAPES`."""

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from jitter.core.errors import UsageError
from jitter.simulate import kernel_names
from jitter.simulate.job import Job
from jitter.simulate.kernel_names import backward_kernels, forward_kernels
from jitter.simulate.program import NO_GROUP, WORLD, Plan, Program, single_program_plan
from jitter.simulate.step_builder import (
    GRADIENT_BYTES,
    NORM_KERNELS,
    Builder,
    Layer,
    add_gradient_norm,
    neighbor_group_size,
    optimizer_kernel_count,
    split_into_layers,
)

_BUCKET_BYTES = 25 * 2**20
_BUCKET_LATENCY_NS = 35_000
_BYTES_A_NS = 120
"""Bandwidth of gradients' collectives: 120 GB/s."""
_GRADIENT_STREAM = 33
_DENSE_STREAM = 34
_TENSOR_STREAM = 20
_TENSOR_BYTES = 8 * 2**20
_TOKEN_STREAM = 22
_TOKEN_BYTES = 6 * 2**20
_GATHER_STREAM = 28
_SCATTER_STREAM = 32
_SHARDED_BYTES_A_NS = 90
_AHEAD = 2
"""Layers gathered ahead: the CPU waits until the layer before these has finished."""
_PIPE_STREAM = 40
_ACTIVATION_BYTES = 2 * 2**20
_LEAST_COMPUTE = 6
_MESSAGES = 4
"""Most send and receive kernels of a stage per micro-batch."""


def _data_parallel(job: Job) -> Plan:
    """Build one program of `job.kernels` kernels per step, and one group."""
    n_compute = job.kernels - job.all_reduces - optimizer_kernel_count(job)
    n_forward = max(1, n_compute // 3)
    n_backward = n_compute - n_forward
    build = Builder(job)

    build.memory("h2d", 640 * 8, "forward")
    build.memory("h2d", 640 * 8, "forward")
    build.kernels([kernel_names.EMBEDDING, *forward_kernels(n_forward - 1)], "forward")
    build.loss()

    build.memory("memset", 4 * 2**20, "backward")
    # a bucket is reduced once its gradients are computed; the last bucket is small, as in DDP
    shapes = backward_kernels(n_backward)
    reduced: dict[int, int] = {}
    done = 0
    for number in range(job.all_reduces):
        until = round((number + 1) * n_backward / job.all_reduces)
        build.kernels(shapes[done:until], "backward")
        done = until
        stream = job.collective_streams[number % len(job.collective_streams)]
        n_bytes = _BUCKET_BYTES // (4 if number == job.all_reduces - 1 else 1)
        where = "all_reduce", WORLD, stream, n_bytes, "backward"
        reduced[stream] = build.collective(*where, latency_ns=_BUCKET_LATENCY_NS, bytes_a_ns=_BYTES_A_NS)
    build.optimizer(reduced.values())
    build.fetched("")
    return single_program_plan(build.program(), job.ranks)


def _add_layers(
    build: Builder,
    layers: Sequence[Layer],
    add_layer: Callable[[list[kernel_names.KernelSpec], str], None],
    reduced_in: str | None = None,
) -> int:
    """Add a batch, the embedding and the layers, which the function adds given their kernels and phase.

    After each layer's backward its gradients are reduced in the group `reduced_in`; return where the last ones are.
    """
    reduced = 0
    build.memory("h2d", 640 * 8, "forward")
    build.kernel(kernel_names.EMBEDDING, "forward")
    for layer in layers:
        add_layer(forward_kernels(layer.forward), "forward")
    build.loss()
    build.memory("memset", 4 * 2**20, "backward")
    for layer in reversed(layers):
        add_layer(backward_kernels(layer.backward), "backward")
        if reduced_in is not None:
            reduced = _reduce_gradients(build, reduced_in)
    return reduced


def _reduce_gradients(build: Builder, group: str, stream: int = _GRADIENT_STREAM, n_bytes: int = GRADIENT_BYTES) -> int:
    """Add an all-reduce of gradients; return its position."""
    return build.collective("all_reduce", group, stream, n_bytes, "backward", bytes_a_ns=_BYTES_A_NS)


def _tensor_parallel(job: Job) -> Plan:
    """Build one program and one group of all ranks."""
    build = Builder(job)
    layers = split_into_layers(job, forward_extra=2, backward_extra=2)
    _add_layers(build, layers, lambda shapes, phase: _tensor_layer(build, shapes, phase, WORLD))
    build.optimizer()
    return single_program_plan(build.program(), job.ranks)


def _tensor_data(job: Job) -> Plan:
    """Build groups `tensor` (`job.tensor` neighbours) and `data` (the ranks at the same position of each)."""
    size = neighbor_group_size(job, job.tensor, "tensor")
    build = Builder(job)
    layers = split_into_layers(job, forward_extra=2, backward_extra=3, extra=NORM_KERNELS)
    reduced = _add_layers(build, layers, lambda shapes, phase: _tensor_layer(build, shapes, phase, "tensor"), "data")
    add_gradient_norm(build, reduced)
    build.optimizer()
    ranks = np.arange(job.ranks)
    return single_program_plan(build.program(), job.ranks, {"tensor": ranks // size, "data": ranks % size})


def _tensor_layer(build: Builder, shapes: list[kernel_names.KernelSpec], phase: str, group: str) -> None:
    """Add one layer: attention and feed-forward, each with an all-reduce."""
    half = len(shapes) // 2
    for part in (shapes[:half], shapes[half:]):
        build.kernels(part, phase)
        build.blocking("all_reduce", group, _TENSOR_STREAM, _TENSOR_BYTES, phase)


def _expert(job: Job) -> Plan:
    """Build groups `expert` (`job.experts` neighbours) and `data` (ranks with the same experts)."""
    size = neighbor_group_size(job, job.experts, "experts")
    build = Builder(job)
    layers = split_into_layers(job, forward_extra=2, backward_extra=3, extra=1 + NORM_KERNELS)
    experts = _add_layers(build, layers, lambda shapes, phase: _expert_layer(build, shapes, phase), "data")
    dense = _reduce_gradients(build, WORLD, _DENSE_STREAM, 2 * GRADIENT_BYTES)
    add_gradient_norm(build, experts, dense)
    build.optimizer()
    ranks = np.arange(job.ranks)
    return single_program_plan(build.program(), job.ranks, {"expert": ranks // size, "data": ranks % size})


def _expert_layer(build: Builder, shapes: list[kernel_names.KernelSpec], phase: str) -> None:
    """Add attention, dispatch, experts, combine, and a last kernel."""
    half = len(shapes) // 2
    for part in (shapes[:half], shapes[half:-1]):
        build.kernels(part, phase)
        build.blocking("all_to_all", "expert", _TOKEN_STREAM, _TOKEN_BYTES, phase)
    build.kernels(shapes[-1:], phase)


def _sharded(job: Job) -> Plan:
    """Build one program and one group of all ranks."""
    build = Builder(job)
    sizes = split_into_layers(job, forward_extra=1, backward_extra=2, least=2)
    build.memory("h2d", 640 * 8, "forward")
    pass_through = _Layers(build, "forward")
    pass_through.gather()
    build.kernel(kernel_names.EMBEDDING, "forward")
    for number, size in enumerate(sizes):
        if number + 1 < len(sizes):
            pass_through.gather()
        pass_through.compute(forward_kernels(size.forward))
    build.loss()

    build.memory("memset", 4 * 2**20, "backward")
    back = _Layers(build, "backward")
    back.gather()
    scattered = 0
    for number, size in enumerate(reversed(sizes)):
        if number + 1 < len(sizes):
            back.gather()
        back.compute(backward_kernels(size.backward))
        scattered = build.collective(
            "reduce_scatter", WORLD, _SCATTER_STREAM, GRADIENT_BYTES, "backward", bytes_a_ns=_SHARDED_BYTES_A_NS
        )
    build.optimizer([scattered])
    return single_program_plan(build.program(), job.ranks)


class _Layers:
    """The layers in one direction; a layer is gathered once the one `_AHEAD` before it has finished."""

    def __init__(self, build: Builder, phase: str) -> None:
        self.build, self.phase = build, phase
        self.gathered: list[int] = []
        self.computed: list[int] = []

    def gather(self) -> None:
        """Add the all-gather of the next layer."""
        free = len(self.gathered) - _AHEAD
        if free >= 0:
            self.build.sync("cudaEventSynchronize", self.phase, (self.computed[free],))
        # the first one waits for the main stream, which updates the weights
        after = () if self.gathered else self.build.main
        at = self.build.collective(
            *("all_gather", WORLD, _GATHER_STREAM, GRADIENT_BYTES, self.phase, after), bytes_a_ns=_SHARDED_BYTES_A_NS
        )
        self.gathered.append(at)

    def compute(self, shapes: list[kernel_names.KernelSpec]) -> None:
        """Add the next layer; an event then frees its parameters."""
        self.build.main_waits(self.gathered[len(self.computed)], phase=self.phase)
        self.build.kernels(shapes, self.phase)
        self.build.call("cudaEventRecord", self.phase)
        self.computed += self.build.main


def _pipeline(job: Job) -> Plan:
    """Build groups `pipe0`, `pipe1`, ... (a stage and the next) and `data` (the ranks of a stage).

    Ranks of a stage are consecutive, so that stages are on different nodes.
    """
    stages = job.stages or next(n for n in (4, 3, 2, 1) if job.ranks % n == 0)
    if job.ranks % stages:
        raise UsageError(f"stages={stages} does not divide the {job.ranks} ranks of the job")
    replicas = job.ranks // stages
    batches = job.microbatches or 2 * stages
    compute = (job.kernels - optimizer_kernel_count(job) - NORM_KERNELS - (replicas > 1)) // batches - _MESSAGES
    if compute < _LEAST_COMPUTE:
        needed = job.kernels + batches * (_LEAST_COMPUTE - compute)
        raise UsageError(
            f"{job.kernels} kernels a step hold no {batches} micro-batches", f"give at least {needed} or fewer of them"
        )
    ranks = np.arange(job.ranks)
    stage = ranks // replicas
    groups = {WORLD: np.zeros(job.ranks, np.int64), "data": stage}
    for first in range(stages - 1):
        groups[f"pipe{first}"] = np.where((stage == first) | (stage == first + 1), ranks % replicas, NO_GROUP)
    programs = [_Stage(job, number, stages, compute, replicas > 1).program(batches) for number in range(stages)]
    return Plan(tuple(programs), stage, groups)


class _Stage:
    def __init__(self, job: Job, number: int, stages: int, compute: int, has_replicas: bool) -> None:
        self.job, self.build = job, Builder(job)
        self.is_first, self.is_last = number == 0, number == stages - 1
        self.before, self.behind = number - 1, number
        self.warmup = stages - 1 - number
        self.forward_kernels = compute // 3
        self.backward_kernels = compute - compute // 3
        self.has_replicas = has_replicas

    def program(self, batches: int) -> Program:
        """Build the program: warm-up forwards (one per later stage), forward and backward in turns, backwards.

        A forward's send and a backward's receive are one kernel, and vice versa: in sequence, two neighbours would
        deadlock.
        """
        build = self.build
        ahead = min(self.warmup, batches)
        for _ in range(ahead):
            self._message("recv", self.before, "forward")
            self._forward()
            self._message("send", self.behind, "forward")
        if ahead < batches:
            self._message("recv", self.before, "forward")
        for number in range(batches - ahead):
            is_last = number == batches - ahead - 1
            self._forward()
            if is_last and self.is_last:
                build.loss()
            self._message("send_recv", self.behind, "forward")
            self._backward()
            self._message("send" if is_last else "send_recv", self.before, "backward")
        for _ in range(ahead):
            self._message("recv", self.behind, "backward")
            self._backward()
            self._message("send", self.before, "backward")
        waits = [_reduce_gradients(build, "data")] if self.has_replicas else []
        add_gradient_norm(build, *waits)
        build.optimizer()
        return build.program()

    def _message(self, operation: str, pair: int, phase: str) -> None:
        """Add a message to or from a neighbour, if there is one; the main stream waits for received data."""
        if pair < 0 or (pair == self.behind and self.is_last):
            return
        send = self.build.collective if operation == "send" else self.build.blocking
        send(operation, f"pipe{pair}", _PIPE_STREAM + pair, _ACTIVATION_BYTES, phase)

    def _forward(self) -> None:
        shapes = forward_kernels(self.forward_kernels)
        if self.is_first:
            self.build.memory("h2d", 640 * 8, "forward")
            self.build.kernel(kernel_names.EMBEDDING, "forward")
        self.build.kernels(shapes, "forward")
        if self.is_last:
            self.build.kernels(kernel_names.LOSS_KERNELS, "forward")

    def _backward(self) -> None:
        shapes = backward_kernels(self.backward_kernels)
        self.build.kernels(shapes, "backward")


SHAPES: Final[dict[str, Callable[[Job], Plan]]] = {
    "data_parallel": _data_parallel,
    "tensor_parallel": _tensor_parallel,
    "sharded": _sharded,
    "tensor_data": _tensor_data,
    "expert": _expert,
    "pipeline": _pipeline,
}
"""What builds the programs and process groups of a job of each shape; `jitter sample --help` describes them."""
