"""A table of nccl-tests: which collective it measures and on how many ranks, where the text does not state it."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import ceil, floor
from typing import Any, Final, NamedTuple

from jitter.core.bandwidth import bus_factor

_LEAST_SHARE: Final = 2 / 3
"""Share of the rows that must agree on the ranks: damaged rows must not decide."""
_MOST_RANKS: Final = 1 << 20
_WIDEST: Final = 64
_FAMILY: Final = {"all_reduce": "all_reduce"} | dict.fromkeys(
    ("all_gather", "reduce_scatter", "all_to_all"), "all_gather"
)


class Measurement(NamedTuple):
    """A half of a row: in place or out of place."""

    time_us: float
    algbw: float
    busbw: float
    algbw_text: str
    busbw_text: str
    wrong: int | None


class Row(NamedTuple):
    """A row as printed."""

    line: int
    size: int
    dtype: str
    redop: str | None
    root: int | None
    halves: tuple[Measurement, ...]


@dataclass
class Block:
    """A table and its banner."""

    hint: str | None
    """The collective that the program's or the file's name states."""
    ranks: int | None = None
    columns: list[str] = field(default_factory=list)
    in_place_only: bool = False
    rows: list[Row] = field(default_factory=list)

    def resolved(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Return the rows of the relation, each with the number of its line."""
        family, ranks = self._family_and_ranks()
        for row in self.rows:
            collective = self._collective(family, row)
            for half, measured in enumerate(row.halves):
                yield (
                    row.line,
                    {
                        "collective": collective,
                        "size_bytes": row.size,
                        "dtype": row.dtype,
                        "ranks": ranks,
                        "in_place": self.in_place_only if len(row.halves) == 1 else half == 1,
                        "time_us": measured.time_us,
                        "algbw": measured.algbw,
                        "busbw": measured.busbw,
                        "wrong": measured.wrong,
                    },
                )

    def _family_and_ranks(self) -> tuple[str | None, int | None]:
        """Return whose formula busbw / algbw follows, and for how many ranks: what most rows agree on."""
        ratios = [_ratios(half) for row in self.rows for half in row.halves if half.algbw > 0]
        ratios = [ratio for ratio in ratios if ratio[1] - ratio[0] < 0.5]
        if not ratios:
            return _FAMILY.get(self.hint or "", self.hint), self.ranks
        hinted = _FAMILY.get(self.hint or "", self.hint)
        votes: dict[tuple[str, int], int] = {}
        for family in ("all_reduce", "all_gather"):
            for ranks in self._candidates(family, ratios):
                votes[family, ranks] = _votes(ratios, bus_factor(family, ranks))
        if self.ranks:
            votes["broadcast", self.ranks] = _votes(ratios, 1.0)
        best = max(votes.values(), default=0)
        if best < _LEAST_SHARE * len(ratios):
            unit = _votes(ratios, 1.0) >= _LEAST_SHARE * len(ratios)
            return (hinted if unit and hinted not in {"all_gather"} else None), self.ranks if unit else None
        winners = [key for key, count in votes.items() if count == best]
        stated = [key for key in winners if key[1] == self.ranks] or winners
        families = {family for family, _ in stated}
        if len(families) > 1:
            stated = [key for key in stated if key[0] == (hinted if hinted in families else self._family_of_redop())]
        ranks_found = {ranks for _, ranks in stated}
        family_found = {family for family, _ in stated}
        family_name = family_found.pop() if len(family_found) == 1 else None
        if family_name == "broadcast":
            family_name = hinted if hinted not in {"all_reduce", "all_gather"} else None
        return family_name, ranks_found.pop() if len(ranks_found) == 1 else None

    def _candidates(self, family: str, ratios: list[tuple[float, float]]) -> set[int]:
        """Return the numbers of ranks that the three most precise rows allow, and the stated one."""
        found = {self.ranks} if self.ranks else set()
        scale = 2.0 if family == "all_reduce" else 1.0
        for low, high in sorted(ratios, key=lambda ratio: ratio[1] - ratio[0])[:3]:
            if low / scale >= 1:
                continue
            least = max(2, ceil(1 / (1 - low / scale) - 1e-9)) if low > 0 else 2
            most = floor(1 / (1 - high / scale) + 1e-9) if high < scale else _MOST_RANKS
            found |= set(range(least, min(most, least + _WIDEST) + 1))
        return found

    def _family_of_redop(self) -> str:
        """Return the family of a collective where two fit: two ranks make all_reduce's factor 1."""
        reduces = sum(row.redop not in {None, "none"} and (row.root is None or row.root < 0) for row in self.rows)
        return "all_reduce" if 2 * reduces > len(self.rows) else "broadcast"

    def _collective(self, family: str | None, row: Row) -> str | None:
        """Return the collective of a row; the family of all_gather holds three."""
        if family != "all_gather":
            return family
        if self.hint in {"gather", "scatter"} or _FAMILY.get(self.hint or "") == family:
            return self.hint
        if row.redop not in {None, "none"}:
            return "reduce_scatter"
        if not self.columns or row.redop is not None:
            return None
        return "all_to_all" if "redop" in self.columns else "all_gather"


def _ratios(half: Measurement) -> tuple[float, float]:
    """Return the least and the largest busbw / algbw that round to what is printed."""
    low = (half.busbw - _rounding(half.busbw_text)) / (half.algbw + _rounding(half.algbw_text))
    below = half.algbw - _rounding(half.algbw_text)
    high = (half.busbw + _rounding(half.busbw_text)) / below if below > 0 else float("inf")
    return max(low, 0.0), high


def _rounding(text: str) -> float:
    decimals = text.partition(".")[2]
    return 0.50005 * 10.0 ** -len(decimals) if "e" not in text else abs(float(text)) * 0.05


def _votes(ratios: list[tuple[float, float]], factor: float) -> int:
    return sum(low <= factor <= high for low, high in ratios)
