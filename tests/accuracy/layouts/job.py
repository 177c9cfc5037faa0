"""A job of several process groups, or of pipeline stages, as operations of each rank; all draws are from its seed."""

from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np

from tests.accuracy.irregular.engine import Comm, Engine, Op, RankTrace

Naming = Literal["ranks", "column", "peers", "local_peers", "none", "nothing"]
"""What the trace states of a collective: members (of sends the pair); of sends all stages of the column, without
the peer, or with it (by rank, or by place in the group); the operation alone, or not even that.
"""
_COLUMN_STREAM: Final = 20
_ROW_STREAM: Final = 24
_WORLD_STREAM: Final = 28
_MESSAGE_STREAM: Final = 30


@dataclass(frozen=True)
class LayoutJob:
    """Everything about one job."""

    seed: int
    ranks: int = 8
    steps: int = 5
    shape: str = "mesh"
    """mesh: blocking collectives in rows, overlapped ones in columns. pipeline: stages exchange micro-batches.
    crossed: the second of two stages waits for every third message before it posts the receives of the two before."""
    row: int = 4
    """Ranks of a row of the mesh; of a pipeline the stages."""
    is_strided: bool = False
    """Whether rows are ranks at equal distances, and columns neighbours; else the other way round."""
    operation: str = "allreduce"
    """Of the rows: allreduce, or alltoall, which traces call a send and receive."""
    layers: int = 6
    kernels: int = 6
    """Kernels of a layer, a third of them forward."""
    with_world: bool = True
    """Whether the gradients' norm is reduced over all ranks."""
    one_stream: bool = False
    """Whether all collectives of a rank run on one stream."""
    microbatches: int = 6
    stage_layers: tuple[float, ...] = ()
    """Of each stage; default: two."""
    naming: Naming = "none"
    noise: float = 0.015
    end_spread_ns: float = 0.0
    """Standard deviation of when each rank leaves a collective."""
    slow: tuple[int, float] | None = None
    """A rank whose kernels take so many times as long."""
    late: tuple[int, float] | None = None
    """A rank that begins each step so many ns late."""
    slow_groups: tuple[tuple[int, ...], ...] = ()
    """Groups whose collectives take 10 times as long in the step before the last."""
    logs: int | None = None
    """A rank that runs one kernel more than the others at the end of each step, as for its log."""

    def healthy(self) -> "LayoutJob":
        """Return the job without its faults, all stages alike."""
        return replace(self, slow=None, late=None, slow_groups=(), stage_layers=())

    @property
    def columns(self) -> int:
        """Ranks of a column of the mesh, or of a stage."""
        return self.ranks // self.row

    def row_of(self, rank: int) -> tuple[int, ...]:
        """Return the ranks of a rank's row."""
        if self.is_strided:
            return tuple(range(rank % self.columns, self.ranks, self.columns))
        return tuple(range(rank - rank % self.row, rank - rank % self.row + self.row))

    def column_of(self, rank: int) -> tuple[int, ...]:
        """Return the ranks at the same place of each row."""
        if self.is_strided:
            return tuple(range(rank - rank % self.columns, rank - rank % self.columns + self.columns))
        return tuple(range(rank % self.row, self.ranks, self.row))


