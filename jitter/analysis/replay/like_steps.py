"""Like steps: which steps of a run are compared with each other, by kind, program and size of their batches."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import starmap

import numpy as np

from jitter.analysis.execution.run_model import RunModel
from jitter.analysis.replay.shared_work import growth_with_size
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.names.kernels import COLLECTIVE
from jitter.core.numeric.arrays import Floats, Ints, distinct_values, spread_positions
from jitter.core.numeric.stats import (
    known_median,
    known_medians,
    middle_value,
    qn_sigma,
    successive_ratio,
    weighted_median,
)
from jitter.lake.records import ON_REQUEST


class LikeSteps:
    """Three divisions of a run's steps, by their positions in the run; each divides the parts of the one before."""

    def __init__(self, run: RunModel, gpu_ns: Callable[[], Floats]) -> None:
        """`gpu_ns` returns, (steps, operations of all teams), the medians of GPU times."""
        self._run, self._gpu_ns = run, gpu_ns
        self._operations: dict[str, Counter[tuple[int, str]]] = {}
        """By sequence."""

    @cached_property
    def kinds(self) -> list[str]:
        """The kind of each step: `train`, `prefill`, `decode`, …, as its marker says."""
        return [self._run.reader.kind(key) for key in self._run.keys]

    @cached_property
    def kernel_counts(self) -> Floats:
        """(steps, ranks) the kernels of each step and rank; NaN where a rank lacks the step."""
        return self._run.reader.kernel_counts(sorted(self._run.team_of)).recorded

    @cached_property
    def programs(self) -> Ints:
        """(steps,) the number of each step's program among those of its kind, 0 for the commonest one."""
        numbers = np.zeros(len(self.kinds), np.int64)
        sequences = self._run.reader.kernel_sequences(sorted(self._run.team_of))
        for kind in sorted(set(self.kinds)):
            alike = np.flatnonzero(np.array(self.kinds) == kind)
            counts = self.kernel_counts[alike]
            of_kind = number_programs(counts, sequences[alike], on_request=kind in ON_REQUEST)
            usual = int(alike[(of_kind == 0).argmax()])
            for program in range(1, int(of_kind.max(initial=0)) + 1) if kind not in ON_REQUEST else ():
                is_other = of_kind == program
                of_kind[is_other & self._repeats_part(int(alike[is_other.argmax()]), usual)] = 0
            numbers[alike] = of_kind
        return numbers

    def _repeats_part(self, step: int, usual: int) -> bool:
        """Return whether most of some ranks run in a step what they run in a usual one, and part of it again."""
        every = sorted(self._run.team_of)
        ranks = [every[at] for at in spread_positions(len(every), THRESHOLDS.sampled_ranks)]
        pairs = [
            [self._operations_of(at, rank) for at in (step, usual)]
            for rank in ranks
            if all(rank in self._run.reader.records[self._run.keys[at]] for at in (step, usual))
        ]
        return sum(starmap(repeats_part, pairs)) > THRESHOLDS.main_share * len(pairs)

    def _operations_of(self, step: int, rank: int) -> Counter[tuple[int, str]]:
        """Return the operations of a rank in a step by kind and name."""
        sequence = self._run.reader.records[self._run.keys[step]][rank].step.sequence
        if sequence not in self._operations:  # most ranks have the same
            example = self._run.reader.example(self._run.keys[step], rank)
            self._operations[sequence] = Counter(zip(example.kind, example.names, strict=True))
        return self._operations[sequence]

    @cached_property
    def by_program(self) -> list[Ints]:
        """The numbers of the steps in which ranks have like work: those of one kind and one program."""
        kinds = list(zip(self.kinds, self.programs.tolist(), strict=True))
        return [np.array([at for at, of_step in enumerate(kinds) if of_step == kind]) for kind in sorted(set(kinds))]

    @cached_property
    def by_known_size(self) -> list[Ints]:
        """The numbers of the steps of one kind and program whose batches are about as large, as far as it is known."""
        return [alike for numbers in self.by_program for alike in split_by_size(numbers, self.sizes[numbers])]

    @cached_property
    def sizes(self) -> Floats:
        """(steps,) how much each works on, as markers state it, or how often it runs its kernels; NaN: unknown."""
        sizes = self._stated_sizes.copy()
        for numbers in self.by_program:
            if self.kinds[numbers[0]] not in ON_REQUEST and np.isnan(sizes[numbers]).all():
                repeats = self._count_repeats(numbers)
                sizes[numbers] = np.where((repeats == 1).all(), np.nan, repeats)
        return sizes

    def _count_repeats(self, numbers: Ints) -> Floats:
        """Return, (steps,), how often steps of one program run its kernels: the median of some ranks."""
        counts, ranks = self.kernel_counts[numbers], sorted(self._run.team_of)
        usual, repeats = known_medians(counts), np.ones(len(numbers))
        are_other = np.abs(counts - usual) > THRESHOLDS.tolerance_share * usual
        columns = spread_positions(len(ranks), THRESHOLDS.sampled_ranks).tolist()
        for at in np.flatnonzero(are_other.sum(axis=1) > THRESHOLDS.main_share * len(ranks)).tolist():
            of_ranks = [
                find_factor(
                    *(
                        self._operations_of(int(numbers[step]), ranks[column])
                        for step in (at, np.nanargmin(np.abs(counts[:, column] - usual[column])))
                    )
                )
                for column in columns
                if not np.isnan(counts[at, column])
            ]
            repeats[at] = middle_value(np.array(of_ranks)) if of_ranks else 1.0
        return repeats

    @cached_property
    def _stated_sizes(self) -> Floats:
        """(steps,) how much each works on, as markers state it; NaN where they do not."""
        return np.array([self._run.reader.batch_size(key) for key in self._run.keys])

    @cached_property
    def by_size(self) -> list[Ints]:
        """The numbers of the steps that should take as long: the same, and of about one measured size.

        Where the usual rank's GPU time varies from step to step, it tells how large batches are. Of the whole run all
        baselines must be known.
        """
        return [
            alike
            for numbers in self.by_known_size
            for alike in self._split_by_work(numbers, np.nansum(self._gpu_ns()[numbers], axis=1).tolist())
        ]

    @property
    def but_for_batches(self) -> list[Ints]:
        """The numbers of the steps that should take as long but for what GPUs compute: by known size.

        A serving engine may run another program for each request: its steps of one measured size.
        """
        on_request = [numbers for numbers in self.by_size if self.kinds[numbers[0]] in ON_REQUEST]
        return on_request + [numbers for numbers in self.by_known_size if self.kinds[numbers[0]] not in ON_REQUEST]

    def of_lone_rank(self, gpu_ns: Mapping[int, float]) -> list[Ints]:
        """Return the numbers of the steps that should take as long on a rank without peers, by known size.

        Batches that a serving engine was asked for, of unstated sizes, by their GPU time; `gpu_ns` is that by step.
        """
        parts = list[Ints]()
        for numbers in self.by_known_size:
            there = np.array([number for number in numbers.tolist() if number in gpu_ns], np.int64)
            if len(there):
                work_ns = [gpu_ns[number] for number in there.tolist()]
                split = self._split_by_work(there, work_ns) if self._are_requests_unstated(there) else []
                parts += split if len(split) > 1 else [numbers]
        return parts

    def _are_requests_unstated(self, numbers: Ints) -> bool:
        """Whether like steps are those of a serving engine, whose batches are of sizes that nothing states."""
        return self.kinds[numbers[0]] in ON_REQUEST and bool(np.isnan(self._stated_sizes[numbers[0]]))

    def _split_by_work(self, numbers: Ints, gpu_ns: Sequence[float]) -> list[Ints]:
        """Group like steps of about one GPU time, if theirs varies; `gpu_ns` (steps,) are theirs, in order.

        That of batches which a serving engine was asked for varies unless most are near the median. What goes one way,
        or changes once, are GPUs that get slower, as when they get hot: batches vary from step to step.
        """
        work_ns = np.array(gpu_ns)
        usual_ns = middle_value(work_ns)
        near_ns = THRESHOLDS.tolerance_share * usual_ns
        is_varied = len(numbers) >= THRESHOLDS.min_steps and float(qn_sigma(work_ns[:, None])[0]) > near_ns
        is_varied &= not changes_for_good(work_ns)
        if self._are_requests_unstated(numbers):
            is_varied |= 2 * int((np.abs(work_ns - usual_ns) <= near_ns).sum()) <= len(numbers)
        # what differs by more may be a larger batch
        return split_by_size(numbers, work_ns, THRESHOLDS.gpu_spread_share) if is_varied else [numbers]

    @cached_property
    def size_of(self) -> Ints:
        """(steps,) the position of each step's size in `by_size`."""
        positions = np.empty(len(self._run.keys), np.int64)
        for position, numbers in enumerate(self.by_size):
            positions[numbers] = position
        return positions


