"""Perfetto traces as rocprofv3 writes them, of simulated jobs."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from jitter.simulate.capture import find_graph_heads
from jitter.simulate.recording import RankRecording
from tests.support.xplane_traces import blob, integer

COPIES = {"h2d": "MEMORY_COPY_HOST_TO_DEVICE", "d2h": "MEMORY_COPY_DEVICE_TO_HOST", "memset": "MEMORY_SET"}
HOST_AGENT = 40


class Packets:
    """Packets of one sequence; a name is interned in the packet that uses it first."""

    def __init__(self) -> None:
        self.packets: list[bytes] = []
        self._numbers: dict[tuple[int, str], int] = {}
        self._new: list[bytes] = []

    def add(self, content: bytes, flags: int = 0) -> None:
        interned = blob(12, b"".join(self._new)) if self._new else b""
        self._new = []
        self.packets.append(blob(1, integer(10, 1) + content + (integer(13, flags) if flags else b"") + interned))

    def number(self, field: int, name: str) -> int:
        known = self._numbers.get((field, name))
        if known is None:
            known = self._numbers[field, name] = len(self._numbers) + 1
            self._new.append(blob(field, integer(1, known) + blob(2, name)))
        return known

    def clocks(self, boot_ns: int, real_ns: int) -> None:
        both = ((6, boot_ns), (1, real_ns))
        self.add(blob(6, b"".join(blob(1, integer(1, clock) + integer(2, ns)) for clock, ns in both)), flags=1)

    def process(self, pid: int) -> None:
        self.add(blob(60, integer(1, pid) + blob(3, integer(1, pid))))

    def slice(self, category: str, name: str, track: int, at_end: dict[str, Any], **stated: Any) -> None:
        """Add a slice; `at_end` are annotations of its end, as rocprof-sys writes them."""
        begin = integer(9, 1) + integer(11, track) + integer(3, self.number(1, category))
        begin += integer(10, self.number(2, name)) + self._annotations(stated)
        self.add(integer(8, stated.get("begin_ns", 0)) + blob(11, begin))
        self.add(integer(8, 0) + blob(11, integer(9, 2) + integer(11, track) + self._annotations(at_end)))

    def _annotations(self, stated: dict[str, Any]) -> bytes:
        return b"".join(
            blob(
                4, integer(1, self.number(3, name)) + (blob(6, value) if isinstance(value, str) else integer(3, value))
            )
            for name, value in stated.items()
            if value is not None
        )


def recorded(own: RankRecording, *, ends_apart: bool = False) -> bytes:
    """Return the trace of one rank; with `ends_apart` ends are stated with the ends of slices."""
    packets = Packets()
    packets.clocks(5, 5 + own.clock.utc_epoch_ns)
    packets.process(own.pid)

    def add(category: str, name: str, track: int, start: int, end: int, **stated: Any) -> None:
        at_end = {"end_ns": end} if ends_apart else {}
        packets.slice(
            category, name, track, at_end, begin_ns=start, **({} if ends_apart else {"end_ns": end}), **stated
        )

    for one in own.ranges:
        end = int(own.end_ns.max()) if one.end_ns is None else one.end_ns
        thread = own.threads[one.thread]
        add("marker_api", one.text, thread, one.start_ns, end, tid=thread)
    for call in own.calls:
        thread = own.threads[call.thread]
        add("hip_api", call.name, thread, call.start_ns, call.end_ns, tid=thread, corr_id=call.correlation)
    heads = find_graph_heads(own)
    for at, op in enumerate(own.ops()):
        number = int(own.correlation[at]) if own.has_launch[at] else None
        thread, times = own.threads[op.thread], (int(own.start_ns[at]), int(own.end_ns[at]))
        if own.has_launch[at] and not own.shares_launch[at]:
            launch = int(own.launch_start_ns[at]), int(own.launch_end_ns[at])
            add("hip_api", "cudaGraphLaunch" if heads[at] else op.call, thread, *launch, tid=thread, corr_id=number)
        if op.kind == "memory":
            source, target = (own.device, HOST_AGENT) if op.copy == "d2h" else (HOST_AGENT, own.device)
            agents = {"src_agent": source, "dst_agent": target, "copy_bytes": op.n_bytes}
            add("memory_copy", COPIES[op.copy or "memset"], 900, *times, corr_id=number, tid=thread, **agents)
        else:
            add("kernel_dispatch", op.name, 800 + op.stream, *times, agent=own.device, queue=op.stream, corr_id=number)
    return b"".join(packets.packets)


def write_run(ranks: Iterable[RankRecording], folder: Path, **how: bool) -> Path:
    """Write each rank's trace as `rocprofv3 -o rank%env{RANK}%` names it."""
    folder.mkdir(parents=True)
    for own in ranks:
        (folder / f"rank{own.rank}_results.pftrace").write_bytes(recorded(own, **how))
    return folder
