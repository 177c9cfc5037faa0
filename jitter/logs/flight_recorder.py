"""PyTorch's Flight Recorder (2.3 on, versions 1.0 to 2.10): a dump of a rank's collectives, as JSON or as a pickle.

pytorch torch/csrc/distributed/c10d/FlightRecorder.hpp. The `time_discovered_*` are the watchdog's times, not the
GPU's, and are not taken; `duration_ms` (CUDA events) is there with TORCH_NCCL_ENABLE_TIMING alone. The rank stands in
the file's name only. `pg_status` is by the process's own number of a group (`pg_id`), `pg_config` by the name that all
ranks share; the entries join them.

Of a pickle nothing is imported, nothing is called. PyTorch's C++ pickler
(torch/csrc/jit/serialization/pickler.cpp) wraps containers in calls of `torch.jit._pickle.restore_type_tag` and
`build_*list`; their first argument is the data. Every other global is opaque.
"""

import io
import pickle
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, ClassVar, Final

from jitter.core.bandwidth import element_bytes
from jitter.core.formatting import format_numbers
from jitter.core.names.kernels import parse_operation
from jitter.logs.line_parser import Context
from jitter.logs.values import as_integer, as_text, decode_json

FORMAT: Final = "flight-recorder"
MARKS: Final = (b"collective_seq_id", b"pg_config", b"record_id")
_KNOWN: Final = re.compile(r"[12]\.\d+")
_STRUCTURE: Final = re.compile(rb'"(?:[^"\\]|\\.)*"|[{}]')
LIBRARY_FILE: Final = re.compile(
    r"[\\/](?:torch|torch_[a-z]+|functorch)[\\/]|[\\/]lib[\\/]python[\d.]+[\\/](?!site-|dist-)"
)
"""Files of PyTorch and of Python's own library."""
_PROGRESS: Final = ("enqueued", "started", "completed")
_LARGEST_RANKS: Final = 1 << 20
_LARGEST_SIZE: Final = 1 << 63
_LARGEST_ENTRY: Final = 1 << 20
"""Bytes of an entry."""
_DEEPEST: Final = 64
"""Levels of lists and dicts in a pickle."""
_BITS: Final = 64
_MOST_SHARED: Final = 8
"""Values of a pickle for each of its bytes: lists that stand in several places count in each."""


def decode(content: bytes) -> Any:
    """Return a dump in JSON, or in a pickle by its opcodes; of a damaged one in JSON, the list of its whole entries.

    Raises ValueError for another one.
    """
    if content[:1] == pickle.PROTO:
        return plain_data(content)
    try:
        return decode_json(content)
    except ValueError:
        return list(_whole_entries(content))


def read(dump: Any, context: Context) -> None:
    """Read a dump, or the entries of a damaged one."""
    if is_cut := isinstance(dump, list):
        context.problems.note(FORMAT, "the file is damaged or cut off; its whole entries were read")
        dump = {"entries": dump}
    entries = dump.get("entries") if isinstance(dump, dict) else None
    if not isinstance(entries, list):
        context.problems.note(FORMAT, "it holds no entries")
        return
    version = dump.get("version")
    if version is not None and not _KNOWN.fullmatch(str(version)):
        context.problems.note(FORMAT, f"version {str(version)[:20]} is unknown; what is known of it was read")
    groups = _groups(dump.get("pg_config"))
    rank = _rank_of_name(context.path.name)
    if rank is None:
        context.problems.note(FORMAT, "its name does not end with the rank (nccl_trace_rank_3); no rank is known")
    for name, ranks in groups.items():
        context.tables.add(
            "communicators", comm=name, rank=ranks.index(rank) if rank in ranks else None, ranks=len(ranks) or None
        )
    _add_progress(dump, entries, rank, groups, context, is_cut=is_cut)
    if groups and not entries:
        context.count(FORMAT)  # the dump of a rank that called nothing
    for at, entry in enumerate(entries, 1):
        try:
            _add(entry, rank, groups, context)
        except (ValueError, TypeError, OverflowError):
            context.problems.broken(FORMAT, at, "of the entries cannot be read")


def _add(entry: Any, rank: int | None, groups: dict[str, list[int]], context: Context) -> None:
    if not isinstance(entry, dict):
        raise TypeError("not an entry")
    group = entry.get("process_group")
    name = str(group[0]) if isinstance(group, list) and group else None
    collective = parse_operation(str(entry.get("profiling_name", "")).removeprefix("nccl:"))
    is_p2p = entry.get("is_p2p") is True
    milliseconds = entry.get("duration_ms")
    duration = round(milliseconds * 1e6) if isinstance(milliseconds, int | float) else None
    ranks = len(groups.get(name or "", ())) or None
    state = entry.get("state")
    timeout = as_integer(entry.get("timeout_ms"))
    dtypes, shapes = entry.get("input_dtypes"), entry.get("input_sizes")
    elements = list(map(_product, shapes)) if isinstance(shapes, list) else [None]
    context.add(
        FORMAT,
        "recorded",
        rank=rank,
        group_name=name,
        sequence=as_integer(entry.get("p2p_seq_id" if is_p2p else "collective_seq_id", entry.get("seq_id"))),
        collective=collective,
        size_bytes=_size(entry, collective, ranks),
        start_ns=as_integer(entry.get("time_created_ns")),
        duration_ns=duration,
        timing="cuda_event" if duration is not None else None,
        state=state if isinstance(state, str) else None,
        operation=as_text(entry.get("profiling_name")),
        is_p2p=is_p2p,
        input_elements=None if None in elements else sum(filter(None, elements)),
        dtype=", ".join(dict.fromkeys(map(str, dtypes))) if isinstance(dtypes, list) and dtypes else None,
        timeout_ns=None if timeout is None else timeout * 1_000_000,
        source_line=_program_line(entry.get("frames")),
    )


