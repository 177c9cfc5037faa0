"""The program of a data-parallel job: forward, backward with overlapping all-reduces, optimizer, one sync."""

from itertools import cycle, islice

import numpy as np

from jitter.simulate import names
from jitter.simulate.job import Job
from jitter.simulate.names import Shape
from jitter.simulate.program import AUTOGRAD_THREAD, MAIN_THREAD, WORLD, Operation, Program, numbered

_BUCKET_BYTES = 25 * 2**20
_NS_PER_BYTE = 1 / 120  # 120 GB/s of bus bandwidth
_COLLECTIVE_LATENCY_NS = 35_000


class _Builder:
    """Collects operations of one step and remembers who stands where."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.operations: list[Operation] = []
        self.last_on_main: int | None = None
        self.last_of_stream: dict[int, int] = {}

    def kernel(self, shape: Shape, phase: str, thread: int, after: tuple[int, ...] = ()) -> None:
        self.last_on_main = len(self.operations)
        self.operations.append(
            Operation(
                shape.name,
                "compute",
                "cudaLaunchKernel",
                self.job.main_stream,
                thread,
                round(shape.duration_ns * self.job.gpu_scale),
                self.job.cpu_ns,
                self.job.call_ns,
                after,
                phase,
                grid=(shape.grid, 1, 1),
                block=(shape.block, 1, 1),
            )
        )

    def memory(self, copy: str, n_bytes: int, phase: str, thread: int = MAIN_THREAD) -> None:
        call = "cudaMemsetAsync" if copy == "memset" else "cudaMemcpyAsync"
        name = {"h2d": "[CUDA memcpy HtoD]", "d2h": "[CUDA memcpy DtoH]", "memset": "[CUDA memset]"}[copy]
        self.operations.append(
            Operation(
                name,
                "memory",
                call,
                self.job.main_stream,
                thread,
                1300 + n_bytes // (800 if copy == "memset" else 20),
                self.job.cpu_ns,
                self.job.call_ns,
                phase=phase,
                n_bytes=n_bytes,
                copy=copy,  # type: ignore[arg-type]
            )
        )

    def call(self, name: str, thread: int, phase: str) -> None:
        self.operations.append(Operation(name, "call", name, self.job.main_stream, thread, 0, 700, 800, phase=phase))

    def all_reduce(self, number: int, n_bytes: int, thread: int) -> None:
        stream = self.job.collective_streams[number % len(self.job.collective_streams)]
        # DDP: an event of the main stream, for which the collective's stream waits
        self.call("cudaEventRecord", thread, "backward")
        self.call("cudaStreamWaitEvent", thread, "backward")
        self.last_of_stream[stream] = len(self.operations)
        self.operations.append(
            Operation(
                names.all_reduce(self.job.era),
                "collective",
                "cudaLaunchKernelExC" if self.job.era == "2024" else "cudaLaunchKernel",
                stream,
                thread,
                round((_COLLECTIVE_LATENCY_NS + n_bytes * _NS_PER_BYTE) * self.job.gpu_scale),
                self.job.cpu_ns,
                self.job.call_ns,
                () if self.last_on_main is None else (self.last_on_main,),
                "backward",
                WORLD,
                "all_reduce",
                n_bytes,
                grid=(16, 1, 1),
                block=(512, 1, 1),
            )
        )


def _step(job: Job) -> tuple[Operation, ...]:
    n_optimizer = max(1, job.kernels // 30)
    n_compute = job.kernels - job.all_reduces - n_optimizer
    n_forward = max(1, n_compute // 3)
    n_backward = n_compute - n_forward
    autograd = AUTOGRAD_THREAD if job.second_thread else MAIN_THREAD
    build = _Builder(job)

    build.memory("h2d", 640 * 8, "forward")
    build.memory("h2d", 640 * 8, "forward")
    layer = islice(cycle(names.forward_layer(job.era)), n_forward - 1)
    for shape in (names.embedding(), *layer):
        build.kernel(shape, "forward", MAIN_THREAD)

    build.memory("memset", 4 * 2**20, "backward", autograd)
    # a bucket goes out as soon as its share of the gradients is there; the last one is small, as DDP's first is
    sends = {round((n + 1) * n_backward / job.all_reduces): n for n in range(job.all_reduces)}
    for done, shape in enumerate(islice(cycle(names.backward_layer(job.era)), n_backward), start=1):
        build.kernel(shape, "backward", autograd)
        if done in sends:
            last = sends[done] == job.all_reduces - 1
            build.all_reduce(sends[done], _BUCKET_BYTES // (4 if last else 1), autograd)

    build.call("cudaStreamWaitEvent", MAIN_THREAD, "optimizer")
    for _ in range(n_optimizer):
        build.kernel(names.optimizer(), "optimizer", MAIN_THREAD, tuple(build.last_of_stream.values()))
    build.memory("d2h", 4, "", MAIN_THREAD)
    build.operations.append(
        Operation(
            "cudaStreamSynchronize",
            "sync",
            "cudaStreamSynchronize",
            job.main_stream,
            MAIN_THREAD,
            cpu_ns=1500,
            call_ns=4000,
        )
    )
    return numbered(build.operations)


def _loose(job: Job, count: int) -> tuple[Operation, ...]:
    build = _Builder(job)
    for shape in islice(cycle(names.forward_layer(job.era)), count):
        build.kernel(shape, "", MAIN_THREAD)
    return numbered(build.operations)


def program(job: Job) -> Program:
    """The program of this job: `job.kernels` kernels a step, in launch order."""
    return Program(
        _step(job),
        _loose(job, job.warmup_kernels),
        _loose(job, job.tail_kernels),
        {WORLD: np.zeros(job.ranks, np.int64)},
    )
