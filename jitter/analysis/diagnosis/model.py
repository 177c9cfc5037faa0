"""The parts of a diagnosis as plain data: loss, steps, culprits, what-if, conclusion."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, NamedTuple, get_args

from jitter.analysis.detection.expert_imbalance import ExpertImbalance
from jitter.analysis.detection.standouts import Recurs
from jitter.analysis.diagnosis.step_pattern import StepPattern
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.formatting import format_ranks, format_time
from jitter.core.step_key import StepKey
from jitter.lake.records import TRAIN

Cause = Literal[
    "late_start",
    "cpu_launch",
    "cpu_after",
    "unequal_stages",
    "gpu_compute",
    "gpu_pause",
    "workload_imbalance",
    "gpu_time",
    "slow_copies",
    "communication",
    "slow_network",
    "sync_calls",
    "blocking_copies",
    "launch_bound",
    "exposed_communication",
    "serial_copies",
    "none",
]
SLOW_LINKS: Final[tuple[Cause, ...]] = ("communication", "slow_network")
"""Links that are slower than their peers', and than the benchmark."""
Scope = Literal["rank", "host", "device", "ranks", "unrecorded", "job"]
Status = Literal["unknown", "within_noise", "spread", "found"]
"""The state of a run: its loss is unknown, within the noise, spread over ranks or parts, or findings explain it."""
Confidence = Literal["high", "medium", "low"]
"""Of an attribution: that these ranks, or this link, lost the time at this place. Not that it recurs, nor why."""
CauseCertainty = Literal["certain", "likely", "unknown"]
"""`certain`: the recording or a log states it. `likely`: the times agree with it. `unknown`: they do not tell."""
SAVES_MORE: Final = ", which includes time that slow ranks or slow steps lose"
"""Said of what fixing a loss of all ranks alone would save, if that is more than it costs them."""
Cleared = Literal["rank", "host", "link"]
"""A kind of thing of which none slows the run, as far as the recording shows."""
Rung = Literal["recorded", "ranks", "steps", "network", "sync", "launch", "overlap", "balance"]
"""A baseline of the waterfall. `ranks`: what jitter costs; the lower ones: what all ranks lose alike."""
RUNGS: Final[tuple[Rung, ...]] = get_args(Rung)
"""From the recorded time down to what is left with all ranks, steps and the program at their best."""


class RungTime(NamedTuple):
    """One rung of the waterfall, means over the timed steps of the diagnosis; None where the rung is not judged."""

    rung: Rung
    step_time_ns: int | None
    loss_ns: int | None
    """From the judged rung above; None for the first."""


@dataclass(frozen=True)
class Loss:
    """Cost of jitter: the run's time − its time with every self time at the baseline."""

    ns: int | None
    fraction: float | None
    """Of the run's time."""


class HeldWaits(NamedTuple):
    """Waiting that the recording cannot tell from transfers."""

    what: str
    """As the end of a cause: `communication that nothing hides, or …`."""
    evidence: str
    """The reason, as a sentence."""
    advice: str
    """What to do, as the end of a sentence."""


ADD_RANKS: Final = "record or ingest the ranks that are missing"
FOR_UNRECORDED: Final = HeldWaits(
    "waiting for unrecorded ranks",
    "ranks were not recorded: part of this time may be waiting for them",
    f"{ADD_RANKS}, as they may be late",
)
FOR_PARTNERS: Final = HeldWaits(
    "waiting for partners",
    "some exchanges name no partners: part of this time may be waiting for them",
    "record which ranks exchange (the operators of PyTorch, or the calls of the communication library), as they may be "
    "late",
)


@dataclass(frozen=True)
class RankShare:
    """One rank's part of a loss."""

    rank: int
    ns: int


@dataclass(frozen=True)
class LossShare:
    """The loss of one class."""

    loss_class: str
    """The label of a `LossClass`."""
    ns: int
    fraction: float | None
    """Of the time of the steps; None if that is unknown."""
    ranks: tuple[RankShare, ...]
    """Largest first; empty for transfers and for what is unexplained. A rank that shortened the run has less than 0."""


class ClassShares(NamedTuple):
    """A step's loss by class, in the order of `LossClass`; the sum is the loss."""

    start_ns: int
    launch_ns: int
    after_ns: int
    gpu_ns: int
    transfer_ns: int
    overlap_ns: int
    carried_ns: int
    unexplained_ns: int


@dataclass(frozen=True, slots=True)
class KernelLocation:
    """A kernel of a cohort's step."""

    kernel_index: int
    kernel_name: str
    cohort: int


