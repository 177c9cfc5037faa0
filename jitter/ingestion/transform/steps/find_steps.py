"""Find the steps of one process: by markers, else by repetition, else the whole capture is one step.

Of steps without markers: where kernels repeat, which repetitions are layers, and equal step numbers on all ranks.
"""

import hashlib
import math
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from jitter.core.errors import UnknownRankError
from jitter.core.names.kernels import copy_direction
from jitter.core.numeric.arrays import Bools, Codes, Floats, Ints
from jitter.core.step_key import StepKey
from jitter.ingestion.transform.launch_join import Gpu, GpuUsage, JoinedCapture
from jitter.ingestion.transform.steps.step_markers import Marker, StepRange, StepRanges, find_marked_steps
from jitter.lake.records import SourceRecord
from jitter.readers import Recording

_GRAM = 8
_MIXER: Final = np.uint64(0x9E3779B97F4A7C15)
_CANDIDATES = 64
_STRETCHES = 16  # number of equally long candidates compared
_LEAST_KERNELS = 4  # fewer are no evidence of steps
_LEAST_SHARE = 1 / 3  # of all kernels; a repetition that covers less is not the training loop


class Launches(NamedTuple):
    """What one stream ran, in launch order."""

    ids: Codes
    """(kernels,) positions in `names`."""
    places_ns: Ints
    """(kernels,) when each was launched, or started if that was not recorded."""
    names: Sequence[str]


@dataclass(frozen=True)
class Repetition:
    """A sequence of launches that repeats.

    `names` are the kernels of one period from the start of a step; `starts_ns` are the launches of its first kernel,
    one per repetition; `end_ns` is the launch of the last kernel of the last complete repetition.
    """

    names: tuple[str, ...]
    starts_ns: tuple[int, ...]
    end_ns: int
    collectives_before: tuple[int, ...] = ()
    """For each repetition the number of collectives launched before it."""
    collectives: str | None = None
    """Digest of the sequence of collectives of the whole capture; None if there are none."""
    gpu_ns: tuple[int, ...] = ()
    """For each repetition when the GPU was done with its first kernel."""

    @property
    def period(self) -> int:
        """Number of kernels per step on the main stream."""
        return len(self.names)


@dataclass(frozen=True)
class ProcessSteps(StepRanges):
    """The steps of one process; `found` is `marker`, `repetition` or `whole capture`."""

    found: str = "marker"
    repetition: Repetition | None = None


def find_steps(
    joined: JoinedCapture,
    ranges: Sequence[Marker],
    recording: Recording,
    uses: Sequence[GpuUsage],
    patterns: Sequence[tuple[str, ...]],
) -> ProcessSteps:
    """Find the steps of the process with these `ranges`, which may mark them, and the GPUs `uses`.

    `patterns` are kernel sequences of steps of other ranks: a process without markers that repeats one of them is cut
    at the same kernel.
    """
    marked = find_marked_steps(ranges)
    busiest = max(uses, key=lambda use: use.compute_kernels)
    has_launches = busiest.gpu.process in joined.has_launches
    if marked.ranges and has_launches:
        return ProcessSteps(marked.ranges, marked.problems)
    sequence = joined.sequence(busiest.gpu, "compute", busiest.main_stream)
    places_ns = sequence["place_ns"].to_numpy()
    launches = Launches(sequence["name"].to_numpy(), places_ns, recording.names)
    idle = None if has_launches else _find_idle_times(joined, busiest.gpu, places_ns)
    pauses_ns = None if idle is None else idle.idle_ns[idle.longest]
    repetition = find_repetition(launches, pauses_ns)
    if marked.ranges:
        period = 0 if repetition is None else repetition.period
        marked = _behind_markers(marked, launches, period, busiest.last_ns) or marked
        return ProcessSteps(marked.ranges, marked.problems)
    collectives = joined.sequence(busiest.gpu, "collective")
    collectives_ns = collectives["place_ns"].to_numpy()
    repetition, problem = _choose_repetition(repetition, launches, collectives_ns, patterns)
    if repetition is None:
        first_ns = min(busiest.first_ns, *places_ns[:1].tolist()) if places_ns.size else busiest.first_ns
        whole = StepRange(StepKey(None, 0), None, first_ns, busiest.last_ns, None)
        return ProcessSteps([whole], [problem], "whole capture")
    starts_ns = np.array(repetition.starts_ns)
    kernel = np.searchsorted(places_ns, starts_ns)
    if idle is None:
        before_ns = places_ns[np.maximum(kernel, 1) - 1]
        to_gpu_ns = _find_copies_to_gpu(joined, busiest.gpu, recording.names)
        ahead_ns = np.sort(np.append(collectives_ns, _select_inputs(to_gpu_ns, starts_ns, before_ns)))
        since = np.searchsorted(ahead_ns, before_ns, side="right")
    else:
        ahead_ns, since = idle.starts_ns, idle.longest[kernel]
    starts_ns = _with_activities_ahead(starts_ns, kernel > 0, ahead_ns, since)
    names = [recording.names[name] for name in collectives["name"].to_pylist()]
    names = names if has_launches else sorted(names)  # which of two streams starts first varies between ranks
    repetition = replace(
        repetition,
        starts_ns=tuple(starts_ns.tolist()),
        gpu_ns=tuple(sequence["end_ns"].to_numpy()[kernel].tolist()),
        collectives_before=tuple(np.searchsorted(collectives_ns, starts_ns).tolist()),
        collectives=hashlib.blake2b("\n".join(names).encode(), digest_size=16).hexdigest() if names else None,
    )
    bounds = pairwise([*repetition.starts_ns, repetition.end_ns + 1])
    found = [StepRange(StepKey(None, at), None, start, end, end) for at, (start, end) in enumerate(bounds)]
    return ProcessSteps(found, [problem], "repetition", repetition)


