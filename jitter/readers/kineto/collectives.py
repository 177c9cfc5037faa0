"""Arguments of collectives in a trace: of the kernel, or of the host's `record_param_comms`."""

import re
from functools import lru_cache
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Struct, field

from jitter.core.bandwidth import element_bytes, size_of_input
from jitter.core.names.kernels import parse_operation

_RANKS: Final = re.compile(r"\s*\[\s*(\d{1,10}(?:\s*,\s*\d{1,10})*)\s*\]\s*")
_operation: Final = lru_cache(1024)(parse_operation)


class CollectiveArgs(NamedTuple):
    """The columns of a collective; None where the trace does not state them."""

    collective: str | None = None
    message_bytes: int | None = None
    size_bytes: int | None = None
    split_imbalance: float | None = None
    dtype: str | None = None
    group_name: str | None = None
    group_ranks: tuple[int, ...] | None = None
    group_size: int | None = None
    sequence: int | None = None
    source_rank: int | None = None
    destination_rank: int | None = None


class _Args(Struct, gc=False):
    external: Any = field(name="External id", default=None)
    old_external: Any = field(name="external id", default=None)
    name: Any = field(name="Collective name", default=None)
    elements_in: Any = field(name="In msg nelems", default=None)
    elements_out: Any = field(name="Out msg nelems", default=None)
    size: Any = field(name="Group size", default=None)
    split_in: Any = field(name="In split size", default=None)
    split_out: Any = field(name="Out split size", default=None)
    dtype: Any = None
    group: Any = field(name="Process Group Name", default=None)
    group_id: Any = field(name="Process Group ID", default=None)
    ranks: Any = field(name="Process Group Ranks", default=None)
    sequence: Any = field(name="Seq", default=None)
    source: Any = field(name="Src Rank", default=None)
    destination: Any = field(name="Dst Rank", default=None)


_DECODE = msgspec.json.Decoder(_Args).decode


def parse_collective_args(args: bytes) -> tuple[int | None, CollectiveArgs | None]:
    """Return the External id of an event's arguments (JSON) and the collective they describe; None if absent."""
    try:
        fields = _DECODE(args)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None, None
    external = _count(fields.external)
    if external is None:
        external = _count(fields.old_external)
    if not isinstance(fields.name, str):
        return external, None
    group = fields.group if fields.group is not None else fields.group_id
    operation = _operation(fields.name)
    message_bytes = _message_bytes(fields)
    group_size = _count(fields.size, most=2**31 - 1) or None
    size_bytes = None if message_bytes is None else size_of_input(operation, message_bytes, group_size)
    is_even, imbalance = _split(fields) if operation == "all_to_all" else (True, None)
    return external, CollectiveArgs(
        collective=operation,
        message_bytes=message_bytes,
        size_bytes=size_bytes if (is_even or imbalance is not None) and (size_bytes or 0) < 2**63 else None,
        split_imbalance=imbalance,
        dtype=fields.dtype if isinstance(fields.dtype, str) and fields.dtype else None,
        group_name=str(group) if isinstance(group, str | int) and group != "" else None,
        group_ranks=_ranks(fields.ranks),
        group_size=group_size,
        sequence=_count(fields.sequence),
        source_rank=_count(fields.source, most=2**31 - 1),
        destination_rank=_count(fields.destination, most=2**31 - 1),
    )


def _message_bytes(args: _Args) -> int | None:
    """Return the bytes of the rank's input buffer; of its output buffer if it has no input (receive, scatter)."""
    elements = _count(args.elements_in) or _count(args.elements_out)
    if elements is None or not isinstance(args.dtype, str):
        return None
    size = element_bytes(args.dtype)
    return None if size is None or elements * size >= 2**63 else elements * size


def _split(args: _Args) -> tuple[bool, float | None]:
    """Return whether an all-to-all's parts are equal, and the largest / mean part if not; None for a shortened list."""
    for listed in (args.split_in, args.split_out):
        sizes = _listed_sizes(listed) if isinstance(listed, str) else listed
        if isinstance(sizes, list | tuple) and all(type(size) is int and size >= 0 for size in sizes):
            if len(set(sizes)) > 1:
                return False, max(sizes) * len(sizes) / sum(sizes)
        elif isinstance(listed, str) and len(set(re.findall(r"\d+", listed))) > 1:
            return False, None
    return True, None


@lru_cache(1024)
def _listed_sizes(listed: str) -> tuple[int, ...] | None:
    match = _RANKS.fullmatch(listed)
    return None if match is None else tuple(int(size) for size in match[1].split(","))


def _ranks(listed: object) -> tuple[int, ...] | None:
    """Return the ranks of "[0, 1, 2]"; None for a shortened list ("[0, 1, ...]") or an empty one."""
    if isinstance(listed, str):
        return _ranks_in(listed)
    return _possible(listed) if isinstance(listed, list) else None


@lru_cache(1024)  # there are few groups, with up to thousands of ranks each
def _ranks_in(listed: str) -> tuple[int, ...] | None:
    match = _RANKS.fullmatch(listed)
    return None if match is None else _possible([int(rank) for rank in match[1].split(",")])


def _possible(ranks: list[object]) -> tuple[int, ...] | None:
    fit = [rank for rank in ranks if type(rank) is int and 0 <= rank < 2**31]
    return tuple(fit) if ranks and len(fit) == len(ranks) else None


def _count(value: object, most: int = 2**63 - 1) -> int | None:
    return value if type(value) is int and 0 <= value <= most else None
