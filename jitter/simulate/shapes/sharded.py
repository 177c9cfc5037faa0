"""Fully sharded data parallelism: all-gather of parameters one layer ahead, reduce-scatter of gradients."""

from jitter.simulate import kernel_names
from jitter.simulate.job import Job
from jitter.simulate.program import MAIN_THREAD, WORLD, Plan, single_program_plan
from jitter.simulate.shapes.builder import Builder
from jitter.simulate.shapes.layers import GRADIENT_BYTES, split_into_layers

_GATHER_STREAM = 28
_SCATTER_STREAM = 32
_BYTES_A_NS = 90
_AHEAD = 2
"""Layers gathered ahead: the CPU waits until the layer before these has finished."""


def plan(job: Job) -> Plan:
    """Build one program and one group of all ranks."""
    build = Builder(job)
    autograd = build.backward_thread
    sizes = split_into_layers(job, forward_extra=1, backward_extra=2, least=2)
    build.memory("h2d", 640 * 8, "forward")
    pass_through = _Layers(build, "forward", MAIN_THREAD)
    pass_through.gather()
    build.kernel(kernel_names.embedding_kernel(), "forward", MAIN_THREAD)
    for number, size in enumerate(sizes):
        if number + 1 < len(sizes):
            pass_through.gather()
        pass_through.compute(kernel_names.repeat_layer(kernel_names.forward_layer(job.era), size.forward))
    build.loss()

    build.memory("memset", 4 * 2**20, "backward", autograd)
    back = _Layers(build, "backward", autograd)
    back.gather()
    scattered = 0
    for number, size in enumerate(reversed(sizes)):
        if number + 1 < len(sizes):
            back.gather()
        back.compute(kernel_names.repeat_layer(kernel_names.backward_layer(job.era), size.backward))
        scattered = build.collective(
            "reduce_scatter", WORLD, _SCATTER_STREAM, GRADIENT_BYTES, "backward", autograd, bytes_a_ns=_BYTES_A_NS
        )
    build.optimizer([scattered])
    return single_program_plan(build.program(), job.ranks)


class _Layers:
    """The layers in one direction; a layer is gathered once the one `_AHEAD` before it has finished."""

    def __init__(self, build: Builder, phase: str, thread: int) -> None:
        self.build, self.phase, self.thread = build, phase, thread
        self.gathered: list[int] = []
        self.computed: list[int] = []

    def gather(self) -> None:
        """Add the all-gather of the next layer."""
        free = len(self.gathered) - _AHEAD
        if free >= 0:
            self.build.sync("cudaEventSynchronize", self.phase, self.thread, (self.computed[free],))
        # the first one waits for the main stream, which updates the weights
        after = () if self.gathered else self.build.main
        at = self.build.collective(
            "all_gather",
            WORLD,
            _GATHER_STREAM,
            GRADIENT_BYTES,
            self.phase,
            self.thread,
            after,
            bytes_a_ns=_BYTES_A_NS,
        )
        self.gathered.append(at)

    def compute(self, shapes: list[kernel_names.KernelSpec]) -> None:
        """Add the next layer; an event then frees its parameters."""
        self.build.main_waits(self.gathered[len(self.computed)], phase=self.phase, thread=self.thread)
        self.build.kernels(shapes, self.phase, self.thread)
        self.build.call("cudaEventRecord", self.thread, self.phase)
        self.computed += self.build.main
