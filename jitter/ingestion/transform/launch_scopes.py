"""Code position of each launch: the operator, the annotations and modules around it, the Python line, the phase.

A launch lies in the ranges of its own thread that are open when it starts. Ranges that hold no launch are ignored.
A launch of the backward pass has the modules and the Python line of the forward operator that it belongs to.
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import ClassVar, Final, NamedTuple

import numpy as np
import pyarrow as pa

from jitter.core.arrow import table_of_rows
from jitter.core.numeric.arrays import Bools, Codes, Ints
from jitter.core.schema import MIGRATION
from jitter.ingestion.transform.launch_join import LONG_OPERATION_NS

FORWARD: Final = "forward"
BACKWARD: Final = "backward"
OPTIMIZER: Final = "optimizer"
COMMUNICATION: Final = "communication"

SEPARATOR: Final = "/"
"""Between the parts of a scope."""
_LONGEST: Final = 256
"""Characters of one part of a scope; longer texts are cut."""
DETAILS: Final = r"(?s), (?:seq|op_id|sizes|input_op_ids) = .*"
"""Details that torch.autograd.profiler.emit_nvtx adds to names: "aten::add, seq = 5, op_id = 12, sizes = [...]"."""
_DETAILS: Final = re.compile(DETAILS)
_OPERATOR: Final = re.compile(
    r"[\w.$]+(?:::[\w.$]+)+(?:: ?\w+)?|\w+Backward\d*|autograd::engine::evaluate_function: ?\S+|record_param_comms"
    r"|p?(?:nccl|rccl)[A-Z]\w*|nvshmemx?_\w+|MPI_\w+"
)
_BACKWARD: Final = re.compile(r"^autograd::engine::evaluate_function|Backward\d*$")
_WORD: Final = re.compile(
    r"(?i)(?<![a-z])(?:(?P<forward>forward|fwd|fprop)|(?P<backward>backward|bwd|bprop|wgrad|dgrad)"
    r"|(?P<optimizer>optimi[sz]er|optim(?=[\W_]*step)|zero_grad))"
)
_CAMEL: Final = re.compile(r"(?<=[a-z])(?=[A-Z])")
_MODULE: Final = "nn.Module: "
_FRAME: Final = re.compile(r".+\.py\(\d+\): ")
_NATIVE_FRAME: Final = re.compile(r"[^\s!/]+!\S")


@lru_cache(maxsize=65536)
def parse_operator(text: str) -> str | None:
    """Return the operator that a range's text names, without sequence number and sizes; None for an annotation.

    >>> parse_operator("aten::add, seq = 5, sizes = [[2]]"), parse_operator("layer 3")
    ('aten::add', None)
    """
    name = _DETAILS.sub("", text)
    return name if _OPERATOR.fullmatch(name) else None


def is_frame(text: str) -> bool:
    """Return whether a text is a frame of a stack: file, line and function of Python, or `module!function`.

    >>> is_frame("model/layers.py(120): forward"), is_frame("train!step(int)"), is_frame("nn.Module: Linear_1")
    (True, True, False)
    """
    return _FRAME.match(text) is not None or is_native_frame(text)


def is_native_frame(text: str) -> bool:
    """Return whether a text is a function of a program and its module: `module!function`."""
    return _NATIVE_FRAME.match(text) is not None


def scope_part(text: str) -> str:
    """Return the text of an annotation or a module as one part of a scope."""
    part = text.removeprefix(_MODULE).strip().strip("#").strip() or text
    return part if len(part) <= _LONGEST else f"{part[: _LONGEST - 1]}…"


@lru_cache(maxsize=65536)
def parse_phase(text: str) -> str | None:
    """Return the phase of the step that the text of an operator or an annotation states; None if it states none or two.

    >>> parse_phase("## backward ##"), parse_phase("Optimizer.step#Adam.step"), parse_phase("forward_backward")
    ('backward', 'optimizer', None)
    """
    if _BACKWARD.search(text):
        return BACKWARD
    found = {match.lastgroup for match in _WORD.finditer(_CAMEL.sub("_", text))}
    return found.pop() if len(found) == 1 else None


ANNOTATION: Final = 0
OPERATOR: Final = 1
MODULE: Final = 2
FRAME: Final = 3
"""A frame of the Python stack; stored like a module, and told from it by its text."""
NO_THREAD: Final = -1


class ThreadRanges(NamedTuple):
    """The ranges of one thread in order of their start, longer ones first; and its links between the passes."""

    start_ns: Ints
    end_ns: Ints
    key: Ints
    """Text and kind of the range: see `CodeRanges.text`."""
    has_launch: Bools
    """Whether a launch is known to lie in the range; False at first."""
    backward_ns: Ints
    """Times within backward operators of this thread, in order."""
    forward_thread: Ints
    forward_ns: Ints
    """For each of `backward_ns` the thread and a time of the forward operator."""
    forward_of: Ints
    """Times within forward operators of this thread to which backward operators belong, in order."""


class CodeRanges:
    """Collects ranges while a recording is read, then gives those of each thread."""

    KINDS: ClassVar[int] = 3

    def __init__(self) -> None:
        self._texts: dict[str, int] = {}
        self._listed: list[str] = []
        self._parts: list[tuple[Ints, ...]] = []
        self._links: list[pa.RecordBatch] = []
        self._by_thread: dict[tuple[int, int], ThreadRanges] | None = None
        self._names = 0

    def add_ranges(self, process: Ints, thread: Ints, text: Codes, texts: Sequence[str], times_ns: Ints) -> None:
        """Add annotations, and operators that texts name.

        `process`, `thread` (−1: unknown) and `text` (position in `texts`) have shape (ranges,), `times_ns` (2, ranges).
        """
        # negative until all names are known: the keys of these texts come after those of names
        keys = np.array([-1 - self._key(one) for one in texts], np.int64)
        self._parts.append((process, thread, keys[text], times_ns[0], times_ns[1]))

    def _key(self, text: str) -> int:
        operator = parse_operator(text)
        shown = text if operator is None else operator
        number = self._texts.get(shown)
        if number is None:
            number = self._texts[shown] = len(self._listed)
            self._listed.append(shown)
        return number * self.KINDS + (ANNOTATION if operator is None else OPERATOR)

    def add_operators(self, rows: pa.RecordBatch) -> None:
        """Add rows of `schema.OPERATORS`."""
        kind = np.where(rows["is_module"].to_numpy(zero_copy_only=False), MODULE, OPERATOR)
        name = rows["name"].to_numpy().astype(np.int64)
        key = name * self.KINDS + kind
        self._names = max(self._names, (int(name.max(initial=-1)) + 1) * self.KINDS)
        thread = rows["thread"].fill_null(NO_THREAD).to_numpy()
        process = rows["process"].to_numpy().astype(np.int32)
        self._parts.append((process, thread, key, rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy()))

    def add_backward(self, rows: pa.RecordBatch) -> None:
        """Add rows of `schema.BACKWARD`."""
        self._links.append(rows)

    @property
    def keys(self) -> int:
        """The number of keys: they are 0 to `keys` − 1."""
        return self._names + len(self._listed) * self.KINDS

    def text(self, key: int, names: Sequence[str]) -> tuple[str, int]:
        """Return the text and the kind of a key; `names` are the recording's."""
        listed = names if key < self._names else self._listed
        number, kind = divmod(key if key < self._names else key - self._names, self.KINDS)
        return listed[number], FRAME if kind == MODULE and is_frame(listed[number]) else kind

    def has(self, process: int) -> bool:
        """Return whether the process has ranges."""
        return any(own == process for own, _ in self._threads())

    def threads(self, process: int) -> list[tuple[int, ThreadRanges]]:
        """Return the threads of a process that have ranges, with these."""
        return [(thread, ranges) for (own, thread), ranges in self._threads().items() if own == process]

    def of_thread(self, process: int, thread: int) -> ThreadRanges | None:
        """Return the ranges of a thread (−1: unknown); None if it has none."""
        return self._threads().get((process, thread))

    def _threads(self) -> dict[tuple[int, int], ThreadRanges]:
        if self._by_thread is None:
            self._by_thread = self._divide()
        return self._by_thread

    def _divide(self) -> dict[tuple[int, int], ThreadRanges]:
        if not sum(len(part[0]) for part in self._parts):
            return {}
        process, thread, key, start_ns, end_ns = (np.concatenate(part) for part in zip(*self._parts, strict=True))
        self._parts = []
        key = np.where(key < 0, self._names - 1 - key, key)
        # the innermost of equal ranges is the one that is added last
        order = np.lexsort((-end_ns, start_ns, thread, process))
        process, thread = process[order], thread[order]
        edges = np.flatnonzero((np.diff(process) != 0) | (np.diff(thread) != 0)) + 1
        links = pa.Table.from_batches(self._links) if self._links else None
        found = {}
        bounds = [0, *edges.tolist(), len(order)]
        for low, high in pairwise(bounds):
            rows = order[low:high]
            place = int(process[low]), int(thread[low])
            none = np.zeros(len(rows), np.bool_)
            found[place] = ThreadRanges(start_ns[rows], end_ns[rows], key[rows], none, *_links_of(links, *place))
        return found


