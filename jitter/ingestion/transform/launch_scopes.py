"""Code position of each launch: the operator, the annotations and modules around it, the Python line, the phase.

A launch lies in the ranges of its own thread that are open when it starts. Ranges that hold no launch are ignored.
A launch of the backward pass has the modules and the Python line of the forward operator that it belongs to.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from jitter.core.arrow import table_of_rows
from jitter.core.numeric.arrays import Bools, Ints
from jitter.core.schema import MIGRATION
from jitter.ingestion.transform.code_ranges import FRAME, MODULE, NO_THREAD, OPEN, OPERATOR, CodeRanges, ThreadRanges
from jitter.ingestion.transform.range_texts import (
    BACKWARD,
    COMMUNICATION,
    FORWARD,
    OPTIMIZER,
    SEPARATOR,
    is_native_frame,
    parse_phase,
    scope_part,
)

SCOPE_COLUMNS: Final = ("operator", "scope", "source_line", "phase")
_ROOT: Final = 0
_MOST_OPERATIONS: Final = 20_000
"""Operations kept of one thread, the longest; far more than the gaps that a report explains."""
_OPERATIONS: Final = pa.schema(
    [("name", pa.string()), ("thread", pa.int64()), ("start_ns", pa.int64()), ("end_ns", pa.int64())]
)


class _Node(NamedTuple):
    """A nest of ranges: what the innermost and all around it say."""

    operator: str | None
    scope: str | None
    modules: str | None
    """The part of the scope that modules are."""
    phase: str | None
    source_line: str | None
    """The innermost frame of the Python stack."""


class LaunchScopes:
    """Finds `SCOPE_COLUMNS` of the launches of one recording; `names` are the recording's names."""

    def __init__(self, ranges: CodeRanges, names: Sequence[str]) -> None:
        self._ranges = ranges
        self._names = names
        self._nodes = [_Node(None, None, None, None, None)]
        self._known: dict[tuple[int, int, int], int] = {}
        self._launching: set[tuple[int, int]] = set()
        self._operations: dict[tuple[int, int], tuple[ThreadRanges, Bools] | None] = {}
        """By process and thread the operations, and which of them hold a launch or a forward operator of one."""

    def annotate(self, process: int, activities: pa.Table) -> pa.Table:
        """Return the activities of one process with the columns `SCOPE_COLUMNS` (dictionaries)."""
        is_collective = activities["is_collective"].to_numpy(zero_copy_only=False)
        if not self._ranges.has(process) and not is_collective.any():
            return activities
        launches = activities["launch_start_ns"]
        has_launch = launches.is_valid().to_numpy()
        nodes = np.zeros(len(activities), np.int64)
        threads = activities["launch_thread"].fill_null(NO_THREAD).to_numpy()[has_launch]
        self._launching.update((process, thread) for thread in np.unique(threads).tolist())
        nodes[has_launch] = self._nodes_of(process, threads, launches.fill_null(0).to_numpy()[has_launch])
        used, node_index = np.unique(nodes, return_inverse=True)
        used_nodes = [self._nodes[number] for number in used.tolist()]
        for name in ("operator", "scope", "source_line"):
            texts = [getattr(node, name) for node in used_nodes]
            activities = activities.append_column(name, _dictionary(texts, node_index))
        # one entry more for communication, whatever is around its launch
        phases = [*(node.phase for node in used_nodes), COMMUNICATION]
        of_row = np.where(is_collective, len(used_nodes), node_index)
        return activities.append_column("phase", _dictionary(phases, of_row))

    def operations(self, process: int) -> pa.Table:
        """Return long host operations that launch nothing, on threads that launch, after all calls of `annotate`.

        Columns: `name`, `thread`, `start_ns`, `end_ns`.
        """
        operation_rows: list[tuple[str, int, int, int]] = []
        for launching_process, thread in sorted(self._launching):
            operations = self._operations[launching_process, thread]
            if launching_process != process or thread == NO_THREAD or operations is None:
                continue
            ranges, holds_launch = operations
            rows = np.flatnonzero(~holds_launch & (ranges.end_ns != OPEN))
            took = ranges.end_ns - ranges.start_ns
            rows = rows[np.argsort(-took[rows], kind="stable")[:_MOST_OPERATIONS]]
            for row in rows.tolist():
                text, kind = self._ranges.text(int(ranges.key[row]), self._names)
                if kind == FRAME and is_native_frame(text):
                    continue  # it names the caller of an operation, and that operation has a range of its own
                operation_rows.append((text, thread, int(ranges.start_ns[row]), int(ranges.end_ns[row])))
        return table_of_rows(operation_rows, _OPERATIONS)

    def _nodes_of(self, process: int, thread: Ints, start_ns: Ints) -> Ints:
        """Return the node of each launch, shape (launches,)."""
        nodes = np.zeros(len(start_ns), np.int64)
        for thread_number in np.unique(thread).tolist():
            mine = np.flatnonzero(thread == thread_number)
            times = start_ns[mine]
            self._note_launches(process, thread_number, times)
            ranges = self._ranges.around(process, thread_number, int(times.min()), int(times.max()))
            if ranges is not None:
                nodes[mine] = self._nodes_on_thread(process, thread_number, ranges, times)
        return nodes

    def _note_launches(self, process: int, thread: int, times: Ints) -> None:
        """Mark the operations of a thread that hold one of these times."""
        if (process, thread) not in self._operations:
            thread_operations = self._ranges.operations(process, thread, MIGRATION, self._names)
            self._operations[process, thread] = (
                None
                if thread_operations is None
                else (thread_operations, np.zeros(len(thread_operations.key), np.bool_))
            )
        operations = self._operations[process, thread]
        if operations is not None:
            ranges, holds_launch = operations
            near = np.flatnonzero((ranges.start_ns <= times.max()) & (ranges.end_ns >= times.min()))
            launches = np.sort(times)
            first = np.searchsorted(launches, ranges.start_ns[near], side="left")
            holds_launch[near] |= np.searchsorted(launches, ranges.end_ns[near], side="right") > first

    def _nodes_on_thread(self, process: int, thread: int, ranges: ThreadRanges, start_ns: Ints) -> Ints:
        order = np.argsort(start_ns, kind="stable")
        times = start_ns[order]
        first = np.searchsorted(times, ranges.start_ns, side="left")
        until = np.searchsorted(times, ranges.end_ns, side="right")
        kept = np.flatnonzero(until > first)
        first, until, keys = first[kept], until[kept], ranges.key[kept]
        depth = _depths(first, until)
        nodes = np.full(len(times), _ROOT, np.int64)
        outer_ns = np.full(len(times), np.iinfo(np.int64).max)
        by_depth = np.argsort(depth, kind="stable")
        bounds = np.searchsorted(depth[by_depth], np.arange(depth.max(initial=-1) + 2))
        for low, high in pairwise(bounds.tolist()):
            level = by_depth[low:high]
            lengths = until[level] - first[level]
            rows = np.repeat(first[level] - np.cumsum(lengths) + lengths, lengths) + np.arange(lengths.sum())
            nodes[rows] = self._children(nodes[rows], np.repeat(keys[level], lengths))
            is_operator = keys[level] % CodeRanges.KINDS == OPERATOR
            begun = np.where(is_operator, ranges.start_ns[kept][level], np.iinfo(np.int64).max)
            outer_ns[rows] = np.minimum(outer_ns[rows], np.repeat(begun, lengths))
        nodes = self._with_pass(process, thread, nodes, outer_ns, times)
        placed = np.empty_like(nodes)
        placed[order] = nodes
        return placed

    def _children(self, parents: Ints, keys: Ints) -> Ints:
        """Return the node inside each parent for a range of this key, shape (launches,)."""
        pairs, pair_index = np.unique(parents * self._ranges.keys + keys, return_inverse=True)
        children = [self._child(*divmod(pair, self._ranges.keys)) for pair in pairs.tolist()]
        return np.array(children, np.int64)[pair_index]

    def _child(self, parent: int, key: int) -> int:
        number = self._known.get((parent, key, 0))
        if number is None:
            text, kind = self._ranges.text(key, self._names)
            outer = self._nodes[parent]
            phase = FORWARD if kind == MODULE else None if kind == FRAME else parse_phase(text)
            # what the backward pass computes again belongs to it; an optimizer's closure runs the other phases
            phase = phase if outer.phase != BACKWARD and phase is not None else outer.phase
            if kind == OPERATOR:
                node = outer._replace(operator=text, phase=phase)
            elif kind == FRAME:
                node = outer._replace(source_line=text)
            else:
                part = scope_part(text)
                scope = part if outer.scope is None else f"{outer.scope}{SEPARATOR}{part}"
                modules = outer.modules
                if kind == MODULE:
                    modules = part if modules is None else f"{modules}{SEPARATOR}{part}"
                node = outer._replace(scope=scope, modules=modules, phase=phase)
            number = self._add((parent, key, 0), node)
        return number

    def _with_pass(self, process: int, thread: int, nodes: Ints, outer_ns: Ints, times: Ints) -> Ints:
        """Return the nodes with what is known of forward and backward operators.

        `outer_ns` is the start of the outermost operator around each launch.
        """
        links = self._ranges.links(process, thread)
        if len(links.backward_ns):
            at = np.searchsorted(links.backward_ns, times, side="right") - 1
            linked = (at >= 0) & (links.backward_ns[at] >= outer_ns)
            rows = np.flatnonzero(linked)
            forward = self._nodes_of(process, links.forward_thread[at[rows]], links.forward_ns[at[rows]])
            node_count = len(self._nodes)
            pairs, index = np.unique(nodes[rows] * node_count + forward, return_inverse=True)
            nodes[rows] = np.array([self._backward(*divmod(pair, node_count)) for pair in pairs.tolist()], np.int64)[
                index
            ]
        if len(links.forward_of):
            at = np.searchsorted(links.forward_of, times, side="right") - 1
            rows = np.flatnonzero((at >= 0) & (links.forward_of[at] >= outer_ns))
            distinct_nodes, index = np.unique(nodes[rows], return_inverse=True)
            nodes[rows] = np.array([self._forward(node) for node in distinct_nodes.tolist()], np.int64)[index]
        return nodes

    def _backward(self, number: int, forward: int) -> int:
        """Return the node of a launch of the backward pass, given the node of its forward operator."""
        launch_node = self._known.get((number, forward, 1))
        if launch_node is None:
            node = self._nodes[number]
            scope = node.scope if node.modules is not None else self._nodes[forward].modules or node.scope
            line = node.source_line or self._nodes[forward].source_line
            launch_node = self._add((number, forward, 1), node._replace(scope=scope, source_line=line, phase=BACKWARD))
        return launch_node

    def _forward(self, number: int) -> int:
        """Return the node of a launch in an operator that the backward pass refers to."""
        if self._nodes[number].phase not in (None, OPTIMIZER):
            return number
        launch_node = self._known.get((number, 0, 2))
        if launch_node is None:
            launch_node = self._add((number, 0, 2), self._nodes[number]._replace(phase=FORWARD))
        return launch_node

    def _add(self, key: tuple[int, int, int], node: _Node) -> int:
        self._known[key] = len(self._nodes)
        self._nodes.append(node)
        return len(self._nodes) - 1


