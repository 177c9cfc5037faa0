"""Assign overlapping slices to tracks: a track of a timeline shows one slice at a time."""

from collections.abc import Iterable


def assign_tracks(spans: Iterable[tuple[int, int]]) -> list[int]:
    """Assign each span (start, end) to the first track that is free at its start.

    `spans` come in any order; the result has the track of each span, from 0.
    """
    given = list(spans)
    free_from: list[int] = []
    tracks = [0] * len(given)
    for number in sorted(range(len(given)), key=lambda n: given[n]):
        start, end = given[number]
        track = next((track for track, free in enumerate(free_from) if free <= start), len(free_from))
        if track == len(free_from):
            free_from.append(end)
        free_from[track] = max(free_from[track], end)
        tracks[number] = track
    return tracks
