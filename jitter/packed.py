"""Steps kept in memory between passes: exact to the nanosecond in a quarter of the space, up to a limit."""

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from jitter.sheets import Floats, Ints
from jitter.step_arrays import StepArrays

_LIMIT_BYTES: Final = 800_000_000
_UNKNOWN: Final = np.iinfo(np.int32).min
_TIMES: Final = ("start", "end", "call", "back")


@dataclass(frozen=True)
class _Packed:
    ranks: Ints
    base: Floats
    """(ranks,) subtracted from each rank's times."""
    times: npt.NDArray[np.int32]
    """(4, operations, ranks)."""
    whole: tuple[bool, ...]
    """(4,) whether all are known."""


class StepStore:
    """Keeps steps until the limit is reached; those after that are to be read again."""

    def __init__(self, limit_bytes: int = _LIMIT_BYTES) -> None:
        self._left = limit_bytes
        self._kept: dict[object, _Packed] = {}

    def get(self, name: object) -> StepArrays | None:
        """What was kept under this name; None if nothing was."""
        packed = self._kept.get(name)
        if packed is None:
            return None
        times = [one + packed.base for one in packed.times]
        for one, own, whole in zip(times, packed.times, packed.whole, strict=True):
            if not whole:
                one[own == _UNKNOWN] = np.nan
        return StepArrays(packed.ranks, ~(np.isnan(times[0]) & np.isnan(times[2])), *times)

    def keep(self, name: object, step: StepArrays) -> None:
        """Keep a step if there is room for it, and if it is short enough (some two seconds)."""
        size = 4 * len(_TIMES) * step.start.size
        if size > self._left or name in self._kept or not step.start.size:
            return
        base = np.nan_to_num(np.fmin(np.fmin.reduce(step.start), np.fmin.reduce(step.call)))
        times = np.full((len(_TIMES), *step.start.shape), _UNKNOWN, np.int32)
        since = np.empty_like(step.start)
        whole = []
        for packed, field in zip(times, _TIMES, strict=True):
            np.subtract(getattr(step, field), base, out=since)
            if max(-np.fmin.reduce(since, axis=None), np.fmax.reduce(since, axis=None)) >= np.iinfo(np.int32).max:
                return
            known = ~np.isnan(since)
            whole.append(bool(known.all()))
            np.copyto(packed, since, casting="unsafe", where=known)
        self._kept[name] = _Packed(step.ranks, base, times, tuple(whole))
        self._left -= size
