"""Reader of recordings of XLA's profiler, which JAX and TensorFlow write: one process, all its GPUs.

A session leaves `HOST.xplane.pb`, and the viewer's `HOST.trace.json.gz` beside it. The former has everything; the
latter is read where only it was kept.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from jitter.readers import Batch, Files, Process, Recording, SourceReader
from jitter.readers.columns import Progress
from jitter.readers.xplane.planes import XPlaneFile, is_xplane
from jitter.readers.xplane.trace_json import TraceJson, is_trace_json

_FORMS: Final = re.compile(r"(?:\.xplane\.pb|\.pb|\.trace\.json(?:\.gz|\.zst)?|\.json(?:\.gz|\.zst)?)$")
_JSON: Final = re.compile(r"\.json(?:\.gz|\.zst)?$")
_PERFETTO: Final = "perfetto_trace.json.gz"
"""A copy of the trace that JAX makes for Perfetto."""
_RANK_FOLDER: Final = re.compile(r"(?i)(?:.*[^a-z])?(?:rank|process|proc|worker|task)[-_.]?(\d{1,6})")
_SESSION_FOLDERS: Final = ("plugins", "profile")
"""A session's files are LOGDIR/plugins/profile/TIME/HOST.xplane.pb and HOST.trace.json.gz."""


class XPlaneReader(SourceReader):
    """Reads the activities of GPUs, the calls and annotations of host threads."""

    name = "xplane"
    version = 3
    rank_hint = (
        "give each process a log folder of its own, named after its rank: "
        "jax.profiler.start_trace(f'traces/rank{jax.process_index()}')"
    )

    def sniff(self, path: Path) -> bool:
        return is_trace_json(path) if _JSON.search(path.name) else is_xplane(path)

    def files(self, path: Path) -> Files:
        names = [_PERFETTO] if _JSON.search(path.name) else [f"{_host(path)}.trace.json.gz", _PERFETTO]
        others = [path.with_name(name) for name in names if name != path.name]
        return Files((path,), tuple(other for other in others if other.exists()))

    def recording(self, path: Path) -> Recording:
        recording = super().recording(path)
        recording.processes = [Process(None, None if path.name == _PERFETTO else _host(path) or None)]
        recording.rank_in_name = _rank_of_folder(path)
        return recording

    def batches(self, recording: Recording, progress: Progress) -> Iterator[Batch]:
        return (TraceJson if _JSON.search(recording.path.name) else XPlaneFile)(recording).batches(progress)


READER: Final = XPlaneReader()


def _host(path: Path) -> str:
    return _FORMS.sub("", path.name)


def _rank_of_folder(path: Path) -> int | None:
    folders = path.absolute().parts[:-1]
    if tuple(folders[-3:-1]) == _SESSION_FOLDERS and len(folders) > 3:
        match = _RANK_FOLDER.fullmatch(folders[-4])
        return int(match[1]) if match else None
    return None
