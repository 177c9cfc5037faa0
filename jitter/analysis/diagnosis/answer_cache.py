"""The diagnosis of a lake, kept in it so that a second report is fast: the only derived data.

A file's name is a digest of what it was made from: the lake's records, the chosen steps, and jitter's own code. An
ingest that changes the lake removes the files: that costs time, never information.
"""

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from jitter.analysis.detection.passes import StepQuality
from jitter.analysis.diagnosis.diagnosis import Diagnosis
from jitter.core.files import file_state, made_from
from jitter.core.step_key import StepKey
from jitter.lake import staging
from jitter.lake.integrity.checksums import is_sealed, seal_parts
from jitter.lake.integrity.containment import read_lake_file
from jitter.lake.layout import ANSWER_CACHE
from jitter.lake.records import SourceRecord

MIN_ACTIVITIES = 200_000
"""Activities in a lake. The diagnosis of fewer takes a second: not worth a file."""
STEP_ACTIVITIES = 200
"""As many activities take as long as a rank's step with none."""


@dataclass(frozen=True)
class Answers:
    """The diagnosis and the data quality that a report shows."""

    diagnosis: Diagnosis
    qualities: tuple[StepQuality, ...]
    """Of each step."""
    team_of: dict[int, int]
    """By rank."""
    unpaired: int
    """Collectives with unknown partners, counted per rank."""


class AnswerCache:
    """The cached answers of one state of a lake."""

    def __init__(self, root: Path, records: Iterable[SourceRecord], logs: Iterable[str] = ()) -> None:
        """Open the cache of the lake at `root`; `records` are of its sources, `logs` the digests of its logs."""
        self._root = root
        self._folder = root / ANSWER_CACHE
        self._state = made_from(_code(), sorted(records, key=lambda record: record.digest), sorted(logs))

    def get(self, steps: Sequence[StepKey]) -> Answers | None:
        """Return the cached answers for these steps; None if there are none, or they cannot be read."""
        with suppress(OSError, ValueError):
            content = read_lake_file(self._path(steps))
            if is_sealed(content):
                return msgspec.json.decode(content, type=Answers)
        return None

    def keep(self, steps: Sequence[StepKey], answers: Answers) -> None:
        """Write the answers for these steps; without effect in a read-only lake. An ingest removes outdated ones."""
        if not os.access(self._root, os.W_OK):
            return
        path = self._path(steps)
        with staging.temporary_folder(self._root) as run, suppress(OSError):
            half = staging.create_folder(run) / path.name
            with half.open("wb") as file:
                file.writelines(seal_parts(msgspec.json.encode(answers)))
            path.parent.mkdir(parents=True, exist_ok=True)
            half.replace(path)

    def _path(self, steps: Sequence[StepKey]) -> Path:
        return self._folder / f"{self._state}-{made_from(self._state, list(steps))}.json"


def _code() -> str:
    """Return the sizes and times of jitter's modules: they tell one state of its code from another."""
    modules = sorted(Path(__file__).parents[2].rglob("*.py"))
    return made_from(__name__, [(path.name, file_state(path)) for path in modules])
