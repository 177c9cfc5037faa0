"""Program of a cohort: one list of operations for all its ranks and steps, found from their activities.

Ranks and steps with equal sequences need nothing more. Other sequences are aligned to the list one after another: what
has no partner by name takes the place of one of the same kind that stands alone too (an autotuned kernel has another
name and the same work), else it gets a place of its own, which the others leave empty. Where ranks do the same by
different kernels, each way has places of its own (`alternatives`).

Launches tell the order of all operations, but not that of the streams of one launch, a graph's: there the starts do,
for what waits for another operation starts after it. Without launches only the order within each stream is known: which
of two streams starts first varies between ranks and steps. Then each stream is a list of its own, and the lists are
joined in the order of the usual starts.

The kernel index (`kernel_index`) numbers the kernels of one step's reference, and gives a kernel of another name none.

Ranks of a cohort that share one program are a team. Pipeline stages of one cohort interleave alike kernels with their
exchanges in different orders: what waits for what differs between them. Ranks are of one team if they have as many
collectives, do nearly as much work before each, and, where they exchange with neighbours, the same work: a stage that
runs a forward pass where another one runs a backward pass is of another team. Ranks of the same collectives that
exchange with none may differ in how much work they do.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, chain, zip_longest
from statistics import median_low
from typing import Final, NamedTuple

import numpy as np

from jitter.analysis.alignment.alternatives import find_alternatives, separate_alternatives
from jitter.analysis.alignment.kernel_index import find_commonest
from jitter.analysis.alignment.sequences import align, align_nearest, find_gaps, lcs_length
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.grouping import by_key
from jitter.core.names.kernels import (
    COLLECTIVE,
    COMPUTE,
    MEMORY,
    SEND_RECV,
    SYNC,
    collective_operation,
    copy_direction,
    uncounted_name,
)
from jitter.core.numeric.arrays import Bools, Floats, Ints, KindCodes

Signature = tuple[str, bytes]
"""Digest of the kernels' sequence, digest of where copies and synchronising calls stand."""
MAIN = 0
"""The number of the main stream."""
NO_STREAM = -1
_BETWEEN_HOST_AND_GPU: Final = ("host_to_device", "device_to_host")


class Operation(NamedTuple):
    """A place in the program. `stream` numbers the rank's streams (0: the main one), `thread` its launching threads."""

    name: str
    kind: int
    stream: int
    thread: int
    recorded: str | None = None
    """The collective operation that the trace records; None where only the name may state it."""

    @property
    def collective(self) -> str | None:
        """The collective operation, as recorded or else as the name states it."""
        return self.recorded or collective_operation(self.name)

    @property
    def is_exchange(self) -> bool:
        """Whether it is a send or a receive."""
        return self.collective == SEND_RECV

    @property
    def is_host_copy(self) -> bool:
        """Whether it is a copy between host and GPU: no clock of the GPU slows it."""
        return self.kind == MEMORY and copy_direction(self.name) in _BETWEEN_HOST_AND_GPU

    @property
    def on_main(self) -> bool:
        """Whether it is a compute kernel of the main stream."""
        return self.kind == COMPUTE and self.stream == MAIN

    @property
    def is_kernel(self) -> bool:
        """Whether the kernel index counts it."""
        return self.kind in (COMPUTE, COLLECTIVE)


class Example(NamedTuple):
    """Activities of one rank in one step, operation by operation."""

    kind: Sequence[int]
    names: Sequence[str]
    streams: Sequence[int]
    threads: Sequence[int]
    """The launching threads, by any distinct numbers."""
    collectives: Sequence[str | None] = ()
    """The recorded collective operations; empty where none is recorded."""
    starts_ns: Sequence[float] | None = None
    """The starts on the GPU, where no launches are recorded: operations are in the order of these. Else None."""
    graphs: Sequence[tuple[Sequence[int], Sequence[float]]] = ()
    """The operations of each launch that runs on several streams, and their starts on the GPU, ns."""

    @property
    def is_ordered(self) -> bool:
        """Whether launches tell the order of all operations."""
        return self.starts_ns is None and not self.graphs

    def by_start(self) -> "Example":
        """Return the example with the operations of each graph in the order of their starts, as without launches."""
        if not self.graphs:
            return self
        order = list(range(len(self.names)))
        for rows, starts_ns in self.graphs:
            for row, at in zip(rows, np.argsort(starts_ns, kind="stable").tolist(), strict=True):
                order[row] = rows[at]
        return self._replace(
            kind=[self.kind[row] for row in order],
            names=[self.names[row] for row in order],
            streams=[self.streams[row] for row in order],
            threads=[self.threads[row] for row in order],
            collectives=[self.collectives[row] for row in order] if self.collectives else (),
        )