def _choose_repetition(
    repetition: Repetition | None, launches: Launches, collectives_ns: Ints, patterns: Sequence[tuple[str, ...]]
) -> tuple[Repetition | None, str]:
    """Return what repeats from step to step, and a sentence on it: no single kernel, no layers; cut as on other ranks.

    `repetition` is what repeats at all, `patterns` are steps of other ranks. Where nothing repeats, as with a pause
    that cuts a step short, any of these may be the step.
    """
    problem = None
    if repetition is not None and repetition.period == 1:
        problem, repetition = _problem(repetition), None
    elif repetition is not None:
        cycles = find_cycles(repetition, launches, collectives_ns)
        if cycles is not None:
            problem, repetition = _layers_problem(repetition, *cycles), cycles[0]
    programs = [one for one in patterns if repetition is None or find_rotation(repetition.names, one) is not None]
    cuts = (cut_at_pattern(launches, program) for program in programs)
    if (cut := next(filter(None, cuts), None)) is not None:
        problem, repetition = problem if repetition else None, cut
    return repetition, problem or _problem(repetition)


def _behind_markers(marked: StepRanges, launches: Launches, period: int, last_ns: int) -> StepRanges | None:
    """Return the steps of a GPU that runs behind the host's markers, without launches that tell how far.

    Its kernels then are as many equal sequences as there are markers, and fewer than a step before and after them. None
    if they are not, or if the markers fit. `period` is how many kernels repeat, 0 if none do.
    """
    count, ids = len(marked.ranges), launches.ids
    if not 0 <= len(ids) - count * period < period:
        return None
    repeated = np.append(0, np.cumsum(ids[period:] == ids[:-period]))
    is_equal = (
        repeated[(count - 1) * period :] - repeated[: len(repeated) - (count - 1) * period] == (count - 1) * period
    )
    if not is_equal.any():
        return None
    before = int(is_equal.argmax())
    places_ns = launches.places_ns[before : before + count * period]
    starts_ns = np.array([step.start_ns for step in marked.ranges])
    first_ns, final_ns = places_ns[::period], places_ns[period - 1 :: period]
    if (first_ns < starts_ns).any() or (final_ns[:-1] < starts_ns[1:]).all():
        return None
    begin_ns = int(first_ns[0]) if before else marked.ranges[0].start_ns
    end_ns = int(final_ns[-1] if before + len(places_ns) < len(ids) else last_ns) + 1
    bounds = [begin_ns, *(final_ns[:-1] + 1).tolist(), end_ns]
    ranges = [
        replace(step, start_ns=start, end_ns=end, until_ns=end)
        for step, (start, end) in zip(marked.ranges, pairwise(bounds), strict=True)
    ]
    problem = (
        "launches were not recorded and the GPU runs behind the step markers: its steps are cut where kernels repeat"
    )
    return StepRanges(ranges, [*marked.problems, problem])


