"""Progress of the preparation of a served run, which pages show until the run can be drawn."""

from dataclasses import dataclass
from typing import Final

STAGES: Final = ("preparing the lake", "diagnosing the run", "reading the costliest step", "ready")
"""In order. A page can show the findings from the third on."""


@dataclass
class Loading:
    """How far the preparation is. One thread writes it, all others read it."""

    stage: int = 0
    done: int = 0
    total: int = 0
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
        """The stage in words, with the count of files within it: `preparing the lake: 12 of 960`."""
        counted = f": {self.done:,} of {self.total:,}" if self.total else ""
        return f"{STAGES[self.stage]}{counted}"

    @property
    def fraction(self) -> float:
        """How much is done, 0 to 1; each stage counts the same."""
        within = self.done / self.total if self.total else 0.0
        return min((self.stage + within) / (len(STAGES) - 1), 1.0)

    def enter(self, stage: str) -> None:
        """Begin a stage."""
        self.done, self.total = 0, 0
        self.stage = STAGES.index(stage)

    def count(self, done: int, total: int) -> None:
        """Set the progress within the stage."""
        self.done, self.total = done, total
