"""Sizes of collectives from NCCL's NVTX payloads, by the launch inside NCCL's range."""

import re
import sqlite3
import struct
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest

import jitter
from jitter.analysis.diagnosis.model import Culprit
from jitter.core.schema import OFF_CPU
from jitter.readers.nsys.batches import SCHEDULING_COLUMNS, CallChains, ThreadScheduling
from jitter.readers.nsys.tables import SqliteTables
from jitter.simulate import Fault, Job, simulate
from jitter.simulate import write as write_traces
from tests.support.nsys_additions import add_call_chains, add_scheduling
from tests.support.nsys_exports import FORMS, Row, call, export, kernel, marker, memory, read, string, write
from tests.support.real_recordings import TRACES, needs_traces
from tests.support.simulated import ingest_run, ingest_traces

ENTRIES = [
    (7, "NCCL communicator ID", None), (7, "Message size [bytes]", 8),
    (2, "NCCL communicator ID", None), (2, "No. of ranks", 8),
]  # fmt: skip
COMMUNICATOR = 0x5FCB6FB3EA6B206B


def payload(schema: int, *fields: int, domain: int = 1) -> bytes:
    packed = struct.pack("<QQ" if schema == 7 else "<QIIII", *fields, *([0] * (3 if schema == 2 else 0)))
    return struct.pack("<IIIIQQ", domain, 0, schema, 0, len(packed), 32 + len(packed)) + packed


def nccl(start: int, end: int, text: str, data: bytes | None) -> Row:
    return marker(start, end) | {"text": text, "domainId": 1, "binaryData": data}


def init(ranks: int = 4) -> Row:
    return nccl(1, 2, "ncclCommInitRank", payload(2, COMMUNICATOR, ranks))


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> str:
    return request.param


def activity(tmp_path: Path, form: str, *ranges: Row, launches: tuple[int, ...] = (50,)) -> tuple[list[Row], list[str]]:
    entries = [
        {"domainId": 1, "schemaId": schema, "idx": at, "name": name, "offset": offset}
        for at, (schema, name, offset) in enumerate(ENTRIES)
    ]
    tables = export(
        StringIds=[string(1, "ncclDevKernel_AllReduce_Sum_f32_RING_LL"), string(2, "cudaLaunchKernelExC_v11060")],
        CUPTI_ACTIVITY_KIND_KERNEL=[
            kernel(100 * at, 100 * at + 9, correlationId=at) for at in range(1, 1 + len(launches))
        ],
        CUPTI_ACTIVITY_KIND_RUNTIME=[call(at, at + 5, correlationId=n) for n, at in enumerate(launches, 1)],
        NVTX_EVENTS=list(ranges),
        NVTX_PAYLOAD_SCHEMA_ENTRIES=entries,
    )
    recording, rows = read(write(tmp_path / "export", form, tables))
    return rows["activities"], recording.problems


@pytest.mark.parametrize(
    ("name", "size"),
    [("ncclAllReduce", 1000), ("ncclAllGather", 4000), ("ncclReduceScatter", 4000), ("ncclBroadcast", 1000)],
)
def test_size_group_and_operation(tmp_path: Path, form: str, name: str, size: int):
    ((row,), _) = activity(tmp_path, form, init(), nccl(40, 60, name, payload(7, COMMUNICATOR, 1000)))
    assert (row["message_bytes"], row["size_bytes"], row["group_size"]) == (1000, size, 4)
    assert row["group_name"] == "0x5fcb6fb3ea6b206b"


def test_without_the_number_of_ranks_a_size_is_unknown_and_said(tmp_path: Path, form: str):
    ((row,), problems) = activity(tmp_path, form, nccl(40, 60, "ncclAllGather", payload(7, COMMUNICATOR, 1000)))
    assert (row["message_bytes"], row["size_bytes"]) == (1000, None)
    assert any(text.startswith("sizes of 1 collective calls are unknown") for text in problems)


