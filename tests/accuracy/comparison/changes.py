"""Known changes between two runs: made in the simulator's program or as a fault of all ranks, or of one."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Final

import numpy as np

from jitter.simulate import Fault, Run, simulate
from jitter.simulate.program import Operation, Program

NEW_NAME: Final = "void retuned::gemm_kernel_v2<float>(float const*, float*)"
FUSED_NAME: Final = "void fused::norm_gelu_dropout_kernel<float>(float const*, float*)"
KINDS: Final = ("kernel", "host", "transfers", "fusion", "renamed", "extra", "culprit")


@dataclass(frozen=True)
class Change:
    """One run with a change, and what a comparison must name first."""

    kind: str
    run: Run
    kernels: frozenset[str]
    """Names of the kernels that changed."""
    parts: frozenset[str]
    """Classes of time that may be named first instead."""
    rank: int | None = None
    """The rank that alone is slow."""


def make_change(kind: str, run: Run, rng: np.random.Generator) -> Change:
    """Return the run with a change of this kind."""
    every = f"rank=0-{run.job.ranks - 1}"
    if kind == "kernel":
        name = _costly_name(run, rng)
        factor = round(float(rng.uniform(1.05, 1.5)), 3)
        return Change(kind, _scaled(run, name, factor, None), frozenset({name}), frozenset())
    if kind == "host":
        factor = round(float(rng.uniform(1.5, 3.0)), 2)
        slower = simulate(run.job, [Fault.parse(f"slow_cpu:{every},factor={factor}")])
        return Change(kind, slower, frozenset(), frozenset({"start", "launch", "after"}))
    if kind == "transfers":
        factor = round(float(rng.uniform(1.5, 4.0)), 2)
        slower = simulate(run.job, [Fault.parse(f"slow_collective:factor={factor}")])
        names = {op.name for program in run.plan.programs for op in program.step if op.kind == "collective"}
        return Change(kind, slower, frozenset(names), frozenset({"transfer"}))
    if kind == "fusion":
        return _fused(run, rng)
    if kind == "renamed":
        name = _costly_name(run, rng)
        factor = round(float(rng.choice([rng.uniform(0.6, 0.9), rng.uniform(1.1, 1.5)])), 3)
        return Change(kind, _scaled(run, name, factor, NEW_NAME), frozenset({name, NEW_NAME}), frozenset())
    if kind == "extra":
        ms = round(float(rng.uniform(0.02, 0.1)) * _step_ns(run) / 1e6, 4)
        at = int(rng.integers(1, min(program.kernels for program in run.plan.programs) - 1))
        more = simulate(run.job, [Fault.parse(f"extra_kernel:{every},kernel={at},ms={ms}")])
        added = {op.name for program in more.plan.programs for op in program.step if op.added}
        return Change(kind, more, frozenset(added), frozenset())
    rank = int(rng.integers(run.job.ranks))
    fault = str(rng.choice([f"slow_gpu:rank={rank},factor={rng.uniform(1.1, 1.5):.3f}", _late(run, rank, rng)]))
    return Change(kind, simulate(run.job, [Fault.parse(fault)]), frozenset(), frozenset(), rank)


def _late(run: Run, rank: int, rng: np.random.Generator) -> str:
    return f"late_start:rank={rank},ms={float(rng.uniform(0.05, 0.3)) * _step_ns(run) / 1e6:.4f}"


def _step_ns(run: Run) -> float:
    return median(time for time in run.step_times().values() if time is not None)


def _costly_name(run: Run, rng: np.random.Generator) -> str:
    """One of the compute kernels that take most of the step."""
    total: dict[str, int] = {}
    for program in run.plan.programs:
        for op in program.step:
            if op.kind == "compute":
                total[op.name] = total.get(op.name, 0) + op.duration_ns
    ordered = sorted(total, key=lambda name: -total[name])
    return str(rng.choice(ordered[:3]))


def _scaled(run: Run, name: str, factor: float, new_name: str | None) -> Run:
    def change(op: Operation) -> Operation:
        if op.kind != "compute" or op.name != name:
            return op
        return replace(op, name=new_name or op.name, duration_ns=round(op.duration_ns * factor), variants=())

    programs = tuple(replace(one, step=tuple(map(change, one.step))) for one in run.plan.programs)
    return replace(run, plan=replace(run.plan, programs=programs))


def _fused(run: Run, rng: np.random.Generator) -> Change:
    """Replace three kernels that follow each other by one that takes half of their time, wherever the three occur."""
    name = _costly_name(run, rng)
    programs, names = [], {FUSED_NAME}
    for program in run.plan.programs:
        fused, replaced = _fuse(program, name)
        programs.append(fused)
        names |= replaced
    return Change(
        "fusion", replace(run, plan=replace(run.plan, programs=tuple(programs))), frozenset(names), frozenset()
    )


def _fuse(program: Program, name: str) -> tuple[Program, set[str]]:
    operations = list(program.step)
    gone: set[int] = set()
    names: set[str] = set()
    at = 0
    while at + 2 < len(operations):
        three = operations[at : at + 3]
        alike = {(op.kind, op.stream, op.thread, op.phase) for op in three}
        if three[0].name == name and len(alike) == 1 and three[0].kind == "compute":
            names |= {op.name for op in three}
            time_ns = round(sum(op.duration_ns for op in three) / 2)
            operations[at] = replace(three[0], name=FUSED_NAME, duration_ns=time_ns, variants=())
            gone |= {at + 1, at + 2}
            at += 2
        at += 1
    return replace(program, step=_without(operations, gone)), names


def _without(operations: Sequence[Operation], gone: set[int]) -> tuple[Operation, ...]:
    """Remove operations; what waited for one of them waits for the kernel in their place."""
    kept = [at for at in range(len(operations)) if at not in gone]
    new = {at: number for number, at in enumerate(kept)}
    for at in sorted(gone):
        new[at] = new[max(other for other in kept if other < at)]
    found, kernel = [], 0
    for at in kept:
        op = operations[at]
        is_kernel = op.kernel is not None
        after = tuple(dict.fromkeys(new[other] for other in op.after))
        found.append(replace(op, after=after, kernel=kernel if is_kernel else None))
        kernel += is_kernel
    return tuple(found)