def _depths(first: Ints, until: Ints) -> Ints:
    """Return how deep each range [first, until) lies in the others; ranges of one depth do not overlap.

    Ranges are in order of their start, longer ones first: those that a range lies in come before it.
    """
    depth: Ints = np.arange(len(first)) - np.searchsorted(np.sort(until), first, side="right")
    order = np.argsort(depth, kind="stable")
    is_same = np.diff(depth[order]) == 0
    if (is_same & (until[order][:-1] > first[order][1:])).any():  # not nested, but overlapping
        ends: list[int] = []  # of the ranges around, by depth
        for number, (begin, end) in enumerate(zip(first.tolist(), until.tolist(), strict=True)):
            while ends and ends[-1] <= begin:
                ends.pop()
            depth[number] = len(ends)
            ends.append(end)
    return depth


def _dictionary(texts: Sequence[str | None], text_index: Ints) -> pa.DictionaryArray:
    """Return the text of each row as a dictionary array of the distinct texts, null where it is None."""
    distinct = {text: number for number, text in enumerate(dict.fromkeys(text for text in texts if text is not None))}
    codes = np.array([-1 if text is None else distinct[text] for text in texts], np.int32)[text_index]
    return pa.DictionaryArray.from_arrays(pa.array(codes, mask=codes < 0), pa.array(list(distinct), pa.string()))