@dataclass(frozen=True)
class Program:
    """A cohort's operations in launch order, and where in them those of each kind of cell stand."""

    operations: tuple[Operation, ...]
    places: dict[Signature, Ints]
    """By signature the place in `operations` of each of its operations; -1 where it has none."""
    reference: Signature
    """The commonest; its operations are all in the program under their own names."""
    progress: tuple[float, ...] = ()
    """Without launches how far the main stream usually is when each operation starts, in its kernels."""
    recorded_order: tuple[int, ...] = ()
    """The places in the order of the rows of recordings, in which streams of one launch come one after the other."""
    alternatives: tuple[tuple[tuple[int, ...], ...], ...] = ()
    """Stretches at which ranks do the same by different kernels, none of them most ranks: the places of each way."""

    def fit(self, signature: Signature, example: Example) -> None:
        """Add the places of a signature that the program was not made from; operations without a place get -1.

        Where ranks do the same by different kernels, it goes the way of one that the same kernels make up.
        """
        words: dict[_Word, int] = {}
        alike = next((places for known, places in self.places.items() if known[0] == signature[0]), None)
        every_way = chain.from_iterable(chain.from_iterable(self.alternatives))
        elsewhere = frozenset() if alike is None else frozenset(every_way) - {*alike.tolist()}
        within = [at for at in self.recorded_order if at not in elsewhere]
        usual = self.progress or [0.0] * len(self.operations)
        order = [
            _Place(self.operations[at], words.setdefault(_word(self.operations[at]), len(words)), [usual[at]])
            for at in within
        ]
        number = {id(place): at for at, place in zip(within, order, strict=True)}
        placed = np.full(len(example.names), -1, np.int64)
        for lane in _lanes(example, order):
            on_lane = [place for place in order if example.starts_ns is None or place.operation.stream == lane.number]
            own_words = [words.setdefault(_word(op), len(words)) for op in lane.operations]
            for row, partner in zip(
                lane.rows, _align_lane(on_lane, lane, own_words, is_repeated=False).partners, strict=True
            ):
                if partner is not None:
                    placed[row] = number[id(on_lane[partner])]
        self.places[signature] = placed

    @cached_property
    def kinds(self) -> Ints:
        """(operations,) codes of `jitter.core.names.kernels`."""
        return np.array([op.kind for op in self.operations], np.int64)

    @cached_property
    def waits_in_barriers(self) -> dict[int, int]:
        """By place at which a host comes to a barrier the place of the call that waits there: the next of its name."""
        waits, after = dict[int, int](), dict[str, int]()
        for place in np.flatnonzero(self.kinds >= SYNC)[::-1].tolist():
            name = self.operations[place].name
            if self.kinds[place] == SYNC:
                after[name] = place
            elif name in after:
                waits[place] = after[name]
        return waits

    @cached_property
    def kernels(self) -> tuple[tuple[str, ...], Ints]:
        """The names of its kernels and copies, and, (operations,), the place of each among them; else the last + 1."""
        names = sorted({op.name for op in self.operations if op.kind in (COMPUTE, MEMORY)})
        number = dict(zip(names, range(len(names)), strict=True))
        of_operations = [number.get(op.name, len(names)) for op in self.operations]
        return tuple(names), np.array(of_operations, np.int64)

    @cached_property
    def streams(self) -> Ints:
        """(operations,) the streams."""
        return np.array([op.stream for op in self.operations], np.int64)

    @cached_property
    def first_kernel(self) -> int:
        """The place of the step's first main-stream kernel: what the host does up to it is its start."""
        return next((place for place, op in enumerate(self.operations) if op.on_main), len(self.operations))


@dataclass
class _Place:
    operation: Operation
    word: int
    progress: list[float] = field(default_factory=list)
    """Without launches how far the main stream was when it started, in some steps."""


