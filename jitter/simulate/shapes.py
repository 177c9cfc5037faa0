"""The shapes of jobs: kinds of parallelism. A new one is a function here and an entry in `SHAPES`."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np

from jitter.core.errors import UsageError
from jitter.simulate import kernel_names
from jitter.simulate.job import GRADIENT_STREAM, MAIN_STREAM, Job
from jitter.simulate.kernel_names import KernelSpec, backward_kernels, forward_kernels
from jitter.simulate.program import (
    AUTOGRAD_THREAD,
    MAIN_THREAD,
    NO_GROUP,
    WORLD,
    Operation,
    Plan,
    Program,
    number_operations,
    single_program_plan,
)

_TUNING = 2**42
"""Seed of autotuning's choices, in place of a rank."""
_SMALLEST_SPLIT = 4
"""Fewest kernels in a sequence for a part to run on the side stream."""
_MESSAGE_LATENCY_NS = 18_000
GRADIENT_BYTES: Final = 12 * 2**20
"""Gradient bytes of one layer."""
NORM_KERNELS: Final = 2
"""Kernels of `add_gradient_norm`."""
_LAYER: Final = 28
"""Approximate number of kernels of a layer, forward and backward."""
_SMALLEST: Final = (2, 4)
"""Fewest compute kernels of a layer, forward and backward."""
_NORM_STREAM: Final = 24


