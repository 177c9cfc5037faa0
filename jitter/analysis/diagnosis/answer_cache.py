"""The answers of a large lake, kept beside it: derived data, so that who asks again does not wait again.

A file is named by what it was made from: the records of the lake, the steps asked for, and jitter's own code. Anything
else in the folder is of no use and removed; deleting all of it costs time, never information.
"""

import hashlib
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from jitter.analysis.detection.data_quality import StepQuality
from jitter.analysis.diagnosis.model import Diagnosis
from jitter.core.step_key import StepKey
from jitter.lake import staging
from jitter.lake.layout import ANSWER_CACHE
from jitter.lake.records import SourceRecord

MIN_ACTIVITIES = 2_000_000
"""Activities in a lake; of fewer the answers are there in a second or two."""


@dataclass(frozen=True)
class Answers:
    """The diagnosis, and what the report tells of how far to trust it."""

    diagnosis: Diagnosis
    qualities: tuple[StepQuality, ...]
    """Each step's."""
    team_of: dict[int, int]
    """Each rank's team."""
    unpaired: int
    """Collectives of unknown partners, rank by rank."""


class AnswerCache:
    """The answers kept for one state of a lake."""

    def __init__(self, root: Path, records: Iterable[SourceRecord]) -> None:
        """`records` are those of all sources that are in the lake."""
        self._root = root
        self._folder = root / ANSWER_CACHE
        made_from = hashlib.blake2b(_code(), digest_size=8)
        for record in sorted(records, key=lambda one: one.digest):
            made_from.update(msgspec.json.encode(record))
        self._state = made_from.hexdigest()

    def get(self, steps: Sequence[StepKey]) -> Answers | None:
        """What was kept for these steps; None if nothing was, or it cannot be read."""
        with suppress(OSError, msgspec.DecodeError):
            return msgspec.json.decode(self._path(steps).read_bytes(), type=Answers)
        return None

    def keep(self, steps: Sequence[StepKey], answers: Answers) -> None:
        """Keep the answers for these steps, and drop those of other states; a lake that cannot be written stays so."""
        if not os.access(self._root, os.W_OK):
            return
        path = self._path(steps)
        with staging.temporary_folder(self._root) as run, suppress(OSError):
            half = staging.create_folder(run) / path.name
            half.write_bytes(msgspec.json.encode(answers))
            path.parent.mkdir(parents=True, exist_ok=True)
            half.replace(path)
            for other in self._folder.glob("*.json"):
                if not other.name.startswith(self._state):
                    other.unlink(missing_ok=True)

    def _path(self, steps: Sequence[StepKey]) -> Path:
        chosen = hashlib.blake2b(msgspec.json.encode(list(steps)), digest_size=8).hexdigest()
        return self._folder / f"{self._state}-{chosen}.json"


def _code() -> bytes:
    """What tells one state of jitter's own code from another: its modules' sizes and times."""
    modules = sorted(Path(__file__).parents[2].rglob("*.py"))
    return msgspec.json.encode([(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in modules])