class _IdleTimes(NamedTuple):
    """When a GPU without launches had nothing to do, on any stream."""

    starts_ns: Ints
    """(activities,) of all streams, ascending."""
    idle_ns: Ints
    """(activities,) how long the GPU was idle before each."""
    longest: Ints
    """(kernels of the main stream,) before which activity it was idle longest, since the start of the one before."""


def _find_idle_times(joined: JoinedCapture, gpu: Gpu, places_ns: Ints) -> _IdleTimes:
    """Return when the GPU was idle; `places_ns` are the starts of the main stream's kernels."""
    kinds = ("compute", "collective", "copy")
    activities = pa.concat_tables(joined.sequence(gpu, kind) for kind in kinds).sort_by("place_ns")
    starts_ns = activities["place_ns"].to_numpy()
    busy_ns = np.maximum.accumulate(activities["end_ns"].to_numpy())
    idle_ns = starts_ns - np.append(starts_ns[:1], busy_ns[:-1])
    last = np.searchsorted(starts_ns, places_ns)
    first = np.append(0, last[:-1] + 1)
    bounds = zip(first.tolist(), last.tolist(), strict=False)
    longest = [begin + int(idle_ns[begin : end + 1].argmax()) if begin < end else end for begin, end in bounds]
    return _IdleTimes(starts_ns, idle_ns, np.array(longest, np.int64))


def _find_copies_to_gpu(joined: JoinedCapture, gpu: Gpu, names: Sequence[str]) -> Ints:
    """Return the launches of a GPU's copies from the host."""
    copies = joined.sequence(gpu, "copy")
    copied = copies["name"].to_numpy()
    inputs = [at for at in np.unique(copied).tolist() if copy_direction(names[at]) == "host_to_device"]
    to_gpu_ns: Ints = copies["place_ns"].to_numpy()[np.isin(copied, inputs)]
    return to_gpu_ns


def _select_inputs(to_gpu_ns: Ints, starts_ns: Ints, before_ns: Ints) -> Ints:
    """Return the copies to the GPU that are inputs of a step, without those at the end of the step before.

    A copy that usually follows the main stream's last kernel at once, as one for which the host then waits, is none.
    `starts_ns` (steps,) are the launches of the steps' first kernels, `before_ns` (steps,) of the kernels before them.
    """
    step = np.minimum(np.searchsorted(starts_ns, to_gpu_ns), len(starts_ns) - 1)
    after_ns, until_ns = to_gpu_ns - before_ns[step], starts_ns[step] - to_gpu_ns
    is_between = (after_ns > 0) & (until_ns >= 0)
    copies_left = np.searchsorted(to_gpu_ns, starts_ns)[step] - np.arange(len(to_gpu_ns))
    is_input = np.ones(len(to_gpu_ns), np.bool_)
    for count in np.unique(copies_left[is_between]).tolist():
        chosen = is_between & (copies_left == count)
        is_input[chosen] = np.median(until_ns[chosen]) < np.median(after_ns[chosen])
    inputs_ns: Ints = to_gpu_ns[is_input]
    return inputs_ns


def _with_activities_ahead(starts_ns: Ints, has_before: Bools, ahead_ns: Ints, since: Ints) -> Ints:
    """Return the starts of steps, (steps,), moved to the activities that precede their first kernels.

    Only the step's kernels can wait for them: an all-gather of the first layer's parameters, a copy of the inputs.
    `ahead_ns` are the places of such activities, `since` (steps,) is the first of them that belongs to each step, and
    `has_before` says which steps have a kernel of the main stream before them.
    """
    first = np.searchsorted(ahead_ns, starts_ns)
    ahead = np.where(has_before, first - since, 0)
    if not has_before[0]:  # the capture may begin long before: no more than the other steps have
        ahead[0] = min(first[0], ahead[1:].min(initial=len(ahead_ns)))
    moved: Ints = np.append(starts_ns, ahead_ns)[
        np.where(ahead > 0, len(starts_ns) + first - ahead, np.arange(len(starts_ns)))
    ]
    return moved


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