def test_a_launch_outside_every_range_has_no_size(tmp_path: Path, form: str):
    (rows, _) = activity(
        tmp_path, form, init(), nccl(40, 60, "ncclAllReduce", payload(7, COMMUNICATOR, 1000)), launches=(50, 70)
    )
    assert [row["size_bytes"] for row in rows] == [1000, None]


def test_the_end_of_a_group_launches_its_operations(tmp_path: Path, form: str):
    (rows, _) = activity(
        tmp_path,
        form,
        nccl(10, 12, "ncclGroupStart", payload(7, 0, 0)[:32]),
        nccl(20, 22, "ncclSend", payload(7, COMMUNICATOR, 1000)),
        nccl(24, 26, "ncclSend", payload(7, COMMUNICATOR, 500)),
        nccl(28, 30, "ncclRecv", payload(7, COMMUNICATOR, 700)),
        nccl(40, 60, "ncclGroupEnd", payload(7, 0, 0)[:32]),
    )
    assert [(row["collective"], row["size_bytes"]) for row in rows] == [("send_recv", 1500)]


@pytest.mark.parametrize("data", [None, b"", b"short", payload(7, COMMUNICATOR, 1000)[:40], b"x" * 48])
def test_broken_payloads_are_left_out(tmp_path: Path, form: str, data: bytes | None):
    whole = nccl(400, 500, "ncclAllReduce", payload(7, COMMUNICATOR, 8))
    ((row,), _) = activity(tmp_path, form, nccl(40, 60, "ncclAllReduce", data), whole)
    assert row.get("size_bytes") is None


@pytest.mark.parametrize("table", ["MEMCPY", "MEMSET"])
def test_copies_and_fills_have_their_bytes(tmp_path: Path, form: str, table: str):
    rows = [memory(**({"copyKind": 1} if table == "MEMCPY" else {"value": 0}))]
    _, found = read(write(tmp_path / "export", form, export(**{f"CUPTI_ACTIVITY_KIND_{table}": rows})))
    assert [row["size_bytes"] for row in found["activities"] if row["is_memory"]] == [4096]


def events(*rows: tuple[int | None, ...]) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    return pa.RecordBatch.from_arrays(
        [pa.array(values, pa.int64()) for values in columns], names=list(SCHEDULING_COLUMNS)
    )


def test_intervals_span_batches_and_threads():
    threads = ThreadScheduling()
    first = threads.pair(events((10, 1, 0, 7), (5, 1, 1, 7), (12, 3, 0, 8), (30, 2, 1, 7), (31, 0, 0, None)))
    assert [values.tolist() for values in first] == [[7], [10], [30], [True]]
    second = threads.pair(events((40, 3, 1, 8), (45, 2, 0, 7)))
    assert [values.tolist() for values in second] == [[8], [12], [40], [False]]
    assert [values.tolist() for values in threads.pair(events((50, 2, 1, 7)))] == [[7], [45], [50], [False]]


@needs_traces
@pytest.mark.parametrize("name", ["pipit_saxpy-mpi-cuda", "extrap_exgpu_s1000"])
def test_real_scheduling_against_plain_sql(name: str):
    path = TRACES / "nsys" / f"{name}.sqlite"
    moves, longest, before = 0, 0, {}
    with closing(sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)) as export:
        query = "select globalTid, start, cpu, isSchedIn from SCHED_EVENTS order by start, isSchedIn"
        for thread, start, cpu, is_in in export.execute(query):
            if is_in and thread in before and not before[thread][2]:
                moves += before[thread][1] != cpu
                longest = max(longest, start - before[thread][0])
            before[thread] = start, cpu, is_in
    threads = ThreadScheduling()
    found = [threads.pair(rows) for rows in SqliteTables(path).read("SCHED_EVENTS", list(SCHEDULING_COLUMNS))]
    assert sum(int(one.is_migration.sum()) for one in found) == moves
    assert max(int((one.end_ns - one.start_ns).max()) for one in found) == longest
    if name.startswith("pipit"):
        assert moves == 17


