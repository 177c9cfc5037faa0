"""The identity of a training step."""

from typing import NamedTuple


class StepKey(NamedTuple):
    """A step of the run; `epoch` is None if the markers name none."""

    epoch: int | None
    step: int

    def __str__(self) -> str:
        return f"step {self.step}" if self.epoch is None else f"epoch {self.epoch}, step {self.step}"

    @property
    def order(self) -> tuple[int, int]:
        """Return a sort key: the order of the run, with steps without an epoch first."""
        return (-1 if self.epoch is None else self.epoch, self.step)