class _Lane(NamedTuple):
    """Operations whose order is known: those of one stream, or with launches all."""

    number: int
    rows: list[int]
    """(operations,) their numbers in the example."""
    operations: list[Operation]
    progress: Floats
    """(operations,) without launches how far the main stream is when each starts, in its kernels; else empty."""

    @property
    def has_launches(self) -> bool:
        """Whether launches tell the order."""
        return len(self.progress) < len(self.rows)


def lay_out(
    counts: Mapping[Signature, int], content: Callable[[Signature], Example], sizes: Mapping[Signature, int]
) -> Program:
    """Return the program of these signatures.

    `counts` is in how many complete steps each occurred, 0 if in cut ones only; `content` returns an example of each,
    and `sizes` are their numbers of operations. Without launches hardly any two steps have one signature, and those of
    the commonest size come first: a step at the capture's bound may lack some.
    """
    words: dict[_Word, int] = {}
    order_of_lane: dict[int, list[_Place]] = {}
    placed: dict[Signature, list[_Place]] = {}
    graphs: list[tuple[list[_Place], Sequence[tuple[Sequence[int], Sequence[float]]]]] = []
    names_of: dict[Signature, Sequence[str]] = {}
    is_ordered = True
    ranked = sorted(counts, key=lambda signature: (-counts[signature], signature))
    if content(ranked[0]).starts_ns is not None:
        steps_of_size: Counter[int] = Counter()
        for signature in ranked:
            steps_of_size[sizes[signature]] += counts[signature]
        ranked.sort(key=lambda signature: (-steps_of_size[sizes[signature]], -sizes[signature]))
    for signature in ranked:
        place_of_row: dict[int, _Place] = {}
        example = content(signature)
        names_of[signature], is_ordered = example.names, is_ordered and example.is_ordered
        for lane in _lanes(example, list(chain.from_iterable(order_of_lane.values()))):
            operation_words = [words.setdefault(_word(op), len(words)) for op in lane.operations]
            order = order_of_lane.setdefault(lane.number, [])
            places = _merge(order, lane, operation_words, is_repeated=counts[signature] > 1)
            place_of_row |= zip(lane.rows, places, strict=True)
            for place, progress in zip(places, lane.progress.tolist(), strict=False):
                if len(place.progress) < _MOST_PROGRESS:
                    place.progress.append(progress)
        placed[signature] = [place for _, place in sorted(place_of_row.items())]
        graphs.append((placed[signature], example.graphs))
    usual = [
        list(accumulate((median_low(place.progress or [0.0]) for place in lane), max))
        for lane in order_of_lane.values()
    ]
    joined = sorted(
        (progress, number, at)
        for number, lane_progress in enumerate(usual)
        for at, progress in enumerate(lane_progress)
    )
    lanes = list(order_of_lane.values())
    recorded = [lanes[number][at] for _, number, at in joined]
    order = _order_graphs(recorded, graphs)
    numbers = {id(place): at for at, place in enumerate(order)}
    operations = tuple(place.operation for place in order)
    places_of = {signature: [numbers[id(place)] for place in places] for signature, places in placed.items()}
    if is_ordered and (stretches := find_alternatives(operations, counts, places_of, names_of)):
        separate = separate_alternatives(operations, stretches, places_of, names_of)
        every = tuple(range(len(separate.operations)))
        none = (0.0,) * len(every)
        return Program(separate.operations, separate.places, ranked[0], none, every, separate.alternatives)
    return Program(
        operations,
        {signature: np.array(places, np.int64) for signature, places in places_of.items()},
        ranked[0],
        tuple(progress for progress, _, _ in joined),
        tuple(numbers[id(place)] for place in recorded),
    )


_MOST_PROGRESS: Final = 256
"""Signatures that tell the order between streams."""


