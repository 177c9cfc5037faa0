"""Communicator and message size of NCCL operations, from NVTX payloads, joined to the launched kernels.

A payload is a 32-byte header (domain, schema, sizes; little-endian) and fields at the offsets that the table
NVTX_PAYLOAD_SCHEMA_ENTRIES gives, as Nsight Systems 2025 and later export it.
"""

import struct
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from jitter.core.bandwidth import size_of_message
from jitter.core.names.kernels import parse_operation
from jitter.core.numeric.arrays import Codes, Ints
from jitter.readers.nsys.metadata import process_key
from jitter.readers.nsys.names import read_registered_strings
from jitter.readers.nsys.tables import NVTX, RUNTIME, RowFilter, Tables, small_rows

_ENTRIES: Final = "NVTX_PAYLOAD_SCHEMA_ENTRIES"
_HEADER: Final = struct.Struct("<IIIIQQ")
_COMMUNICATOR: Final = "NCCL communicator ID"
_SIZE: Final = "Message size [bytes]"
_RANKS: Final = "No. of ranks"
_WIDTHS: Final = {_COMMUNICATOR: 8, _SIZE: 8, _RANKS: 4}
_GROUP_END: Final = "ncclGroupEnd"


class Message(NamedTuple):
    """Content of the payload of a launch; None where the payload lacks it."""

    collective: str | None
    message_bytes: int | None
    size_bytes: int | None
    group_name: str | None
    group_size: int | None


class _Range(NamedTuple):
    start_ns: int
    end_ns: int
    name: str
    communicator: int | None
    size: int | None


class NcclMessages:
    """Messages of an export's launches, by process and correlation id."""

    def __init__(self, tables: Tables) -> None:
        """Read payloads and the API calls within their ranges; nothing where the export has no payloads."""
        self.messages: list[Message] = []
        self.unknown_sizes = 0
        """Number of launches whose size depends on a number of ranks that the export does not state."""
        self._of_process: dict[int, tuple[Ints, Ints]] = {}
        self._ranks: dict[int, int] = {}
        ranges = _ranges_by_thread(tables, self._ranks)
        if any(
            nccl_range.size is not None for thread_ranges in ranges.values() for nccl_range in thread_ranges
        ) and tables.columns(RUNTIME):
            self._join_calls(tables, ranges)

    def rows(self, process: int | None, correlations: pa.Array) -> Codes:
        """Return the index into `messages` of each correlation id (int64, nullable) of a process; -1: none."""
        message_index = np.full(len(correlations), -1, np.int32)
        if process is None or process not in self._of_process:
            return message_index
        ids, message_of_id = self._of_process[process]
        wanted = correlations.fill_null(-1).to_numpy()
        at = np.searchsorted(ids, wanted).clip(max=len(ids) - 1)
        hit = ids[at] == wanted
        message_index[hit] = message_of_id[at[hit]]
        return message_index

    def _join_calls(self, tables: Tables, ranges: dict[int, list[_Range]]) -> None:
        starts, ends, of_range = {}, {}, {}
        for thread, thread_ranges in ranges.items():
            thread_ranges.sort()
            starts[thread] = np.array([nccl_range.start_ns for nccl_range in thread_ranges], np.int64)
            ends[thread] = np.array([nccl_range.end_ns for nccl_range in thread_ranges], np.int64)
            of_range[thread] = np.array(
                [self._message(thread_ranges, at) for at in range(len(thread_ranges))], np.int64
            )
        joined: dict[int, list[tuple[Ints, Ints]]] = {}
        for batch in tables.read(RUNTIME, ["start", "globalTid", "correlationId"]):
            start, thread, correlation = (batch[name].fill_null(-1).to_numpy() for name in batch.schema.names)
            for thread_id in set(np.unique(thread).tolist()) & ranges.keys():
                rows = np.flatnonzero((thread == thread_id) & (correlation >= 0))
                at = np.searchsorted(starts[thread_id], start[rows], side="right") - 1
                inside = (at >= 0) & (start[rows] <= ends[thread_id][at])
                message_index = np.where(inside, of_range[thread_id][at], -1)
                kept = message_index >= 0
                joined.setdefault(process_key(thread_id), []).append((correlation[rows[kept]], message_index[kept]))
        for process, parts in joined.items():
            correlations = np.concatenate([part[0] for part in parts])
            message_index = np.concatenate([part[1] for part in parts])
            if len(correlations):
                order = np.argsort(correlations, kind="stable")
                self._of_process[process] = correlations[order], message_index[order]

    def _message(self, ranges: list[_Range], at: int) -> int:
        """Return the index of the message that a launch in this range sends; -1 if unknown.

        The operations of a group are launched in the call that ends it.
        """
        launch_range = ranges[at]
        if launch_range.size is not None:
            operations = [launch_range]
        elif launch_range.name.startswith(_GROUP_END):
            operations = []
            for earlier_range in reversed(ranges[:at]):
                if earlier_range.name.startswith(_GROUP_END):
                    break
                if earlier_range.size is not None:
                    operations.append(earlier_range)
        else:
            return -1
        message = self._combined(operations)
        if message is None:
            return -1
        self.messages.append(message)
        return len(self.messages) - 1

    def _combined(self, operations: list[_Range]) -> Message | None:
        kinds = {(parse_operation(operation.name), operation.communicator) for operation in operations}
        if len(kinds) != 1:
            return None
        ((collective, communicator),) = kinds
        sent = [operation.size or 0 for operation in operations]
        if collective == "send_recv" and len(operations) > 1:
            sends = [operation.size or 0 for operation in operations if "Send" in operation.name]
            sent = [sum(sends or sent)]
        if len(set(sent)) != 1:
            return None
        ranks = None if communicator is None else self._ranks.get(communicator)
        size = size_of_message(collective, sent[0], ranks)
        self.unknown_sizes += size is None
        name = None if communicator is None else f"{communicator:#018x}"
        return Message(collective, sent[0], size, name, ranks)