def _layers_problem(layers: Repetition, cycles: Repetition | None, event: str) -> str:
    """Return how the steps were found where a shorter repetition was taken for layers; names both candidates."""
    shorter = f"the repetition of {layers.period} kernels ({len(layers.starts_ns)} times) is taken for layers"
    if cycles is None:
        return f"no step markers: the whole capture is one step; {shorter}, because {event} are outside it"
    return (
        f"no step markers: cut into {len(cycles.starts_ns)} steps after {event}, about every "
        f"{cycles.period} kernels of the main stream; {shorter}"
    )


def find_repetition(launches: Launches, pauses_ns: Ints | None = None) -> Repetition | None:
    """Find the step in what one stream ran, after pauses of `pauses_ns` (kernels,) or else of the time since the launch
    before. None where nothing repeats at least twice in full.

    The period is the shift under which the longest unbroken stretch equals itself: layers repeat within a step,
    but a step's stretch is longer. A step starts after the longest pause (median over the
    repetitions), at a run of kernels that occurs once a period, so that an odd step shifts no later one.
    """
    ids, places_ns, _ = launches
    period_and_first = _period(ids)
    if period_and_first is None:
        return None
    period, first = period_and_first
    pauses_ns = np.diff(places_ns, prepend=places_ns[:1]) if pauses_ns is None else pauses_ns
    text = _as_text(ids)
    repeats = 1
    while text.startswith(text[first : first + period], first + repeats * period):
        repeats += 1
    start = first
    if repeats > 1:
        pauses = pauses_ns[first + period : first + repeats * period].reshape(repeats - 1, period)
        start += int(np.median(pauses, axis=0).argmax())
    return _cut(launches, ids[start : start + period])


def cut_at_pattern(launches: Launches, pattern: Sequence[str]) -> Repetition | None:
    """Divide the launches of one stream into steps of the kernels `pattern`; None if it does not repeat here."""
    numbers = {name: number for number, name in enumerate(launches.names)}
    if any(name not in numbers for name in pattern):
        return None
    return _cut(launches, np.array([numbers[name] for name in pattern], dtype=np.int32))


def _as_text(ids: npt.ArrayLike) -> str:
    """Return a text with one character for each kernel: Python finds sequences in it faster than numpy."""
    return (np.asarray(ids) % (sys.maxunicode + 1)).astype("<u4").tobytes().decode("utf-32-le", "surrogatepass")


def _cut(launches: Launches, pattern: Codes) -> Repetition | None:
    ids, places_ns, names = launches
    text, period = _as_text(ids), _as_text(pattern)
    complete = _last_occurrences(text, _anchor(period))
    if complete and not text.startswith(period, complete[-1]):
        complete = complete[:-1]  # its complete period was not recorded
    starts = places_ns[complete]
    covered = starts.size * pattern.size
    if covered < _LEAST_KERNELS or covered < ids.size * _LEAST_SHARE:
        return None
    # a kernel without a launch of its own shares its predecessor's place, so no step can start there
    if starts.size < 2 or (np.diff(starts) <= 0).any():
        return None
    return Repetition(
        tuple(names[i] for i in pattern),
        tuple(starts.tolist()),
        int(places_ns[min(complete[-1] + pattern.size, ids.size) - 1]),
    )


def _period(ids: Codes) -> tuple[int, int] | None:
    """Return the period and the start of the longest range that equals itself shifted by the period."""
    n = ids.size
    if n < 2:
        return None
    best: tuple[int, int, int] | None = None  # (kernels covered, different kernels, -period)
    first = 0
    for period in _candidate_periods(ids):
        equal = ids[period:] == ids[:-period]
        edges = np.flatnonzero(np.diff(np.concatenate(([False], equal, [False])).astype(np.int8)))
        if edges.size == 0:
            continue
        lengths = edges[1::2] - edges[::2]
        length = int(lengths.max())
        if length < period:
            continue
        for start in edges[::2][lengths == length][:_STRETCHES].tolist():
            rank = (length + period, np.unique(ids[start : start + period]).size, -period)
            if best is None or rank > best:
                best, first = rank, start
    return None if best is None else (-best[2], first)


