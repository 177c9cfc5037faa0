"""PyTorch traces made for tests, and an oracle that reads any trace."""

import gzip
import json
import re
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

from jitter.readers import Recording
from jitter.readers.kineto import KinetoReader
from tests.support.reading import Row, read_rows

GPU = {"kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset"}
CALLS = {"cuda_runtime", "cuda_driver", "Runtime"}


def kernel(name="gemm", ts=100.0, dur=10.0, *, pid=0, stream=7, correlation=1, cat="kernel", **args) -> Row:
    args = {"device": pid, "stream": stream, "correlation": correlation, **args}
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": stream, "ts": ts, "dur": dur, "args": args}


def call(
    name="cudaLaunchKernel", ts=90.0, dur=5.0, *, pid=42, tid=43, correlation=1, cat="cuda_runtime", **args
) -> Row:
    args = {"cbid": 211, "correlation": correlation, **args}
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args}


def step(number=1, ts=80.0, dur=1000.0, *, pid=42, tid=43, cat="user_annotation", name=None) -> Row:
    name = name or f"ProfilerStep#{number}"
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": {}}


def operator(name="aten::add", ts=85.0, dur=3.0, *, pid=42, tid=43, cat="cpu_op", **args) -> Row:
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args}


def small(kernels=3) -> list[Row]:
    """A step with some launches, with all that stands beside them in a real trace."""
    events = [step(), {"name": "process_name", "ph": "M", "pid": 42, "tid": 0, "ts": 1, "args": {"name": "python"}}]
    for k in range(kernels):
        at = 100 + 20 * k
        events.append(operator(ts=at - 15 + 0.125, **{"Input Dims": [[2, 3], []], "External id": k}))
        events.append(call(ts=at - 10 + 0.001, correlation=k))
        events.append({"ph": "s", "id": k, "pid": 42, "tid": 43, "ts": at - 10, "cat": "ac2g", "name": "ac2g"})
        events.append(kernel(f"kernel_{k}<a, b>", ts=at + 0.5, correlation=k, grid=[k, 1, 1], block=[32, 2, 1]))
    return events


def text(events: list[Row], *, before: Row | None = None, after: Row | None = None, indent: int | None = None) -> bytes:
    whole = {"schemaVersion": 1, **(before or {}), "traceEvents": events, **(after or {})}
    return json.dumps(whole, indent=indent).encode()


def write(path: Path, content: bytes | list[Row], **how: Any) -> Path:
    content = content if isinstance(content, bytes) else text(content, **how)
    path.write_bytes(gzip.compress(content, 1, mtime=0) if path.suffix == ".gz" else content)
    return path


def read(path: Path, piece_bytes: int = 256 * 1024) -> tuple[Recording, dict[str, list[Row]]]:
    """All rows by table; checks what holds for every recording."""
    recording, rows = read_rows(KinetoReader(piece_bytes), path)
    assert all(row["process"] < len(recording.processes) for table in rows.values() for row in table)
    return recording, rows


def ns(value: Any) -> int:
    """Exact: `value` must come from JSON text as Decimal or int."""
    return int(Decimal(value) * 1000)


def parsed(content: bytes) -> Any:
    return json.loads(content.decode("utf-8", "replace"), strict=False, parse_float=Decimal)


def events_in(content: bytes) -> list[Row]:
    whole = parsed(content)
    return whole if isinstance(whole, list) else whole["traceEvents"]


def expected(events: list[Row]) -> dict[str, Counter[tuple[Any, ...]]]:
    """Return what the events hold, per table of the reader: the oracle."""
    found: dict[str, Counter[tuple[Any, ...]]] = {"activities": Counter(), "calls": Counter(), "ranges": Counter()}
    for event in events:
        args = event.get("args", {})
        if event.get("cat") in GPU:
            times = ns(event["ts"]), ns(event["ts"]) + ns(event["dur"])
            memory = event["cat"] not in ("kernel", "Kernel")
            shape = (*args.get("grid", [None] * 3), *args.get("block", [None] * 3))
            found["activities"][
                (event["name"], memory, *times, args["device"], args["stream"], args.get("correlation"), *shape)
            ] += 1
        elif event.get("cat") in CALLS:
            times = ns(event["ts"]), ns(event["ts"]) + ns(event["dur"])
            found["calls"][(event["name"], *times, event["tid"], args.get("correlation"))] += 1
        elif event.get("cat") == "user_annotation" and not re.match("nccl:|gloo:", event["name"]):
            found["ranges"][(event["name"], ns(event["ts"]), ns(event["ts"]) + ns(event["dur"]), event["tid"])] += 1
    return found


def as_read(recording: Recording, rows: dict[str, list[Row]]) -> dict[str, Counter[tuple[Any, ...]]]:
    """The rows in the form of `expected`."""
    columns = ["is_memory", "start_ns", "end_ns", "device", "stream", "correlation"]
    columns += [f"{size}_{axis}" for size in ("grid", "block") for axis in "xyz"]
    names = recording.names
    return {
        "activities": Counter((names[row["name"]], *(row[column] for column in columns)) for row in rows["activities"]),
        "calls": Counter(
            (names[row["name"]], row["start_ns"], row["end_ns"], row["thread"], row["correlation"])
            for row in rows["calls"]
        ),
        "ranges": Counter((row["text"], row["start_ns"], row["end_ns"], row["thread"]) for row in rows["ranges"]),
    }


def is_within(some: dict[str, Counter[tuple[Any, ...]]], all_: dict[str, Counter[tuple[Any, ...]]]) -> bool:
    return all(some[table] <= all_[table] for table in some)