def number_programs(kernels: Floats, sequences: Floats, *, on_request: bool = False) -> Ints:
    """Return, (steps,), the number of each step's program; 0 is the commonest one.

    How many kernels each rank runs tells a program, as their names and order may vary with what autotuning and threads
    do; of steps with as many kernels, their sequences tell it, if these come back as they were. A program is one that
    comes back after another, and of which most ranks run other kernels. One of two steps, which may agree by where
    their inferred borders lie, runs by far more or fewer. Any other step, as one in which a single rank differs, has
    the program that it shares with most ranks, else the commonest one.

    Args:
        kernels: (steps, ranks) each rank's kernels, NaN where it lacks the step.
        sequences: (steps, ranks) a number for each sequence of kernels, NaN where the rank lacks the step.
        on_request: whether the steps are those of a serving engine, which runs what is asked for: a program may come
            once, and differ by few kernels.

    """
    numbers = _number_alike(kernels, kernels, on_request)
    for at in [np.flatnonzero(numbers == program) for program in distinct_values(numbers)]:
        numbers[at] = numbers[at] * len(kernels) + _number_alike(sequences[at], kernels[at], on_request)
    return _by_size(numbers)


def repeats_part(operations: Counter[tuple[int, str]], usual: Counter[tuple[int, str]]) -> bool:
    """Return whether a step runs what a usual one runs and part of it again, as an evaluation within it: it is longer.

    Both by kind and name. All of it again are more micro-batches, and what has kernels of its own, or as many
    collectives, is another program, as the step of another model.
    """
    more = operations - usual
    is_whole = (usual - operations).total() <= (1 - THRESHOLDS.whole_share) * usual.total()
    known = sum(times for operation, times in more.items() if operation in usual)
    return (
        is_whole
        and known >= (1 - THRESHOLDS.minor_share) * more.total() > 0
        and _communication_share(more) <= THRESHOLDS.main_share * _communication_share(usual)
        and find_factor(operations, usual) == 1
    )