class _Program:
    """Builds one rank's operations."""

    def __init__(self, job: LayoutJob, rank: int) -> None:
        self.job, self.rank, self.ops = job, rank, list[Op]()
        common = np.random.default_rng((job.seed, 1))
        self._work = np.exp(common.normal(np.log(45e3), 0.4, job.kernels))
        self._rng = np.random.default_rng((job.seed, 2, rank))

    def build(self) -> list[Op]:
        for step in range(self.job.steps):
            self.ops.append(Op("step", step))
            late = self.job.late[1] if self.job.late is not None and self.job.late[0] == self.rank else 0.0
            self.ops.append(Op("host", step, 50e3 * float(np.exp(0.05 * self._rng.standard_normal())) + late))
            if self.job.shape == "pipeline":
                self._pipeline(step)
            elif self.job.shape == "crossed":
                self._crossed(step)
            else:
                self._mesh(step)
            for number in range(2):
                self._kernel(step, f"optimizer_{number}", 60e3)
            if self.rank == self.job.logs:
                self._kernel(step, "mean_of_loss", 5e3)
            self.ops.append(Op("sync", step))
            self.ops.append(Op("end", step))
        return self.ops

    def _kernel(self, step: int, name: str, ns: float) -> None:
        job = self.job
        ns *= float(np.exp(job.noise * self._rng.standard_normal()))
        if job.slow is not None and job.slow[0] == self.rank:
            ns *= job.slow[1]
        call = 4e3 * float(np.exp(0.1 * self._rng.standard_normal()))
        self.ops.append(Op("kernel", step, ns, call, name=f"void {name}<bf16>(int)", grid=128))

    def _layer(self, step: int, *, forward: bool, share: float = 1.0) -> None:
        cut = self.job.kernels // 3
        for at in range(cut) if forward else range(cut, self.job.kernels):
            self._kernel(step, f"kernel_{at}", float(self._work[at]) * share)

    def _collective(
        self, step: int, operation: str, ranks: tuple[int, ...], number: object, ns: float, stream: int, size: int
    ) -> None:
        if self.job.one_stream:
            stream = _COLUMN_STREAM
        if ranks in self.job.slow_groups and step == self.job.steps - 2:
            ns *= 10
        comm = Comm(operation, "-".join(map(str, ranks)), ranks, size)
        meeting = (step, operation, ranks, number)
        self.ops.append(Op("collective", step, ns, 6e3, stream, meeting=meeting, members=len(ranks), comm=comm))

    def _join(self, step: int, stream: int) -> None:
        self.ops.append(Op("join", step, awaited=_COLUMN_STREAM if self.job.one_stream else stream))

    def _mesh(self, step: int) -> None:
        job, row, column = self.job, self.job.row_of(self.rank), self.job.column_of(self.rank)
        for layer in range(job.layers):
            self._layer(step, forward=True)
            self._collective(step, job.operation, row, ("forward", layer), 30e3, _ROW_STREAM, 500_000)
            self._join(step, _ROW_STREAM)
        for layer in range(job.layers):
            self._layer(step, forward=False)
            # the rank's own work alone precedes it: columns end at different times
            self._collective(step, "allreduce", column, layer, 60e3, _COLUMN_STREAM, 4_000_000)
            self._collective(step, job.operation, row, ("backward", layer), 30e3, _ROW_STREAM, 500_000)
            self._join(step, _ROW_STREAM)
        self._join(step, _COLUMN_STREAM)
        if job.with_world:
            self._kernel(step, "norm", 20e3)
            self._collective(step, "allreduce", tuple(range(job.ranks)), "norm", 20e3, _WORLD_STREAM, 4)
            self._join(step, _WORLD_STREAM)

    @property
    def _stage(self) -> int:
        return self.rank // self.job.columns

    def _pipeline(self, step: int) -> None:
        """Forward and backward in turns (1F1B); sends and receives are kernels of their own, on their own streams."""
        job, stage = self.job, self._stage
        ahead = min(job.row - stage - 1, job.microbatches)
        for micro in range(ahead):
            self._pass(step, micro, forward=True)
        for micro in range(job.microbatches):
            if ahead + micro < job.microbatches:
                self._pass(step, ahead + micro, forward=True)
            self._pass(step, micro, forward=False)
        self._reduce(step)

    def _crossed(self, step: int) -> None:
        sends = self._stage == 0
        for micro in range(self.job.microbatches):
            sent = [(2 * micro, True), (2 * micro + 1, True), (micro, False)]
            for number, on_first_stream in sent if sends else [sent[2], *sent[:2]]:
                if sends:
                    self._layer(step, forward=True)
                self._message(step, number, 0, 1, forward=on_first_stream)
                if not sends:
                    self._layer(step, forward=True)
        self._reduce(step)

    def _reduce(self, step: int) -> None:
        """Reduce the gradients over the stage, and their norm over all ranks."""
        job, stage = self.job, self._stage
        if job.columns > 1:
            own = tuple(range(stage * job.columns, (stage + 1) * job.columns))
            self._collective(step, "allreduce", own, "gradients", 80e3, _COLUMN_STREAM, 4_000_000)
            self._join(step, _COLUMN_STREAM)
        if job.with_world:
            self._kernel(step, "norm", 20e3)
            self._collective(step, "allreduce", tuple(range(job.ranks)), "norm", 20e3, _WORLD_STREAM, 4)
            self._join(step, _WORLD_STREAM)

    def _pass(self, step: int, micro: int, *, forward: bool) -> None:
        stage, last = self._stage, self.job.row - 1
        source, target = (stage - 1, stage + 1) if forward else (stage + 1, stage - 1)
        if 0 <= source <= last:
            self._message(step, micro, source, stage, forward=forward)
        layers = self.job.stage_layers or (2.0,) * self.job.row
        whole, part = divmod(layers[stage], 1.0)
        for _ in range(int(whole)):
            self._layer(step, forward=forward)
        if part:
            self._layer(step, forward=forward, share=part)
        if 0 <= target <= last:
            self._message(step, micro, stage, target, forward=forward)

    def _message(self, step: int, micro: int, source: int, target: int, *, forward: bool) -> None:
        job, column = self.job, self.rank % self.job.columns
        ranks = tuple(stage * job.columns + column for stage in range(job.row))
        sends = self._stage == source
        states_column = job.naming in ("column", "peers", "local_peers")
        own = ranks if states_column else tuple(sorted((ranks[source], ranks[target])))
        peer = target if sends else source
        stated: int | None = peer if job.naming == "local_peers" else ranks[peer]
        if job.naming not in ("peers", "local_peers"):
            stated = None
        direction = "forward" if forward else "backward"
        name = f"pipe{column}" if states_column else f"pipe{column}.{min(source, target)}.{direction}"
        comm = Comm(
            "send" if sends else "recv", name, own, 400_000, None if sends else stated, stated if sends else None
        )
        stream = _MESSAGE_STREAM + 2 * (peer > self._stage) + forward
        meeting = (step, "message", ranks[source], ranks[target], micro, direction)
        self.ops.append(Op("collective", step, 25e3, 6e3, stream, meeting=meeting, members=2, comm=comm))
        if not sends:
            self._join(step, stream)


def run_job(job: LayoutJob) -> list[RankTrace]:
    """Run the job; return each rank's trace, in global time."""
    traces = Engine([_Program(job, rank).build() for rank in range(job.ranks)], 0.0).run()
    for rank, trace in enumerate(traces):
        rng = np.random.default_rng((job.seed, 3, rank))
        for item in trace.items:
            if item.op.comm is not None and job.end_spread_ns:
                item.end_ns -= abs(float(rng.standard_normal())) * min(
                    job.end_spread_ns, 0.2 * (item.end_ns - item.start_ns)
                )
    return traces


def duration_ns(traces: list[RankTrace]) -> float:
    """Return the time from the first step's end to the last one's, the mean over ranks of their last kernels' ends."""
    ends = []
    for trace in traces:
        last: dict[int, float] = {}
        for item in trace.items:
            last[item.op.step] = max(last.get(item.op.step, 0.0), item.end_ns)
        steps = sorted(last)
        ends.append(last[steps[-1]] - last[steps[0]])
    return float(np.mean(ends))
