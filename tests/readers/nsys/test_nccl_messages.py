"""Sizes of collectives from NCCL's NVTX payloads, by the launch inside NCCL's range."""

import struct
from pathlib import Path

import pytest

from tests.support.nsys_exports import FORMS, Row, call, export, kernel, marker, memory, read, string, write

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
