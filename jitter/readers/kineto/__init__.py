"""Reader of PyTorch profiler (Kineto) traces and of Paddle's, which have the same form.

Chrome-trace JSON, plain, gzip or zstd, also damaged.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from msgspec import Raw

from jitter.core.compression import CHUNK_BYTES, sniff_head
from jitter.core.errors import UnreadableTraceError
from jitter.readers import Batch, Reader, Recording, SourceReader
from jitter.readers.chrome_trace import EventList, has_event_list, parse_object_tail
from jitter.readers.columns import Progress
from jitter.readers.kineto.batches import KinetoBatches
from jitter.readers.kineto.events import decode_events, looks_like_event
from jitter.readers.kineto.metadata import (
    SNIFFED_BYTES,
    ProcessTable,
    base_time_ns,
    distributed_number,
    gpu_models,
    host_in_file_name,
    is_kineto,
    is_paddle,
    members_in_damaged,
    profiler_version,
    recorded_host,
)

_EPOCH_NS = 10**18
"""Times above this (the year 2001) count from 1970; other clocks count from boot or from a recent base."""


class KinetoReader(SourceReader):
    """Reads traces exported by `torch.profiler`, with CUDA or ROCm, and by `paddle.profiler`."""

    name = "kineto"
    version = 2

    def __init__(self, piece_bytes: int = CHUNK_BYTES) -> None:
        self._piece_bytes = piece_bytes

    def sniff(self, path: Path) -> bool:
        return is_kineto(sniff_head(path, SNIFFED_BYTES))

    def batches(self, recording: Recording, progress: Progress) -> Iterator[Batch]:
        """Yield all rows. Raises UnreadableTraceError for a file without events, and for one without GPU activity."""
        return _Trace(recording, self._piece_bytes).batches(progress)


READER: Reader = KinetoReader()


_LABELLED_PROCESS: Final = re.compile(rb'"pid"\s*:\s*"([^"\\]{0,64}\d[^"\\\s:]{0,64}):?\s+\d{1,10}"')
"""A process as tools name it that merge profiles, by a label with a number, as SGLang: `[TP00-DP00] 4242`."""
_OWN_FILES: Final = "give the ranks' own files, which tools that merge traces leave beside it"


class _Trace:
    """One open trace: its recording and batches."""

    def __init__(self, recording: Recording, piece_bytes: int) -> None:
        self._path = recording.path
        self._piece_bytes = piece_bytes
        self._members: dict[str, Raw] = {}
        self.recording = recording

    def batches(self, progress: Progress) -> Iterator[Batch]:
        """Yield all rows, then complete the recording."""
        problems = self.recording.problems
        events, head, text = EventList.of_file(
            self._path, decode_events, looks_like_event, progress, problems, self._piece_bytes
        )
        if labelled := _LABELLED_PROCESS.search(text):
            label = labelled[1].decode("ascii", "replace")
            raise self._unreadable(
                f"several ranks merged into one file (processes are labelled, as {label}), whose calls cannot be told "
                "apart",
                _OWN_FILES,
            )
        if head.is_bare and has_event_list(text):
            raise self._several_traces()
        self._members = members_in_damaged(text[: head.start]) if head.is_damaged else head.members
        if head.is_damaged:
            problems.append("the header before the events is damaged: the rank or the base time may be missing")
        rows = KinetoBatches(is_paddle=is_paddle(text[: head.start]))
        self.recording.processes = rows.processes.listed
        self.recording.names = rows.names.listed
        for some in events:
            yield from rows.add(some)
        yield from rows.finish()
        if events.is_followed:
            raise self._several_traces()
        self._describe(events.tail, is_bare=head.is_bare)
        self.recording.is_incomplete = events.tail is None or bool(events.damage)
        problems += events.problems()
        problems += rows.problems()
        if not rows.activities:
            details = f" ({'; '.join(problems)})" if problems else ""
            if rows.foreign_devices:
                devices = ", ".join(sorted(rows.foreign_devices))
                raise self._unreadable(
                    f"holds activities of {devices} devices, which jitter does not read{details}",
                    "jitter reads CUDA, ROCm and XPU activities, and those of other devices that PyTorch calls kernels",
                )
            raise self._unreadable(
                f"no GPU activity among the {events.count:,} events of this trace{details}",
                "jitter compares what GPUs do: record on GPUs, with ProfilerActivity.CUDA (`jitter record torch`)"
                if events.tail is not None
                else "GPU activities are at the end of a trace: copy the file again, or record again",
            )
        if (untold := rows.processes.join_gpus()) is not None:
            raise self._unreadable(untold, _OWN_FILES)
        about_ns, base_ns = rows.times.about_ns, base_time_ns(self._members)
        # times since 1970 need no base, also if one is given: tools that rewrite traces keep it
        self.recording.utc_offset_ns = 0 if about_ns is not None and about_ns >= _EPOCH_NS else base_ns
        self._set_rank(rows.processes)
        for process in self.recording.processes:
            process.host = recorded_host(self._members) or host_in_file_name(self._path.name, process.pid)

    def _describe(self, tail: bytes | None, *, is_bare: bool) -> None:
        """Read the members after the events; `tail` is None if the trace is cut before."""
        members = {} if tail is None or is_bare else parse_object_tail(tail)
        self._members = self._members | (members_in_damaged(tail or b"") if members is None else members)
        self.recording.profiler_version = profiler_version(self._members)
        if members is None:
            self.recording.problems.append(
                "all events are complete, but the members after them are cut or damaged: the rank or the base time may "
                "be missing"
            )

    def _set_rank(self, processes: ProcessTable) -> None:
        self.recording.gpu_models = gpu_models(self._members)
        self.recording.world_size = distributed_number(self._members, "world_size") or None
        rank = distributed_number(self._members, "rank")
        if rank is None:
            return
        process = processes.only_one()
        if process is None:
            self.recording.problems.append(
                f"distributedInfo names rank {rank}, but several processes use GPUs: its process is unknown"
            )
        else:
            process.rank, process.rank_from = rank, "distributedInfo"

    def _several_traces(self) -> UnreadableTraceError:
        return self._unreadable("holds several whole traces", "write each of them into a file of its own")

    def _unreadable(self, what: str, hint: str) -> UnreadableTraceError:
        return UnreadableTraceError(f"{self._path}: {what}", hint)
