"""Operators of real recordings, kernel by kernel, against plain SQL on Nsight exports and plain JSON of PyTorch's."""

import gzip
import json
import re
import sqlite3
import sys
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import jitter
from tests.support.real_recordings import TRACES, needs_traces

pytestmark = [pytest.mark.slow, needs_traces]
DETAIL = re.compile(r", (?:seq|op_id|sizes|input_op_ids) = .*", re.DOTALL)
OPERATOR = re.compile(r"[\w.$]+(?:::[\w.$]+)+|nccl[A-Z]\w*|\w+Backward\d*|record_param_comms")


NSYS = ["nsysai_h100_2gpu_1s", "nsysai_mfu_2gpu_before", "extrap_concurrent16", "pipit_saxpy-mpi-cuda"]


@pytest.mark.parametrize("name", NSYS)
def test_nsys_against_plain_sql(name: str, tmp_path: Path):
    path = TRACES / "nsys" / f"{name}.sqlite"
    with closing(sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)) as connection:
        kernels = connection.execute(
            """SELECT k.start, k.end, r.start, r.globalTid FROM CUPTI_ACTIVITY_KIND_KERNEL k
               JOIN CUPTI_ACTIVITY_KIND_RUNTIME r
                 ON r.correlationId = k.correlationId AND (r.globalTid >> 24) = (k.globalPid >> 24)"""
        ).fetchall()
        ranges = connection.execute(
            """SELECT n.start, n.end, n.globalTid, coalesce(n.text, s.value) FROM NVTX_EVENTS n
               LEFT JOIN StringIds s ON s.id = n.textId WHERE n.eventType IN (59, 60) AND n.end IS NOT NULL
               ORDER BY n.start, n.end DESC"""
        ).fetchall()
    start, end, thread = (np.array([row[column] for row in ranges]) for column in range(3))
    expected: dict[tuple[int, int], set[tuple[str | None, str | None]]] = {}
    for kernel_start, kernel_end, at, own in kernels:
        texts = [ranges[row][3] for row in np.flatnonzero((start <= at) & (at <= end) & (thread == own))]
        names = [DETAIL.sub("", text) for text in texts]
        operators = [text for text in names if OPERATOR.fullmatch(text)]
        others = [text for text in names if not OPERATOR.fullmatch(text)]
        found = (operators[-1] if operators else None), ("/".join(others) or None)
        expected.setdefault((kernel_start, kernel_end), set()).add(found)
    lake = tmp_path / "lake"
    jitter.ingest(path, lake, rank=0 if name.startswith("extrap") else None)
    rows = jitter.open(lake).sql(
        "select start_ns, end_ns, operator, scope from kernels where kind <> 'memory'", arrow=True
    )
    assert len(rows) >= 5
    assert sum(text is not None for text in rows["operator"].to_pylist()) >= len(rows) * name.startswith("nsysai") * 0.9
    for row in rows.to_pylist():
        assert (row["operator"], row["scope"]) in expected[row["start_ns"], row["end_ns"]]


def test_waits_in_the_operating_system(tmp_path: Path):
    """Long calls of the thread that launches, its times off the CPU, and the profiler's, are operations of the host."""
    path = TRACES / "nsys" / "extrap_exgpu_s1000.sqlite"
    with closing(sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)) as connection:
        expected = connection.execute(
            """WITH launches AS (SELECT r.start, r.globalTid FROM CUPTI_ACTIVITY_KIND_RUNTIME r
                                JOIN CUPTI_ACTIVITY_KIND_KERNEL k ON k.correlationId = r.correlationId)
               SELECT s.value, o.start, o.end FROM OSRT_API o JOIN StringIds s ON s.id = o.nameId
               WHERE o.end - o.start >= 50000 AND o.globalTid IN (SELECT globalTid FROM launches)
                 AND o.start >= (SELECT min(start) FROM launches)
               UNION ALL
               SELECT 'off CPU', start, next
               FROM (SELECT globalTid, start, isSchedIn, lead(start) OVER own AS next, lead(isSchedIn) OVER own AS back
                     FROM SCHED_EVENTS WINDOW own AS (PARTITION BY globalTid ORDER BY start, isSchedIn))
               WHERE isSchedIn = 0 AND back <> 0 AND next - start >= 50000
                 AND globalTid IN (SELECT globalTid FROM launches) AND start >= (SELECT min(start) FROM launches)
               UNION ALL
               SELECT 'profiler overhead', start, end FROM PROFILER_OVERHEAD
               WHERE end - start >= 50000 AND globalTid IN (SELECT globalTid FROM launches)
                 AND start >= (SELECT min(start) FROM launches)"""
        ).fetchall()
    assert len(expected) >= 5
    assert sum(name == "off CPU" for name, *_ in expected) >= 5
    jitter.ingest(path, tmp_path / "lake", rank=0)
    rows = jitter.open(tmp_path / "lake").sql(
        "select name, start_ns, end_ns from host where kind = 'operation' and step is not null", arrow=True
    )
    assert sorted(tuple(row.values()) for row in rows.to_pylist()) == sorted(expected)