def _order_graphs(
    recorded: Sequence[_Place],
    examples: Sequence[tuple[Sequence[_Place], Sequence[tuple[Sequence[int], Sequence[float]]]]],
) -> list[_Place]:
    """Return the places with those of each graph by start, its first one, which has the launch, before them.

    Whatever waits for another operation of its graph starts after it, on any rank and in any step. A place that the
    first of the examples lacks starts where it does between the others of its stream.
    """
    at = {id(place): (number, 0.0) for number, place in enumerate(recorded)}
    usual: dict[int, float] = {}
    """By place, when it starts after its graph's begin, ns."""
    for places, graphs in examples:
        for rows, starts_ns in graphs:
            begin, begun_ns = id(places[rows[0]]), min(starts_ns)
            starts = {id(places[row]): start_ns - begun_ns for row, start_ns in zip(rows, starts_ns, strict=True)}
            stream = {id(places[row]): places[row].operation.stream for row in rows}
            known, first = starts.keys() & usual.keys(), at[begin][0]
            for place in starts.keys() - known:
                beside = sorted((starts[near], usual[near]) for near in known if stream[near] == stream[place])
                known_starts_ns, usual_ns = np.array(beside).reshape(-1, 2).T
                usual[place] = (
                    float(np.interp(starts[place], known_starts_ns, usual_ns)) if beside else starts[place] + 1.0
                )
            if begin not in known:
                usual[begin] = 0.0
            at |= {place: (first, usual[place]) for place in starts.keys() - known}
    return sorted(recorded, key=lambda place: at[id(place)])


def _lanes(example: Example, order: Sequence[_Place]) -> list[_Lane]:
    """Return the operations of an example in lanes: with launches one, without them one a stream of `order`."""
    operations = _operations(example)
    if example.starts_ns is None:
        return [_Lane(MAIN, list(range(len(operations))), operations, np.empty(0))]
    rows_of = by_key((operation.stream, row) for row, operation in enumerate(operations))
    number_of = _number_streams(operations, order)
    progress = _progress(np.array(example.starts_ns), np.array(rows_of.get(MAIN, []), np.int64))
    return [
        _Lane(number, rows, [operations[row]._replace(stream=number) for row in rows], progress[rows])
        for number, rows in ((number_of[stream], rows) for stream, rows in sorted(rows_of.items()))
    ]


def _number_streams(operations: Sequence[Operation], order: Sequence[_Place]) -> dict[int, int]:
    """Return for each stream of some operations the number of the one in `order` that runs the same.

    That is the one with which it shares most: profilers number streams in the order of their first activity, which
    varies. The main stream has its number, and calls have none.
    """
    known: dict[int, Counter[_Word]] = {}
    for place in order:
        known.setdefault(place.operation.stream, Counter())[_word(place.operation)] += 1
    words_of: dict[int, Counter[_Word]] = {}
    for operation in operations:
        words_of.setdefault(operation.stream, Counter())[_word(operation)] += 1
    number_of = {stream: stream for stream in (MAIN, NO_STREAM) if stream in words_of}
    shared = {
        (stream, number): (-(words_of[stream] & known[number]).total(), stream != number, stream, number)
        for stream in words_of.keys() - number_of.keys()
        for number in known.keys() - {MAIN, NO_STREAM}
    }
    for stream, number in sorted(shared, key=shared.__getitem__):
        if stream not in number_of and number not in number_of.values() and shared[stream, number][0]:
            number_of[stream] = number
    for stream in sorted(words_of.keys() - number_of.keys()):
        is_free = stream not in known and stream not in number_of.values()
        number_of[stream] = stream if is_free else 1 + max((stream, *known, *number_of.values()))
    return number_of


def _progress(starts_ns: Floats, main: Ints) -> Floats:
    """Return, (operations,), how many of the kernels `main` had started when each starts; parts between two starts.

    Unlike times, a pause of the host does not move it.
    """
    if not len(main):
        return starts_ns
    main_ns = starts_ns[main]
    outside = (starts_ns - np.clip(starts_ns, main_ns[0], main_ns[-1])) / max(float(np.ptp(starts_ns)), 1.0)
    progress: Floats = np.interp(starts_ns, main_ns, np.arange(len(main))) + outside
    return progress


_Word = tuple[str, int, bool]


def _word(operation: Operation) -> _Word:
    """Identity of an operation: name, kind, and whether it is on the main stream."""
    return operation.name, operation.kind, operation.stream == MAIN


def _uncounted_word(operation: Operation) -> _Word:
    """Return the same without a compiler's number in the name."""
    return uncounted_name(operation.name), operation.kind, operation.stream == MAIN


def _operations(example: Example) -> list[Operation]:
    seen: dict[int, int] = {}
    threads = [seen.setdefault(thread, len(seen)) for thread in example.threads]
    recorded = example.collectives or [None] * len(threads)
    columns = (example.names, example.kind, example.streams, threads, recorded)
    return [Operation(*fields) for fields in zip(*columns, strict=True)]


class _Strand(NamedTuple):
    """Operations of a lane that follow each other, and the places that do: numbers of them."""

    rows: Sequence[int]
    places: Sequence[int]


