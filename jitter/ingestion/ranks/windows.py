"""Windows of one process, recorded into files of their own, whose numbers in the names are no ranks.

`report.1.sqlite`, `report.2.sqlite` of Nsight Systems' capture ranges, `trace_10.json`, `trace_20.json` of a profiler's
cycles.
"""

import re
from collections.abc import Iterator, Mapping, Sequence, Set
from functools import partial
from itertools import islice, takewhile
from pathlib import Path
from typing import NamedTuple

from jitter.core.grouping import by_key
from jitter.core.step_key import StepKey
from jitter.ingestion.names import rank_in_path
from jitter.ingestion.ranks.decide_ranks import BY_NAME
from jitter.ingestion.ranks.jobs import RESTART_NS, RecordedRank, UtcRange, time_between


class Window(NamedTuple):
    """What one process recorded at one time."""

    process: tuple[Path, str | None, int, int | None, str | None]
    """The folder of the file, the host, the process's number, and the number and PCI address of its first GPU."""
    utc_range: UtcRange | None
    steps: frozenset[StepKey]
    rank: int | None = None
    """The rank by the file's name; None: nothing states one."""


def window_of(rank: RecordedRank) -> Window | None:
    """Return the window of a rank that nothing but the file's name states; None for any other."""
    record = rank.record
    is_named = record.rank_told_by == BY_NAME
    if record.part or record.pid is None or not (is_named or record.has_assumed_rank):
        return None
    process = Path(record.file).parent, record.host, record.pid, record.device, record.bus_id
    return Window(
        process, rank.utc_range, frozenset(step.key for step in record.steps), rank.rank if is_named else None
    )


def find_misread(
    recordings: Mapping[Path, Window], read: Set[Path], held: Set[Path], others: Set[Path], damaged: Set[Path]
) -> Iterator[tuple[list[Path], bool]]:
    """Yield the windows of a process that were not read as windows, and whether the lake will hold these alone.

    By the numbers in their names they were of several ranks, or of none. Files that this run has `read` come first,
    then files that the lake held before and that were given again (`held`). `others` are all files of the lake and of
    this run but the `damaged` ones. A damaged file counts as a window if its name differs from theirs in numbers only.
    """
    for files in find_windows(recordings):
        given = [file for file in files if file in read]
        named = [file for file in files if file not in read and recordings[file].rank is not None]
        is_only = others == {*files} and {*named} <= held and {*map(_series, damaged)} <= {*map(_series, files)}
        if given and (is_only or any(rank_in_path(file, is_window=True) != recordings[file].rank for file in given)):
            yield [*given, *(file for file in named if file in held)], is_only


def _series(path: Path) -> Path:
    """Return the path with numbers for those in the file's name."""
    return path.with_name(re.sub(r"\d+", "#", path.stem))


def find_windows(recordings: Mapping[Path, Window]) -> list[list[Path]]:
    """Return the recordings, by file, that are windows of one process and have several ranks by their names, or none.

    Processes of containers may have equal numbers: they record at one time, and one step at about one time. Without a
    wall clock, recordings of no common step are windows.
    """
    groups = by_key((window.process, path) for path, window in recordings.items()).values()
    return [
        paths
        for paths in groups
        if len(paths) > 1
        and (len({recordings[path].rank for path in paths}) > 1 or recordings[paths[0]].rank is None)
        and _are_of_one_process([recordings[path] for path in paths])
    ]


def _are_of_one_process(windows: Sequence[Window]) -> bool:
    """Return whether one process can have recorded all windows; those far apart in time are not compared."""
    ordered = sorted(windows, key=lambda window: window.utc_range or (0, 0))

    def is_near(window: Window, later: Window) -> bool:
        return time_between(window.utc_range, later.utc_range) < RESTART_NS

    return all(
        _are_apart(window, later)
        for place, window in enumerate(ordered)
        for later in takewhile(partial(is_near, window), islice(ordered, place + 1, None))
    )


def _are_apart(first: Window, second: Window) -> bool:
    """Return whether a process can have recorded both, or one of them in another form."""
    apart_ns = time_between(first.utc_range, second.utc_range)
    is_one = first.rank == second.rank is not None or first.utc_range == second.utc_range is not None
    return is_one or apart_ns >= (RESTART_NS if first.steps & second.steps else 0)