class Builder:
    """Builder of the operations of one program's step."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.operations: list[Operation] = []
        self.main: tuple[int, ...] = ()
        """Position of the last operation on the main stream; empty before the first."""
        self._main_waits: tuple[int, ...] = ()
        self._tuned = np.random.default_rng((job.seed, _TUNING))
        cpu = 3.0 if job.cpu_bound else 1.0
        self._cpu_ns, self._call_ns = round(job.cpu_ns * cpu), job.call_ns
        # CPU-bound: kernels shorter than a launch, transfers too short to run ahead
        self._gpu_scale = job.gpu_scale * (0.15 if job.cpu_bound else 1.0)
        self._transfer_scale = job.gpu_scale * (0.3 if job.cpu_bound else 1.0)

    def _thread(self, phase: str) -> int:
        """Return the thread that launches a phase: autograd has one of its own."""
        return AUTOGRAD_THREAD if phase == "backward" and self.job.second_thread else MAIN_THREAD

    def _add(
        self,
        name: str,
        kind: Any,
        call: str,
        phase: str,
        duration_ns: int,
        after: tuple[int, ...] = (),
        stream: int | None = None,
        **details: Any,
    ) -> int:
        """Add an operation that a call launches, by default on the main stream; return its position."""
        at = len(self.operations)
        if stream is None:
            after, self._main_waits = (*after, *self._main_waits), ()
            self.main, stream = (at,), MAIN_STREAM
        times = self._thread(phase), duration_ns, self._cpu_ns, self._call_ns
        self.operations.append(Operation(name, kind, call, stream, *times, after, phase, **details))
        return at

    def kernel(self, shape: KernelSpec, phase: str, after: tuple[int, ...] = (), stream: int | None = None) -> int:
        """Add a compute kernel, by default on the main stream; return its position."""
        chosen = self.job.autotuned and bool(shape.tiles) and self._tuned.random() < self.job.autotuned
        return self._add(
            *(shape.name, "compute", "cudaLaunchKernel", phase),
            *(round(shape.duration_ns * self._gpu_scale), after, stream),
            grid=(shape.grid, 1, 1),
            block=(shape.block, 1, 1),
            sized=self.job.variable_work > 0 and shape.duration_ns > kernel_names.INPUT_SIZED_NS,
            variants=shape.tiles if chosen else (),
        )

    def kernels(self, shapes: Sequence[KernelSpec], phase: str) -> None:
        """Add compute kernels; with a side stream, the middle third runs there concurrently."""
        aside = self.job.side_stream
        third = len(shapes) // 3 if aside and len(shapes) >= _SMALLEST_SPLIT else 0
        for shape in shapes[:third]:
            self.kernel(shape, phase)
        if third:
            self._event(phase)
            after, last = self.main, 0
            for shape in shapes[third : 2 * third]:
                last, after = self.kernel(shape, phase, after, aside), ()
        for number, shape in enumerate(rest := shapes[2 * third :], 1):
            if third and number == len(rest):
                self.main_waits(last, phase=phase)
            self.kernel(shape, phase)

    def memory(self, copy: str, n_bytes: int, phase: str) -> None:
        """Add a copy or a fill on the main stream."""
        call = "cudaMemsetAsync" if copy == "memset" else "cudaMemcpyAsync"
        name = {"h2d": "[CUDA memcpy HtoD]", "d2h": "[CUDA memcpy DtoH]", "memset": "[CUDA memset]"}[copy]
        duration_ns = 1300 + n_bytes // (800 if copy == "memset" else 20)
        self._add(name, "memory", call, phase, duration_ns, n_bytes=n_bytes, copy=copy)

    def call(self, name: str, phase: str) -> None:
        """Add a host call without GPU activity."""
        thread = self._thread(phase)
        self.operations.append(Operation(name, "call", name, MAIN_STREAM, thread, 0, 700, 800, phase=phase))

    def _event(self, phase: str) -> None:
        self.call("cudaEventRecord", phase)
        self.call("cudaStreamWaitEvent", phase)

    def main_waits(self, *positions: int, phase: str) -> None:
        """Make the next operation on the main stream wait for the end of these."""
        self.call("cudaStreamWaitEvent", phase)
        self._main_waits = (*self._main_waits, *positions)

    def sync(self, call: str, phase: str = "", after: tuple[int, ...] = ()) -> None:
        """Add a call that waits for the main stream, for the operations in `after`, or for the device."""
        where = MAIN_STREAM, self._thread(phase)
        self.operations.append(
            Operation(call, "sync", call, *where, cpu_ns=1500, call_ns=4000, after=after, phase=phase)
        )

    def fetched(self, phase: str) -> None:
        """Add a copy to the host that the CPU waits for (`loss.item()`)."""
        self.memory("d2h", 4, phase)
        self.sync("cudaStreamSynchronize", phase)

    def collective(
        self,
        operation: str,
        group: str,
        stream: int,
        n_bytes: int,
        phase: str,
        after: tuple[int, ...] | None = None,
        latency_ns: int = _MESSAGE_LATENCY_NS,
        bytes_a_ns: float = 300,
    ) -> int:
        """Add a collective that waits for the main stream, or for `after`; return its position."""
        if after is None:
            after = self.main
        if after:
            self._event(phase)
        return self._add(
            *(kernel_names.COLLECTIVE_KERNELS[operation], "collective", "cudaLaunchKernelExC", phase),
            *(round((latency_ns + n_bytes / bytes_a_ns) * self._transfer_scale), after, stream),
            group=group,
            collective=operation,
            n_bytes=n_bytes,
            grid=(16, 1, 1),
            block=(512, 1, 1),
        )

    def blocking(self, operation: str, group: str, stream: int, n_bytes: int, phase: str) -> None:
        """Add a collective that waits for the main stream and that the main stream waits for."""
        self.main_waits(self.collective(operation, group, stream, n_bytes, phase), phase=phase)

    def loss(self) -> None:
        """Read the loss at the end of the forward pass, if the job does so."""
        if "loss" in self.job.syncs:
            self.fetched("forward")

    def optimizer(self, *awaited: int) -> None:
        """Add the weight update after `awaited`, with the job's syncs around it."""
        if "before" in self.job.syncs:
            self.sync("cudaDeviceSynchronize", "optimizer")
        if awaited:
            self.call("cudaStreamWaitEvent", "optimizer")
        for _ in range(optimizer_kernel_count(self.job)):
            self.kernel(kernel_names.OPTIMIZER, "optimizer", awaited)
        if "after" in self.job.syncs:
            self.sync("cudaDeviceSynchronize", "optimizer")

    def program(self) -> Program:
        """Return the program with this step and the job's warm-up and tail kernels."""
        return Program(
            number_operations(self.operations),
            _loose(self.job, self.job.warmup_kernels),
            _loose(self.job, self.job.tail_kernels),
        )


