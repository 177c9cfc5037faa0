"""Steps around layers: a short repetition inside a longer cycle is a layer, and the cycle is the step.

A transformer repeats its layers within a step. Where steps differ by a kernel, or one step was recorded, the layers are
the longest exact repetition. The event that ends each step shows the cycle: the optimizer's kernels, which no layer
contains, or else collectives that recur after a constant number of repetitions.
"""

import re
from typing import Final, NamedTuple

import numpy as np

from jitter.core.numeric.arrays import Bools, Codes, Ints
from jitter.ingestion.transform.steps.repetition import Repetition

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


class StepCycles(NamedTuple):
    """The result of `find_cycles`."""

    repetition: Repetition | None
    """The cycles as a repetition; None if fewer than two are complete."""
    event: str
    """Description of the event that ends each cycle, for people."""


def is_optimizer(name: str) -> bool:
    """Return whether a kernel belongs to an optimizer, by its name."""
    return _OPTIMIZER.search(name) is not None


def find_cycles(
    repetition: Repetition, ids: Codes, places_ns: Ints, names: list[str],
    collectives_ns: Ints,
) -> StepCycles | None:  # fmt: skip
    """Return the longer cycles around a repetition; None if the repetition is not inside a longer cycle.

    `ids` (n,) are indices into `names` in launch order, launched at `places_ns` (n,), of the main stream;
    `collectives_ns` (m,) are the launches of collectives on any stream.
    """
    if any(is_optimizer(name) for name in repetition.names):
        return None
    starts_ns = np.array(repetition.starts_ns)
    by_name = np.array([is_optimizer(name) for name in names], np.bool_)
    optimizer_ns = places_ns[by_name[ids]]
    # before all repetitions it is no step's end: optimizers initialize their state with kernels of their own
    if optimizer_ns.size and optimizer_ns[-1] > starts_ns[_LEAST_REPETITIONS - 1]:
        ends_ns = _cluster_ends(optimizer_ns, starts_ns)
        return StepCycles(_cut_after(ends_ns, ids, places_ns, names), "the optimizer's kernels")
    ends_ns = _cluster_ends(collectives_ns, starts_ns)
    if ends_ns.size >= 3 and _is_regular(ends_ns, starts_ns):
        return StepCycles(_cut_after(ends_ns, ids, places_ns, names), "the collectives")
    return None


def _cluster_ends(events_ns: Ints, starts_ns: Ints) -> Ints:
    """Return the last event of each cluster; clusters have at least two repetition starts between them."""
    if not events_ns.size:
        return events_ns
    before = np.searchsorted(starts_ns, events_ns, side="right")
    is_last = np.append(np.diff(before) >= _LEAST_REPETITIONS, True)
    ends: Ints = events_ns[is_last]
    return ends


def _is_regular(ends_ns: Ints, starts_ns: Ints) -> bool:
    """Return whether the numbers of repetitions between events are nearly equal, and at least two."""
    cycles = np.diff(np.searchsorted(starts_ns, ends_ns))
    median = float(np.median(cycles))
    return bool(median >= _LEAST_REPETITIONS and (np.abs(cycles - median) <= _IRREGULAR * median).all())


def _cut_after(ends_ns: Ints, ids: Codes, places_ns: Ints, names: list[str]) -> Repetition | None:
    """Return the cycles that end with these events; None if fewer than two are complete."""
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
