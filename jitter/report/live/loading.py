"""Progress of the preparation of a served run, which pages show until the run can be drawn."""

from dataclasses import dataclass
from typing import Final

STAGES: Final = ("diagnosing the run", "reading the costliest step", "ready")
"""In order. A page can show the findings from the second on."""


@dataclass
class Loading:
    """How far the preparation is. One thread writes it, all others read it."""

    stage: int = 0
    failure: Exception | None = None

    @property
    def ready(self) -> bool:
        """Whether the run can be drawn."""
        return self.stage == len(STAGES) - 1

    @property
    def has_findings(self) -> bool:
        """Whether the diagnosis is known."""
        return self.stage >= STAGES.index("reading the costliest step")

    @property
    def words(self) -> str:
        """The stage in words."""
        return STAGES[self.stage]

    @property
    def fraction(self) -> float:
        """How much is done, 0 to 1; each stage counts the same."""
        return self.stage / (len(STAGES) - 1)

    def enter(self, stage: str) -> None:
        """Begin a stage."""
        self.stage = STAGES.index(stage)