def optimizer_kernel_count(job: Job) -> int:
    """Return the number of kernels of the weight update."""
    return max(1, job.kernels // 30)


def _loose(job: Job, count: int) -> tuple[Operation, ...]:
    build = Builder(job)
    for shape in kernel_names.forward_kernels(count):
        build.kernel(shape, "")
    return number_operations(build.operations)


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
    layer_kernels = job.kernels - 1 - optimizer_kernel_count(job) - extra
    count = max(least, round(layer_kernels / (_LAYER + collectives)))
    compute = layer_kernels - count * collectives
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
        build.main_waits(*awaited, phase="optimizer")
    build.kernel(kernel_names.REDUCE, "optimizer")
    build.blocking("all_reduce", WORLD, _NORM_STREAM, 4, "optimizer")


_BUCKET_BYTES = 25 * 2**20
_BUCKET_LATENCY_NS = 35_000
_BYTES_A_NS = 120
"""Bandwidth of gradients' collectives: 120 GB/s."""
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
    reduced = done = 0
    for number in range(job.all_reduces):
        until = round((number + 1) * n_backward / job.all_reduces)
        build.kernels(shapes[done:until], "backward")
        done = until
        n_bytes = _BUCKET_BYTES // (4 if number == job.all_reduces - 1 else 1)
        where = "all_reduce", WORLD, GRADIENT_STREAM, n_bytes, "backward"
        reduced = build.collective(*where, latency_ns=_BUCKET_LATENCY_NS, bytes_a_ns=_BYTES_A_NS)
    build.optimizer(reduced)
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


def _reduce_gradients(build: Builder, group: str, stream: int = GRADIENT_STREAM, n_bytes: int = GRADIENT_BYTES) -> int:
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
    build.optimizer(scattered)
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
    programs = [_stage_program(job, number, stages, batches, compute, replicas > 1) for number in range(stages)]
    return Plan(tuple(programs), stage, groups)


def _stage_program(job: Job, number: int, stages: int, batches: int, compute: int, has_replicas: bool) -> Program:
    """Build a stage's program: warm-up forwards (one per later stage), forward and backward in turns, backwards.

    A forward's send and a backward's receive are one kernel, and vice versa: in sequence, two neighbours would
    deadlock.
    """
    build, before, behind, last = Builder(job), number - 1, number, stages - 1
    ahead = min(last - number, batches)

    def message(operation: str, pair: int, phase: str) -> None:
        """Add a message to or from a neighbour, if there is one; the main stream waits for received data."""
        if 0 <= pair < last:
            send = build.collective if operation == "send" else build.blocking
            send(operation, f"pipe{pair}", _PIPE_STREAM + pair, _ACTIVATION_BYTES, phase)

    def forward() -> None:
        if number == 0:
            build.memory("h2d", 640 * 8, "forward")
            build.kernel(kernel_names.EMBEDDING, "forward")
        build.kernels(forward_kernels(compute // 3), "forward")
        if number == last:
            build.kernels(kernel_names.LOSS_KERNELS, "forward")

    def backward() -> None:
        build.kernels(backward_kernels(compute - compute // 3), "backward")

    for _ in range(ahead):
        message("recv", before, "forward")
        forward()
        message("send", behind, "forward")
    if ahead < batches:
        message("recv", before, "forward")
    for batch in range(ahead, batches):
        forward()
        is_last = batch == batches - 1
        if is_last and number == last:
            build.loss()
        message("send_recv", behind, "forward")
        backward()
        message("send" if is_last else "send_recv", before, "backward")
    for _ in range(ahead):
        message("recv", behind, "backward")
        backward()
        message("send", before, "backward")
    add_gradient_norm(build, *([_reduce_gradients(build, "data")] if has_replicas else []))
    build.optimizer()
    return build.program()


SHAPES: Final[dict[str, Callable[[Job], Plan]]] = {
    "data_parallel": _data_parallel,
    "tensor_parallel": _tensor_parallel,
    "sharded": _sharded,
    "tensor_data": _tensor_data,
    "expert": _expert,
    "pipeline": _pipeline,
}
"""What builds the programs and process groups of a job of each shape; `jitter sample --help` describes them."""