class _Alignment(NamedTuple):
    """Where the operations of a lane stand among the places of its program."""

    operations: list[Operation]
    partners: list[int | None]
    """(operations,) the number of each one's place; None where it has none."""
    strands: list[_Strand]


def _merge(order: list[_Place], lane: _Lane, words: Sequence[int], *, is_repeated: bool) -> list[_Place]:
    """Align operations to the existing places and add missing ones; return each operation's place."""
    operations, partners, strands = _align_lane(order, lane, words, is_repeated=is_repeated)
    placed: dict[int, _Place] = {}
    added: dict[int, list[_Place]] = {}
    """Those to add after the place of this number; -1: before all."""
    for strand in strands:
        last = -1
        for row in strand.rows:
            if (partner := partners[row]) is None:
                placed[row] = _Place(operations[row], words[row])
                added.setdefault(last, []).append(placed[row])
            else:
                placed[row], last = order[partner], partner
    kept = chain.from_iterable((place, *added.get(at, ())) for at, place in enumerate(order))
    order[:] = [*added.get(-1, ()), *kept]
    return [placed[row] for row in range(len(words))]


def _align_lane(order: Sequence[_Place], lane: _Lane, words: Sequence[int], *, is_repeated: bool) -> _Alignment:
    """Align the operations of a lane to its places by name, then those between two matched ones by kind.

    Threads that launch at once give the launches of their streams another order on each rank: then each stream is
    aligned by itself, as more operations so find their places. Calls that wait keep their order on their thread, and so
    does all that a thread does in the same order in several steps (`is_repeated`): that is a program of its own.
    """
    operations, strands = lane.operations, [_Strand(range(len(words)), range(len(order)))]
    matched = [_match(order, lane, words, strand) for strand in strands]
    if lane.has_launches and order and None in matched[0]:
        number_of = _number_streams(operations, order)
        operations = [operation._replace(stream=number_of[operation.stream]) for operation in operations]
        # in any order no more could be matched than the names that both have
        common = (Counter(words) & Counter(place.word for place in order)).total()
        if len(number_of) > 1 and len(words) - matched[0].count(None) < common:
            rows_of = by_key((operation.stream, row) for row, operation in enumerate(operations))
            places_of = by_key((place.operation.stream, at) for at, place in enumerate(order))
            of_streams = [_Strand(rows, places_of.get(number, [])) for number, rows in rows_of.items()]
            matched_by_stream = [_match(order, lane, words, strand) for strand in of_streams]
            has_more = sum(of_stream.count(None) for of_stream in matched_by_stream) < matched[0].count(None)
            if has_more and not _reorders_threads(
                operations, of_streams, matched_by_stream, only_waits=not is_repeated
            ):
                strands, matched = of_streams, matched_by_stream
    partners: list[int | None] = [None] * len(words)
    for strand, of_strand in zip(strands, matched, strict=True):
        _pair_leftovers(order, operations, strand, of_strand)
        for row, at in zip(strand.rows, of_strand, strict=True):
            partners[row] = None if at is None else strand.places[at]
    return _Alignment(operations, partners, strands)


def _reorders_threads(
    operations: Sequence[Operation],
    strands: Sequence[_Strand],
    matched: Sequence[Sequence[int | None]],
    *,
    only_waits: bool,
) -> bool:
    """Return whether these places put an operation, or a call that waits, on the other side of one of its thread.

    A call waits for what was launched before it, and no more.
    """
    place_of = {
        row: strand.places[at]
        for strand, of_strand in zip(strands, matched, strict=True)
        for row, at in zip(strand.rows, of_strand, strict=True)
        if at is not None
    }
    for rows in by_key((operations[row].thread, row) for row in sorted(place_of)).values():
        places = [place_of[row] for row in rows]
        latest, earliest = accumulate(places, max), [*accumulate(reversed(places), min)][::-1]
        for row, place, last, first in zip(rows, places, latest, earliest, strict=True):
            is_asked = operations[row].kind == SYNC or not only_waits
            if is_asked and (last > place or first < place):
                return True
    return False


