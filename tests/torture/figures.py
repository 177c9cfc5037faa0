"""The result of a section: counts by outcome, and the failures in words."""

import time
from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Figures:
    """The counts of one section."""

    name: str
    outcomes: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    began_s: float = field(default_factory=time.monotonic)

    def count(self, outcome: str, failure: str | None = None) -> None:
        """Count a case; `failure` says what went wrong in it."""
        self.outcomes[outcome] += 1
        if failure is not None:
            self.failures.append(f"{self.name}, {outcome}: {failure}")

    def __str__(self) -> str:
        told = ", ".join(f"{count:,} {what}" for what, count in sorted(self.outcomes.items()))
        seconds = time.monotonic() - self.began_s
        return (
            f"{self.name}: {self.outcomes.total():,} cases in {seconds:.0f} s ({told}); {len(self.failures)} failures"
        )
