"""NCCL's ranges in an Nsight Systems export: a range a call, whose payload states communicator and message size."""

import hashlib
import struct
from typing import Final

from jitter.simulate.formats.nsys_tables import NsysReport
from jitter.simulate.recording import ProcessGroup, RankRecording

_DOMAIN: Final = 1
_FIRST_SCHEMA: Final = 16_777_216
_INIT, _PEER, _REDUCTION, _PLAIN = (_FIRST_SCHEMA + number for number in (2, 10, 7, 4))
_ENTRIES: Final = {
    _INIT: ((18, "NCCL communicator ID", None), (5, "No. of ranks", 8), (5, "Rank", 12), (5, "CUDA device", 16)),
    _PEER: ((18, "NCCL communicator ID", None), (22, "Message size [bytes]", 8), (5, "Peer rank", 16)),
    _REDUCTION: (
        (18, "NCCL communicator ID", None),
        (22, "Message size [bytes]", 8),
        (_FIRST_SCHEMA + 16, "Reduction operation", 16),
    ),
    _PLAIN: ((18, "NCCL communicator ID", None), (22, "Message size [bytes]", 8)),
}
_PAYLOAD_BYTES: Final = {_INIT: 24, _PEER: 24, _REDUCTION: 24, _PLAIN: 16}
_CALLS: Final = {
    "all_reduce": ("ncclAllReduce", _REDUCTION),
    "reduce_scatter": ("ncclReduceScatter", _REDUCTION),
    "all_gather": ("ncclAllGather", _PLAIN),
    "all_to_all": ("ncclAlltoAll", _PLAIN),
    "broadcast": ("ncclBroadcast", _PLAIN),
    "send_recv": ("ncclSend", _PEER),
}
_PER_PEER: Final = frozenset({"reduce_scatter", "all_to_all"})
"""NCCL states the part of one rank of these; the program states the whole input."""
_LEAD_NS: Final = 400
_INIT_NS: Final = 30_000


def add_nccl_ranges(report: NsysReport, recording: RankRecording, tids: list[int]) -> None:
    """Add a rank's NCCL calls; `tids` are the global ids of its threads."""
    if "NVTX_PAYLOAD_SCHEMAS" not in report.rows:
        return
    _add_schemas(report)
    launched = (recording.has_launch & ~recording.shares_launch).nonzero()[0].tolist()
    ops = recording.operations
    rows: list[tuple[int, int, int, str, bytes]] = []
    first = int(recording.launch_start_ns[launched].min()) if launched else 0
    for number, group in enumerate(recording.groups.values()):
        start = first - (len(recording.groups) - number + 1) * _INIT_NS
        fields = struct.pack(
            "<QIIII", _communicator(group), len(group.ranks), group.ranks.index(recording.rank), recording.device, 0
        )
        rows.append((start, start + _INIT_NS // 2, tids[0], "ncclCommInitRank", _payload(_INIT, fields)))
    for at in launched:
        op = ops[int(recording.operation[at])]
        if op.kind != "collective" or op.group is None or op.n_bytes is None or op.collective not in _CALLS:
            continue
        group = recording.groups[op.group]
        text, schema = _CALLS[op.collective]
        size = op.n_bytes // len(group.ranks) if op.collective in _PER_PEER else op.n_bytes
        fields = struct.pack("<QQQ", _communicator(group), size, 0)[: _PAYLOAD_BYTES[schema]]
        start, end = int(recording.launch_start_ns[at]) - _LEAD_NS, int(recording.launch_end_ns[at])
        rows.append((start, end, tids[op.thread], text, _payload(schema, fields)))
    report.add(
        "NVTX_EVENTS",
        len(rows),
        start=[row[0] for row in rows],
        end=[row[1] for row in rows],
        eventType=59,
        text=None,
        textId=[report.string(row[3]) for row in rows],
        globalTid=[row[2] for row in rows],
        domainId=_DOMAIN,
        binaryData=[row[4] for row in rows],
    )


def _add_schemas(report: NsysReport) -> None:
    if report.rows["NVTX_PAYLOAD_SCHEMAS"]:
        return
    schemas = list(_ENTRIES)
    report.add(
        "NVTX_PAYLOAD_SCHEMAS",
        len(schemas),
        domainId=_DOMAIN,
        schemaId=schemas,
        type=1,
        numEntries=[len(_ENTRIES[schema]) for schema in schemas],
        payloadSize=[_PAYLOAD_BYTES[schema] for schema in schemas],
    )
    for schema, entries in _ENTRIES.items():
        report.add(
            "NVTX_PAYLOAD_SCHEMA_ENTRIES",
            len(entries),
            domainId=_DOMAIN,
            schemaId=schema,
            idx=list(range(len(entries))),
            type=[kind for kind, _, _ in entries],
            name=[name for _, name, _ in entries],
            offset=[offset for _, _, offset in entries],
        )


def _communicator(group: ProcessGroup) -> int:
    named = f"{group.name} {group.number} {group.ranks}".encode()
    return int.from_bytes(hashlib.blake2b(named, digest_size=8).digest(), "little")


def _payload(schema: int, fields: bytes) -> bytes:
    return struct.pack("<IIIIQQ", _DOMAIN, 0, schema, 0, len(fields), 32 + len(fields)) + fields