def _links_of(links: pa.Table | None, process: int, thread: int) -> tuple[Ints, Ints, Ints, Ints]:
    """Return the last four fields of `ThreadRanges`."""
    if links is None:
        none = np.array([], np.int64)
        return none, none, none, none
    own, at_ns, of_thread, forward_ns, forward = (
        links[name].to_numpy() for name in ("thread", "at_ns", "process", "forward_ns", "forward_thread")
    )
    mine = np.flatnonzero((of_thread == process) & (own == thread))
    mine = mine[np.argsort(at_ns[mine], kind="stable")]
    sources = forward_ns[(of_thread == process) & (forward == thread)]
    return at_ns[mine], forward[mine], forward_ns[mine], np.sort(sources)


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

    def annotate(self, process: int, activities: pa.Table) -> pa.Table:
        """Return the activities of one process with the columns `SCOPE_COLUMNS` (dictionaries)."""
        is_collective = activities["is_collective"].to_numpy(zero_copy_only=False)
        if not self._ranges.has(process) and not is_collective.any():
            return activities
        launches = activities["launch_start_ns"]
        known = launches.is_valid().to_numpy()
        nodes = np.zeros(len(activities), np.int64)
        threads = activities["launch_thread"].fill_null(NO_THREAD).to_numpy()[known]
        self._launching.update((process, thread) for thread in np.unique(threads).tolist())
        nodes[known] = self._nodes_of(process, threads, launches.fill_null(0).to_numpy()[known])
        used, which = np.unique(nodes, return_inverse=True)
        found = [self._nodes[number] for number in used.tolist()]
        for name in ("operator", "scope", "source_line"):
            texts = [getattr(node, name) for node in found]
            activities = activities.append_column(name, _dictionary(texts, which))
        # one entry more for communication, whatever is around its launch
        phases = [*(node.phase for node in found), COMMUNICATION]
        of_row = np.where(is_collective, len(found), which)
        return activities.append_column("phase", _dictionary(phases, of_row))

    def operations(self, process: int) -> pa.Table:
        """Return long host operations that launch nothing, on threads that launch, after all calls of `annotate`.

        Columns: `name`, `thread`, `start_ns`, `end_ns`.
        """
        found: list[tuple[str, int, int, int]] = []
        for thread, ranges in self._ranges.threads(process):
            if (process, thread) in self._launching and thread != NO_THREAD:
                took = ranges.end_ns - ranges.start_ns
                is_open = ranges.end_ns == np.iinfo(np.int64).max
                is_kept = (took >= LONG_OPERATION_NS) | self._is_migration(ranges.key)
                rows = np.flatnonzero(~ranges.has_launch & ~is_open & is_kept)
                rows = rows[np.argsort(-took[rows], kind="stable")[:_MOST_OPERATIONS]]
                for row in rows.tolist():
                    text, kind = self._ranges.text(int(ranges.key[row]), self._names)
                    if kind == FRAME and is_native_frame(text):
                        continue  # it names the caller of an operation, and that operation has a range of its own
                    found.append((text, thread, int(ranges.start_ns[row]), int(ranges.end_ns[row])))
        return table_of_rows(found, _OPERATIONS)

    def _is_migration(self, keys: Ints) -> Bools:
        """Return which ranges are moves of the thread to another core, shape (ranges,)."""
        distinct, which = np.unique(keys, return_inverse=True)
        moves = [self._ranges.text(key, self._names)[0] == MIGRATION for key in distinct.tolist()]
        return np.array(moves, np.bool_)[which]

    def _nodes_of(self, process: int, thread: Ints, start_ns: Ints) -> Ints:
        """Return the node of each launch, shape (launches,)."""
        nodes = np.zeros(len(start_ns), np.int64)
        for one in np.unique(thread).tolist():
            ranges = self._ranges.of_thread(process, one)
            if ranges is not None:
                mine = np.flatnonzero(thread == one)
                nodes[mine] = self._nodes_on_thread(process, ranges, start_ns[mine])
        return nodes

    def _nodes_on_thread(self, process: int, ranges: ThreadRanges, start_ns: Ints) -> Ints:
        order = np.argsort(start_ns, kind="stable")
        times = start_ns[order]
        first = np.searchsorted(times, ranges.start_ns, side="left")
        until = np.searchsorted(times, ranges.end_ns, side="right")
        kept = np.flatnonzero(until > first)
        ranges.has_launch[kept] = True
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
        nodes = self._with_pass(process, ranges, nodes, outer_ns, times)
        placed = np.empty_like(nodes)
        placed[order] = nodes
        return placed

    def _children(self, parents: Ints, keys: Ints) -> Ints:
        """Return the node inside each parent for a range of this key, shape (launches,)."""
        pairs, which = np.unique(parents * self._ranges.keys + keys, return_inverse=True)
        found = [self._child(*divmod(pair, self._ranges.keys)) for pair in pairs.tolist()]
        return np.array(found, np.int64)[which]

    def _child(self, parent: int, key: int) -> int:
        number = self._known.get((parent, key, 0))
        if number is None:
            text, kind = self._ranges.text(key, self._names)
            outer = self._nodes[parent]
            phase = FORWARD if kind == MODULE else None if kind == FRAME else parse_phase(text)
            # what runs inside the backward pass or the optimizer belongs to it
            phase = phase if outer.phase in (None, FORWARD) and phase is not None else outer.phase
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

    def _with_pass(self, process: int, ranges: ThreadRanges, nodes: Ints, outer_ns: Ints, times: Ints) -> Ints:
        """Return the nodes with what is known of forward and backward operators.

        `outer_ns` is the start of the outermost operator around each launch.
        """
        if len(ranges.backward_ns):
            at = np.searchsorted(ranges.backward_ns, times, side="right") - 1
            linked = (at >= 0) & (ranges.backward_ns[at] >= outer_ns)
            rows = np.flatnonzero(linked)
            forward = self._nodes_of(process, ranges.forward_thread[at[rows]], ranges.forward_ns[at[rows]])
            known = len(self._nodes)
            pairs, which = np.unique(nodes[rows] * known + forward, return_inverse=True)
            nodes[rows] = np.array([self._backward(*divmod(pair, known)) for pair in pairs.tolist()], np.int64)[which]
        if len(ranges.forward_of):
            at = np.searchsorted(ranges.forward_of, times, side="right") - 1
            rows = np.flatnonzero((at >= 0) & (ranges.forward_of[at] >= outer_ns))
            own, which = np.unique(nodes[rows], return_inverse=True)
            nodes[rows] = np.array([self._forward(node) for node in own.tolist()], np.int64)[which]
        return nodes

    def _backward(self, number: int, forward: int) -> int:
        """Return the node of a launch of the backward pass, given the node of its forward operator."""
        known = self._known.get((number, forward, 1))
        if known is None:
            own = self._nodes[number]
            scope = own.scope if own.modules is not None else self._nodes[forward].modules or own.scope
            line = own.source_line or self._nodes[forward].source_line
            known = self._add((number, forward, 1), own._replace(scope=scope, source_line=line, phase=BACKWARD))
        return known

    def _forward(self, number: int) -> int:
        """Return the node of a launch in an operator that the backward pass refers to."""
        if self._nodes[number].phase is not None:
            return number
        known = self._known.get((number, 0, 2))
        if known is None:
            known = self._add((number, 0, 2), self._nodes[number]._replace(phase=FORWARD))
        return known

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


def _dictionary(texts: Sequence[str | None], which: Ints) -> pa.DictionaryArray:
    """Return the text of each row as a dictionary array of the distinct texts, null where it is None."""
    distinct = {text: number for number, text in enumerate(dict.fromkeys(text for text in texts if text is not None))}
    codes = np.array([-1 if text is None else distinct[text] for text in texts], np.int32)[which]
    return pa.DictionaryArray.from_arrays(pa.array(codes, mask=codes < 0), pa.array(list(distinct), pa.string()))
