"""Which host-side ranges are training steps: by pattern, on one thread of each process, nested ones left out."""

from typing import NamedTuple


class StepKey(NamedTuple):
    """A step of the run; `epoch` is None where markers name none."""

    epoch: int | None
    step: int

    def __str__(self) -> str:
        return f"step {self.step}" if self.epoch is None else f"epoch {self.epoch}, step {self.step}"

    @property
    def order(self) -> tuple[int, int]:
        """Sorts steps as the run went; without an epoch comes first."""
        return (-1 if self.epoch is None else self.epoch, self.step)
