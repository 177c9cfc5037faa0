"""XPlane files for tests, written field by field: messages of xplane.proto, and recordings of simulated jobs.

The same planes as the viewer's JSON, as XLA's xplane_to_trace_events.cc and trace_events_to_json.cc write it.
"""

import gzip
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from jitter.simulate.capture import find_graph_heads
from jitter.simulate.recording import RankRecording

COPIES = {"h2d": "MemcpyH2D", "d2h": "MemcpyD2H", "memset": "Memset"}


def varint(value: int) -> bytes:
    value &= 2**64 - 1
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def integer(number: int, value: int) -> bytes:
    return varint(number << 3) + varint(value)


def blob(number: int, content: bytes | str) -> bytes:
    content = content.encode() if isinstance(content, str) else content
    return varint(number << 3 | 2) + varint(len(content)) + content


class Plane:
    """A plane: numbers names as XPlaneBuilder does; texts of statistics are references."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.lines: dict[int, tuple[str, list[bytes]]] = {}
        self.event_names: dict[str, int] = {}
        self.stat_names: dict[str, int] = {}
        self.own: list[bytes] = []
        self.events: list[tuple[int, str, int, int, dict[str, int | str]]] = []
        """Line, name, start and end in ns, statistics of each event."""

    def stat(self, name: str, value: int | str, *, as_text: bool = False) -> bytes:
        head = integer(1, self.stat_names.setdefault(name, len(self.stat_names) + 1))
        if isinstance(value, int):
            return head + integer(3 if name == "correlation_id" else 4, value)
        if as_text:
            return head + blob(5, value)
        return head + integer(7, self.stat_names.setdefault(value, len(self.stat_names) + 1))

    def add(self, line: int, line_name: str, name: str, start_ns: int, end_ns: int, **stats: int | str | None) -> None:
        """Add an event; times are ns of the session."""
        event = integer(1, self.event_names.setdefault(name, len(self.event_names) + 1))
        event += integer(2, start_ns * 1000) + integer(3, (end_ns - start_ns) * 1000)
        event += b"".join(blob(4, self.stat(key, value)) for key, value in stats.items() if value is not None)
        self.lines.setdefault(line, (line_name, []))[1].append(event)
        told = {key: value for key, value in stats.items() if value is not None}
        self.events.append((line, name, start_ns, end_ns, told))

    def encode(self) -> bytes:
        lines = [
            integer(1, number) + blob(2, name) + integer(3, 0) + b"".join(blob(4, event) for event in events)
            for number, (name, events) in self.lines.items()
        ]
        parts = [integer(1, 7), blob(2, self.name), *(blob(3, line) for line in lines)]
        for field, names in ((4, self.event_names), (5, self.stat_names)):
            parts += [
                blob(field, integer(1, number) + blob(2, integer(1, number) + blob(2, name)))
                for name, number in names.items()
            ]
        return b"".join([*parts, *(blob(6, stat) for stat in self.own)])


def space(planes: Iterable[Plane], host: str | None = None) -> bytes:
    names = b"" if host is None else blob(4, host)
    return b"".join(blob(1, plane.encode()) for plane in planes) + names


def viewer_json(planes: Iterable[Plane]) -> bytes:
    """Return what the viewer shows of the planes: GPUs and the host's threads, statistics as texts."""
    shown = [(701 if plane.name == "/host:CPU" else 1 + at, plane) for at, plane in enumerate(planes)]
    shown = [(pid, plane) for pid, plane in shown if plane.name.startswith(("/host:CPU", "/device:"))]
    events: list[dict[str, Any]] = []
    for pid, plane in sorted(shown, key=lambda one: one[0]):
        events.append({"ph": "M", "pid": pid, "name": "process_name", "args": {"name": plane.name}})
        for tid, (name, _) in sorted(plane.lines.items()):
            if name:
                events.append({"ph": "M", "pid": pid, "tid": tid, "name": "thread_name", "args": {"name": name}})
            events.append({"ph": "M", "pid": pid, "tid": tid, "name": "thread_sort_index", "args": {"sort_index": tid}})
    for pid, plane in sorted(shown, key=lambda one: one[0], reverse=True):
        for tid, name, start_ns, end_ns, stats in plane.events:
            times = {"ts": start_ns * 1000 / 1e6, "dur": max(1000 * (end_ns - start_ns), 1) / 1e6}
            event: dict[str, Any] = {"ph": "X", "pid": pid, "tid": tid, **times, "name": name}
            told = {key: str(value) for key, value in sorted(stats.items()) if not key.startswith("_r")}
            events.append(event | ({"args": told} if told else {}))
    document = {"displayTimeUnit": "ns", "metadata": {"highres-ticks": True}, "traceEvents": [*events, {}]}
    return json.dumps(document, separators=(",", ":")).encode()