def _match(order: Sequence[_Place], lane: _Lane, words: Sequence[int], strand: _Strand) -> list[int | None]:
    """Return the number, in the strand, of the place with each operation's name; None where it has none.

    A compiler's own numbers in names count where more operations so find a place: it counts anew in each process.
    """
    own_words, there = [words[row] for row in strand.rows], [order[at].word for at in strand.places]

    def aligned(operation_words: Sequence[int], places: Sequence[int]) -> list[int | None]:
        if lane.number == MAIN:
            return align(operation_words, places)
        # of few names, often one
        progress = np.array([order[at].progress[0] for at in strand.places])
        return align_nearest(operation_words, places, lane.progress[list(strand.rows)], progress)

    partners = aligned(own_words, there)
    if None not in partners or not there:
        return partners
    operation_of = dict(zip(there, (order[at].operation for at in strand.places), strict=True))
    operation_of |= zip(own_words, (lane.operations[row] for row in strand.rows), strict=True)
    number: dict[_Word, int] = {}
    uncounted = {word: number.setdefault(_uncounted_word(op), len(number)) for word, op in operation_of.items()}
    if len(number) == len(uncounted):
        return partners  # no two names differ by such numbers alone
    without_numbers = aligned([uncounted[word] for word in own_words], [uncounted[word] for word in there])
    return without_numbers if without_numbers.count(None) < partners.count(None) else partners


def _pair_leftovers(
    order: Sequence[_Place], operations: Sequence[Operation], strand: _Strand, matched: list[int | None]
) -> None:
    """Give operations between two matched ones, in order, the first free place of their kind and stream."""
    for own_gap, order_gap in find_gaps(tuple(matched), len(strand.places)):
        free = order_gap.start
        for at in own_gap:
            op = operations[strand.rows[at]]
            for place in range(free, order_gap.stop):
                there = order[strand.places[place]].operation
                if there.kind == op.kind and there.stream == op.stream:
                    matched[at], free = place, place + 1
                    break


def number_streams(main_stream: int | None, streams: Sequence[int | None]) -> dict[int | None, int]:
    """Return the number of each of a rank's streams: 0 for the main one, the others by first appearance."""
    numbers: dict[int | None, int] = {} if main_stream is None else {main_stream: MAIN}
    for stream in streams:
        numbers.setdefault(stream, len(numbers) + (main_stream is None))
    return numbers


_LIMITS: Final = THRESHOLDS.matching


def teams(
    usual: Mapping[int, Signature],
    cohort_of: Mapping[int, int],
    kinds: Mapping[Signature, KindCodes],
    example: Callable[[Signature], Example],
    cut: AbstractSet[int] = frozenset(),
    partners: Callable[[int], AbstractSet[int]] = lambda _: frozenset(),
) -> dict[int, int]:
    """Return the team of each rank, numbered from 0.

    `usual` is the signature that each rank's steps have most often, `kinds` are the kinds of its operations, and
    `example` returns the operations themselves. Ranks in `cut` have no whole step, so operations that they lack tell
    nothing: each joins the team of its cohort with which it shares most operations. `partners` returns the ranks with
    which a rank has collectives, as recorded.
    """
    whole = {rank: signature for rank, signature in usual.items() if rank not in cut}
    cohort_of = _join_variants(whole, cohort_of, kinds, example, partners)
    team_of = _split(whole, cohort_of, kinds, example)
    members: dict[int, dict[int, Signature]] = {}
    for rank, team in team_of.items():
        members.setdefault(team, {})[rank] = usual[rank]
    alone: dict[int, Signature] = {}
    for rank in sorted(cut):
        near = [team for team, signatures in members.items() if cohort_of[min(signatures)] == cohort_of[rank]]
        if len(near) > 1:
            number: dict[str, int] = {}
            shared: dict[int, int] = {}
            for team in near:
                samples = example(usual[rank]), example(find_commonest(members[team]))
                first, second = ([number.setdefault(name, len(number)) for name in sample.names] for sample in samples)
                shared[team] = lcs_length(first, second)
            near = [max(near, key=shared.__getitem__)]
        if near:
            team_of[rank] = near[0]
        else:
            alone[rank] = usual[rank]
    team_of_rest = _split(alone, cohort_of, kinds, example)
    team_of |= {rank: len(members) + team for rank, team in team_of_rest.items()}
    return dict(sorted(team_of.items()))