def _communication_share(operations: Counter[tuple[int, str]]) -> float:
    """Return which part of operations, by kind and name, are collectives."""
    collectives = sum(times for (kind, _), times in operations.items() if kind == COLLECTIVE)
    return collectives / max(operations.total(), 1)


def find_factor(kernels: Counter[tuple[int, str]], usual: Counter[tuple[int, str]]) -> float:
    """Return how often a step runs the operations of a usual one, by kind and name; 1 of another program.

    Of more micro-batches nearly all kernels come more often by about one factor; an evaluation lacks the backward pass.
    """
    counts = np.array([(kernels[name], usual[name]) for name in kernels | usual], np.float64)
    factors, weights = counts[:, 0] / np.maximum(counts[:, 1], 1), counts.max(axis=1)
    factor = weighted_median(factors, weights)
    is_alike = np.abs(factors - factor) <= THRESHOLDS.tolerance_share * factor
    return factor if weights[is_alike].sum() > (1 - THRESHOLDS.minor_share) * weights.sum() else 1.0


def changes_for_good(values: Floats) -> bool:
    """Return whether values, (steps,) and all known, go one way or change once: what varies by chance does not."""
    return successive_ratio(values) <= THRESHOLDS.lasting_ratio


def first_of_drift(values: Floats) -> float | None:
    """Return with what values begin that grow from one like step to the next, by a tenth or more; None of others.

    `values` are (steps,). A line through the medians of some equal parts of the run tells.
    """
    at = np.flatnonzero(~np.isnan(values))
    if len(at) < THRESHOLDS.min_steps or not np.ptp(values[at]) or not changes_for_good(values[at]):
        return None
    if np.corrcoef(at, values[at])[0, 1] < THRESHOLDS.drift_correlation:
        return None
    parts = np.array_split(at, min(len(at), THRESHOLDS.sampled_steps))
    places, middles = (
        np.array([[middle_value(of[part])] for part in parts]) for of in (np.arange(len(values)), values)
    )
    grown = growth_with_size(places, middles)[0] * (np.arange(len(values)) - at[0])
    # no less than any of the first ones is
    first = max(known_median(values - grown), float(values[at[: THRESHOLDS.min_repeats]].min()))
    return first if grown[-1] >= THRESHOLDS.tolerance_share * first else None


