"""Code position of each launch: the operator, the annotations and modules around it, the Python line, the phase.

A launch lies in the ranges of its own thread that are open when it starts. Ranges that hold no launch are ignored.
A launch of the backward pass has the modules and the Python line of the forward operator that it belongs to.
A trace of 10 GB has tens of millions of ranges, most of them short. Long ones stay in memory; short ones are sorted
rows, read for the stretch of time in which launches are looked up.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from jitter.core.arrow import table_of_rows
from jitter.core.numeric.arrays import Bools, Codes, Ints
from jitter.core.schema import BACKWARD as BACKWARD_ROWS
from jitter.core.schema import HOST, LONG_OPERATION_NS, MIGRATION, SHORTEST_LAUNCH_NS
from jitter.ingestion.names import is_host_barrier
from jitter.ingestion.transform.sorted_rows import KEY, SortedRows, windows
from jitter.readers.columns import Interner

ANNOTATION: Final = 0
OPERATOR: Final = 1
MODULE: Final = 2
FRAME: Final = 3
"""A frame of the Python stack; stored like a module, and told from it by its text."""
BUILT_IN: Final = 4
"""A function that is no Python code; stored like a module. It is no place in the program: its caller is one."""
BUILT_IN_PREFIX: Final = "built-in "
"""How the text of such a function begins."""
NO_THREAD: Final = -1
KINDS: Final = 3
"""Kinds of texts of one number, each with a key of its own: annotation, operator and module."""
LISTED: Final = KINDS << 32
"""The first key of texts that are no names of the recording."""
KEYS: Final = 2 * LISTED
"""All keys are below."""
OPEN: Final = np.iinfo(np.int64).max
"""End of a range whose end was not recorded."""
_SHORT: Final = pa.schema([("end_ns", pa.int64()), ("text", pa.int64())])
_Place = tuple[int, int]
"""A process and a thread of it; `NO_THREAD`: unknown."""


class ThreadRanges(NamedTuple):
    """Ranges of one thread in order of their start, longer ones first, the innermost of equal ones last."""

    start_ns: Ints
    end_ns: Ints
    key: Ints
    """Text and kind of the range: see `CodeRanges.text`."""


class ThreadLinks(NamedTuple):
    """Links between the passes of operators of one thread."""

    backward_ns: Ints
    """Times within backward operators of this thread, in order."""
    forward_thread: Ints
    forward_ns: Ints
    """For each of `backward_ns` the thread and a time of the forward operator."""
    forward_of: Ints
    """Times within forward operators of this thread to which backward operators belong, in order."""


class CodeRanges:
    """Collects ranges while a recording is read, then gives those of each thread around some time."""

    def __init__(self, scratch: Path) -> None:
        """Start empty; `scratch` is a folder for temporary files."""
        self._texts: Interner[str] = Interner()
        """Texts that are no names of the recording."""
        self._short = SortedRows(scratch, _SHORT)
        """Short ranges by the number of their thread and their start."""
        self._long: dict[_Place, list[Ints]] = defaultdict(list)
        self._numbers: dict[_Place, int] = {}
        """The number of each thread that has ranges."""
        self.backward: list[pa.RecordBatch] = []
        """Rows of `schema.BACKWARD`."""
        self._links: dict[_Place, ThreadLinks] = {}

    def add_ranges(self, process: Ints, thread: Ints, text: Codes, texts: Sequence[str], times_ns: Ints) -> None:
        """Add annotations, and operators that texts name.

        `process`, `thread` (−1: unknown) and `text` (position in `texts`) have shape (ranges,), `times_ns` (2, ranges).
        """
        keys = np.array([self._key(range_text) for range_text in texts], np.int64)
        self._add(process, thread, np.stack([*times_ns, keys[text]]))

    def _key(self, text: str) -> int:
        operator = parse_operator(text)
        number = self._texts.position(text if operator is None else operator)
        return LISTED + number * KINDS + (ANNOTATION if operator is None else OPERATOR)

    def add_operators(self, rows: pa.RecordBatch) -> None:
        """Add rows of `schema.OPERATORS`."""
        kind = np.where(rows["is_module"].to_numpy(zero_copy_only=False), MODULE, OPERATOR)
        key = rows["name"].to_numpy().astype(np.int64) * KINDS + kind
        thread = rows["thread"].fill_null(NO_THREAD).to_numpy()
        self._add(rows["process"].to_numpy(), thread, np.stack([rows["start_ns"], rows["end_ns"], key]))

    def _add(self, process: Ints, thread: Ints, rows: Ints) -> None:
        """Add `rows` (start, end and key, ranges) of each `process` and `thread` (ranges,)."""
        order = np.lexsort((thread, process))
        process, thread, rows = process[order], thread[order], rows[:, order]
        is_long = (rows[1] - rows[0] >= LONG_OPERATION_NS) | (rows[1] == OPEN)
        number = np.empty(len(order), np.int32)
        edges = np.flatnonzero((np.diff(process) != 0) | (np.diff(thread) != 0)) + 1
        for low, high in pairwise([0, *edges.tolist(), len(order)] if len(order) else ()):
            place = int(process[low]), int(thread[low])
            number[low:high] = self._numbers.setdefault(place, len(self._numbers))
            if (long := is_long[low:high]).any():
                self._long[place].append(rows[:, low:high][:, long])
        if not is_long.all():
            start_ns, end_ns, key = rows[:, ~is_long]
            self._short.add(pa.table([end_ns, key], schema=_SHORT), start_ns, number[~is_long])

    def _short_of(self, place: _Place, low_ns: int | None = None, high_ns: int | None = None) -> Ints:
        """Return the short ranges (start, end and key, ranges) of a thread with `low_ns` <= start < `high_ns`."""
        self._short.finish()
        rows = self._short.rows(low_ns, high_ns, self._numbers.get(place, -1))
        return np.stack([rows[name].to_numpy() for name in (KEY, *_SHORT.names)])

    def text(self, key: int, names: Sequence[str]) -> tuple[str, int]:
        """Return the text and the kind of a key; `names` are the recording's."""
        number, kind = divmod(key % LISTED, KINDS)
        text = (names if key < LISTED else self._texts.keys)[number]
        if kind == MODULE and text.startswith(BUILT_IN_PREFIX):
            kind = BUILT_IN
        return text, FRAME if kind == MODULE and is_frame(text) else kind

    def has(self, process: int) -> bool:
        """Return whether the process has ranges."""
        return any(range_process == process for range_process, _ in self._numbers)

    def around(self, process: int, thread: int, first_ns: int, last_ns: int) -> ThreadRanges:
        """Return the ranges of a thread that may hold a time from `first_ns` to `last_ns`."""
        long = self._long_of((process, thread))
        short = self._short_of((process, thread), first_ns - LONG_OPERATION_NS + 1, last_ns + 1)
        return self._in_order(short, long[:, (long[0] <= last_ns) & (long[1] >= first_ns)])

    def operations(self, process: int, thread: int, names: Sequence[str]) -> ThreadRanges:
        """Return the long ranges of a thread, and all migrations and barriers; `names` are the recording's."""
        place = process, thread
        parts = [self._long_of(place)]
        migrations = [at * KINDS + OPERATOR for at, name in enumerate(names) if name == MIGRATION]
        wanted = np.append(self.barriers(names), np.array(migrations, np.int64))
        if len(wanted):
            self._short.finish()
            for low_ns, high_ns in windows((self._short,), _SHORT_AT_ONCE):
                short = self._short_of(place, low_ns, high_ns)
                parts.append(short[:, np.isin(short[2], wanted)])
        return self._in_order(*parts)

    def barriers(self, names: Sequence[str]) -> Ints:
        """Return the keys of ranges in which a host waits for others; `names` are the recording's."""
        of_names = [at * KINDS + OPERATOR for at, name in enumerate(names) if is_host_barrier(name)]
        of_texts = [self._key(text) for text in self._texts.keys if is_host_barrier(text)]
        return np.array(of_names + of_texts, np.int64)

    def _long_of(self, place: _Place) -> Ints:
        parts = self._long.get(place, [np.empty((3, 0), np.int64)])
        if len(parts) > 1:
            self._long[place] = parts = [np.concatenate(parts, axis=1)]
        return parts[0]

    def _in_order(self, *parts: Ints) -> ThreadRanges:
        rows = np.concatenate(parts, axis=1)
        return ThreadRanges(*rows[:, np.lexsort((-rows[1], rows[0]))])

    def links(self, process: int, thread: int) -> ThreadLinks:
        """Return the links of a thread."""
        place = process, thread
        if place not in self._links:
            rows = pa.Table.from_batches(self.backward, BACKWARD_ROWS)
            backward_thread, at_ns, of_process, forward_ns, forward = (
                rows[name].to_numpy() for name in ("thread", "at_ns", "process", "forward_ns", "forward_thread")
            )
            mine = np.flatnonzero((of_process == process) & (backward_thread == thread))
            mine = mine[np.argsort(at_ns[mine], kind="stable")]
            sources = np.sort(forward_ns[(of_process == process) & (forward == thread)])
            self._links[place] = ThreadLinks(at_ns[mine], forward[mine], forward_ns[mine], sources)
        return self._links[place]


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
    r"(?i)(?<![a-z])(?:(?P<forward>forward|fwd|fprop|(?<=strategy\.)training_step)|(?P<backward>backward|bwd|bprop|wgrad|dgrad)"
    r"|(?P<optimizer>optimi[sz]er|optim(?=[\W_]*step)|zero_grad|(?<=engine\.)step$))"
)
_METHOD: Final = re.compile(r"\w+\.(?P<method>\w+)")
_PATH: Final = re.compile(r"\w+(?:\.\w+)+")
"""A function by the names of what holds it, as Megatron and TransformerEngine name ranges."""
_OF_GRADIENTS: Final = re.compile(r"(?:reduce|scatter|partition)\w*grad|grad\w*(?:partition|bucket)")
"""Methods of DeepSpeed's optimizers that hooks of the backward pass call."""
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
    method = _METHOD.fullmatch(text)
    if method is not None and _OF_GRADIENTS.search(method["method"]):
        return BACKWARD
    words = _CAMEL.sub("_", text)
    matches = list(_WORD.finditer(words))
    if matches and _PATH.fullmatch(text):
        # a method says more than its class: `DeepSpeedZeroOptimizer.backward`
        part = words.rfind(".", 0, matches[-1].start())
        matches = [match for match in matches if match.start() > part]
    phases = {match.lastgroup for match in matches}
    return phases.pop() if len(phases) == 1 else None


