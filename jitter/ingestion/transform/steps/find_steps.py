"""Find the steps of one process: by markers, else by repetition, else the whole capture is one step."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from jitter.core.step_key import StepKey
from jitter.ingestion.transform.launch_join import GpuUsage, JoinedCapture
from jitter.ingestion.transform.steps.repetition import (
    Repetition,
    StepCycles,
    cut_at_pattern,
    find_cycles,
    find_repetition,
    find_rotation,
)
from jitter.ingestion.transform.steps.step_markers import (
    Marker,
    StepRange,
    StepRanges,
    number_step_ranges,
    select_step_ranges,
)
from jitter.readers import Recording


@dataclass(frozen=True)
class ProcessSteps:
    """The steps of one process; `found` is `marker`, `repetition` or `whole capture`."""

    ranges: StepRanges
    found: str
    repetition: Repetition | None = None
    collectives_before: tuple[int, ...] = ()
    """For each repetition the number of collectives launched before it."""
    collectives: str | None = None
    """Digest of the sequence of collectives of the whole capture; None if there are none."""


def find_steps(
    joined: JoinedCapture,
    markers: Sequence[Marker],
    unnumbered: Sequence[Marker],
    recording: Recording,
    uses: Sequence[GpuUsage],
    patterns: Sequence[tuple[str, ...]],
) -> ProcessSteps:
    """Find the steps of the process with these `markers` and the GPUs `uses`.

    `unnumbered` are ranges of steps without a number, used where there are no `markers`. `patterns` are kernel
    sequences of steps of other ranks: a process without markers that repeats one of them is cut at the same kernel.
    """
    marked = select_step_ranges(markers) if markers else number_step_ranges(unnumbered)
    if marked.ranges:
        return ProcessSteps(marked, "marker")
    busiest = max(uses, key=lambda use: use.compute_kernels)
    sequence = joined.sequence(busiest.gpu, "compute", busiest.main_stream)
    ids, places_ns = sequence["name"].to_numpy(), sequence["place_ns"].to_numpy()
    repetition = find_repetition(ids, places_ns, recording.names)
    collectives = joined.sequence(busiest.gpu, "collective")
    collectives_ns = collectives["place_ns"].to_numpy()
    problem = None
    if repetition is not None and repetition.period > 1:
        cycles = find_cycles(repetition, ids, places_ns, list(recording.names), collectives_ns)
        if cycles is not None:
            problem, repetition = _layers_problem(repetition, cycles), cycles.repetition
    if repetition is None or repetition.period == 1:
        first_ns = min(busiest.first_ns, *places_ns[:1].tolist()) if places_ns.size else busiest.first_ns
        whole = StepRange(StepKey(None, 0), None, first_ns, busiest.last_ns, None)
        return ProcessSteps(StepRanges([whole], [problem or _problem(repetition)]), "whole capture")
    for pattern in patterns:
        if find_rotation(repetition.names, pattern) is not None:
            repetition = cut_at_pattern(ids, places_ns, recording.names, pattern) or repetition
            break
    before = np.searchsorted(collectives_ns, np.array(repetition.starts_ns))
    names = [recording.names[name] for name in collectives["name"].to_pylist()]
    return ProcessSteps(
        _repeated(repetition, problem or _problem(repetition)),
        "repetition",
        repetition,
        tuple(int(count) for count in before),
        hashlib.blake2b("\n".join(names).encode(), digest_size=16).hexdigest() if names else None,
    )


def _problem(repetition: Repetition | None) -> str:
    """Return how the steps of a process without markers were found."""
    if repetition is None:
        return "no step markers, and its kernels do not repeat: the whole capture is one step"
    if repetition.period == 1:
        return "no step markers, and only a single kernel repeats: the whole capture is one step"
    return (
        f"no step markers: cut into {len(repetition.starts_ns)} steps where its kernels repeat, "
        f"every {repetition.period} kernels of the main stream"
    )


def _layers_problem(layers: Repetition, cycles: StepCycles) -> str:
    """Return how the steps were found where a shorter repetition was taken for layers; names both candidates."""
    shorter = f"the repetition of {layers.period} kernels ({len(layers.starts_ns)} times) is taken for layers"
    if cycles.repetition is None:
        return f"no step markers: the whole capture is one step; {shorter}, because {cycles.event} are outside it"
    return (
        f"no step markers: cut into {len(cycles.repetition.starts_ns)} steps after {cycles.event}, about every "
        f"{cycles.repetition.period} kernels of the main stream; {shorter}"
    )


def _repeated(repetition: Repetition, problem: str) -> StepRanges:
    bounds = [*repetition.starts_ns, repetition.end_ns + 1]
    ranges = [
        StepRange(StepKey(None, number), None, start, end, end) for number, (start, end) in enumerate(pairwise(bounds))
    ]
    return StepRanges(ranges, [problem])
