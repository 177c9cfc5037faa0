"""Pipeline parallelism (1F1B): stages of different programs exchange micro-batches and gradients."""

import numpy as np

from jitter.core.errors import UsageError
from jitter.simulate import kernel_names
from jitter.simulate.job import Job
from jitter.simulate.program import MAIN_THREAD, NO_GROUP, WORLD, Plan, Program
from jitter.simulate.shapes.builder import Builder, optimizer_kernel_count
from jitter.simulate.shapes.layers import GRADIENT_BYTES, NORM_KERNELS, add_gradient_norm

_PIPE_STREAM = 40
_DATA_STREAM = 33
_ACTIVATION_BYTES = 2 * 2**20
_LEAST_COMPUTE = 6
_MESSAGES = 4
"""Most send and receive kernels of a stage per micro-batch."""


def plan(job: Job) -> Plan:
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
    """The step of one stage."""

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
            self._message("recv", self.before, "forward", MAIN_THREAD)
            self._forward()
            self._message("send", self.behind, "forward", MAIN_THREAD)
        if ahead < batches:
            self._message("recv", self.before, "forward", MAIN_THREAD)
        for number in range(batches - ahead):
            is_last = number == batches - ahead - 1
            self._forward()
            if is_last and self.is_last:
                build.loss()
            self._message("send_recv", self.behind, "forward", MAIN_THREAD)
            self._backward()
            self._message("send" if is_last else "send_recv", self.before, "backward", build.backward_thread)
        for _ in range(ahead):
            self._message("recv", self.behind, "backward", build.backward_thread)
            self._backward()
            self._message("send", self.before, "backward", build.backward_thread)
        waits = []
        if self.has_replicas:
            waits = [
                build.collective(
                    "all_reduce",
                    "data",
                    _DATA_STREAM,
                    GRADIENT_BYTES,
                    "backward",
                    build.backward_thread,
                    bytes_a_ns=120,
                )
            ]
        add_gradient_norm(build, *waits)
        build.optimizer()
        return build.program()

    def _message(self, operation: str, pair: int, phase: str, thread: int) -> None:
        """Add a message to or from a neighbour, if there is one; the main stream waits for received data."""
        if pair < 0 or (pair == self.behind and self.is_last):
            return
        send = self.build.collective if operation == "send" else self.build.blocking
        send(operation, f"pipe{pair}", _PIPE_STREAM + pair, _ACTIVATION_BYTES, phase, thread)

    def _forward(self) -> None:
        shapes = kernel_names.repeat_layer(kernel_names.forward_layer(self.job.era), self.forward_kernels)
        if self.is_first:
            self.build.memory("h2d", 640 * 8, "forward")
            self.build.kernel(kernel_names.embedding_kernel(), "forward", MAIN_THREAD)
        self.build.kernels(shapes, "forward", MAIN_THREAD)
        if self.is_last:
            self.build.kernels(kernel_names.loss_kernels(self.job.era), "forward", MAIN_THREAD)

    def _backward(self) -> None:
        shapes = kernel_names.repeat_layer(kernel_names.backward_layer(self.job.era), self.backward_kernels)
        self.build.kernels(shapes, "backward", self.build.backward_thread)