SCOPE_COLUMNS: Final = ("operator", "scope", "source_line", "phase")
_ROOT: Final = 0
_SHORT_AT_ONCE: Final = 1 << 20
"""Short ranges that are read at a time."""
_MOST_OPERATIONS: Final = 20_000
"""Operations kept of one thread, the longest; far more than the gaps that a report explains."""
_OPERATIONS: Final = pa.schema(
    [(name, HOST.field(name).type) for name in ("kind", "name", "thread", "start_ns", "end_ns")]
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
        self._operations: dict[tuple[int, int], tuple[ThreadRanges, Bools]] = {}
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

        And barriers of hosts of any length. Columns: `kind`, `name`, `thread`, `start_ns`, `end_ns`.
        """
        operation_rows: list[tuple[str, str, int, int, int]] = []
        for launching_process, thread in sorted(self._launching):
            if launching_process != process or thread == NO_THREAD:
                continue
            ranges, holds_launch = self._operations[launching_process, thread]
            rows = np.flatnonzero(~holds_launch & (ranges.end_ns != OPEN))
            is_barrier = np.isin(ranges.key[rows], self._ranges.barriers(self._names))
            operation_rows += self._barriers(ranges, thread, rows[is_barrier])
            rows, took = rows[~is_barrier], ranges.end_ns - ranges.start_ns
            rows = rows[np.argsort(-took[rows], kind="stable")[:_MOST_OPERATIONS]]
            for row in rows.tolist():
                text, kind = self._ranges.text(int(ranges.key[row]), self._names)
                if kind == FRAME and is_native_frame(text):
                    continue  # it names the caller of an operation, and that operation has a range of its own
                operation_rows.append(("operation", text, thread, int(ranges.start_ns[row]), int(ranges.end_ns[row])))
        return table_of_rows(operation_rows, _OPERATIONS)

    def _barriers(self, ranges: ThreadRanges, thread: int, rows: Ints) -> Iterator[tuple[str, str, int, int, int]]:
        """Yield the barriers among the ranges of a thread; what overlaps, as an operator and its backend's, is one."""
        until_ns = np.maximum.accumulate(ranges.end_ns[rows])
        ends = np.append(np.flatnonzero(ranges.start_ns[rows[1:]] >= until_ns[:-1]), len(rows) - 1)
        for first, last in pairwise([-1, *ends.tolist()] if len(rows) else ()):
            text, _ = self._ranges.text(int(ranges.key[rows[first + 1]]), self._names)
            yield "barrier", text, thread, int(ranges.start_ns[rows[first + 1]]), int(until_ns[last])

    def _nodes_of(self, process: int, thread: Ints, start_ns: Ints) -> Ints:
        """Return the node of each launch, shape (launches,)."""
        nodes = np.zeros(len(start_ns), np.int64)
        for thread_number in np.unique(thread).tolist():
            mine = np.flatnonzero(thread == thread_number)
            times = start_ns[mine]
            self._note_launches(process, thread_number, times)
            ranges = self._ranges.around(process, thread_number, int(times.min()), int(times.max()))
            nodes[mine] = self._nodes_on_thread(process, thread_number, ranges, times)
        return nodes

    def _note_launches(self, process: int, thread: int, times: Ints) -> None:
        """Mark the operations of a thread that hold one of these times."""
        if (process, thread) not in self._operations:
            ranges = self._ranges.operations(process, thread, self._names)
            self._operations[process, thread] = ranges, np.zeros(len(ranges.key), np.bool_)
        ranges, holds_launch = self._operations[process, thread]
        near = np.flatnonzero((ranges.start_ns <= times.max()) & (ranges.end_ns >= times.min()))
        launches = np.sort(times)
        first = np.searchsorted(launches, ranges.start_ns[near], side="left")
        until_ns = ranges.end_ns[near] - SHORTEST_LAUNCH_NS
        holds_launch[near] |= np.searchsorted(launches, until_ns, side="left") > first

    def _nodes_on_thread(self, process: int, thread: int, ranges: ThreadRanges, start_ns: Ints) -> Ints:
        order = np.argsort(start_ns, kind="stable")
        times = start_ns[order]
        first = np.searchsorted(times, ranges.start_ns, side="left")
        until = np.searchsorted(times, ranges.end_ns, side="left")  # one that ended then launched nothing
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
            pairs = nodes[rows] * KEYS + np.repeat(keys[level], lengths)
            nodes[rows] = _map_distinct(pairs, lambda pair: self._inside(*divmod(pair, KEYS)))
            is_operator = keys[level] % KINDS == OPERATOR
            begun = np.where(is_operator, ranges.start_ns[kept][level], np.iinfo(np.int64).max)
            outer_ns[rows] = np.minimum(outer_ns[rows], np.repeat(begun, lengths))
        nodes = self._with_pass(process, thread, nodes, outer_ns, times)
        placed = np.empty_like(nodes)
        placed[order] = nodes
        return placed

    def _inside(self, parent: int, key: int) -> int:
        """Return the node of launches in a range of this key within another node."""
        outer = self._nodes[parent]

        def make() -> _Node:
            text, kind = self._ranges.text(key, self._names)
            if kind == BUILT_IN:
                return outer
            phase = FORWARD if kind == MODULE else None if kind == FRAME else parse_phase(text)
            # what the backward pass computes again belongs to it; an optimizer's closure runs the other phases
            phase = phase if outer.phase != BACKWARD and phase is not None else outer.phase
            if kind == OPERATOR:
                return outer._replace(operator=text, phase=phase)
            if kind == FRAME:
                return outer._replace(source_line=text)
            part = scope_part(text)
            scope, modules = (
                f"{outside}{SEPARATOR}{part}" if outside else part for outside in (outer.scope, outer.modules)
            )
            return outer._replace(scope=scope, modules=modules if kind == MODULE else outer.modules, phase=phase)

        return self._number((parent, key, 0), make)

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
            count = len(self._nodes)
            nodes[rows] = _map_distinct(
                nodes[rows] * count + forward, lambda pair: self._backward(*divmod(pair, count))
            )
        if len(links.forward_of):
            at = np.searchsorted(links.forward_of, times, side="right") - 1
            rows = np.flatnonzero((at >= 0) & (links.forward_of[at] >= outer_ns))
            nodes[rows] = _map_distinct(nodes[rows], self._forward)
        return nodes

    def _backward(self, number: int, forward: int) -> int:
        """Return the node of a launch of the backward pass, given the node of its forward operator."""
        node, of_forward = self._nodes[number], self._nodes[forward]
        scope = node.scope if node.modules is not None else of_forward.modules or node.scope
        line = node.source_line or of_forward.source_line
        return self._number((number, forward, 1), lambda: node._replace(scope=scope, source_line=line, phase=BACKWARD))

    def _forward(self, number: int) -> int:
        """Return the node of a launch in an operator that the backward pass refers to."""
        node = self._nodes[number]
        if node.phase not in (None, OPTIMIZER):
            return number
        return self._number((number, 0, 2), lambda: node._replace(phase=FORWARD))

    def _number(self, key: tuple[int, int, int], make: Callable[[], _Node]) -> int:
        """Return the number of the node with this key; `make` creates a new one."""
        if key not in self._known:
            self._known[key] = len(self._nodes)
            self._nodes.append(make())
        return self._known[key]


def _map_distinct(values: Ints, function: Callable[[int], int]) -> Ints:
    """Return `function` of each value; it is called once per distinct value."""
    distinct, index = np.unique(values, return_inverse=True)
    return np.array([function(value) for value in distinct.tolist()], np.int64)[index]


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
    return pa.array(texts, pa.string()).dictionary_encode().take(pa.array(text_index))
