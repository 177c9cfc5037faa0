"""Recordings of a job of which a part is lost: cut, holed, with open ranges, damaged, or without single ranks."""

import gzip
import random
import re
from collections.abc import Callable
from pathlib import Path

from tests.readers.test_mutated_sources import mutate
from tests.support.recorded_events import list_events, open_ranges, remove_events

_RANK = re.compile(r"(?:rank-?|myprofile-)(\d+)")
_SHORTEST_CUT = 0.15
"""The least part of a recording that a cut leaves."""

Loss = Callable[[list[Path], random.Random], None]
"""Takes a part from the files of one rank."""


def files_of_ranks(folder: Path) -> dict[int, list[Path]]:
    """Return the files of each rank of a simulated job."""
    found: dict[int, list[Path]] = {}
    for path in sorted(folder.iterdir()):
        named = _RANK.match(path.name)
        assert named is not None
        found.setdefault(int(named[1]), []).append(path)
    return found


def _end_early(files: list[Path], chance: random.Random) -> None:
    """Remove all that ends after a moment; of an Nsight Systems export, sometimes leave ranges open there."""
    times = sorted(event.end_ns for event in list_events(files))
    moment = times[int(len(times) * chance.uniform(_SHORTEST_CUT, 1))]
    is_open = files[0].suffix == ".sqlite" and chance.random() < 0.5
    if is_open:
        open_ranges(files[0], lambda event: event.start_ns <= moment < event.end_ns)
    remove_events(files, lambda event: event.end_ns > moment)


def _begin_late(files: list[Path], chance: random.Random) -> None:
    times = sorted(event.start_ns for event in list_events(files))
    moment = times[int(len(times) * chance.uniform(0, 1 - _SHORTEST_CUT))]
    remove_events(files, lambda event: event.start_ns < moment)


def _lose_stretch(files: list[Path], chance: random.Random) -> None:
    """Remove all events, or all of some tables, in a stretch of the recording."""
    events = list_events(files)
    times = sorted(event.start_ns for event in events)
    first = int(len(times) * chance.uniform(0, 0.9))
    last = min(len(times) - 1, first + int(len(times) * chance.choice((0.005, 0.02, 0.1, 0.3))))
    begin, end = times[first], times[last]
    tables = sorted({event.table for event in events})
    chosen = set(tables) if chance.random() < 0.3 else set(chance.sample(tables, chance.randint(1, len(tables))))
    remove_events(files, lambda event: event.table in chosen and begin <= event.start_ns <= end)


def _lose_some(files: list[Path], chance: random.Random) -> None:
    """Remove single events of one table, as a profiler with full buffers does."""
    table = chance.choice(sorted({event.table for event in list_events(files)}))
    part = chance.choice((0.003, 0.02, 0.1, 0.5, 1))
    remove_events(files, lambda event: event.table == table and chance.random() < part)


def _open_all(files: list[Path], chance: random.Random) -> None:
    part = chance.choice((0.1, 0.5, 1))
    open_ranges(files[0], lambda event: chance.random() < part)


def _cut_file(files: list[Path], chance: random.Random) -> None:
    """Cut one file at a byte, of its text where it is compressed."""
    path = chance.choice(files)
    content = path.read_bytes()
    if path.suffix == ".gz" and chance.random() < 0.7:
        text = gzip.decompress(content)
        path.write_bytes(gzip.compress(text[: int(len(text) * chance.uniform(_SHORTEST_CUT, 1))], 1))
    else:
        path.write_bytes(content[: int(len(content) * chance.uniform(_SHORTEST_CUT, 1))])


def _damage(files: list[Path], chance: random.Random) -> None:
    path = chance.choice(files)
    path.write_bytes(mutate(path.read_bytes(), chance))


def _remove(files: list[Path], _: random.Random) -> None:
    for path in files:
        path.unlink()


LOSSES: dict[str, Loss] = {
    "ends early": _end_early,
    "cut": _cut_file,
    "missing": _remove,
    "begins late": _begin_late,
    "lost stretch": _lose_stretch,
    "lost events": _lose_some,
    "open ranges": _open_all,
    "damaged": _damage,
}
"""The kinds of losses; open ranges are of Nsight Systems alone."""
KEEPS_ROWS = frozenset(LOSSES) - {"damaged"}
"""Losses that leave the other rows as they were."""
KEEPS_STEPS = frozenset({"ends early", "missing"})
"""Losses of which each row that is left shows its step."""


def lose_parts(folder: Path, name: str, chance: random.Random) -> dict[int, str]:
    """Take parts from the recordings of one rank or of a few; return the kind of loss of each of these ranks."""
    by_rank = files_of_ranks(folder)
    count = chance.choice((1, 1, 1, 2, 2, max(1, len(by_rank) // 2), len(by_rank)))
    ranks = chance.sample(sorted(by_rank), min(count, len(by_rank)))
    kinds = [kind for kind in LOSSES if kind != "open ranges" or name == "nsys"]
    alike = chance.choice(kinds) if chance.random() < 0.5 else None
    lost: dict[int, str] = {}
    for rank in ranks:
        kind = alike or chance.choice(kinds)
        if kind == "missing" and len([one for one in lost.values() if one == "missing"]) == len(by_rank) - 1:
            kind = "ends early"
        LOSSES[kind](by_rank[rank], chance)
        lost[rank] = kind
    return lost
