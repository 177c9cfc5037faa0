"""Reader of PyTorch profiler (Kineto) traces and of Paddle's, which have the same form.

Chrome-trace JSON, plain, gzip or zstd, also damaged.
"""

import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Final

from jitter.core.compression import CHUNK_BYTES, sniff_head
from jitter.core.errors import UnreadableTraceError
from jitter.readers import Batch, Recording, SourceReader
from jitter.readers.chrome_trace import EventList, has_event_list, parse_object_tail
from jitter.readers.columns import Progress
from jitter.readers.kineto.batches import KinetoBatches
from jitter.readers.kineto.events import decode_events, looks_like_event
from jitter.readers.kineto.metadata import (
    SNIFFED_BYTES,
    base_time_ns,
    describe,
    is_kineto,
    is_paddle,
    members_in_damaged,
)

_EPOCH_NS = 10**18
"""Times above this (the year 2001) count from 1970; other clocks count from boot or from a recent base."""
_LABELLED_PROCESS: Final = re.compile(rb'"pid"\s*:\s*"([^"\\]{0,64}\d[^"\\\s:]{0,64}):?\s+\d{1,10}"')
"""A process as tools name it that merge profiles, by a label with a number, as SGLang: `[TP00-DP00] 4242`."""
_OWN_FILES: Final = "give the ranks' own files, which tools that merge traces leave beside it"


class KinetoReader(SourceReader):
    """Reads traces exported by `torch.profiler`, with CUDA or ROCm, and by `paddle.profiler`."""

    name = "kineto"
    version = 4

    def __init__(self, piece_bytes: int = CHUNK_BYTES) -> None:
        self._piece_bytes = piece_bytes

    def sniff(self, path: Path) -> bool:
        return is_kineto(sniff_head(path, SNIFFED_BYTES))

    def batches(self, recording: Recording, progress: Progress) -> Iterator[Batch]:
        """Yield all rows. Raises UnreadableTraceError for a file without events, and for one without GPU activity."""
        path, problems = recording.path, recording.problems
        events, head, text = EventList.of_file(
            path, decode_events, looks_like_event, progress, problems, self._piece_bytes
        )
        if labelled := _LABELLED_PROCESS.search(text):
            label = labelled[1].decode("ascii", "replace")
            raise UnreadableTraceError(
                f"{path}: several ranks merged into one file (processes are labelled, as {label}), whose calls cannot "
                "be told apart",
                _OWN_FILES,
            )
        if head.is_bare and has_event_list(text):
            raise _several_traces(path)
        members = members_in_damaged(text[: head.start]) if head.is_damaged else head.members
        if head.is_damaged:
            problems.append("the header before the events is damaged: the rank or the base time may be missing")
        rows = KinetoBatches(is_paddle=is_paddle(text[: head.start]))
        recording.processes = rows.processes.listed
        recording.names = rows.names.listed
        for some in events:
            yield from rows.add(some)
        yield from rows.finish()
        if events.is_followed:
            raise _several_traces(path)
        after = {} if events.tail is None or head.is_bare else parse_object_tail(events.tail)
        members = members | (members_in_damaged(events.tail or b"") if after is None else after)
        if after is None:
            problems.append(
                "all events are complete, but the members after them are cut or damaged: the rank or the base time may "
                "be missing"
            )
        recording.is_incomplete = events.tail is None or bool(events.damage)
        problems += events.problems()
        problems += rows.problems()
        if not rows.activities:
            raise _no_activity(path, events, rows.foreign_devices, problems)
        if (untold := rows.processes.join_gpus()) is not None:
            raise UnreadableTraceError(f"{path}: {untold}", _OWN_FILES)
        # times since 1970 need no base, also if one is given: tools that rewrite traces keep it
        is_utc = (recording.about_ns or 0) >= _EPOCH_NS
        recording.utc_offset_ns = 0 if is_utc else base_time_ns(members)
        describe(members, recording, rows.processes)


READER: Final = KinetoReader()


def _several_traces(path: Path) -> UnreadableTraceError:
    return UnreadableTraceError(f"{path}: holds several whole traces", "write each of them into a file of its own")


def _no_activity(
    path: Path, events: EventList, foreign_devices: Collection[str], problems: Sequence[str]
) -> UnreadableTraceError:
    details = f" ({'; '.join(problems)})" if problems else ""
    if foreign_devices:
        devices = ", ".join(sorted(foreign_devices))
        return UnreadableTraceError(
            f"{path}: holds activities of {devices} devices, which jitter does not read{details}",
            "jitter reads CUDA, ROCm and XPU activities, and those of other devices that PyTorch calls kernels",
        )
    return UnreadableTraceError(
        f"{path}: no GPU activity among the {events.count:,} events of this trace{details}",
        "jitter compares what GPUs do: record on GPUs, with ProfilerActivity.CUDA (`jitter record torch`)"
        if events.tail is not None
        else "GPU activities are at the end of a trace: copy the file again, or record again",
    )