@dataclass(frozen=True, slots=True)
class StepAnswer:
    """The diagnosis of one step. Times in ns; None where the step does not tell."""

    key: StepKey
    step_time_ns: int | None
    loss_ns: int | None
    loss_fraction: float | None
    min_rank: int | None
    max_rank: int | None
    divergence: KernelLocation | None
    """The first kernel from which on the max rank's share of the loss grows beyond the noise."""
    max_rank_loss_ns: int | None
    """The max rank's own share of the loss; None where its time to kernel end alone tells that it is last."""
    cause: Cause
    by_class: ClassShares | None = None
    """None if its loss is unknown."""
    kind: str = TRAIN
    """What the step does, as the markers of most ranks say."""
    experts: ExpertImbalance | None = None

    @property
    def kind_in_words(self) -> str:
        """The kind behind the step's number, ` (decode)`; empty for a step of training."""
        return "" if self.kind == TRAIN else f" ({self.kind})"


@dataclass(frozen=True)
class ProfileLocation:
    """A time range in a recording."""

    file: str
    start_ns: int
    """On that recording's own clock."""
    end_ns: int


@dataclass(frozen=True)
class CodeLocation:
    """The place in the program where a kernel is launched; None where the recording does not tell."""

    kernel_index: int
    operator: str | None
    scope: str | None
    """Annotations and modules around the launch, outermost first."""
    phase: str | None
    source_line: str | None
    """Innermost frame of the program in the Python stack: `file(line): function`."""


@dataclass(frozen=True)
class IndexRange:
    """A range of kernel indices, both ends included."""

    first: int
    last: int


@dataclass(frozen=True)
class Pause:
    """A host's pause before a launch, for which the job waited."""

    key: StepKey
    rank: int
    kernel_index: int
    excess_ns: int


@dataclass(frozen=True)
class Seen:
    """In how many steps something was seen, and of how many that were recorded."""

    steps: int
    of: int


FactKind = Literal["network", "gpu_clock", "gpu_error", "host", "placement", "profiler", "exit", "contradiction"]


@dataclass(frozen=True)
class Fact:
    """What a job's logs state of ranks, of a host, of a GPU or of the whole job."""

    kind: FactKind
    words: str
    """A clause: it begins with what it is about."""
    causes: tuple[Cause, ...]
    """The causes that it speaks for: it is evidence of a finding of these ranks, or this host, with one of them."""
    certainty: CauseCertainty = "unknown"
    """Of that cause, by this fact; `unknown`: it is evidence and decides nothing."""
    ranks: tuple[int, ...] = ()
    """Empty: all ranks, or unknown ones."""
    host: str | None = None
    device: int | None = None
    advice: str = ""
    """What to do about it."""
    reason: str = ""
    """The cause in a few words, for a finding of which it makes the cause certain."""
    is_item: bool = True
    """Whether it is worth a line where no finding has one of its causes."""
    excludes: bool = False
    """Whether it rules out what is usually checked first: its advice takes the place of that."""

    @property
    def is_of_job(self) -> bool:
        """Whether it is about all ranks."""
        return not self.ranks and self.host is None

    @property
    def subject(self) -> tuple[object, ...]:
        """What two facts have in common that say the same of different steps."""
        return self.kind, self.ranks, self.host, self.device