def planes_of(own: RankRecording) -> list[Plane]:
    """Return the planes of one rank of a simulated job, as a JAX process with one GPU has them."""
    begun = own.clock.utc_epoch_ns
    metadata, host, gpu, task = (
        Plane(name) for name in ("/host:metadata", "/host:CPU", f"/device:GPU:{own.device}", "Task Environment")
    )
    for plane in (metadata, host):
        plane.own.append(plane.stat("process_id", own.pid))
    task.own.append(task.stat("profile_start_time", begun))
    for one in own.ranges:
        end = int(own.end_ns.max()) if one.end_ns is None else one.end_ns
        thread = own.threads[one.thread]
        if one.kind == "step":
            host.add(thread, "python", "train", one.start_ns, end, _r=1, step_num=one.step)
        else:
            host.add(thread, "python", one.text, one.start_ns, end)
    for call in own.calls:
        host.add(own.threads[call.thread], "", call.name, call.start_ns, call.end_ns, correlation_id=call.correlation)
    heads = find_graph_heads(own)
    for at, op in enumerate(own.ops()):
        times = int(own.start_ns[at]), int(own.end_ns[at])
        number: int | None = int(own.correlation[at]) if own.has_launch[at] else None
        stats: dict[str, Any] = {"correlation_id": number}
        if op.kind == "memory":
            name = COPIES[op.copy or "memset"]
            stats["memset_details" if op.copy == "memset" else "memcpy_details"] = f"size:{op.n_bytes} dest:0 async:1"
        else:
            name, grid = op.name, int(own.grid_x[at])
            shape = f"grid:{grid},1,1 block:{op.block[0]},{op.block[1]},{op.block[2]}"
            stats |= {"kernel_details": f"regs:32 shm:0 {shape} occ_pct:50", "hlo_op": f"fusion.{op.draw}"}
        gpu.add(op.stream, f"Stream #{op.stream}(Compute)", name, *times, **stats)
        if own.has_launch[at] and not own.shares_launch[at]:
            thread = own.threads[op.thread]
            launch = int(own.launch_start_ns[at]), int(own.launch_end_ns[at])
            name = "cudaGraphLaunch" if heads[at] else op.call
            host.add(thread, "", name, *launch, correlation_id=number)
    return [metadata, host, gpu, task]


def recorded(own: RankRecording) -> bytes:
    """Return the file of one rank of a simulated job."""
    return space(planes_of(own), own.host)


def recorded_json(own: RankRecording) -> bytes:
    """Return the viewer's file of one rank of a simulated job."""
    return gzip.compress(viewer_json(planes_of(own)), 1)


def write_run(ranks: Iterable[RankRecording], folder: Path, ending: str = "xplane.pb") -> Path:
    """Write each rank as JAX does, with a log folder per rank."""
    for own in ranks:
        path = folder / f"rank{own.rank}" / "plugins" / "profile" / "2026_01_02_03_04_05" / f"{own.host}.{ending}"
        path.parent.mkdir(parents=True)
        path.write_bytes(recorded(own) if ending == "xplane.pb" else recorded_json(own))
    return folder
