"""Batches of rocprof's Chrome trace; the arguments of events hold their times in ns."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from jitter.readers import Advance, Batch
from jitter.readers.amd.agents import Agents
from jitter.readers.amd.batches import BatchBuilder
from jitter.readers.amd.flow_events import EventLocation, FlowEvents
from jitter.readers.amd.rocprof_v1.db import build_batch
from jitter.readers.amd.rocprof_v1.events import FLOW_EVENT, Args, Event, read_events

_MARKERS, _COPIES, _HIP, _HSA, _FIRST_GPU, _FIRST_BARRIERS = 0, 1, 2, 3, 6, 518
_TABLE_OF: Final = {_MARKERS: "rocTX", _COPIES: "COPY", _HIP: "HIP"}
_LAUNCHING: Final = re.compile(r"hip\w*(?:Launch|Mem)")
_EVENTS_A_BATCH: Final = 8192


def read_json(path: Path, rows: BatchBuilder, agents: Agents, problems: list[str], advance: Advance) -> Iterator[Batch]:
    """Yield all rows; kernels without a flow event have no correlation.

    Flow events (`s` from the call, `t` to the kernel) are at the end of the file and are read in a first pass. Raises
    UnreadableTraceError for invalid JSON.
    """
    flows = FlowEvents()
    for event in read_events(path, lambda _: None, [], only=FLOW_EVENT):
        if event.ph in ("s", "t"):
            flows.add(event.ph == "s", _place(event), event.id)
    flows.close()
    raw: dict[str, list[Event]] = {}
    for event in read_events(path, advance, problems):
        table = _table(event)
        if table is None:
            continue
        held = raw.setdefault(table, [])
        held.append(event)
        if len(held) == _EVENTS_A_BATCH:
            yield _batch(table, held, flows, rows, agents)
            held.clear()
    for table, held in raw.items():
        if held:
            yield _batch(table, held, flows, rows, agents)
    if flows.ambiguous:
        problems.append(
            f"{flows.ambiguous} kernels start in the same microsecond as another: their launching calls are unknown; "
            "keep the .db in the folder of the .json"
        )


def _table(event: Event) -> str | None:
    """Return the table of rocprof's database for the event; None if it is not read."""
    if event.ph != "X" or event.args is None:
        return None
    lane = event.pid
    if lane is None or lane == _HSA:
        return None
    if lane in _TABLE_OF:
        return None if lane == _HIP and not (event.name or "").startswith("hip") else _TABLE_OF[lane]
    return "OPS" if _FIRST_GPU <= lane < _FIRST_BARRIERS else None


def _batch(table: str, events: list[Event], flows: FlowEvents, rows: BatchBuilder, agents: Agents) -> Batch:
    args = [event.args or Args() for event in events]
    names = [arg.name or event.name or "" for arg, event in zip(args, events, strict=True)]
    columns: dict[str, pa.Array] = {
        "BeginNs": pa.array([arg.begin_ns for arg in args], pa.int64()),
        "EndNs": pa.array([arg.end_ns for arg in args], pa.int64()),
        "pid": pa.array([arg.pid for arg in args], pa.int64()),
        "tid": pa.array([arg.tid for arg in args], pa.int64()),
        "dev-id": pa.array([arg.device for arg in args], pa.int64()),
        "queue-id": pa.array([arg.queue for arg in args], pa.int64()),
        "Name": pa.array(names, pa.string()),
    }
    streams = pa.array([arg.stream for arg in args], pa.int64())
    if streams.null_count < len(streams):
        columns["stream-id"] = streams
    _from_microseconds(columns, events)
    if table == "OPS":
        columns["Index"] = flows.of_kernels([_place(event) for event in events])
    elif table == "HIP":
        # a call that launches nothing may start in the same microsecond as one that does
        launching = [
            _place(e) if _LAUNCHING.match(n) else (None, None, None) for e, n in zip(events, names, strict=True)
        ]
        columns["Index"] = flows.of_calls(launching, [event.dur or 0 for event in events])
    return build_batch(table, columns, rows, agents)


def _place(event: Event) -> EventLocation:
    return event.pid, event.tid, event.ts


def _from_microseconds(columns: dict[str, pa.Array], events: list[Event]) -> None:
    """Fill in times that older versions record only in microseconds."""
    if columns["BeginNs"].null_count == 0 and columns["EndNs"].null_count == 0:
        return
    starts = pa.array([event.ts for event in events], pa.int64())
    lasts = pa.array([event.dur for event in events], pa.int64())
    columns["BeginNs"] = pc.coalesce(columns["BeginNs"], pc.multiply(starts, 1000))
    columns["EndNs"] = pc.coalesce(columns["EndNs"], pc.multiply(pc.add(starts, lasts), 1000))
