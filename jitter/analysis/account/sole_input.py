"""Maxima that one input decides whatever the others do: most of a step's, told apart by numbers alone.

Listing the inputs of a maximum and finding its anchor takes calls with many arrays, some hundred ns each.
"""

from jitter.analysis.replay.replay import NodeTimes
from jitter.core.numeric.compilation import compiled


@compiled
def is_latest(upper: float, lower: float, other_upper: float, other_lower: float) -> bool:
    """Return whether an input is later than another one in both settings; False where one is unknown."""
    return upper > other_upper and lower > other_lower


@compiled
def is_sole(upper: float, lower: float, other_upper: float, other_lower: float, since: float) -> bool:
    """Return whether an input, measured from its own head, leaves another one no part of the maximum.

    `since` is how much later the head is in the upper setting, ns; NaN: it is not the anchor, and the answer is False.
    """
    if not is_latest(upper, lower, other_upper, other_lower):
        return False
    return upper >= other_lower + since and lower + since >= other_upper


@compiled
def ready_to_start(nodes: NodeTimes, at: int, lead: float, launch_ns: float, stream_ns: float) -> tuple[float, float]:
    """Return when an operation may start for its launch, and when for its stream."""
    return nodes.back[at] - lead + launch_ns, nodes.free[at] + stream_ns


@compiled
def frees_stream(nodes: NodeTimes, others: NodeTimes, at: int) -> bool:
    """Return whether an operation runs wholly after its stream was free in both settings.

    Then the stream is free at its end, whatever was before.
    """
    free, usually_free = nodes.free[at], others.free[at]
    is_after = nodes.start[at] >= free and nodes.end[at] >= free
    return bool(is_after and others.start[at] >= usually_free and others.end[at] >= usually_free)
