"""The rules of the trace event format that a timeline must keep for a viewer to show all of it, as it is."""

from collections import Counter, defaultdict
from typing import Any

Event = dict[str, Any]
_FIELDS = {
    "X": {"name", "cat", "ph", "pid", "tid", "ts", "dur"},
    "s": {"name", "cat", "ph", "pid", "tid", "ts", "id"},
    "f": {"name", "cat", "ph", "pid", "tid", "ts", "id", "bp"},
    "C": {"name", "ph", "pid", "ts", "args"},
    "M": {"name", "ph", "pid", "tid", "ts", "args"},
}


def ns(microseconds: float) -> int:
    """Whole nanoseconds, as a viewer takes them."""
    found = round(microseconds * 1000)
    assert abs(microseconds * 1000 - found) < 1e-3
    return found


def assert_follows_format(events: list[Event]) -> None:
    for event in events:
        assert event.keys() - {"args"} == _FIELDS[event["ph"]] - {"args"}, event
        assert all(value is not None for value in event.get("args", {}).values())
        assert event["pid"] > 0
        assert event["ts"] >= 0
    assert min(event["ts"] for event in events if event["ph"] != "M") == 0
    _in_order(events)
    _tracks_hold_one_slice_at_a_time(events)
    _arrows_lead_from_slice_to_slice(events)


def _in_order(events: list[Event]) -> None:
    last: dict[int, float] = defaultdict(float)
    for event in events:
        assert event["ts"] >= last[event["pid"]]
        last[event["pid"]] = event["ts"]


def _tracks_hold_one_slice_at_a_time(events: list[Event]) -> None:
    named = Counter(event["tid"] for event in events if event["name"] == "thread_name")
    assert set(named.values()) == {1}
    processes: dict[int, set[int]] = defaultdict(set)
    free_from: dict[int, int] = {}
    for event in events:
        if event["ph"] in "Xsf":
            processes[event["tid"]].add(event["pid"])
            assert event["tid"] in named
        if event["ph"] == "X":
            assert event["dur"] >= 0
            assert ns(event["ts"]) >= free_from.get(event["tid"], 0)
            free_from[event["tid"]] = ns(event["ts"]) + ns(event["dur"])
    assert all(len(its) == 1 for its in processes.values())


def _arrows_lead_from_slice_to_slice(events: list[Event]) -> None:
    began = {(event["tid"], event["ts"]): event for event in events if event["ph"] == "X"}
    starts = {event["id"]: event for event in events if event["ph"] == "s"}
    ends = {event["id"]: event for event in events if event["ph"] == "f"}
    assert starts.keys() == ends.keys()
    assert len(starts) == sum(event["ph"] == "s" for event in events)
    for arrow, start in starts.items():
        end = ends[arrow]
        assert (start["pid"], start["name"], start["cat"]) == (end["pid"], end["name"], end["cat"])
        assert start["ts"] <= end["ts"]
        assert began[start["tid"], start["ts"]]["cat"] == "launch"
        assert began[end["tid"], end["ts"]]["cat"] in {"compute", "collective", "memory"}
        assert end["bp"] == "e"
