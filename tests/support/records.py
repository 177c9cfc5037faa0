"""Records of a lake's sources and steps, made by hand: tests state only the fields that matter to them."""

import hashlib
from collections.abc import Sequence
from typing import Any

from jitter.core.step_key import StepKey
from jitter.lake.records import SourceRecord, StepRecord

MAIN = 7
"""The main stream of a source record, unless stated otherwise."""


def source_record(digest: str, **fields: Any) -> SourceRecord:
    """Return the record of a file of one GPU, read completely, with marked steps; `fields` replace its values."""
    defaults = {
        "record_version": 1,
        "digest": digest,
        "file": f"/traces/{digest}.sqlite",
        "file_digest": digest,
        "size": 1,
        "mtime_ns": 1,
        "format": "nsys",
        "reader_version": 1,
        "rank_told_by": "test",
        "device": 0,
        "main_stream": MAIN,
        "has_launches": True,
        "steps_from": "marker",
    }
    return SourceRecord(**{**defaults, **fields})


def step_record(key: StepKey, rows: Sequence[dict[str, Any]], **fields: Any) -> StepRecord:
    """Return the record of a rank's step with these kernel rows; `fields` replace its values.

    Rows of kind "memory" count as memory activities; the sequence is of names, and of what is not on stream `MAIN`.
    """
    kernels = [row for row in rows if row["kind"] != "memory"]
    elements = [(row["kernel_name"], row["kind"] == "collective" or row["stream"] != MAIN) for row in kernels]
    cut = fields.get("cut", False)
    defaults = {
        "step": key.step,
        "epoch": key.epoch,
        "marker": f"step{key.step}",
        "start_ns": 0,
        "end_ns": None if cut else 1,
        "cut": cut,
        "launches_without_kernel": 0,
        "kernels": len(kernels),
        "memory_activities": len(rows) - len(kernels),
        "sequence": hashlib.blake2b(repr(elements).encode(), digest_size=16).hexdigest(),
    }
    return StepRecord(**{**defaults, **fields})
