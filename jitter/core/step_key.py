"""The identity of a training step."""

from typing import NamedTuple


class StepKey(NamedTuple):
    """A step of the run; `epoch` is None if the markers name none."""

    epoch: int | None
    step: int

    def __str__(self) -> str:
        return f"step {self.step}" if self.epoch is None else f"epoch {self.epoch}, step {self.step}"

    @property
    def label(self) -> str:
        """Return its number, after the epoch if there is one: `2003`, `1/2003`."""
        return str(self.step) if self.epoch is None else f"{self.epoch}/{self.step}"

    @property
    def order(self) -> tuple[int, int]:
        """Return a sort key: the order of the run, with steps without an epoch first."""
        return (-1 if self.epoch is None else self.epoch, self.step)
