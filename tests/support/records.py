"""The record of a plain recording: tests tell only what theirs has that is its own."""

from typing import Any

from jitter.records import SourceRecord


def source_record(digest: str, **own: Any) -> SourceRecord:
    """One of a file of one GPU, read in whole, with its steps marked; any field may be told otherwise."""
    plain = {
        "record_version": 1,
        "digest": digest,
        "file": f"/traces/{digest}.sqlite",
        "file_digest": digest,
        "size": 1,
        "mtime_ns": 1,
        "part": 0,
        "parts": 1,
        "step_pattern": None,
        "format": "nsys",
        "reader_version": 1,
        "profiler_version": None,
        "rank": None,
        "rank_told_by": "test",
        "host": None,
        "device": 0,
        "pid": None,
        "clock": "unknown",
        "utc_offset_ns": None,
        "main_stream": 7,
        "has_launches": True,
        "steps_from": "marker",
        "repetition": None,
        "kernels": 0,
        "outside_steps": 0,
        "before_capture": 0,
        "steps": [],
        "problems": [],
    }
    return SourceRecord(**{**plain, **own})
