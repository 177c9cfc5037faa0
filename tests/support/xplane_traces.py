"""XPlane files for tests, written field by field: messages of xplane.proto, and recordings of simulated jobs."""

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


def recorded(own: RankRecording) -> bytes:
    """Return the file of one rank of a simulated job, as a JAX process with one GPU writes it."""
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
    for call in (*own.calls, *own.lost_launches):
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
    return space([metadata, host, gpu, task], own.host)


def write_run(ranks: Iterable[RankRecording], folder: Path) -> Path:
    """Write each rank as JAX does, with a log folder per rank."""
    for own in ranks:
        path = folder / f"rank{own.rank}" / "plugins" / "profile" / "2026_01_02_03_04_05" / f"{own.host}.xplane.pb"
        path.parent.mkdir(parents=True)
        path.write_bytes(recorded(own))
    return folder