def _join_variants(
    usual: Mapping[int, Signature],
    cohort_of: Mapping[int, int],
    kinds: Mapping[Signature, KindCodes],
    example: Callable[[Signature], Example],
    partners: Callable[[int], AbstractSet[int]],
) -> Mapping[int, int]:
    """Return each rank's cohort, others joined to the largest one if they do the same by other kernels.

    Another driver, library, GPU model or choice of an autotuner gives some ranks other variants of their kernels.
    Where about as many ranks have each, most names are other ones, and none of them is known to meet any of the
    others, they may be two models.
    """
    ranks_of: dict[int, dict[int, Signature]] = {}
    for rank, signature in usual.items():
        ranks_of.setdefault(cohort_of[rank], {})[rank] = signature
    joined = dict(cohort_of)
    largest = max(ranks_of, key=lambda cohort: (len(ranks_of[cohort]), -cohort), default=0)
    if len(ranks_of) < 2:
        return joined
    large = find_commonest(ranks_of[largest])
    reference = example(large)
    for cohort in ranks_of.keys() - {largest}:
        small = find_commonest(ranks_of[cohort])
        is_few = len(ranks_of[cohort]) <= THRESHOLDS.main_share * len(ranks_of[largest])
        is_renamed = is_few and np.array_equal(kinds[small], kinds[large])
        pair = example(small), reference
        # the partners are asked for last: they are read from files
        if (is_renamed and _does_equally(*pair)) or (
            _has_uneven_work(*pair)
            and (_shares_most(*pair) or not ranks_of[largest].keys().isdisjoint(partners(min(ranks_of[cohort]))))
        ):
            joined |= {rank: largest for rank, of_rank in cohort_of.items() if of_rank == cohort}
    return joined


def _does_equally(example: Example, reference: Example) -> bool:
    """Return whether two ranks that run as many operations of each kind, in the same order, run them on equal streams.

    And have the same collectives.
    """
    return list(example.collectives) == list(reference.collectives) and list(example.streams) == list(reference.streams)


def _shares_most(example: Example, reference: Example) -> bool:
    """Return whether two ranks have most compute kernels of the one that runs fewer in common, in the same order."""
    number: dict[str, int] = {}
    words, usual = (
        [number.setdefault(name, len(number)) for name in chain.from_iterable(_names_between_collectives(each))]
        for each in (example, reference)
    )
    return lcs_length(words, usual) >= max(1.0, THRESHOLDS.main_share * min(len(words), len(usual)))


def _split(
    usual: Mapping[int, Signature],
    cohort_of: Mapping[int, int],
    kinds: Mapping[Signature, KindCodes],
    example: Callable[[Signature], Example],
) -> dict[int, int]:
    """Return the team of each of these ranks, numbered from 0."""
    places = {signature: _places(kinds[signature]) for signature in set(usual.values())}
    waiting = dict(usual)
    team_of: dict[int, int] = {}
    number = 0
    while waiting:
        cohort = min(cohort_of[rank] for rank in waiting)
        signature_of = {rank: signature for rank, signature in waiting.items() if cohort_of[rank] == cohort}
        commonest = find_commonest(signature_of)
        usual_order = example(commonest).by_start()
        if usual_order.is_ordered:
            alike = {
                signature
                for signature in set(signature_of.values())
                if _alike(places[signature], places[commonest]) or _has_uneven_work(example(signature), usual_order)
            }
        else:
            alike = {
                signature
                for signature in set(signature_of.values())
                if _share_streams(example(signature).by_start(), usual_order)
            }
        # a stage exchanges with other neighbours, or after other work; without launches, and in graphs, the order of
        # streams varies
        streams = _streams_of_exchanges(usual_order)
        for signature in alike - {commonest} if streams else ():
            order = example(signature).by_start()
            if (order.is_ordered and _streams_of_exchanges(order) != streams) or _is_reordered(order, usual_order):
                alike.remove(signature)
        members = [rank for rank, signature in signature_of.items() if signature in alike]
        team_of |= dict.fromkeys(members, number)
        for rank in members:
            del waiting[rank]
        number += 1
    return team_of


def _places(kind: KindCodes) -> tuple[Ints, int]:
    """Return the number of compute kernels before each collective, and of all compute kernels."""
    return _work_before(kind == COLLECTIVE, kind == COMPUTE)


def _work_before(at: Bools, is_work: Bools) -> tuple[Ints, int]:
    """Return, of some operations, how many of the `is_work` ones come before each of those `at`, and how many are."""
    work: Ints = np.cumsum(is_work)
    return work[at], int(is_work.sum())


