"""Parts into which self time, excess and loss are split."""

from enum import IntEnum
from typing import Final


class TimePart(IntEnum):
    """A part of a step's time. The values are positions along the `parts` axis of arrays."""

    START = 0
    """Host time before the launch of the step's first main-stream kernel."""
    CPU = 1
    """Host time after that, where kernels waited for their launch."""
    GPU = 2
    """Durations of kernels and copies, and delays between them on the GPU."""
    TRANSFER = 3
    """A collective's time from its last arrival to its end; it belongs to the group, not to a rank."""

    @property
    def label(self) -> str:
        """Return the part's name in figures and tables."""
        return _LABELS[self]


_LABELS: Final = {
    TimePart.START: "late start",
    TimePart.CPU: "CPU",
    TimePart.GPU: "GPU",
    TimePart.TRANSFER: "communication",
}
OWN_PARTS: Final = (TimePart.START, TimePart.CPU, TimePart.GPU)
"""The parts of a rank's own time."""
