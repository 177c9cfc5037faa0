"""Lays slices that overlap on one thread of execution out in lanes: a track of a timeline holds one at a time."""

from collections.abc import Iterable


def assign_tracks(spans: Iterable[tuple[int, int]]) -> list[int]:
    """Give each span (start, end) the first lane that is free at its start; spans in any order, lanes from 0."""
    given = list(spans)
    free_from: list[int] = []
    found = [0] * len(given)
    for number in sorted(range(len(given)), key=lambda n: given[n]):
        start, end = given[number]
        lane = next((lane for lane, free in enumerate(free_from) if free <= start), len(free_from))
        if lane == len(free_from):
            free_from.append(end)
        free_from[lane] = max(free_from[lane], end)
        found[number] = lane
    return found