def _add_progress(
    dump: dict[str, Any],
    entries: Sequence[Any],
    rank: int | None,
    groups: Mapping[str, list[int]],
    context: Context,
    *,
    is_cut: bool,
) -> None:
    """Add how far the rank got in each of its groups."""
    descriptions: dict[str, str | None] = {}
    names: dict[str, str] = {}
    numbers: list[int] = []
    for entry in entries:
        group = entry.get("process_group") if isinstance(entry, dict) else None
        if isinstance(group, list) and group:
            name = str(group[0])
            descriptions[name] = str(group[1]) if len(group) > 1 else None
            names[str(entry.get("pg_id"))] = name
            if (number := as_integer(entry.get("record_id"))) is not None:
                numbers.append(number)
    config, status = (value if isinstance(value, dict) else {} for value in map(dump.get, ("pg_config", "pg_status")))
    of_group = {names.get(str(key)): value for key, value in status.items() if isinstance(value, dict)}
    enqueued = [_last(counts.get("last_enqueued_collective")) for counts in status.values() if isinstance(counts, dict)]
    has_begun = bool(entries) or not enqueued or any(number != 0 for number in enqueued)
    for name in dict.fromkeys((*groups, *descriptions)):
        described = config.get(name)
        given = as_text(described.get("desc")) if isinstance(described, dict) else None
        counts = of_group.get(name, {})
        context.tables.add(
            "process_groups",
            rank=rank,
            group_name=name,
            group_description=given or descriptions.get(name),
            members=format_numbers(groups[name], in_full=True) if groups.get(name) else None,
            is_whole=not has_begun or (bool(numbers) and sorted(numbers) == list(range(len(entries)))),
            is_cut=is_cut,
            **{f"last_{what}": _last(counts.get(f"last_{what}_collective")) for what in _PROGRESS},
        )


def _last(value: Any) -> int | None:
    """Return the number of an operation, which a dump writes as a text; 0 for none, which it states as -1."""
    number = int(value) if isinstance(value, str) and re.fullmatch(r"-?\d{1,18}", value) else as_integer(value)
    return None if number is None else max(number, 0)


def _program_line(frames: Any) -> str | None:
    """Return the innermost frame of a Python stack that is not PyTorch's own."""
    for frame in frames if isinstance(frames, list) else ():
        if not isinstance(frame, dict):
            continue
        file, line, name = as_text(frame.get("filename")), as_integer(frame.get("line")), as_text(frame.get("name"))
        if file is not None and file.endswith(".py") and not LIBRARY_FILE.search(file):
            return f"{file}({line or 0}): {name or '?'}"
    return None


def _size(entry: dict[str, Any], collective: str | None, ranks: int | None) -> int | None:
    """Return size S: the input's bytes, of an all-gather those of all ranks."""
    total = _bytes(entry.get("input_sizes"), entry.get("input_dtypes"))
    if collective != "all_gather":
        return total
    return (
        total * ranks if total is not None and ranks else _bytes(entry.get("output_sizes"), entry.get("output_dtypes"))
    )


def _bytes(shapes: Any, dtypes: Any) -> int | None:
    if not isinstance(shapes, list) or not isinstance(dtypes, list) or not shapes or not dtypes:
        return None
    total = 0
    for at, shape in enumerate(shapes):
        width = element_bytes(str(dtypes[at] if at < len(dtypes) else dtypes[-1]))
        elements = _product(shape)
        if width is None or elements is None:
            return None
        total += elements * width
    return total


def _product(shape: Any) -> int | None:
    """Return the elements of a tensor; None for what is no shape, ValueError for a larger one than there can be."""
    if not isinstance(shape, list):
        return None
    elements = 1
    for extent in shape:
        number = as_integer(extent)
        if number is None or number < 0:
            return None
        elements *= number
        if elements >= _LARGEST_SIZE:  # no shape, and a product without bound takes ever longer
            raise ValueError(f"{elements} does not fit")
    return elements


