"""Builder of one step's operations in launch order, and what the shapes of jobs have in common."""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np

from jitter.core.errors import UsageError
from jitter.simulate import kernel_names
from jitter.simulate.job import Job
from jitter.simulate.kernel_names import KernelSpec
from jitter.simulate.program import AUTOGRAD_THREAD, MAIN_THREAD, WORLD, Operation, Program, number_operations

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

    def kernel(self, shape: KernelSpec, phase: str, after: tuple[int, ...] = (), stream: int | None = None) -> int:
        """Add a compute kernel, by default on the main stream; return its position."""
        at = len(self.operations)
        if stream is None:
            after, self._main_waits = (*after, *self._main_waits), ()
            self.main = (at,)
        chosen = self.job.autotuned and bool(shape.tiles) and self._tuned.random() < self.job.autotuned
        self.operations.append(
            Operation(
                shape.name,
                "compute",
                "cudaLaunchKernel",
                self.job.main_stream if stream is None else stream,
                self._thread(phase),
                round(shape.duration_ns * self._gpu_scale),
                self._cpu_ns,
                self._call_ns,
                after,
                phase,
                grid=(shape.grid, 1, 1),
                block=(shape.block, 1, 1),
                sized=self.job.variable_work > 0 and shape.duration_ns > kernel_names.INPUT_SIZED_NS,
                variants=shape.tiles if chosen else (),
            )
        )
        return at

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
        self.main = (len(self.operations),)
        after, self._main_waits = self._main_waits, ()
        call = "cudaMemsetAsync" if copy == "memset" else "cudaMemcpyAsync"
        name = {"h2d": "[CUDA memcpy HtoD]", "d2h": "[CUDA memcpy DtoH]", "memset": "[CUDA memset]"}[copy]
        self.operations.append(
            Operation(
                name,
                "memory",
                call,
                self.job.main_stream,
                self._thread(phase),
                1300 + n_bytes // (800 if copy == "memset" else 20),
                self._cpu_ns,
                self._call_ns,
                after,
                phase,
                n_bytes=n_bytes,
                copy=copy,  # type: ignore[arg-type]
            )
        )

    def call(self, name: str, phase: str) -> None:
        """Add a host call without GPU activity."""
        thread = self._thread(phase)
        self.operations.append(Operation(name, "call", name, self.job.main_stream, thread, 0, 700, 800, phase=phase))

    def _event(self, phase: str) -> None:
        self.call("cudaEventRecord", phase)
        self.call("cudaStreamWaitEvent", phase)

    def main_waits(self, *positions: int, phase: str) -> None:
        """Make the next operation on the main stream wait for the end of these."""
        self.call("cudaStreamWaitEvent", phase)
        self._main_waits = (*self._main_waits, *positions)

    def sync(self, call: str, phase: str = "", after: tuple[int, ...] = ()) -> None:
        """Add a call that waits for the main stream, for the operations in `after`, or for the device."""
        where = self.job.main_stream, self._thread(phase)
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
        at = len(self.operations)
        self.operations.append(
            Operation(
                kernel_names.COLLECTIVE_KERNELS[operation],
                "collective",
                "cudaLaunchKernelExC",
                stream,
                self._thread(phase),
                round((latency_ns + n_bytes / bytes_a_ns) * self._transfer_scale),
                self._cpu_ns,
                self._call_ns,
                after,
                phase,
                group,
                operation,
                n_bytes,
                grid=(16, 1, 1),
                block=(512, 1, 1),
            )
        )
        return at

    def blocking(self, operation: str, group: str, stream: int, n_bytes: int, phase: str) -> None:
        """Add a collective that waits for the main stream and that the main stream waits for."""
        self.main_waits(self.collective(operation, group, stream, n_bytes, phase), phase=phase)

    def loss(self) -> None:
        """Read the loss at the end of the forward pass, if the job does so."""
        if "loss" in self.job.syncs:
            self.fetched("forward")

    def optimizer(self, awaited: Iterable[int] = ()) -> None:
        """Add the weight update after `awaited`, with the job's syncs around it."""
        if "before" in self.job.syncs:
            self.sync("cudaDeviceSynchronize", "optimizer")
        waited = tuple(awaited)
        if waited:
            self.call("cudaStreamWaitEvent", "optimizer")
        for _ in range(optimizer_kernel_count(self.job)):
            self.kernel(kernel_names.OPTIMIZER, "optimizer", waited)
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