class RealTrace(NamedTuple):
    name: str
    events: list[dict[str, Any]]
    lake: jitter.Lake


KINETO = [
    "amd-4rank/rank-0",
    "hta/df_index_resolver",
    "hta/mi250_minitoy_train_ROCm6_2_kineto",
    "hta/nccl_data",
    "hta/rank-0.Apr_03_18_51_38.1102.pt.trace",
    "hta/sampled-pair/sampled_rank-0",
    "tracelens/b200_eager_trace",
    "tracelens/resnet_act_checkpoint",
    "tracelens/vllm_graph_execution",
]


@pytest.fixture(scope="module", params=KINETO)
def real_trace(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> RealTrace:
    *folders, name = request.param.split("/")
    path = next(Path(TRACES, "kineto", *folders).glob(f"{name}.json*"))
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        document = json.load(file, parse_float=Decimal)
    root = tmp_path_factory.mktemp("real") / "lake"
    jitter.ingest(path, root, rank=0)
    events = document["traceEvents"] if isinstance(document, dict) else document
    return RealTrace(name, events, jitter.open(root))


def test_operators_against_plain_json(real_trace: RealTrace):
    """By External id where operators have it, and by time otherwise: for every kernel."""
    name, events, lake = real_trace
    operators = [one for one in events if one.get("cat") in ("cpu_op", "Operator") and one.get("ph") == "X"]
    by_id = {one["args"]["External id"]: one["name"] for one in operators if "External id" in one.get("args", {})}
    calls = {}
    for one in events:
        if one.get("cat") in ("cuda_runtime", "cuda_driver") and "correlation" in one.get("args", {}):
            calls.setdefault(one["args"]["correlation"], one)
    ranges = Ranges(operators)
    kernels = [one for one in events if one.get("cat") == "kernel"]
    has_ids = any(one["args"].get("External id") in by_id for one in kernels)
    expected: dict[tuple[int, str, object], set[str | None]] = {}
    for one in kernels:
        correlation = one["args"].get("correlation")
        name_of = by_id.get(one["args"].get("External id"))
        call = calls.get(correlation)
        if not has_ids and call is not None:
            around = ranges.around(ns(call, "start"), call["tid"])
            name_of = around[-1][2] if around else None
        expected.setdefault((ns(one, "start"), one["name"], correlation), set()).add(name_of)
    rows = lake.sql(
        "select start_ns, kernel_name, correlation_id, operator from kernels where kind <> 'memory'", arrow=True
    )
    assert len(rows) > 0
    found = [row["operator"] for row in rows.to_pylist()]
    for row in rows.to_pylist():
        assert {row["operator"]} == expected[row["start_ns"], row["kernel_name"], row["correlation_id"]]
    known = sum(operator is not None for operator in found) / len(found)
    assert known > (0.1 if "vllm" in name else 0.6 if "resnet" in name else 0.97)


def ns(event: dict[str, Any], key: str) -> int:
    """Return the start or the end of an event in ns, exactly."""
    start = Decimal(event["ts"])
    return round((start if key == "start" else start + Decimal(event.get("dur", 0))) * 1000)


def test_scopes_and_phases_against_plain_json(real_trace: RealTrace):
    """Annotations and modules around each launch, those of the forward operator in the backward pass; and the phase."""
    name, events, lake = real_trace
    around = {
        "operators": Ranges([one for one in events if one.get("cat") in ("cpu_op", "Operator")]),
        "annotations": Ranges([one for one in events if is_annotation(one)]),
        "modules": Ranges([one for one in events if one.get("name", "").startswith("nn.Module: ")]),
    }
    flows = [one for one in events if one.get("cat") == "fwdbwd"]
    begun = {one["id"]: one for one in flows if one["ph"] == "s"}
    ended: dict[Any, list[tuple[int, dict[str, Any]]]] = {}
    for one in flows:
        if one["ph"] == "f" and one["id"] in begun:
            ended.setdefault(one["tid"], []).append((ns(one, "start"), begun[one["id"]]))
    forward: dict[Any, set[int]] = {}
    for one in begun.values():
        forward.setdefault(one["tid"], set()).add(ns(one, "start"))
    threads = {ns(one, "start"): one["tid"] for one in events if one.get("cat") in ("cuda_runtime", "cuda_driver")}
    rows = lake.sql(
        "select kind, launch_start_ns, scope, phase from kernels where launch_start_ns is not null", arrow=True
    )
    for row in rows.to_pylist():
        at = row["launch_start_ns"]
        place = (at, threads[at])
        operators, annotations, modules = (ranges.around(*place) for ranges in around.values())
        outer_ns = min((start for start, _, _ in operators), default=at + 1)
        links = [one for one in ended.get(threads[at], ()) if outer_ns <= one[0] <= at]
        linked = max(links, key=lambda one: one[0])[1] if links else None
        within = modules or ([] if linked is None else around["modules"].around(ns(linked, "start"), linked["tid"]))
        own = sorted([*annotations, *modules], key=lambda one: (one[0], -one[1]))
        scope = "/".join(scope_text(one[2]) for one in (within if within and not modules else own))
        assert row["scope"] == (scope or None), row
        texts = [one[2] for one in (*operators, *annotations)]
        told = {word for word in ("backward", "optimizer", "forward") if any(word in text.lower() for text in texts)}
        if row["kind"] == "collective":
            assert row["phase"] == "communication"
        elif linked is not None or "backward" in told or any(text.startswith("autograd::engine") for text in texts):
            assert row["phase"] == "backward", row
        elif "optimizer" in told:
            assert row["phase"] == "optimizer", row
        elif modules or "forward" in told or any(outer_ns <= start <= at for start in forward.get(threads[at], ())):
            assert row["phase"] == "forward", row
        else:
            assert row["phase"] is None, (row, texts)
    if name == "resnet_act_checkpoint":
        backward = [row["scope"] or "" for row in rows.to_pylist() if row["phase"] == "backward"]
        assert any("ResNet_0/" in scope and "Conv2d_" in scope for scope in backward)
        assert {"forward", "backward", "optimizer", "communication"} <= set(rows["phase"].to_pylist())


class Ranges:
    """Events of a trace, to be found by a time and a thread."""

    def __init__(self, events: list[dict[str, Any]]) -> None:
        of_threads: dict[Any, list[tuple[int, int, str]]] = {}
        for one in events:
            if one.get("ph") == "X":
                of_threads.setdefault(one["tid"], []).append((ns(one, "start"), ns(one, "end"), one["name"]))
        self._of_threads = {
            thread: (np.array([one[:2] for one in found], np.int64), found) for thread, found in of_threads.items()
        }

    def around(self, at: int, thread: Any) -> list[tuple[int, int, str]]:
        """Return start, end and name of those around a time, outermost first."""
        if thread not in self._of_threads:
            return []
        times, ranges = self._of_threads[thread]
        found = [ranges[row] for row in np.flatnonzero((times[:, 0] <= at) & (at <= times[:, 1])).tolist()]
        return sorted(found, key=lambda one: (one[0], -one[1]))


def is_annotation(event: dict[str, Any]) -> bool:
    """Return whether it is an annotation: no step marker, and not of a collective, which is an operator."""
    others = ("ProfilerStep#", "execute_context_", "nccl:")
    return event.get("cat") == "user_annotation" and not event["name"].startswith(others)


def scope_text(name: str) -> str:
    return name.removeprefix("nn.Module: ").strip("# ")


@pytest.mark.parametrize("real_trace", [name for name in KINETO if "resnet" in name or "vllm" in name], indirect=True)
def test_lines_of_the_program_against_plain_json(real_trace: RealTrace):
    """The innermost frame around the launch that is neither PyTorch's nor Triton's nor the standard library's."""
    _, events, lake = real_trace
    frames = [
        one
        for one in events
        if one.get("cat") == "python_function"
        and ".py(" in one["name"]
        and not one["name"].startswith(("torch/", "triton/"))
        and re.split(r"[/.]", one["name"])[0] not in sys.stdlib_module_names
    ]
    start, end = (np.array([ns(one, key) for one in frames]) for key in ("start", "end"))
    thread = np.array([one["tid"] for one in frames])
    calls = {ns(one, "start"): one["tid"] for one in events if one.get("cat") in ("cuda_runtime", "cuda_driver")}
    rows = lake.sql(
        "select launch_start_ns, source_line from kernels where launch_start_ns is not null and phase <> 'backward'",
        arrow=True,
    )
    named = 0
    for row in rows.to_pylist():
        at = row["launch_start_ns"]
        around = np.flatnonzero((start <= at) & (at <= end) & (thread == calls[at]))
        inner = max(around.tolist(), key=lambda row: (start[row], -end[row]), default=None)
        assert row["source_line"] == (None if inner is None else frames[inner]["name"])
        named += inner is not None
    assert named > 0.9 * len(rows)
