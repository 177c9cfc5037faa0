"""Find the steps of one process: by markers, else by repetition, else the whole capture is one step."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from jitter.core.step_key import StepKey
from jitter.ingestion.transform.launch_join import GpuUsage, JoinedCapture
from jitter.ingestion.transform.repetition import Repetition, cut_at_pattern, find_repetition
from jitter.ingestion.transform.step_alignment import find_rotation
from jitter.ingestion.transform.step_markers import Marker, StepRange, StepRanges, select_step_ranges
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
    recording: Recording,
    uses: Sequence[GpuUsage],
    patterns: Sequence[tuple[str, ...]],
) -> ProcessSteps:
    """Find the steps of the process with these `markers` and the GPUs `uses`.

    `patterns` are kernel sequences of steps of other ranks: a process without markers that repeats one of them is cut
    at the same kernel.
    """
    marked = select_step_ranges(markers)
    if marked.ranges:
        return ProcessSteps(marked, "marker")
    busiest = max(uses, key=lambda use: use.compute_kernels)
    sequence = joined.sequence(busiest.gpu, "compute", busiest.main_stream)
    ids, places_ns = sequence["name"].to_numpy(), sequence["place_ns"].to_numpy()
    repetition = find_repetition(ids, places_ns, recording.names)
    if repetition is None:
        first_ns = min(busiest.first_ns, *places_ns[:1].tolist()) if places_ns.size else busiest.first_ns
        problem = "no step markers, and its kernels do not repeat: the whole capture is one step"
        whole = StepRange(StepKey(None, 0), None, first_ns, busiest.last_ns, None)
        return ProcessSteps(StepRanges([whole], [problem]), "whole capture")
    for pattern in patterns:
        if find_rotation(repetition.names, pattern) is not None:
            repetition = cut_at_pattern(ids, places_ns, recording.names, pattern) or repetition
            break
    collectives = joined.sequence(busiest.gpu, "collective")
    before = np.searchsorted(collectives["place_ns"].to_numpy(), np.array(repetition.starts_ns))
    names = [recording.names[name] for name in collectives["name"].to_pylist()]
    return ProcessSteps(
        _repeated(repetition),
        "repetition",
        repetition,
        tuple(int(count) for count in before),
        hashlib.blake2b("\n".join(names).encode(), digest_size=16).hexdigest() if names else None,
    )


def _repeated(repetition: Repetition) -> StepRanges:
    bounds = [*repetition.starts_ns, repetition.end_ns + 1]
    ranges = [
        StepRange(StepKey(None, number), None, start, end, end) for number, (start, end) in enumerate(pairwise(bounds))
    ]
    problem = (
        f"no step markers: cut into {len(ranges)} steps where its kernels repeat, "
        f"every {repetition.period} kernels of the main stream"
    )
    return StepRanges(ranges, [problem])