def _candidate_periods(ids: Codes) -> list[int]:
    """Return distances at which short runs of kernels recur, the distances that cover most kernels first."""
    distances: dict[int, int] = {}
    for gram in (1, _GRAM):
        if ids.size <= gram:
            continue
        # 64 bits of the kernels from each position on
        keys = np.convolve(ids.astype(np.uint64) + np.uint64(1), _MIXER ** np.arange(gram, dtype=np.uint64), "valid")
        order = np.argsort(keys, kind="stable")
        same = keys[order][1:] == keys[order][:-1]
        values, counts = np.unique(np.diff(order)[same], return_counts=True)
        weights = values * counts
        for position in np.argsort(-weights, kind="stable")[:_CANDIDATES]:
            distances[int(values[position])] = int(weights[position])
    return list(distances)


def _anchor(period: str) -> str:
    """Return the shortest prefix of the period, of lengths that double, that occurs once in it, read as a circle."""
    size = 1
    while size < len(period) and (period + period).find(period[:size], 1) < len(period):
        size *= 2
    return period[:size]


def _last_occurrences(text: str, part: str) -> list[int]:
    """Return where the part occurs; of occurrences that overlap, as in a longer run of layers, the last."""
    places: list[int] = []
    at = -1
    while (at := text.find(part, at + 1)) >= 0:
        if places and at < places[-1] + len(part):
            places.pop()
        places.append(at)
    return places


_OPTIMIZER: Final = re.compile(
    r"(?i)multi_?tensor_?apply|fused_?(?:adam|sgd|lamb|lion|adagrad)|(?<![a-z])(?:adamw?|lamb|lion|adagrad|adafactor)"
    r"(?:_?(?:kernel|step|update|functor|w))|optimi[sz]er"
)
_LEAST_REPETITIONS: Final = 2
"""Repetitions between two events; with fewer the repetition is not inside a longer cycle."""
_IRREGULAR: Final = 0.25
"""Largest relative deviation of a cycle from the median cycle, in repetitions."""
_PARTIAL: Final = 0.9
"""Kernels before the first event, relative to the median cycle, from which they are a complete cycle."""


def is_optimizer(name: str) -> bool:
    """Return whether a kernel belongs to an optimizer, by its name."""
    return _OPTIMIZER.search(name) is not None


def find_cycles(
    repetition: Repetition, launches: Launches, collectives_ns: Ints
) -> tuple[Repetition | None, str] | None:
    """Return the longer cycles around a repetition, and what ends each; None if it is not inside a longer cycle.

    The cycles are None if fewer than two are complete. `launches` are those of the main stream, `collectives_ns` (m,)
    the launches of collectives on any stream.
    """
    if any(is_optimizer(name) for name in repetition.names):
        return None
    starts_ns = np.array(repetition.starts_ns)
    by_name = np.array([is_optimizer(name) for name in launches.names], np.bool_)
    optimizer_ns = launches.places_ns[by_name[launches.ids]]
    # before all repetitions it is no step's end: optimizers initialize their state with kernels of their own
    if optimizer_ns.size and optimizer_ns[-1] > starts_ns[_LEAST_REPETITIONS - 1]:
        ends_ns = _cluster_ends(optimizer_ns, starts_ns)
        return _cut_after(ends_ns, launches), "the optimizer's kernels"
    ends_ns = _cluster_ends(collectives_ns, starts_ns)
    repetitions = np.diff(np.searchsorted(starts_ns, ends_ns))  # between events
    median = float(np.median(repetitions)) if ends_ns.size >= 3 else 0.0
    if median >= _LEAST_REPETITIONS and (np.abs(repetitions - median) <= _IRREGULAR * median).all():
        return _cut_after(ends_ns, launches), "the collectives"
    return None