@dataclass(frozen=True, repr=False, kw_only=True)
class Culprit:
    """One thing to fix."""

    rung: Rung | None
    """The rung of the waterfall that its loss is part of; None where no rung holds it."""
    loss_class: str
    """The label of a `LossClass`."""
    scope: Scope
    rank: int
    """The rank of `ranks` with the most excess."""
    ranks: tuple[int, ...]
    host: str | None = None
    device: int | None = None
    """The GPU's number on its host."""
    bus_id: str | None = None
    """The PCI address of a rank's GPU."""
    cause: Cause
    cause_certainty: CauseCertainty
    confidence: Confidence
    seen: Seen
    recurs: Recurs
    more_steps: int | None = None
    """Steps to record beside these until an unknown recurrence can be decided; None if more steps cannot."""
    excess_ns: int
    """Own time above the other ranks', in the steps in which it occurs."""
    gain_ns: int
    """Time saved by fixing it alone, ns; of jitter at most the loss, of what all ranks lose with jitter in it."""
    loss_ns: int
    """Its share of the loss of its rung: the sum of what the account charges to it."""
    fraction: float | None
    """That share of the run's time; None if unknown."""
    steps: tuple[StepKey, ...]
    step_pattern: StepPattern
    kernel_index: IndexRange | None = None
    evidence: tuple[str, ...]
    look_at: ProfileLocation | None = None
    code: CodeLocation | None = None
    """Of its first kernel; None where the recording does not tell, or the finding covers many kernels."""
    is_part_of_job: bool = False
    """Of scope `job`: whether there are ranks on which it does not occur."""
    lacks_ranks: bool = False
    """Of scope `job`: whether ranks of the job were not recorded."""
    pauses: tuple[Pause, ...] = ()
    """Of a finding about the job's hosts: the longest pauses of its ranks, longest first."""
    is_before_steps: bool = False
    """Whether its time lies before the end of the step before each of `steps`, which are not most steps."""
    is_beyond_loss: bool = False
    """Whether the loss, which compares ranks within a step, does not contain it."""

    gain_with_hidden_ns: int | None = None
    """Time saved by fixing it and all that hide it (`find_hidden_with`), ns; None where none do, or it was not priced.
    """
    gain_range_ns: tuple[int, int] | None = None
    """The least and the most of it, where waits of hosts without a record, or exchanges that name no partners, leave it
    open.
    """
    are_others_as_late: bool = False
    """Whether fixing it alone saves too little to report because other ranks are as late or later."""

    unpriced_because: str = ""
    """Why replay does not tell what it costs other ranks, as a clause; empty: it does."""
    waits: HeldWaits | None = None
    """What its transfers may hold besides; None: nothing."""
    advice: str = ""
    """What the evidence advises, as the end of a sentence that begins with the culprit; empty: what its cause does."""
    remedy: str = ""
    """What would help by the evidence, as a subject; empty: what helps against its cause."""
    facts: tuple[Fact, ...] = ()
    """What logs state of its ranks and its cause, the most specific first."""

    def __repr__(self) -> str:
        """Return place, cause, share of the loss and confidence; the fields have the rest."""
        ranks = f" {format_ranks(self.ranks)}" if self.ranks else ""
        return f"<Culprit{ranks}: {self.cause}, {format_time(self.loss_ns)}, {self.confidence} confidence>"

    def _repr_html_(self) -> str:
        from jitter.analysis.diagnosis.diagnosis import tabulate_findings

        return tabulate_findings([self])

    def with_evidence(self, sentences: Sequence[str]) -> "Culprit":
        """Return the culprit with more evidence, the most specific: it follows the first sentence, the excess."""
        new = [text for text in sentences if text not in self.evidence]
        return replace(self, evidence=(*self.evidence[:1], *new, *self.evidence[1:]))

    @property
    def is_of_program(self) -> bool:
        """Whether all ranks lose alike to the program, so that it is no jitter."""
        return self.scope == "job" and self.rung in ("sync", "launch", "overlap", "balance")

    @property
    def is_of_unknown_cost(self) -> bool:
        """Whether next to nothing is charged to it because the replay does not tell what it costs."""
        next_to_nothing_ns = (1 - THRESHOLDS.whole_share) * self.excess_ns
        return self.loss_ns <= next_to_nothing_ns and bool(self.unpriced_because)

    @property
    def order_ns(self) -> int:
        """What findings are sorted by: the loss, or, where that is unknown, the excess."""
        return self.excess_ns if self.is_of_unknown_cost else self.loss_ns

    @property
    def is_hidden(self) -> bool:
        """Whether fixing it alone saves less than half of its share, because others are as late or later."""
        return self._saves_less_than(self.loss_ns / 2)

    @property
    def is_partly_hidden(self) -> bool:
        """Whether fixing it alone saves clearly less than its share, for the same reason."""
        return self._saves_less_than((1 - THRESHOLDS.tolerance_share) * self.loss_ns)

    def _saves_less_than(self, ns: float) -> bool:
        most_ns = self.gain_ns if self.gain_range_ns is None else self.gain_range_ns[1]
        return most_ns < ns and not self.unpriced_because and not self.is_beyond_loss


def find_hidden_with(first: Culprit, culprits: Iterable[Culprit]) -> list[Culprit]:
    """Return which culprits hide the first one in its steps, and are hidden: only fixing all saves its share."""
    if first.scope in ("job", "unrecorded") or not first.is_partly_hidden:
        return []
    steps = set(first.steps)
    return [
        culprit
        for culprit in culprits
        if culprit is not first
        and culprit.scope not in ("job", "unrecorded")
        and culprit.is_partly_hidden
        and 2 * len(steps.intersection(culprit.steps)) >= len(culprit.steps)
    ]


@dataclass(frozen=True)
class UnrecordedRanks:
    """The ranks of the job that the lake lacks, and what waiting for them may cost."""

    ranks: tuple[int, ...]
    """Empty where their numbers are not known."""
    at_most_ns: int | None
    """The time of the run in collectives after the last recorded arrival; None without such collectives."""
    fraction: float | None
    """Of the run's time."""
    incomplete: tuple[int, ...] = ()
    """Ranks with a recording of which no step counts."""
    unread: tuple[int, ...] = ()
    """Ranks with a recording that could not be ingested or read."""
    unplaced: int = 0
    """Recordings of unknown rank that were left out, and may be of these ranks or further ones."""


@dataclass(frozen=True)
class Conclusion:
    """The conclusion from all findings; every form of report says the same."""

    status: Status
    doubts: tuple[str, ...] = ()
    """Reasons why no rank, host or link can be cleared, each as a sentence."""
    cleared: tuple[Cleared, ...] = ()
    """Kinds of things of which none stands out in a run that would show it; empty with findings or doubts."""
    unverified_transfers: float | None = None
    """The part of the run's time that transfers take and no benchmark gives; None if it is too small to matter."""
    unrecorded: UnrecordedRanks | None = None
    """None if all ranks of the job were recorded."""


@dataclass(frozen=True)
class WhatIf:
    """Time saved by fixing culprits, ns."""

    culprits_repaired_ns: int | None
    all_repaired_ns: int | None
