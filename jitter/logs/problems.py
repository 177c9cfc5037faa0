"""Broken lines and other findings about a log file: counted, with the first few locations."""

from dataclasses import dataclass
from typing import Final

LOCATIONS: Final = 5
"""Locations kept of each kind of problem."""


@dataclass(frozen=True)
class Problem:
    """Something in a log that could not be used, or is only partly known."""

    format: str
    reason: str
    count: int
    lines: tuple[int, ...]
    """Numbers of the first lines concerned, from 1; empty where the problem has no line."""

    def __str__(self) -> str:
        """Return it as a person reads it."""
        if not self.lines:
            return f"{self.format}: {self.reason}"
        more = ", …" if self.count > len(self.lines) else ""
        noun = "line" if self.count == 1 else "lines"
        return f"{self.format}: {self.count} {noun} {self.reason} ({', '.join(map(str, self.lines))}{more})"


class Problems:
    """Counts problems by format and reason."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str], int] = {}
        self._lines: dict[tuple[str, str], list[int]] = {}

    def broken(self, format_: str, line: int, reason: str = "cannot be read") -> None:
        """Count a line that is lost; `reason` continues the sentence "3 lines …"."""
        key = (format_, reason)
        self._counts[key] = self._counts.get(key, 0) + 1
        lines = self._lines.setdefault(key, [])
        if len(lines) < LOCATIONS:
            lines.append(line)

    def note(self, format_: str, reason: str) -> None:
        """State something about the file; said once."""
        self._counts[format_, reason] = 1

    def listed(self) -> list[Problem]:
        """Return all, in the order of their first occurrence."""
        return [
            Problem(format_, reason, count, tuple(self._lines.get((format_, reason), ())))
            for (format_, reason), count in self._counts.items()
        ]