def _cluster_ends(events_ns: Ints, starts_ns: Ints) -> Ints:
    """Return the last event of each cluster; clusters have at least two repetition starts between them."""
    if not events_ns.size:
        return events_ns
    before = np.searchsorted(starts_ns, events_ns, side="right")
    is_last = np.append(np.diff(before) >= _LEAST_REPETITIONS, True)
    ends: Ints = events_ns[is_last]
    return ends


def _cut_after(ends_ns: Ints, launches: Launches) -> Repetition | None:
    """Return the cycles that end with these events; None if fewer than two are complete."""
    ids, places_ns, names = launches
    bounds = np.searchsorted(places_ns, ends_ns, side="right")
    lengths = np.diff(bounds)
    if lengths.size and bounds[0] >= _PARTIAL * np.median(lengths):
        bounds = np.append(0, bounds)
    if bounds.size < 3:
        return None
    starts = bounds[:-1]
    is_new: Bools = np.diff(places_ns[starts]) > 0
    if not is_new.all():
        return None
    return Repetition(
        tuple(names[i] for i in ids[bounds[0] : bounds[1]]),
        tuple(places_ns[starts].tolist()),
        int(places_ns[bounds[-1] - 1]),
    )


class RankRepetition(NamedTuple):
    """The repetition of one rank, and the record of its recording, which states its clock."""

    record: SourceRecord
    repetition: Repetition

    def __str__(self) -> str:
        return f"{self.record.file} (rank {self.record.rank})"


def find_rotation(names: Sequence[str], of: Sequence[str]) -> int | None:
    """Return by how many kernels `names` is a rotation of `of`; None if it is none."""
    numbers = {name: number for number, name in enumerate(dict.fromkeys(of))}
    if len(names) != len(of) or not numbers.keys() >= set(names):
        return None
    circle, wanted = (_as_text([numbers[name] for name in some]) for some in ((*of, *of), names))
    at = circle.find(wanted)
    return None if at < 0 else at


def step_offset(reference: RankRepetition, other: RankRepetition) -> int:
    """Return the number to add to a repetition's index on `other` to get its index on `reference`.

    Uses the clock they share, as by the same boot of one host, else wall clock or an equal sequence of collectives.
    Wall clocks of two hosts may differ by more than a step, and equal sequences may be of other steps: where the two
    contradict each other, that under which the steps begin most evenly apart, on host or GPU. A host that waits for
    nothing runs ahead, each as far as it can: where the hosts' times relate the steps differently, the GPUs' do. Raises
    `UnknownRankError` if none of these relates the two ranks.
    """
    by_collectives = _offset_by_collectives(reference.repetition, other.repetition)
    shift_ns: int | None = None  # added to a time of `other` it gives the reference's
    is_one_file = reference.record.file_digest == other.record.file_digest
    if is_one_file or _is_one_boot(reference, other):
        shift_ns = 0
    elif reference.record.utc_offset_ns is not None and other.record.utc_offset_ns is not None:
        shift_ns = other.record.utc_offset_ns - reference.record.utc_offset_ns
    if shift_ns is None:
        if by_collectives is not None:
            return by_collectives
        raise UnknownRankError(
            f"{other}: has no step markers, and its repeating steps cannot be aligned with those of "
            f"{reference}: no wall clock was recorded and their sequences of collectives differ",
            "mark the steps (an NVTX range `step N`) or give --step-pattern",
        )
    of_host = np.array(reference.repetition.starts_ns), np.array(other.repetition.starts_ns)
    of_gpu = np.array(reference.repetition.gpu_ns), np.array(other.repetition.gpu_ns)
    times = [(mine, theirs) for mine, theirs in (of_host, of_gpu) if len(mine) and len(theirs)]
    by_times = [_offset_by_time(mine, theirs + shift_ns) for mine, theirs in times]
    related = next((at for at, offset in enumerate(by_times) if offset is not None), None)
    by_time = None if related is None else by_times[related]
    if by_collectives is not None and (not is_one_file or by_time is None):
        candidates = [by_collectives] if by_time is None else [by_collectives, by_time]
        return min(candidates, key=lambda offset: min(_unevenness(*of_both, offset) for of_both in times))
    if by_time is None:
        raise UnknownRankError(
            f"{other}: has no step markers, and by wall clock its repeating steps fall between those of {reference}",
            "mark the steps (an NVTX range `step N`) or give --step-pattern",
        )
    return by_time