def split_by_size(numbers: Ints, sizes: Floats, share: float = THRESHOLDS.tolerance_share) -> list[Ints]:
    """Group steps whose batches are about as large: they should take equally long.

    The sizes of one part differ by this share at most; steps of unknown size are a part of their own.

    Args:
        numbers: (steps,) of the steps.
        sizes: (steps,) how much each works on, in any unit, NaN where unknown.
        share: of the smallest one, by default a tenth.

    """
    parts, first = list[list[int]](), math.nan
    order = np.argsort(sizes, kind="stable")  # NaN comes last
    for at, size in zip(order.tolist(), sizes[order].tolist(), strict=True):
        is_alike = size <= first * (1 + share) or (math.isnan(size) and math.isnan(first))
        if not parts or not is_alike:
            parts.append([])
            first = size
        parts[-1].append(int(numbers[at]))
    return [np.array(sorted(part)) for part in parts]


def _number_alike(identity: Floats, kernels: Floats, on_request: bool) -> Ints:
    """Return, (steps,), the program of each step by this (steps, ranks) `identity` of the ranks' work."""
    first: dict[bytes, int] = {}
    counts = Counter(row.tobytes() for row in identity)
    for at, row in enumerate(identity):
        first.setdefault(row.tobytes(), at)
    usual = list[int]()
    for content, times in counts.most_common():
        row = identity[first[content]]
        if (times > 1 or on_request) and all(
            _common_share(row, identity[other]) < THRESHOLDS.main_share for other in usual
        ):
            usual.append(first[content])
    if len(usual) < 2 or len(usual) * THRESHOLDS.min_repeats > len(identity):
        return np.zeros(len(identity), np.int64)
    shares = np.array([_common_share(identity, identity[at]) for at in usual])
    numbers = np.where(shares.max(axis=0) >= THRESHOLDS.main_share, shares.argmax(axis=0), 0)
    if on_request:
        return numbers
    begins = numbers[np.append(True, np.diff(numbers) != 0)]
    stretches = np.bincount(begins, minlength=len(usual))
    sizes = np.array([known_median(kernels[at]) for at in usual])
    is_near = np.abs(sizes - sizes[0]) <= THRESHOLDS.tolerance_share * sizes[0]
    is_rare = (stretches < 2) | is_near & (np.bincount(numbers, minlength=len(usual)) < THRESHOLDS.min_repeats)
    numbers[is_rare[numbers]] = 0
    return numbers


def _by_size(numbers: Ints) -> Ints:
    """Return the same programs numbered from the commonest one on."""
    _, numbers, sizes = np.unique(numbers, return_inverse=True, return_counts=True)
    place: Ints = np.argsort(np.argsort(-sizes, kind="stable"), kind="stable")[numbers]
    return place


def _common_share(kernels: Floats, row: Floats) -> Floats:
    """Return the share of ranks that run as many kernels, of those known in both; 0 without any."""
    is_known = ~np.isnan(kernels) & ~np.isnan(row)
    share: Floats = (kernels == row).sum(axis=-1) / np.maximum(is_known.sum(axis=-1), 1)
    return share
