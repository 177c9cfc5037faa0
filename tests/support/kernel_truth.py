"""The true metrics of every kernel of a run: duration, gap, time to kernel end, in plain Python.

The code follows the definitions, not the formulas of the analysis. Kernels are compared in global time, so no clocks
have to be aligned.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from jitter.simulate.program import KERNEL_KINDS, Plan
from jitter.simulate.recording import RankRecording
from jitter.simulate.run import Run
from tests.support.oracles.metrics import partners


class KernelTruth(NamedTuple):
    """One kernel of one rank's step, in launch order; memory operations have none."""

    kernel_index: int | None
    """Kernel index; None for a kernel without a counterpart in the step's commonest sequence."""
    name: str
    concurrent: bool
    """Whether the kernel is a collective or runs on another stream than the main one."""
    duration_ns: int
    gap_ns: int
    ttke_ns: int
    """Time to kernel end, over all kernels of the rank, those without an index too."""
    launch_latency_ns: int | None
    """None if the launch was not recorded, or is shared with the kernel before (a CUDA graph)."""


class _Kernel(NamedTuple):
    name: str
    kind: str
    stream: int
    start_ns: int  # global
    end_ns: int
    latency_ns: int | None


TruthTable = dict[tuple[int | None, int, int], list[KernelTruth]]
"""Kernels by (epoch, step, rank)."""


def kernel_truth(run: Run) -> TruthTable:
    """Return the true metrics of every kernel of a run, cohort by cohort."""
    found: TruthTable = {}
    for ranks in find_cohorts(run.plan):
        found |= compute_truth(list(run.ranks(ranks)), run.job.epoch)
    return dict(sorted(found.items(), key=lambda one: one[0][1:]))


def compute_truth(recordings: Sequence[RankRecording], epoch: int | None) -> TruthTable:
    """Compute the truth of these ranks, taken as a whole job with one cohort."""
    by_step: dict[int, dict[int, list[_Kernel]]] = {}
    for recording in recordings:
        for step, kernels in _kernels(recording).items():
            by_step.setdefault(step, {})[recording.rank] = kernels
    main = {r.rank: _main_stream(r) for r in recordings}
    found: TruthTable = {}
    for step, of_rank in by_step.items():
        sequences = {
            rank: tuple((k.name, _concurrent(k, main[rank])) for k in kernels) for rank, kernels in of_rank.items()
        }
        counts = Counter(sequences.values())
        # ties go to the sequence of the lowest rank
        reference = max(counts, key=lambda s: counts[s])
        indices = {s: match_reference(s, reference) for s in counts}
        begins = {rank: _first_compute(kernels, main[rank]) for rank, kernels in of_rank.items()}
        earliest = min(begin for begin in begins.values() if begin is not None)
        for rank, kernels in of_rank.items():
            found[epoch, step, rank] = _metrics(kernels, main[rank], indices[sequences[rank]], earliest)
    return found


def find_cohorts(plan: Plan) -> list[list[int]]:
    """Group ranks whose programs share at least half of their kernels: longest common subsequence over the longer one.

    The commonest program (ties: that of the lowest rank) takes all similar programs; then the same for the rest.
    """
    sequences = [tuple((op.name, op.stream) for op in one.step if op.kernel is not None) for one in plan.programs]
    left = list(range(len(sequences)))
    found = []
    while left:
        commonest = max(left, key=lambda stage: (len(plan.ranks_of(stage)), -int(plan.ranks_of(stage)[0])))
        like = [stage for stage in left if _alike(sequences[stage], sequences[commonest])]
        found.append(sorted(rank for stage in like for rank in plan.ranks_of(stage).tolist()))
        left = [stage for stage in left if stage not in like]
    return found


def _alike(one: Sequence[object], other: Sequence[object]) -> bool:
    shared = sum(partner is not None for partner in match_reference(one, other))
    return 2 * shared >= max(len(one), len(other))


def _kernels(recording: RankRecording) -> dict[int, list[_Kernel]]:
    steps: dict[int, list[_Kernel]] = {}
    zero = recording.clock.offset_ns
    for at, op in enumerate(recording.ops()):
        if not recording.in_step[at] or op.kind not in KERNEL_KINDS:
            continue
        start, end = int(recording.start_ns[at]), int(recording.end_ns[at])
        launched = recording.has_launch[at] and not recording.shares_launch[at]
        latency = start - int(recording.launch_start_ns[at]) if launched else None
        one = _Kernel(op.name, op.kind, op.stream, start - zero, end - zero, latency)
        steps.setdefault(int(recording.step[at]), []).append(one)
    return steps


def _main_stream(recording: RankRecording) -> int:
    counts = Counter(op.stream for op in recording.ops() if op.kind == "compute")
    return min(counts, key=lambda stream: (-counts[stream], stream))


def _concurrent(kernel: _Kernel, main: int) -> bool:
    return kernel.kind == "collective" or kernel.stream != main


def _first_compute(kernels: Sequence[_Kernel], main: int) -> int | None:
    return min((k.start_ns for k in kernels if not _concurrent(k, main)), default=None)


def _metrics(kernels: Sequence[_Kernel], main: int, indices: Sequence[int | None], earliest: int) -> list[KernelTruth]:
    first = _first_compute(kernels, main)
    on_main = sorted((k for k in kernels if k.stream == main), key=lambda k: k.start_ns)
    before = {id(after): previous for previous, after in pairwise(on_main)}
    rows: list[KernelTruth] = []
    passed = 0
    for kernel, index in zip(kernels, indices, strict=True):
        duration = kernel.end_ns - kernel.start_ns
        concurrent = _concurrent(kernel, main)
        if concurrent:
            gap = 0
        elif kernel.start_ns == first:
            # all ranks leave the step's last all-reduce together, so the distances to it differ by this
            gap = kernel.start_ns - earliest
        else:
            gap = kernel.start_ns - before[id(kernel)].end_ns
        if not concurrent:
            passed += gap + duration
        rows.append(KernelTruth(index, kernel.name, concurrent, duration, gap, passed, kernel.latency_ns))
    return rows


def match_reference(own: Sequence[object], reference: Sequence[object]) -> list[int | None]:
    """Return the position in `reference` of each kernel of `own`: a longest common subsequence, earliest positions.

    >>> match_reference("abxc", "abbc")
    [0, 1, None, 3]
    """
    same = 0
    while same < min(len(own), len(reference)) and own[same] == reference[same]:
        same += 1
    rest = partners(tuple(own[same:]), tuple(reference[same:]))
    return [*range(same), *(None if at is None else same + at for at in rest)]