def _alike(places: tuple[Ints, int], reference: tuple[Ints, int]) -> bool:
    return len(places[0]) == len(reference[0]) and bool(
        (np.abs(places[0] - reference[0]) <= _most_apart(places, reference)).all()
    )


def _most_apart(places: tuple[Ints, int], reference: tuple[Ints, int]) -> float:
    return max(THRESHOLDS.min_repeats, _LIMITS.same_place_share * max(places[1], reference[1]))


def _has_uneven_work(example: Example, reference: Example) -> bool:
    """Return whether one of two ranks only runs more kernels than the other, as of more micro-batches: no other stage.

    They have the same collectives, none an exchange, and from each to the next one of them never runs less.
    """
    kinds, usual = (
        [collective for collective, kind in zip(each.collectives, each.kind, strict=True) if kind == COLLECTIVE]
        for each in (example, reference)
    )
    if kinds != usual or {SEND_RECV, None} & {*usual}:
        return False
    own_places, usual_places = (_places(np.array(each.kind)) for each in (example, reference))
    more = np.append(own_places[0] - usual_places[0], own_places[1] - usual_places[1])
    apart = _most_apart(own_places, usual_places)
    return any(bool((np.maximum.accumulate(ahead) - ahead <= apart).all()) for ahead in (more, -more))


def _share_streams(example: Example, reference: Example) -> bool:
    """Return whether two ranks without launches, or with graphs, run as many collectives on each stream.

    A step's bound may cut off one. How much work is done before each varies with the time at which the streams run, but
    not before an exchange, which waits for the work before it.
    """
    first, second = _count_collectives(example), _count_collectives(reference)
    is_alike = len(first) == len(second) and all(
        abs(own - other) <= 1 for own, other in zip(first, second, strict=True)
    )
    return is_alike and _alike(_places_of_exchanges(example), _places_of_exchanges(reference))


def _places_of_exchanges(example: Example) -> tuple[Ints, int]:
    """Return the same as `_places` of the compute kernels of the main stream before each send and receive."""
    is_exchange = np.array([collective == SEND_RECV for collective in example.collectives], np.bool_)
    return _work_before(is_exchange, (np.array(example.kind) == COMPUTE) & (np.array(example.streams) == MAIN))


def _count_collectives(example: Example) -> list[int]:
    """Return the collectives of each stream that has any, ascending."""
    streams = zip(example.streams, example.kind, strict=True)
    return sorted(Counter(stream for stream, kind in streams if kind == COLLECTIVE).values())


def _streams_of_exchanges(example: Example) -> list[int]:
    """Return the stream of each send and receive: a neighbour, or a direction, has a stream of its own.

    In a known order an operation without a name may be one.
    """
    exchanges = (SEND_RECV, None) if example.is_ordered else (SEND_RECV,)
    columns = zip(example.streams, example.collectives, example.kind, strict=True)
    return [stream for stream, collective, kind in columns if kind == COLLECTIVE and collective in exchanges]


def _is_reordered(example: Example, reference: Example) -> bool:
    """Return whether two ranks run some of the same kernels before different collectives.

    Kernels that only one of them runs anywhere, such as another choice of an autotuner, do not count.
    """
    ahead: Counter[str] = Counter()  # how many more kernels of a name the one has run than the other
    only_first = only_second = 0
    lacking: list[tuple[int, int]] = []  # before each collective: what only one of them has run by then
    for first, second in zip_longest(*map(_names_between_collectives, (example, reference)), fillvalue=()):
        for name in first:
            only_first += ahead[name] >= 0
            only_second -= ahead[name] < 0
            ahead[name] += 1
        for name in second:
            only_first -= ahead[name] > 0
            only_second += ahead[name] <= 0
            ahead[name] -= 1
        lacking.append((only_first, only_second))
    return any(
        min(before_first - only_first, before_second - only_second) > THRESHOLDS.min_repeats
        for before_first, before_second in lacking
    )


def _names_between_collectives(example: Example) -> list[list[str]]:
    """Return the names of the compute kernels before each collective, and after the last one."""
    names_between: list[list[str]] = [[]]
    for kind, name in zip(example.kind, example.names, strict=True):
        if kind == COLLECTIVE:
            names_between.append([])
        elif kind == COMPUTE:
            names_between[-1].append(uncounted_name(name))
    return names_between