def _ranges_by_thread(tables: Tables, ranks: dict[int, int]) -> dict[int, list[_Range]]:
    """Return NCCL's ranges by thread, and put the sizes of communicators that are created into `ranks`."""
    ranges_of_thread: dict[int, list[_Range]] = {}
    if "binaryData" not in tables.columns(NVTX) or not tables.columns(_ENTRIES):
        return ranges_of_thread
    offsets, domains = _schemas(tables)
    if not offsets:
        return ranges_of_thread
    only = RowFilter("domainId", sorted(domains))
    registered = read_registered_strings(tables, NVTX, only)
    integers = [name for name in ("start", "end", "globalTid", "textId") if name in tables.columns(NVTX)]
    for batch in tables.read(NVTX, integers, ["text", "binaryData"], only):
        texts = registered.at(batch["textId"]).to_pylist() if "textId" in integers else [None] * batch.num_rows
        columns = (batch[name].to_pylist() for name in ("start", "end", "globalTid", "text", "binaryData"))
        for start, end, thread, inline, payload, text in zip(*columns, texts, strict=True):
            if start is None or end is None or thread is None:
                continue
            fields = _fields(payload, offsets)
            communicator, size = fields.get(_COMMUNICATOR), fields.get(_SIZE)
            if communicator is not None and _RANKS in fields:
                ranks[communicator] = fields[_RANKS]
            name = (inline or text or b"").decode("utf-8", "replace")
            ranges_of_thread.setdefault(thread, []).append(_Range(start, end, name, communicator, size))
    return ranges_of_thread


def _schemas(tables: Tables) -> tuple[dict[tuple[int, int], dict[str, int]], set[int]]:
    """Return the offsets of the fields of interest by (domain, schema), and the domains that have any."""
    offsets: dict[tuple[int, int], dict[str, int]] = {}
    for domain, schema, offset, label in small_rows(tables, _ENTRIES, ["domainId", "schemaId", "offset"], ["name"]):
        name = (label or b"").decode("utf-8", "replace")
        if name in _WIDTHS and domain is not None and schema is not None:
            # the first field's offset is null
            offsets.setdefault((domain, schema), {})[name] = offset or 0
    return offsets, {domain for domain, _ in offsets}


def _fields(payload: bytes | None, offsets: dict[tuple[int, int], dict[str, int]]) -> dict[str, int]:
    if payload is None or len(payload) < _HEADER.size:
        return {}
    domain, _, schema, *_ = _HEADER.unpack_from(payload)
    fields = {}
    for name, offset in offsets.get((domain, schema), {}).items():
        value = payload[_HEADER.size + offset : _HEADER.size + offset + _WIDTHS[name]]
        if len(value) == _WIDTHS[name]:
            fields[name] = int.from_bytes(value, "little")
    return {name: value for name, value in fields.items() if name == _COMMUNICATOR or value < 2**63}
