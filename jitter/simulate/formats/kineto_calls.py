"""Host events of a Kineto trace: launches, other calls, operators, parameters of collectives."""

from collections.abc import Iterator
from typing import Final

from jitter.simulate.capture import find_graph_heads
from jitter.simulate.formats.kineto_dialect import KinetoDialect, format_duration, format_timestamp
from jitter.simulate.program import Operation
from jitter.simulate.recording import ProcessGroup, RankRecording

_OPERATORS: Final = ("aten::linear", "aten::addmm", "aten::to", "aten::empty_strided", "aten::as_strided", "aten::mul")
_NAMES: Final = {
    "all_gather": "_allgather_base",
    "reduce_scatter": "_reduce_scatter_base",
    "all_to_all": "all_to_allv",
    "send_recv": "coalesced",
}
"""PyTorch's names of operations that differ from the plain name."""
_MARGIN_NS: Final = 400
"""Time from the begin of an operator to the call inside it."""


def host_events(own: RankRecording, spelled: KinetoDialect, *, cpu_ops: int, with_params: bool) -> Iterator[str]:
    """Yield one event per recorded call, each launch inside `cpu_ops` operators."""
    rows = (own.has_launch & ~own.shares_launch).nonzero()[0]
    heads = find_graph_heads(own)[rows].tolist()
    columns = (own.operation, own.launch_start_ns, own.launch_end_ns, own.correlation)
    names = [spelled.call(op.call) for op in own.operations]
    graph = spelled.call("cudaGraphLaunch")
    event = f'{{"ph": "X", "cat": "{spelled.runtime}", "name": "%s", "pid": {own.pid}, "tid": %d, "ts": %s, "dur": %s'
    for (at, start, end, number), is_graph in zip(
        zip(*(c[rows].tolist() for c in columns), strict=True), heads, strict=True
    ):
        op = own.operations[at]
        thread = own.threads[op.thread]
        if cpu_ops:
            yield from _operators(own.pid, thread, start, end, number, spelled, cpu_ops)
        if with_params and op.kind == "collective":
            yield _params(own, at, start, end, number, spelled)
        where = f', "stream": "{hex(spelled.stream(op.stream))}"' if spelled.is_rocm else ""
        timed = (format_timestamp(start, spelled), format_duration(start, end, spelled))
        args = f', "args": {{"External id": {number}, "cbid": 211, "correlation": {number}{where}}}}}'
        yield event % (graph if is_graph else names[at], thread, *timed) + args
    for call in (*own.lost_launches, *own.calls):
        timed = (format_timestamp(call.start_ns, spelled), format_duration(call.start_ns, call.end_ns, spelled))
        args = f', "args": {{"cbid": 131, "correlation": {call.correlation}}}}}'
        yield event % (spelled.call(call.name), own.threads[call.thread], *timed) + args


def _operators(
    pid: int, thread: int, start: int, end: int, number: int, spelled: KinetoDialect, count: int
) -> Iterator[str]:
    for depth in range(count, 0, -1):
        first, last = start - depth * _MARGIN_NS, end + depth * _MARGIN_NS // 2
        yield (
            f'{{"ph": "X", "cat": "{spelled.operator}", "name": "{_OPERATORS[depth % len(_OPERATORS)]}", "pid": {pid}, '
            f'"tid": {thread}, "ts": {format_timestamp(first, spelled)}, '
            f'"dur": {format_duration(first, last, spelled)}, "args": '
            f'{{"External id": {number}, "Record function id": 0, "Sequence number": {number}, "Fwd thread id": 0, '
            f'"Input Dims": [[640, 1024], [1024]], "Input type": ["c10::BFloat16", "c10::BFloat16"]}}}}'
        )


def _params(own: RankRecording, at: int, start: int, end: int, number: int, spelled: KinetoDialect) -> str:
    op = own.operations[at]
    group = own.groups[op.group or ""]
    first, last = start - 2 * _MARGIN_NS, end + _MARGIN_NS
    return (
        f'{{"ph": "X", "cat": "{spelled.operator}", "name": "record_param_comms", "pid": {own.pid}, '
        f'"tid": {own.threads[op.thread]}, "ts": {format_timestamp(first, spelled)}, '
        f'"dur": {format_duration(first, last, spelled)}, '
        f'"args": {{"External id": {number}, {collective_args(op, group)}, {group_args(group)}}}}}'
    )


def collective_args(op: Operation, group: ProcessGroup) -> str:
    """Return the arguments with a collective's operation and size."""
    size = len(group.ranks)
    n_in = n_out = (op.n_bytes or 0) // 2
    # `n_bytes` is the larger side: the output of an all-gather, the input of a reduce-scatter
    if op.collective == "all_gather":
        n_in //= size
    elif op.collective == "reduce_scatter":
        n_out //= size
    name = _NAMES.get(op.collective or "", (op.collective or "").replace("_", ""))
    return (
        f'"Collective name": "{name}", "In msg nelems": {n_in}, "Out msg nelems": {n_out}, "Group size": {size}, '
        '"dtype": "BFloat16"'
    )


def group_args(group: ProcessGroup) -> str:
    """Return the arguments with the name and description of a process group."""
    description = "default_pg" if group.number == "0" else group.name
    return f'"Process Group Name": "{group.number}", "Process Group Description": "{description}"'