@needs_traces
def test_real_call_chains_name_the_program(tmp_path: Path):
    chains = CallChains(SqliteTables(TRACES / "nsys" / "pipit_saxpy-mpi-cuda.sqlite"))
    assert "saxpy-mpi-cuda!main" in chains.functions
    assert not any(one.startswith("lib") or "cudaMemcpy" in one for one in chains.functions)
    jitter.ingest([TRACES / "nsys" / "pipit_saxpy-mpi-cuda.sqlite"], tmp_path / "lake")
    rows = jitter.open(tmp_path / "lake").sql(
        "select kind, source_line, count(*) as n from kernels group by all order by n", arrow=True
    )
    stub = "saxpy-mpi-cuda!saxpy(double*, double*, double*, double, int)"  # the compiler's, which launches
    assert [tuple(row.values()) for row in rows.to_pylist()] == [
        ("compute", stub, 5),
        ("memory", "saxpy-mpi-cuda!main", 13),
    ]


def test_simulated_call_chains_name_the_program(tmp_path: Path):
    run = simulate(Job(ranks=2, steps=2, kernels=20), [])
    plain = ingest_run(run, tmp_path / "plain", "nsys")
    write_traces(run, tmp_path / "chained" / "traces", "nsys", ranks_per_report=2)
    add_call_chains(tmp_path / "chained" / "traces")
    chained = ingest_traces(tmp_path / "chained")
    query = "select source_line, count(*) as n from kernels where launch_start_ns is not null group by all"
    (known,) = chained.sql(query, arrow=True).to_pylist()
    assert known["source_line"] == "train!train_step(Batch const&)"
    assert plain.sql(query, arrow=True).to_pylist() == [{"source_line": None, "n": known["n"]}]
    kinds = "select distinct name from host where kind = 'operation' order by name"
    assert chained.sql(kinds).equals(plain.sql(kinds))


def find(folder: Path, faults: list[str], *, scheduling: bool = False) -> Culprit:
    run = simulate(Job(ranks=4, steps=6, kernels=60, seed=3), [Fault.parse(fault) for fault in faults])
    write_traces(run, folder / "traces", "nsys")
    if scheduling:
        add_scheduling(folder / "traces")
    (culprit,) = ingest_traces(folder).diagnose().culprits
    assert (culprit.rank, culprit.cause) == (2, "cpu_launch")
    return culprit


STALLS = [f"cpu_stall:rank=2,kernel={kernel},ms=1" for kernel in (17, 21, 26, 31, 36, 41)]


def test_a_thread_that_is_moved_about_is_evidence_for_late_launches(tmp_path: Path):
    said = [line for line in find(tmp_path, STALLS, scheduling=True).evidence if "another CPU core" in line]
    assert len(said) == 1
    moves = float(said[0].split(" times per step")[0].rpartition(" ")[2])
    assert 6 <= moves <= 9
    assert "(the other ranks' " in said[0]


def test_one_stall_is_explained_by_the_time_off_the_cpu(tmp_path: Path):
    culprit = find(tmp_path, ["cpu_stall:rank=2,kernel=17,ms=3"], scheduling=True)
    said = [line for line in culprit.evidence if "off the CPU" in line]
    assert re.fullmatch(
        r"launching threads are off the CPU for [23]\.\d\d ms in each of .* steps, the other ranks' .*", said[0]
    )
    assert "check for other processes on the cores of these threads" in culprit.advice
    assert not any("another CPU core" in line for line in said)  # the other ranks move as often at the step's end


def test_without_scheduling_nothing_is_said_of_cores(tmp_path: Path):
    assert not any("core" in line or OFF_CPU in line for line in find(tmp_path, STALLS).evidence)