def _groups(config: Any) -> dict[str, list[int]]:
    """Return the ranks of each process group; they are written as a text ("[0, 1]")."""
    ranks_of_group: dict[str, list[int]] = {}
    for key, value in config.items() if isinstance(config, dict) else ():
        ranks = value.get("ranks") if isinstance(value, dict) else None
        if isinstance(ranks, str):
            ranks = [int(digits) for digits in re.findall(r"\d{1,9}", ranks[: 10 * _LARGEST_RANKS])]
        if isinstance(ranks, list):
            ranks_of_group[str(key)] = [number for rank in ranks if (number := as_integer(rank)) is not None]
    return ranks_of_group


def _rank_of_name(name: str) -> int | None:
    """Return the rank in a file's name, after `rank` or at its end: `nccl_trace_rank_3`, `trace_3.json`."""
    match = re.search(r"rank[_.-]?(\d{1,9})(?!\d)", name) or re.search(r"(\d{1,9})(?:\.\w+)?$", name)
    return int(match[1]) if match else None


def _whole_entries(content: bytes) -> Iterator[dict[str, Any]]:
    """Return the entries of a damaged dump that are whole objects."""
    open_braces: list[int] = []
    named_at = -1  # the last name that no object has been tried for
    for match in _STRUCTURE.finditer(content):
        token = match[0]
        if token == b"{":
            open_braces.append(match.start())
        elif token == b'"profiling_name"':
            named_at = match.start()
        elif token == b"}" and open_braces:
            start = open_braces.pop()
            if start > named_at or match.end() - start > _LARGEST_ENTRY:
                continue
            try:
                entry = decode_json(content[start : match.end()])
            except ValueError:
                named_at = -1  # the objects around it cannot be read either
                continue
            if isinstance(entry, dict) and "profiling_name" in entry:
                named_at = -1
                yield entry


class _Opaque:
    """What only code could make, and that code: calling it and changing it does nothing."""

    __slots__ = ()

    def __new__(cls, *_: Any) -> Any:
        return super().__new__(cls) if isinstance(cls, type) else cls  # a pickle calls it with an object

    def __call__(self, *_: Any) -> Any:
        return self

    append = extend = add = __setstate__ = __setitem__ = __call__


class _DataOfArgument(_Opaque):
    """A global of `torch.jit._pickle`: a call of it returns its first argument."""

    __slots__ = ()

    def __call__(self, *arguments: Any) -> Any:
        return arguments[0] if arguments else OPAQUE


OPAQUE: Final = _Opaque()
_DATA_OF_ARGUMENT: Final = _DataOfArgument()


def _load_as_list(length: int) -> Any:
    """Return what loads an opcode that makes a tuple of so many values; a tuple could be hashed, level by level."""

    def load(reader: Any) -> None:
        values = reader.stack[len(reader.stack) - length :]
        reader.stack[len(reader.stack) - length :] = [values]

    return load


_REFUSED: Final = frozenset(pickle.BYTEARRAY8 + pickle.FROZENSET + pickle.ADDITEMS)
"""Opcodes that allocate as many bytes as they state before these are read, or hash level by level."""


# the one written in C allocates memory for whatever place of its memo a pickle names
class _PlainDataReader(pickle._Unpickler):
    """Reads dicts, lists, texts and numbers, tuples as lists; imports and calls nothing."""

    def find_class(self, module: str, _: str) -> Any:
        return _DATA_OF_ARGUMENT if module == "torch.jit._pickle" else OPAQUE

    def persistent_load(self, _: Any) -> Any:
        return OPAQUE

    dispatch: ClassVar[dict[int, Any]] = {
        key: load for key, load in pickle._Unpickler.dispatch.items() if key not in _REFUSED
    } | {
        pickle.EMPTY_TUPLE[0]: pickle._Unpickler.dispatch[pickle.EMPTY_LIST[0]],
        pickle.TUPLE1[0]: _load_as_list(1),
        pickle.TUPLE2[0]: _load_as_list(2),
        pickle.TUPLE3[0]: _load_as_list(3),
        pickle.TUPLE[0]: pickle._Unpickler.dispatch[pickle.LIST[0]],
    }


def _is_plain(data: Any, most: int) -> bool:
    """Return whether data has no more than so many values, `_DEEPEST` levels deep, and no number that JSON lacks.

    A pickle can put one list into another many times over, and into itself: a few bytes that no printing ends.
    """
    levels: list[Iterator[Any]] = [iter((data,))]
    count = 0
    while levels:
        for value in levels[-1]:
            count += 1
            if count > most or len(levels) > _DEEPEST or (isinstance(value, int) and value.bit_length() > _BITS):
                return False
            if isinstance(value, dict | list):
                levels.append(chain(value, value.values()) if isinstance(value, dict) else iter(value))
                break
        else:
            levels.pop()
    return True


def plain_data(content: bytes) -> Any:
    """Return what a pickle holds: dicts, lists, tuples as lists, texts and numbers; what needs code is `OPAQUE`.

    Raises ValueError where the content is no whole pickle.
    """
    try:
        data = _PlainDataReader(io.BytesIO(content)).load()
    except (pickle.UnpicklingError, EOFError, LookupError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError("not a whole pickle of plain data") from error
    if not _is_plain(data, _MOST_SHARED * len(content)):
        raise ValueError("more data than the pickle can hold by itself")
    return data
