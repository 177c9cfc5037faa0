"""Every threshold of detection and diagnosis, with its unit and its reason."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Thresholds:
    """Every threshold of the diagnosis."""

    sigmas: float = 6.0
    """A step's own time is out of the noise if it is this many standard deviations above the others'."""
    run_sigmas: float = 6.0
    """The same for the mean over steps."""
    step_share: float = 0.01
    """What does not cost this part of the steps it happens in is no culprit."""
    unrecorded_factor: float = 2.0
    """Slow collectives must cost so many times as much where ranks were not recorded."""
    least_steps_alone: int = 5
    """Steps that a rank without peers must have for one of them to stand out."""
    worth_replaying: float = 0.004
    """What is less than this part of a step's time is not even tried."""
    most_tried: int = 24
    """Outliers that are replayed, those with the most excess."""
    range_share: float = 0.95
    """Of a culprit's excess, the kernel index range holds this part."""
