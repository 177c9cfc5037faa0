"""The ranks' programs: data-parallel steps that overlap, tensor-parallel ones that block, sharded ones, pipelines."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tests.accuracy.irregular.engine import MAIN, Comm, Engine, Op, RankTrace
from tests.accuracy.irregular.job import Fault, IrregularJob

COMMUNICATION = 20
_CLASSES = ("gemm", "elementwise", "attention", "gemm", "elementwise", "gemm", "norm", "gemm")
_BY_CLOCK = {"gemm": 1.0, "attention": 1.0, "elementwise": 0.5, "norm": 0.5, "optimizer": 0.5}
"""How much of a slower clock each class of kernel feels: some are bound by memory."""
_BY_LENGTH = {"gemm": 1.0, "attention": 2.0, "elementwise": 1.0, "norm": 1.0, "optimizer": 0.0}
"""With which power of the sequence length the work of each class grows."""


@dataclass(frozen=True)
class _Kernel:
    name: str
    of: str
    ns: float
    grid: int


class ProgramBuilder:
    """Builds one rank's operations."""

    def __init__(self, job: IrregularJob, rank: int) -> None:
        self.job, self.rank, self.ops = job, rank, list[Op]()
        rng = job.rng(100)
        self.kernels = [self._kernel(rng, at) for at in range(job.kernels)]
        self.optimizer = [
            _Kernel(f"optimizer_{at}", "optimizer", float(rng.uniform(30, 60)) * 1e3, 216) for at in (0, 1)
        ]
        self.step_ns = sum(one.ns for one in (*self.kernels, *self.optimizer))
        self._rng, self._loads = job.rng(10_000 + rank), job.rng(20_000 + rank)

    def _kernel(self, rng: np.random.Generator, at: int) -> _Kernel:
        of = _CLASSES[at % len(_CLASSES)]
        ns = float(np.exp(rng.normal(np.log(45e3), 0.5)))
        return _Kernel(f"{of}_{at % 5}", of, ns, int(rng.integers(60, 400)))

    def build(self) -> list[Op]:
        """Return the operations of all steps."""
        for step in range(self.job.steps):
            self._step(step)
        return self.ops

    def _step(self, step: int) -> None:
        job, rank = self.job, self.rank
        first = len(self.ops)
        self.ops.append(Op("step", step))
        late = sum(fault.size for fault in job.faults if fault.kind == "late" and fault.happens(rank, step))
        loaded = job.loader and job.loader * self.step_ns * float(self._loads.gamma(4.0, 0.25))
        self._host(step, 60e3 + late * self.step_ns + loaded)
        if job.pace:
            self.ops.append(Op("pace", step, (step + 1) * job.pace * self.step_ns))
        if job.shape == "pipeline":
            self._pipeline(step)
        elif job.shape == "blocking":
            self._blocking(step)
        elif job.shape == "sharded":
            self._sharded(step)
        elif job.shape == "prefetched":
            self._prefetched(step)
        else:
            self._overlapped(step)
        self._pauses(step, first)
        if job.checkpoint[rank, step]:
            self._host(step, job.checkpoint[rank, step] * self.step_ns)
        if job.synchronises:
            self.ops.append(Op("sync", step))
        if job.wait == "end" and job.wait_on == "device":
            self._wait(step, "sync")
        elif job.wait == "end":
            self._wait(step, "wait", (step, "last"))
        elif job.wait == "ahead":
            self._wait(step, "wait", (step - 1, "last"))
        self._host(step, 20e3)
        self.ops.append(Op("end", step))

    def _host(self, step: int, ns: float) -> None:
        self.ops.append(Op("host", step, ns * float(np.exp(self.job.host_noise * self._rng.standard_normal()))))

    def _wait(self, step: int, kind: str, mark: tuple[object, ...] = ()) -> None:
        """Let the host wait for the GPU, and work for a while."""
        self.ops.append(Op(kind, step, mark=mark, recorded=self.job.wait_rows))
        self._host(step, 15e3 + self.job.after_wait * self.step_ns)

    def _launch_ns(self, usual_ns: float) -> float:
        noise = 3 * self.job.host_noise * self._rng.standard_normal()
        return usual_ns * self.job.launch * float(np.exp(noise))

    def _pauses(self, step: int, first: int) -> None:
        """Insert pauses before launches of the step whose operations begin at `first`."""
        pause, place = (values[self.rank, step] for values in self.job.collected)
        wanted = [(place, pause)] if pause else []
        wanted += [
            (fault.place, fault.size)
            for fault in self.job.faults
            if fault.kind == "pause" and fault.happens(self.rank, step)
        ]
        for where, size in sorted(wanted, reverse=True):
            launches = [at for at in range(first, len(self.ops)) if self.ops[at].kind == "kernel"]
            at = launches[1 + int(where * (len(launches) - 2))]
            self.ops.insert(at, Op("host", step, size * self.step_ns))

    def _launch(self, step: int, kernel: _Kernel, share: float = 1.0, mark: str = "") -> None:
        job, rank = self.job, self.rank
        clock, length = job.clock[rank, step], job.length[rank, step]
        for fault in job.faults:
            if fault.happens(rank, step):
                if fault.kind in ("slow_gpu", "all_slow"):
                    clock *= fault.size
                elif fault.kind == "more_work":
                    length *= fault.size
        work = kernel.ns * share * (1 + (clock - 1) * _BY_CLOCK[kernel.of]) * length ** _BY_LENGTH[kernel.of]
        work *= job.step_factor[rank, step] * float(np.exp(job.noise * self._rng.standard_normal()))
        grid = kernel.grid
        if not job.fixed_grids and _BY_LENGTH[kernel.of]:
            grid = max(1, round(grid * length))
        name, marked = f"void {kernel.name}<bf16>(int)", (step, mark) if mark else ()
        self.ops.append(Op("kernel", step, work, self._launch_ns(5e3), name=name, grid=grid, mark=marked))

    def _collective(
        self,
        step: int,
        meeting: tuple[object, ...],
        comm: Comm,
        ns: float,
        stream: int = COMMUNICATION,
        awaited: int = MAIN,
    ) -> None:
        # the draw belongs to the meeting: its members agree on it
        drawn = np.random.default_rng((self.job.seed, 7, step, *_numbers(meeting)))
        ns *= float(np.exp(0.04 * drawn.standard_normal()))
        for fault in self.job.faults:
            hit = fault.kind == "slow_link" and any(fault.happens(rank, step) for rank in comm.ranks)
            if hit or (fault.kind == "slow_network" and fault.happens(self.rank, step)):
                ns *= fault.size
        members = 2 if comm.operation in ("send", "recv") else len(comm.ranks)
        call, meets = self._launch_ns(9e3), (step, *meeting)
        stream = MAIN if self.rank in self.job.on_main else stream
        self.ops.append(Op("collective", step, ns, call, stream, awaited, "", 1, meets, members, comm))

    def _join(self, step: int, stream: int = COMMUNICATION) -> None:
        self.ops.append(Op("join", step, awaited=stream))

    def _overlapped(self, step: int) -> None:
        job = self.job
        everyone = Comm("allreduce", "0", tuple(range(job.ranks)), 4_000_000)
        forward, buckets = job.kernels // 3, 3
        ends = {forward + (job.kernels - forward) * (one + 1) // buckets - 1 for one in range(buckets)}
        for at, kernel in enumerate(self.kernels):
            self._compute(step, at, kernel)
            if at in ends:
                self._collective(step, ("all", at), everyone, job.transfer * self.step_ns)
        self._join(step)
        self._optimize(step)

    def _compute(self, step: int, at: int, kernel: _Kernel, mark: str = "") -> None:
        """Launch one of the step's kernels; of a job that waits in the middle of its steps, wait there."""
        waits = self.job.wait == "middle" and at == 2 * len(self.kernels) // 3
        self._launch(step, kernel, mark="middle" if waits else mark)
        if waits:
            self._wait(step, "wait", (step, "middle"))

    def _optimize(self, step: int) -> None:
        for kernel in self.optimizer:
            self._launch(step, kernel, mark="last" if kernel is self.optimizer[-1] else "")

    def _sharded(self, step: int) -> None:
        """Layers whose weights are gathered one layer ahead; gradients are scattered at the step's end, by halves."""
        job = self.job
        ranks, size = tuple(range(job.ranks)), 6
        layers = [self.kernels[at : at + size] for at in range(0, len(self.kernels), size)]
        gather, scatter = (
            Comm("_allgather_base", "0", ranks, 800_000),
            Comm("_reduce_scatter_base", "0", ranks, 800_000),
        )
        each = job.transfer * self.step_ns / len(layers)
        done = 0
        for layer in range(len(layers)):
            if job.wait == "limiter" and layer >= 2:
                self._wait(step, "wait", (step, f"layer {layer - 2}"))
            self._collective(step, ("gather", layer), gather, each)
            if layer:
                done = self._layer(step, layer - 1, layers[layer - 1], done)
            self._join(step)
        self._layer(step, len(layers) - 1, layers[-1], done)
        for half in (0, 1):
            self._collective(step, ("scatter", half), scatter, each)
        self._join(step)
        self._optimize(step)

    def _prefetched(self, step: int) -> None:
        """Layers in whose middle the weights of the next are gathered, whatever computes: early behind a fast host."""
        job, ranks, size = self.job, tuple(range(self.job.ranks)), 6
        layers = [self.kernels[at : at + size] for at in range(0, len(self.kernels), size)]
        gather, reduce = Comm("_allgather_base", "0", ranks, 800_000), Comm("allreduce", "1", ranks, 800_000)
        each = job.transfer * self.step_ns / len(layers)
        self._collective(step, ("gather", 0), gather, each, awaited=COMMUNICATION)
        done = 0
        for layer, kernels in enumerate(layers):
            self._join(step)
            done = self._layer(step, layer, kernels[: size // 2], done)
            if layer + 1 < len(layers):
                self._collective(step, ("gather", layer + 1), gather, each, awaited=COMMUNICATION)
            done = self._layer(step, layer, kernels[size // 2 :], done)
        self._collective(step, ("reduce",), reduce, each)
        self._join(step)
        self._optimize(step)

    def _layer(self, step: int, layer: int, kernels: Sequence[_Kernel], done: int) -> int:
        """Launch one layer's kernels, the step's `done`th and following ones; return how many are launched then."""
        for at, kernel in enumerate(kernels, done):
            self._compute(step, at, kernel, mark=f"layer {layer}" if kernel is kernels[-1] else "")
        return done + len(kernels)

    def _blocking(self, step: int) -> None:
        job = self.job
        everyone = Comm("allreduce", "0", tuple(range(job.ranks)), 500_000)
        every = max(3, job.kernels // 6)
        for at, kernel in enumerate(self.kernels):
            self._compute(step, at, kernel)
            if at % every == every - 1 or at == job.kernels - 1:
                self._collective(step, ("all", at), everyone, job.transfer * self.step_ns / 3)
                self._join(step)
        self._optimize(step)

    def _pipeline(self, step: int) -> None:
        """One stage's passes over the micro-batches; then stages reduce over their columns.

        With one communicator a direction, passes alternate (1F1B). With one for both, that would deadlock: all
        micro-batches go forward first.
        """
        job, stage = self.job, self.job.stage(self.rank)
        count = job.microbatches
        first = min(job.stages - stage - 1, count) if job.naming == "direction" else count
        for micro in range(first):
            self._pass(step, micro, forward=True)
        for micro in range(count):
            if first + micro < count:
                self._pass(step, first + micro, forward=True)
            self._pass(step, micro, forward=False)
        if job.columns > 1:
            ranks = tuple(range(stage * job.columns, (stage + 1) * job.columns))
            self._collective(step, ("stage", stage), Comm("allreduce", f"dp{stage}", ranks, 2_000_000), 80e3, 30)
            self._join(step, 30)
        for kernel in self.optimizer:
            self._launch(step, kernel)

    def _pass(self, step: int, micro: int, *, forward: bool) -> None:
        """One micro-batch through the stage: receive, compute, send."""
        stage, cut = self.job.stage(self.rank), self.job.kernels // 3
        before, after = (stage - 1, stage) if forward else (stage, stage - 1)
        if 0 <= before < self.job.stages - 1:
            self._exchange(step, micro, before, forward=forward)
        for kernel in self.kernels[:cut] if forward else self.kernels[cut:]:
            self._launch(step, kernel, self.job.microbatch[step, micro] / self.job.microbatches)
        if 0 <= after < self.job.stages - 1:
            self._exchange(step, micro, after, forward=forward)

    def _exchange(self, step: int, micro: int, pair: int, *, forward: bool) -> None:
        """Send to or receive from the neighbour; `pair` is the stage before the link."""
        job, stage = self.job, self.job.stage(self.rank)
        column = self.rank % job.columns
        lower, upper = pair * job.columns + column, (pair + 1) * job.columns + column
        sends = (stage == pair) == forward
        source, destination = (lower, upper) if forward else (upper, lower)
        stream = COMMUNICATION
        if job.naming == "column":
            ranks, name = tuple(range(column, job.ranks, job.columns)), f"pp{column}"
        else:
            ranks, name = (lower, upper), f"pp{column}.{pair}"
            stream += 1 + pair - stage + 1
            if job.naming == "direction":
                name += ".forward" if forward else ".backward"
                stream += 0 if forward else 4
        stated = job.naming == "column"
        comm = Comm(
            "send" if sends else "recv",
            name,
            ranks,
            400_000,
            source if stated and not sends else None,
            destination if stated and sends else None,
        )
        self._collective(step, ("pair", pair, column, micro, forward), comm, 25e3, stream)
        if not sends:
            self._join(step, stream)


def _numbers(meeting: tuple[object, ...]) -> list[int]:
    """Return numbers that are the same in every process: text has another hash in each."""
    return [sum(map(ord, one)) if isinstance(one, str) else int(one) for one in meeting]  # type: ignore[call-overload]


def run_job(job: IrregularJob, *without: Fault) -> list[RankTrace]:
    """Run the job, without some of its faults."""
    actual = job.without(*without) if without else job
    return Engine([ProgramBuilder(actual, rank).build() for rank in range(job.ranks)], job.interference).run()


def duration_ns(traces: list[RankTrace]) -> float:
    """Return the time from the first step's last collective end to the last step's."""
    first, last = 0.0, 0.0
    steps = sorted(traces[0].steps)
    for trace in traces:
        for item in trace.items:
            if item.op.comm is not None:
                if item.op.step == steps[0]:
                    first = max(first, item.end_ns)
                if item.op.step == steps[-1]:
                    last = max(last, item.end_ns)
    return last - first


def step_length_ns(traces: list[RankTrace]) -> float:
    """Return the mean time of a step."""
    return duration_ns(traces) / max(1, len(traces[0].steps) - 1)