def _is_one_boot(reference: RankRepetition, other: RankRepetition) -> bool:
    """Return whether clocks without UTC count from one boot: both long after it, at one time, with steps in phase.

    Recordings of two hosts, or of clocks that begin with the recording, hardly do.
    """
    if reference.record.utc_offset_ns is not None or other.record.utc_offset_ns is not None:
        return False
    mine, theirs = np.array(reference.repetition.starts_ns), np.array(other.repetition.starts_ns)
    is_one_time = _LEAST_UPTIME_NS < max(mine[0], theirs[0]) < min(mine[-1], theirs[-1])
    return bool(is_one_time) and _offset_by_time(mine, theirs) is not None


def _offset_by_time(reference: Ints, other: Ints) -> int | None:
    """Return by how many steps of the reference the other's are later; None if most fall between them, or elsewhere."""
    later = _periods_later(reference, other)
    median = float(np.median(later))
    offset = round(median)
    is_near = np.abs(later - offset) <= _LARGEST_PHASE
    return offset if 2 * is_near.sum() >= len(later) and abs(median - offset) <= _LARGEST_PHASE else None


def clear_offset(reference_ns: Sequence[int], other_ns: Sequence[int]) -> int:
    """Return the number to add to numbers of steps of `other` (starts, UTC) to get those of `reference`; 0 if unclear.

    It is clear if most steps of the two begin at one time, `_CLEAR_PHASE`, and more evenly than those of equal numbers.
    """
    if min(len(reference_ns), len(other_ns)) < 2:
        return 0
    later = float(np.median(_periods_later(np.array(reference_ns), np.array(other_ns))))
    offset = round(later)
    is_clear = abs(later - offset) <= _CLEAR_PHASE and abs(offset) < max(len(reference_ns), len(other_ns))
    apart = [_unevenness(reference_ns, other_ns, each) for each in (offset, 0)]
    return offset if is_clear and apart[0] < apart[1] else 0


def _unevenness(reference_ns: Sequence[int] | Ints, other_ns: Sequence[int] | Ints, offset: int) -> float:
    """Return the median distance, ns, of the times between two ranks' starts of a step from their median.

    One odd step, such as the first, does not count. Infinite with fewer than two steps in common.
    """
    pairs = zip(reference_ns[max(offset, 0) :], other_ns[max(-offset, 0) :], strict=False)
    apart = [mine - theirs for mine, theirs in pairs]
    return float(np.median(np.abs(np.array(apart) - np.median(apart)))) if len(apart) > 1 else math.inf


def _offset_by_collectives(reference: Repetition, other: Repetition) -> int | None:
    """Return the offset by which nearly as many collectives come before each step; None if their sequences differ.

    Without launches a collective next to a step's bound is before it on one rank and after it on another.
    """
    if reference.collectives is None or reference.collectives != other.collectives:
        return None
    before, other_before = np.array(reference.collectives_before), np.array(other.collectives_before)
    if len(before) < 2 or (np.diff(before) <= 0).any():
        return None
    offsets = _periods_later(before, other_before)
    offset = round(float(np.median(offsets)))
    return offset if (np.abs(offsets - offset) <= _LARGEST_PHASE).all() else None


_LEAST_UPTIME_NS: Final = 3600 * 10**9
"""Of a host that trains, when a recording begins."""
_LARGEST_PHASE: Final = 0.25
"""Largest distance of a start by wall clock from the nearest start of the reference, in periods."""
_CLEAR_PHASE: Final = 0.05
"""The same where equal numbers say otherwise."""


def _periods_later(reference: Ints, other: Ints) -> Floats:
    """Return, (steps of `other`,), by how many steps of the reference each step of `other` is later.

    Both ascend. Steps before and after the reference's recording are extrapolated with its period.
    """
    period = float(np.median(np.diff(reference)))
    positions = np.interp(other, reference, np.arange(reference.size))
    positions = np.where(other < reference[0], (other - reference[0]) / period, positions)
    positions = np.where(other > reference[-1], reference.size - 1 + (other - reference[-1]) / period, positions)
    later: Floats = positions - np.arange(other.size)
    return later
