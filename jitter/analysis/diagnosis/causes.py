"""The causes of findings: their words and advice, and the rules that decide which one a finding in a trace has.

To add a cause: a name in `model.Cause`, an entry of `CAUSES`, a rule in `RULES` (if a rank or link can have it), and
a fault in `jitter.simulate.faults` whose cause it is. A test compares them; the guide's topic `causes` has a line for
each. The rules over the logs of a job are in `evidence.logs.rules`.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import numpy as np

from jitter.analysis.account.losses import OWN_CLASSES, LossClass
from jitter.analysis.detection.findings import of_one_rank
from jitter.analysis.diagnosis.model import Cause, CauseCertainty
from jitter.analysis.diagnosis.step_pattern import find_period
from jitter.analysis.execution.self_times import TimePart
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.formatting import Ranks, format_count, format_ordinal, format_percent, format_ranks, format_time
from jitter.core.grouping import by_key
from jitter.core.names.kernels import COLLECTIVE, COMPUTE, WHOLE_GRAPH, is_expert_kernel, short_name
from jitter.core.numeric.arrays import Floats, spread_positions
from jitter.core.schema import OFF_CPU, PROFILER

if TYPE_CHECKING:
    from jitter.analysis.detection.findings import Finding
    from jitter.analysis.detection.standouts import Outlier
    from jitter.analysis.diagnosis.evidence.facts import Evidence, OwnTime
    from jitter.analysis.diagnosis.evidence.host_operations import LongOperation

Side = Literal["CPU", "GPU", "network"]


_SIDES: Final[Mapping[TimePart, Side]] = {
    TimePart.START: "CPU", TimePart.CPU: "CPU", TimePart.GPU: "GPU", TimePart.TRANSFER: "network",
}  # fmt: skip


@dataclass(frozen=True)
class CauseInfo:
    """Everything about one cause."""

    words: str
    """Its name in prose."""
    part: TimePart | None
    """Part of the step time that holds its excess."""
    behaviour: str
    """Behaviour of the culprit and where to look, as the end of a sentence that begins with it (`Ranks`)."""
    remedy: str = "fixing it"
    """What would help, as the subject of a sentence that says what it saves."""
    place: str = ""
    """Place in the step of its excess, where no kernels are known to have it."""
    kernels: str = "{}"
    """Its place where kernels are known, which `{}` stands for; empty: it is at no kernel."""
    is_late_launch: bool = False
    """Whether the host's work before a launch is evidence of it."""

    @property
    def is_at_kernels(self) -> bool:
        """Whether the kernels with its excess, and the code that launches them, are worth a look."""
        return self.kernels == "{}"

    @property
    def side(self) -> Side | None:
        """Whose time its part is."""
        return None if self.part is None else _SIDES[self.part]

    def advise(self, *, is_job: bool) -> str:
        """Return what a culprit does and where to look: one rank, host or link, or all ranks of the job."""
        return self.behaviour.format(it=Ranks(range(1 + is_job)))


# fmt: off
CAUSES: Final[Mapping[Cause, CauseInfo]] = MappingProxyType({
    "cpu_after": CauseInfo(
        "late step ends", TimePart.START,
        "{it:is|are} late at the end of {it:its|their} steps: check the host work after the last launch (optimizer, "
        "logging, freeing memory)",
        place="after the last launch of the step", kernels=""),
    "late_start": CauseInfo(
        "late step starts", TimePart.START,
        "{it:starts its|start their} steps late: check the data loading and the {it:host|hosts}",
        "less host work before the first kernel of the step",
        "before the first kernel of the step", is_late_launch=True),
    "cpu_launch": CauseInfo(
        "late kernel launches", TimePart.CPU,
        "{it:launches its|launch their} kernels late: check the other processes, the clocks and the "
        "binding of the {it:host's CPU|hosts' CPUs, and the training loop}",
        "launching its kernels in time (CPU binding, fewer synchronizing calls, no pauses)", is_late_launch=True),
    "unequal_stages": CauseInfo(
        "unequal stages", TimePart.GPU,
        "{it:has|have} more to compute in every step than the ranks that wait for {it:it|them}: divide the work anew "
        "(the layers of a pipeline, the parts of a sequence)",
        "a stage as long as the other ones (fewer layers, or recomputation elsewhere)"),
    "workload_imbalance": CauseInfo(
        "more or different work", TimePart.GPU,
        "{it:has more or different work: check how work is divided|have more or different work in these steps: check "
        "whether the steps are of another kind (an evaluation, the last micro-batch of an optimizer step), else how "
        "work is divided over the steps}",
        "equal work on all ranks (batch, sequence lengths, routing)"),
    "gpu_time": CauseInfo(
        "slow GPU or more work", TimePart.GPU,
        "{it:takes longer for some of its|take longer for some of their} kernels: check the "
        "{it:share of the work, then the GPU|work of these steps, then the GPUs}"),
    "gpu_compute": CauseInfo(
        "slow GPU", TimePart.GPU,
        "{it:executes|execute} the same kernels more slowly: check "
        "{it:GPU clocks, power, temperature and neighbours|the GPUs' clocks, power and cooling} with nvidia-smi -q or "
        "rocm-smi",
        "a GPU at full speed (check clocks, power, temperature, neighbours)"),
    "gpu_pause": CauseInfo(
        "GPU pauses", TimePart.GPU,
        "{it:has launched work that its GPU begins late or interrupts|have launched work that their GPUs begin late or "
        "interrupt}: check what else uses the {it:GPU|GPUs} (processes in nvidia-smi or rocm-smi, time slices, "
        "MPS), then Xid and ECC messages",
        "a GPU that nothing else uses and nothing interrupts"),
    "slow_copies": CauseInfo(
        "slow copies between host and GPU", TimePart.GPU,
        "{it:copies|copy} between host and GPU more slowly: check how much {it:it copies|they copy}, and whether from "
        "pinned memory, then {it:its PCIe link and the NUMA node of its|PCIe links and the NUMA nodes of} host memory",
        "copies at full speed (check their size, the PCIe link, NUMA binding, pinned memory)",
        kernels="before {}"),
    "communication": CauseInfo(
        "slow communication", TimePart.TRANSFER,
        "{it:communicates slowly although the ranks|communicate slowly although they} arrive at the same time: check "
        "{it:the speed and errors of its NIC and NVLink|the network and the communication library's settings}",
        "a network link at full speed (check the NIC and the path of these ranks)"),
    "slow_network": CauseInfo(
        "a network slower than its benchmark", TimePart.TRANSFER,
        "{it:communicates|communicate} more slowly than the benchmark in every step: check "
        "{it:its network|the network and the communication library's settings}",
        "the benchmark's bandwidth (check transport, NICs, settings of the communication library)"),
    "sync_calls": CauseInfo(
        "calls in which the host waits for the GPU", TimePart.CPU,
        "{it:waits for its GPU|wait for their GPUs} in calls of the host{it:|, and launches after them come late}: "
        "read results later, or less often",
        "no call in which the host waits for the GPU"),
    "blocking_copies": CauseInfo(
        "copies that block the host", TimePart.CPU,
        "{it:waits for its GPU in copies|wait for their GPUs in copies that block the host}: use pinned memory and "
        "asynchronous copies",
        "copies that do not block the host"),
    "launch_bound": CauseInfo(
        "kernels shorter than their launches", TimePart.CPU,
        "{it:launches|launch} kernels that take less time than their launch: fuse them, or launch them as a graph",
        "launches that take the host no time"),
    "exposed_communication": CauseInfo(
        "communication that nothing hides", TimePart.TRANSFER,
        "{it:communicates without computing|communicate without computing at the same time}: start collectives "
        "earlier, {it:|in parts, }beside compute",
        "communication hidden by compute"),
    "serial_copies": CauseInfo(
        "copies between host and GPU without kernels beside them", TimePart.GPU,
        "{it:copies|copy between host and GPU} without kernels beside it: copy ahead, on another stream",
        "copies hidden by compute"),
    "none": CauseInfo("no cause found", None, ""),
})
# fmt: on
"""The one vocabulary of causes."""


class Judgement(NamedTuple):
    """Which cause a finding has, and what tells that."""

    cause: Cause
    certainty: CauseCertainty
    sentences: tuple[str, ...] = ()
    advice: str = ""
    """What the rule advises, like `CauseInfo.advise`; empty: what the cause does."""
    job_advice: str = ""
    """The same of all ranks of the job."""
    remedy: str = ""
    """What would help by the rule, like `CauseInfo.remedy`; empty: what helps against the cause."""

    def after(self, *sentences: str) -> "Judgement":
        """Return the judgement with other evidence before its own, unless that makes the cause certain."""
        both = (self.sentences, sentences) if self.certainty == "certain" else (sentences, self.sentences)
        return self._replace(sentences=(*both[0], *both[1]))


class Match(NamedTuple):
    """What a rule is true of."""

    values: Mapping[str, str] = MappingProxyType({})
    """What its words name."""
    more: tuple[str, ...] = ()
    """Sentences that the evidence states itself."""


_Matches = Callable[["Evidence", Any], Match | None]


class Rule(NamedTuple):
    """What tells that something which stands out in some parts of the time has a cause."""

    cause: Cause
    parts: tuple[TimePart, ...]
    certainty: CauseCertainty
    match: _Matches
    """Returns None if the rule is not true of an `Outlier`, or, of transfers, of a `Finding`."""
    words: str = ""
    advice: str = ""
    """Behaviour and where to look, where the rule tells more than the cause; with `it` also of all ranks alike."""
    remedy: str = ""
    """What would help, where the rule tells more than the cause."""
    job_advice: str = ""
    """The advice where one rank after another meets the rule."""


def find_cause(evidence: "Evidence", finding: "Finding") -> Judgement:
    """Return a finding's cause and its evidence: of the first rule of its part of time that its worst rank meets.

    Of pauses of one rank after another the worst is the costliest one: the job did not wait for each of them.
    """
    late = finding.worst if finding.members else finding
    if finding.kind == "random_pauses":
        loss_of = evidence.analysis.account.loss_of
        late = max(finding.members, key=lambda member: loss_of(of_one_rank(member).repair))
    for rule in RULES:
        match = rule.match(evidence, late) if finding.part in rule.parts else None
        if match is not None:
            sentences = (rule.words.format(**match.values), *match.more) if rule.words else match.more
            advice, of_all = (rule.advice.format(it=Ranks(range(count)), **match.values) for count in (1, 2))
            is_in_turn = finding.kind == "random_pauses" or any(member.is_in_turn for member in finding.members)
            job_advice = (rule.job_advice if is_in_turn else "") or (of_all if "{it:" in rule.advice else "")
            return Judgement(rule.cause, rule.certainty, sentences, advice, job_advice, rule.remedy)
    return Judgement("none", "unknown")


def _otherwise(evidence: "Evidence", candidate: Any) -> Match:
    """Return a match: the rule is true where none above it is."""
    return Match()


def _after_last_launch(evidence: "Evidence", late: "Outlier") -> Match | None:
    share = evidence.after_launches.share(late.rank, late.part, late.steps)
    return Match({"share": format_percent(min(share, 1.0))}) if share >= THRESHOLDS.main_share else None


def _after_launches(match: _Matches, evidence: "Evidence", late: "Outlier") -> Match | None:
    """Return the match of what explains time after the last launches of steps; None where most is elsewhere."""
    return None if _after_last_launch(evidence, late) is None else match(evidence, late)


def _side_work(is_after: bool, evidence: "Evidence", late: "Outlier") -> Match | None:
    sentences = evidence.side_work(late, is_after=is_after)
    return Match({"work": " and a ".join(sentences)}, tuple(sentences.values())) if sentences else None


def _loading(is_most: bool, evidence: "Evidence", late: "Outlier") -> Match | None:
    loading = evidence.data_loading(late, is_most=is_most)
    return None if loading is None else Match(_beside_others(loading, late))


def _beside_others(times: "OwnTime | LongOperation", late: "Outlier") -> dict[str, str]:
    of_others = ", in its other steps" if late.is_of_all_ranks else ", the other ranks'"
    usual = "hardly any" if times.others_ns == 0 else format_time(times.others_ns)
    others = "" if times.others_ns is None else f"{of_others} {usual}"
    return {"own": format_time(times.own_ns), "others": others}


def _held_up_by(pattern: re.Pattern[str], is_after: bool, evidence: "Evidence", late: "Outlier") -> Match | None:
    held_up = evidence.held_up(late, pattern, is_after=is_after)
    return None if held_up is None else Match(_beside_others(held_up, late))


def _long_operation(is_after: bool, words: "OperationWords", evidence: "Evidence", late: "Outlier") -> Match | None:
    operation = evidence.long_operation(late, is_after=is_after)
    if operation is None or words_of(operation) is not words:
        return None
    of_steps = "in each of its worst steps" if len(late.steps) > THRESHOLDS.tried_steps else "in each of these steps"
    return Match({**operation.values, **_beside_others(operation, late), "of_steps": of_steps})


class OperationWords(NamedTuple):
    """Words, advice and remedy of what an operation between launches takes."""

    words: str
    advice: str
    remedy: str


def words_of(operation: "LongOperation") -> OperationWords:
    """Return the words for an operation, or for a suspended thread."""
    return _SUSPENSION if operation.outer == OFF_CPU else _OPERATION


def _recorded_in_detail(evidence: "Evidence", late: "Outlier") -> Match | None:
    # what is recorded of every launch makes every step late
    details = evidence.own_details(late) if 2 * len(late.steps) > len(evidence.analysis.keys) else []
    return Match({"details": " and ".join(details)}) if details else None


_OTHER_THAN_LAUNCHES: Final = {LossClass.START: "late step starts", LossClass.GPU: "slow kernels"}


def _lost_by_launches(evidence: "Evidence", late: "Outlier") -> Match | None:
    charges = evidence.analysis.account.charges
    by_class = charges.ranks_ns[list(late.steps), charges.column(late.rank)].sum(axis=0)
    share, most = share_of_launches(by_class), max(OWN_CLASSES, key=by_class.__getitem__)
    lost_ns = float(by_class[list(OWN_CLASSES)].sum())
    if share is None and (lost_ns <= THRESHOLDS.later_ns or most not in _OTHER_THAN_LAUNCHES):
        return None
    of_most = format_percent(min(float(by_class[most]) / lost_ns, 1.0))
    rest = f", {_OTHER_THAN_LAUNCHES[most]} {of_most}" if most in _OTHER_THAN_LAUNCHES else ""
    return Match({"share": "none" if share is None else format_percent(share), "rest": rest})


def share_of_launches(by_class: Floats) -> float | None:
    """Return which part of what a rank loses, ns by class of time, is late launches.

    None for next to nothing. What another class of the rank's time makes up for is part of neither.
    """
    by_launches_ns = float(by_class[LossClass.LAUNCH] + by_class[LossClass.AFTER])
    lost_ns = float(by_class[list(OWN_CLASSES)].sum())
    is_share = lost_ns > 0 and THRESHOLDS.min_cost_share * lost_ns <= by_launches_ns
    return min(by_launches_ns / lost_ns, 1.0) if is_share else None


def _has_meeting(evidence: "Evidence", late: "Outlier") -> bool:
    """Return whether ranks share a collective in any of the steps."""
    return bool(evidence.analysis.measured.statistics.arrivals.met_at[list(late.steps)].any())


def _different_work(evidence: "Evidence", late: "Outlier") -> Match | None:
    if late.pace is not None:
        return None  # it takes longer for the work that it has
    work = evidence.workload(late)
    if not work.excess_ns or work.differing_ns < THRESHOLDS.main_share * work.excess_ns:
        return None
    where, they = ("in its other steps", "those steps") if work.own_steps else ("on the other ranks", "most ranks")
    values = {
        "share": format_percent(work.differing_ns / work.excess_ns),
        "operations": format_count(work.differing, "operation"),
        "where": where,
        "extra": _describe_extra(evidence, work.extra, they) if work.extra else "",
        "they": they,
    }
    return Match(values, (*evidence.side_work(late).values(), *evidence.marker_numbers(late)))


def _exchanged_work(evidence: "Evidence", late: "Outlier") -> Match | None:
    """Return the match of different work of a rank that gets its work from others, as of experts or tables."""
    exchanges = any(op.collective == "all_to_all" for op in evidence.analysis.run.programs[late.team].operations)
    return _different_work(evidence, late) if exchanges else None


def _describe_extra(evidence: "Evidence", extra: Sequence[tuple[int, float]], they: str) -> str:
    """Say how many kernels others do not have, and which one takes most of their time."""
    took_ns = {name: sum(of_name) for name, of_name in by_key(extra).items()}
    kernel = short_name(evidence.analysis.lake.kernel_name(max(took_ns, key=took_ns.__getitem__)))
    mostly = "" if len(took_ns) == 1 else "mostly "
    return f", {len(extra)} of which {they} do not have ({mostly}{kernel})"


def _unknown_shapes(evidence: "Evidence", late: "Outlier") -> Match | None:
    work = evidence.workload(late)
    is_unknown = late.pace is None and work.unknown_ns > THRESHOLDS.main_share * work.excess_ns
    return Match({"share": format_percent(work.unknown_ns / work.excess_ns)}) if is_unknown else None


def _other_kernel(evidence: "Evidence", late: "Outlier") -> Match | None:
    match, replacement = _different_work(evidence, late), evidence.workload(late).main_replacement
    if match is None or replacement is None:
        return None
    own_kernel, usual = ("" if at < 0 else short_name(evidence.analysis.lake.kernel_name(at)) for at in replacement)
    runs = f"runs {own_kernel}, which {match.values['they']} do not"
    runs, check = (
        (f"runs {own_kernel} where {match.values['they']} run {usual}", _CHOICE) if usual else (runs, _ITS_OWN)
    )
    values = {**match.values, "own": own_kernel, "usual": usual, "runs": runs, "check": check}
    return Match(values, (_OTHER_WORK.format(**values), *match.more))


def _own_copies(evidence: "Evidence", late: "Outlier") -> Match | None:
    match = _different_work(evidence, late)
    return match if match is not None and _slow_copies(evidence, late) is not None else None


def _other_model(evidence: "Evidence", late: "Outlier") -> Match | None:
    """Return the match of a GPU of another model than half of its team or more have, as the recordings state.

    It is slower in all steps: in a few it is for another reason. Of two models that are as common, that of the slower
    GPUs is the other one.
    """
    if not late.persistent:
        return None
    key = evidence.analysis.keys[late.steps[0]]
    models, peers = evidence.analysis.lake.gpu_models(key), evidence.analysis.run.ranks(key, late.team)
    own_model = models[late.rank]
    others = Counter(model for rank in peers if (model := models[rank]) not in (own_model, None)).most_common(1)
    if own_model is None or not others or 2 * others[0][1] < len(peers):
        return None
    usual, count = others[0]
    is_half = 2 * count == len(peers)
    slow = _late_ranks(evidence, late)
    if is_half and not slow.issuperset(rank for rank in peers if models[rank] == own_model):
        return None
    return Match({"own": own_model, "usual": str(usual), "most": "the other" if is_half else "most"})


def _late_ranks(evidence: "Evidence", late: "Outlier") -> set[int]:
    """Return all ranks that stand out by the same part of their time."""
    findings = evidence.analysis.candidates
    return {one.rank for finding in findings for one in finding.members if one.part is late.part}


def _in_exchanges(evidence: "Evidence", late: "Outlier") -> Match | None:
    share = evidence.share_in_exchanges(late)
    return Match({"share": format_percent(share)}) if share >= THRESHOLDS.main_share else None


def _whole_graph(evidence: "Evidence", late: "Outlier") -> Match | None:
    other = _other_kernel(evidence, late)
    is_whole = [] if other is None else [other.values[name].startswith(WHOLE_GRAPH) for name in ("own", "usual")]
    return Match() if any(is_whole) and not all(is_whole) else None


def _stated_work(evidence: "Evidence", late: "Outlier") -> Match | None:
    sentences = () if late.pace is not None else evidence.marker_numbers(late)
    return Match(more=sentences) if sentences else None


def _own_launches(evidence: "Evidence", late: "Outlier") -> Match | None:
    share = 0.0 if late.is_of_all_ranks or evidence.is_single_rank else evidence.share_in_own_launches(late)
    return Match({"share": format_percent(share)}) if share >= THRESHOLDS.main_share else None


def _slow_copies(evidence: "Evidence", late: "Outlier") -> Match | None:
    work = evidence.workload(late)
    if not work.excess_ns or work.copies_ns < THRESHOLDS.main_share * work.excess_ns:
        return None
    others = 1 - work.copies_ns / work.excess_ns
    beside = (_KERNELS_TOO.format(share=format_percent(others)),) if others >= THRESHOLDS.minor_share else ()
    return Match({"share": format_percent(work.copies_ns / work.excess_ns)}, beside)


def _blocking_collectives(evidence: "Evidence", late: "Outlier") -> Match | None:
    """Match a GPU whose kernels wait for collectives on their stream: most ranks that are not late use another one."""
    run, match = evidence.analysis.run, _idles_with_work(evidence, late)
    if match is None:
        return None
    key = evidence.analysis.keys[evidence.worst_steps(late)[0]]
    slow = _late_ranks(evidence, late)
    others = [rank for rank in run.ranks(key, late.team) if late.is_compared_with(rank) and rank not in slow]

    def shares_stream(rank: int) -> bool:
        example = run.reader.example(key, rank)
        computing, communicating = (
            {stream for stream, of_row in zip(example.streams, example.kind, strict=True) if of_row == kind}
            for kind in (COMPUTE, COLLECTIVE)
        )
        return not computing.isdisjoint(communicating)

    if not shares_stream(late.rank):
        return None
    sampled = [shares_stream(others[at]) for at in spread_positions(len(others), THRESHOLDS.sampled_ranks)]
    return match if sampled and sum(sampled) < THRESHOLDS.main_share * len(sampled) else None


def _idles_with_work(evidence: "Evidence", late: "Outlier") -> Match | None:
    """Match a GPU that runs nothing although kernels were launched: not its kernels take longer, but what is between.

    Of a rank whose launches were not recorded that is its host's time.
    """
    share = evidence.share_between_kernels(late) if evidence.has_launches(late.team) else 0.0
    return Match({"share": format_percent(share)}) if share >= THRESHOLDS.main_share else None


def _held_launches(evidence: "Evidence", late: "Outlier") -> Match | None:
    work = evidence.workload(late)
    if not work.held or work.held_ns < THRESHOLDS.main_share * work.excess_ns:
        return None
    return Match(
        {
            "share": format_percent(work.held_ns / work.excess_ns),
            "held": format_count(work.held, "launch", "launches"),
            "factor": f"{THRESHOLDS.held_factor:g}",
        }
    )


def _unaffected_kernels(evidence: "Evidence", late: "Outlier") -> Match | None:
    work = evidence.workload(late)
    share = 0.0 if work.own_steps else work.unaffected_share(THRESHOLDS.unaffected_factor)
    return Match({"share": format_percent(share)}) if share >= THRESHOLDS.min_unaffected_share else None


def _more_tokens(evidence: "Evidence", late: "Outlier") -> Match | None:
    others = _unaffected_kernels(evidence, late)
    return others if others and _share_of_experts(evidence, late) >= THRESHOLDS.whole_share else None


def _share_of_experts(evidence: "Evidence", late: "Outlier") -> float:
    """Return which part of a rank's excess is in matrix products of experts, or in larger launches beside them."""
    work = evidence.workload(late)
    excess = [
        (took_ns - usual_ns, is_expert_kernel(evidence.analysis.lake.kernel_name(number)))
        for number, took_ns, usual_ns in work.times
    ]
    whole_ns, of_experts_ns = sum(ns for ns, _ in excess), sum(ns for ns, is_expert in excess if is_expert)
    return (of_experts_ns + (work.differing_ns if of_experts_ns else 0.0)) / whole_ns if whole_ns > 0 else 0.0


def _whole_stage(evidence: "Evidence", late: "Outlier") -> Match | None:
    stage = evidence.stage_as_late(late.rank, late.part)
    if not stage:
        return None
    values = {**_same_work(evidence, late).values, "ranks": format_ranks(sorted(stage))}
    return Match(values, (_SAME_WORK.format(**values),))


def _shared_work(evidence: "Evidence", late: "Outlier") -> Match | None:
    """Match ranks that are late in turn, if ranks with the same work are so in the same steps: the work varies."""
    work = evidence.analysis.outliers.launched_work.get(late.team)
    return Match() if late.is_in_turn and work is not None and work.sharing is not None else None


def _unknown_batches(evidence: "Evidence", late: "Outlier") -> Match | None:
    analysis = evidence.analysis
    if not evidence.is_single_rank or len(late.steps) < THRESHOLDS.minor_share * len(analysis.keys):
        return None  # most steps take as long: batches hardly vary
    is_stated = not any(np.isnan(analysis.lake.batch_size(analysis.keys[number])) for number in late.steps)
    return None if is_stated else _same_work(evidence, late)


def _every_nth(evidence: "Evidence", late: "Outlier") -> Match | None:
    """Match steps of all ranks at equal distances: the program's own schedule has these, GPUs hardly."""
    period = find_period(late.steps, len(evidence.analysis.keys)) if late.is_of_all_ranks else None
    if period is None:
        return None
    return Match({**_same_work(evidence, late).values, "nth": format_ordinal(period)})


def _most_steps(evidence: "Evidence", late: "Outlier") -> Match | None:
    """Match most steps, of all ranks and in no one stretch: steps of two lengths may be batches of two sizes."""
    is_most = late.is_of_all_ranks and 2 * len(late.steps) > len(evidence.analysis.keys)
    is_stretch = late.steps[-1] - late.steps[0] == len(late.steps) - 1
    return _same_work(evidence, late) if is_most and not is_stretch else None


def _same_work(evidence: "Evidence", late: "Outlier") -> Match:
    work = evidence.workload(late)
    copies = work.copies_ns / max(work.excess_ns, 1.0)
    beside = (_COPIES_TOO.format(share=format_percent(copies)),) if copies >= THRESHOLDS.minor_share else ()
    return Match(
        {
            "same": str(work.operations - work.differing),
            "operations": format_count(work.operations, "slower operation"),
            "where": "in its other steps" if work.own_steps else "on the other ranks",
        },
        beside,
    )


def _slow_transfers(evidence: "Evidence", slow: "Finding") -> Match:
    usual = float(evidence.analysis.transfers.usual_ns(slow, list(slow.steps)).mean())
    count = len(slow.of_slowest)
    values = {
        "collectives": f"{format_count(count, 'collective')} per step {'takes' if count == 1 else 'take'}",
        "taken": format_time(usual + slow.excess_ns / max(len(slow.steps), 1)),
        "baseline": "baseline" if slow.known_gain_ns is None else "by the lake's bandwidth benchmark",
        "usual": format_time(usual),
    }
    is_of_ranks = slow.kind != "random_transfers" and not evidence.coverage.may_delay(slow)
    of_ranks = (_OF_ONE if len(slow.ranks) == 1 else _OF_ANY,) if is_of_ranks else ()
    assumed = (_ASSUMED_SIZES,) if evidence.analysis.transfers.has_assumed_sizes(slow) else ()
    return Match(values, (*of_ranks, *assumed))


def _slow_inside_hosts(evidence: "Evidence", slow: "Finding") -> Match | None:
    return _slow_transfers(evidence, slow) if evidence.analysis.transfers.are_inside_nodes(slow) else None


def _may_carry_more(evidence: "Evidence", slow: "Finding") -> Match | None:
    account = evidence.analysis.account
    at_ranks = np.ix_(slow.steps, account.charges.columns(slow.ranks))
    uneven_ns = float(account.charges.own_ns[TimePart.GPU][at_ranks].sum())
    is_uneven = uneven_ns >= THRESHOLDS.main_share * account.loss_of(slow.repair)
    if not is_uneven or not evidence.analysis.transfers.may_carry_more(slow):
        return None
    return Match({**_slow_transfers(evidence, slow).values, "uneven": format_time(uneven_ns)})


def _waits_for_unrecorded(evidence: "Evidence", slow: "Finding") -> Match | None:
    if not evidence.coverage.may_delay(slow):
        return None
    (values, sentences), missing = _slow_transfers(evidence, slow), evidence.coverage.unrecorded_members(slow)
    sentence = (
        "all recorded ranks of these collectives wait for members without a recording of these steps"
        f"{f' ({format_ranks(missing)})' if missing else ''}, or for the network"
    )
    return Match(values, (*sentences, sentence))


_START: Final = (TimePart.START,)
_CPU: Final = (TimePart.CPU,)
_HOST: Final = (TimePart.START, TimePart.CPU)
_GPU: Final = (TimePart.GPU,)
_TRANSFER: Final = (TimePart.TRANSFER,)
_HOLD_UPS: Final = (
    (re.compile(f"{PROFILER}$"),
     "the profiler held it up for {own} per step, to write out what it recorded or to make room for more",
     "{it:is|are} held up by {it:its profiler|their profilers}, not by the job: record fewer activities, or other "
     "steps",
     "a recording of less"),
    (re.compile(r"(?:cuda|cu|hip)(?:Malloc|Free|Mem(?:Alloc|Free|Create|Release|Map|Unmap|SetAccess))(?!Host)"),
     "calls that allocate or free GPU memory take {own} per step of its host's time",
     "{it:is|are} held up by allocating and freeing GPU memory: use less GPU memory, or let the allocator keep it "
     "(in PyTorch expandable segments, and no empty_cache)",
     "no allocation of GPU memory within steps"),
    (re.compile(r"(?:cuda|cu|hip)(?:Module|Library)(?:Load|Get)|(?:nv|hip)rtcCompile|.*\(dynamo_timed\)$"),
     "calls that load or compile GPU code take {own} per step of its host's time",
     "{it:loads|load} or {it:compiles|compile} kernels within steps: warm up with all shapes before, or keep shapes "
     "equal (TORCH_LOGS=recompiles tells what PyTorch compiles anew)",
     "no kernel that is compiled or loaded within steps"),
    (re.compile(r"built-in (?:function|method) collect(?: of module)?$|(?i:.*\bgc[._]collect\b|.*garbage.collect)"),
     "Python's garbage collection takes {own} per step of its host's time",
     "{it:is|are} held up by Python's garbage collection: collect in the same step on all ranks, with automatic "
     "collection off (gc.disable), or freeze what stays (gc.freeze)",
     "no garbage collection that a step waits for"),
)  # fmt: skip
"""What holds up a host, by the names of its events; words, advice and remedy of a rule."""
_OPERATION: Final = OperationWords(
    "`{name}` takes {own} of host time {of_steps}{inside}{others}",
    "{it:is|are} held up by what {it:its host does|their hosts do} between launches: check what `{name}` does, and "
    "whether a step must wait for it",
    "a step that does not wait for this operation",
)
_SUSPENSION: Final = OperationWords(
    "launching threads are off the CPU for {own} {of_steps}{others}",
    "{it:is|are} late because launching threads are off the CPU: check for other processes on the cores of these "
    "threads and for CPU limits, then what they wait for",
    "launching threads that are never off the CPU",
)
_BESIDE: Final = (
    "",
    "{it:is|are} held up by a {work}: let it run beside the steps, or less often",
    "a checkpoint or validation that no step waits for",
)
"""The same as `_HOLD_UPS`."""
_LOADING: Final = "its data-loading ranges take {own} per step{others}"
_OWN_DETAILS: Final = "its recording has {details}, most of the others' have not: recording them takes host time"
_RECORD_ALIKE: Final = (
    " while its profiler records {details}, which takes host time and which most other ranks' do not: record all ranks "
    "alike, then check the host"
)
_AS_OTHERS: Final = "recording it as the other ranks"
_OTHER_WORK: Final = (
    "{share} of the excess GPU time is in {operations} with another kernel name or launch shape than {where}{extra}"
)
_CHOICE: Final = "what chose the kernel (autotuning and its cache, library versions), then the sizes of its inputs"
_ITS_OWN: Final = "whether the job must wait for what it alone does"
_OF_ONE: Final = "all of these slow groups contain this rank"
_OF_ANY: Final = (
    "one slow link holds up all ranks of a group: counters of NICs and NVLink, or nccl-tests on fewer ranks, tell which"
)
_ASSUMED_SIZES: Final = (
    "message sizes were not recorded: links with about as many exchanges are taken to carry equal ones"
)
_KERNELS_TOO: Final = "the rest, {share}, is in kernels, which take longer, too: check the GPU as well"
_COPIES_TOO: Final = (
    "{share} of the excess GPU time is in copies between host and GPU, which take longer, too: check the PCIe link as "
    "well"
)
_SAME_WORK: Final = "{same} of {operations} have the same launch shape as {where}"
_EVEN_WORK: Final = (
    "have more work than the others in turn, so none is to blame: give all ranks about as many tokens in each step "
    "(pack sequences to equal sums, or sort them by length into buckets)"
)
_EVEN_EXCHANGES: Final = (
    "have more work than the others in turn, so none is to blame: check how evenly the work behind all-to-alls is "
    "divided (tokens over experts, lookups over tables), then whether all ranks have about as many tokens in each step"
)
_CHECK_WORK: Final = (
    "take longer for their kernels in turn, so none is to blame: check how evenly each step's work is divided (tokens, "
    "sequence lengths), then the GPUs' clocks"
)
_EVEN_LAUNCHES: Final = (
    "launch more kernels than the others in turn, so none is to blame: check how evenly work is divided (tokens to "
    "generate, micro-batches), and launch in graphs what repeats"
)
_TRANSFERS: Final = "from the last arrival to the end, {collectives} {taken} ({baseline} {usual})"


def _hold_ups(cause: Cause, parts: tuple[TimePart, ...]) -> Iterator[Rule]:
    """Yield the rules by which recorded work of the host makes a late host certain or likely."""
    is_after = cause == "cpu_after"

    def where_it_lies(match: _Matches) -> _Matches:
        return partial(_after_launches, match) if is_after else match

    yield Rule(cause, parts, "certain", where_it_lies(partial(_side_work, is_after)), *_BESIDE)
    for names, *words in _HOLD_UPS:
        yield Rule(cause, parts, "likely", where_it_lies(partial(_held_up_by, names, is_after)), *words)
    if cause == "late_start":
        yield Rule(
            cause,
            parts,
            "certain",
            partial(_loading, True),
            f"{_LOADING}: the input pipeline stalled",
            "{it:starts its|start their} steps late: check the data loading",
            "more loader workers or prefetching",
        )
    for operation in (_OPERATION, _SUSPENSION):
        yield Rule(cause, parts, "likely", where_it_lies(partial(_long_operation, is_after, operation)), *operation)


# fmt: off
RULES: Final = (
    *_hold_ups("cpu_after", _HOST),
    Rule("cpu_after", _HOST, "likely", _after_last_launch,
         "{share} of the excess lies between the last launch of a step and the step's end"),
    *_hold_ups("late_start", _START),
    Rule("late_start", _START, "unknown", _recorded_in_detail, _OWN_DETAILS, f"starts its steps late{_RECORD_ALIKE}",
         _AS_OTHERS),
    Rule("late_start", _START, "unknown", partial(_loading, False), f"{_LOADING}: they do not explain the late start",
         "{it:starts its|start their} steps late: check the {it:host|hosts}"),
    Rule("late_start", _START, "unknown", _otherwise, "no data-loading range was recorded"),
    *_hold_ups("cpu_launch", _CPU),
    Rule("cpu_launch", _CPU, "unknown",
         lambda evidence, late: None if evidence.has_launches(late.team) else Match(),
         "no launches were recorded: an idle GPU is taken to wait for its host"),
    Rule("cpu_launch", _CPU, "certain", _own_launches,
         "{share} of what the job loses to it lies at launches that most other ranks do not have",
         "launches kernels that most other ranks do not: check how evenly work is divided (tokens to generate, "
         "micro-batches)", "as many launches as the other ranks", _EVEN_LAUNCHES),
    Rule("cpu_launch", _CPU, "unknown", _recorded_in_detail, _OWN_DETAILS, f"launches its kernels late{_RECORD_ALIKE}",
         _AS_OTHERS),
    Rule("cpu_launch", _CPU, "likely", lambda evidence, late: Match() if late.is_of_all_ranks else None),
    Rule("cpu_launch", _CPU, "likely", _lost_by_launches,
         "late launches are {share} of what the job loses to it{rest}"),
    Rule("cpu_launch", _CPU, "likely",
         lambda evidence, late: None if _has_meeting(evidence, late) else Match(),
         "its launches are late; the ranks share no collective in these steps"),
    Rule("cpu_launch", _CPU, "likely", _otherwise,
         "its launches are late, but slower ranks mask them: the job did not wait for them"),
    Rule("gpu_time", _GPU, "unknown", _in_exchanges,
         "{share} of its loss lies in communication, where some exchanges name no partners: it may wait there",
         "takes longer in communication, where it may wait for others: check the ranks that it exchanges with, too"),
    Rule("gpu_time", _GPU, "unknown", _whole_graph,
         "some ranks recorded CUDA graphs as a whole, others their kernels: which kernels are slower is unknown",
         "takes longer for its CUDA graphs: record kernels of graphs on all ranks, then check its work and its GPU"),
    Rule("gpu_compute", _GPU, "certain", _other_model, "its GPU is {own}, and that of {most} ranks {usual}",
         "{it:has a GPU|have GPUs} of another model than {most} ranks: give {it:it|them} less work, or take all GPUs "
         "of one model", "GPUs of one model, or work in proportion to their speed"),
    Rule("gpu_time", _GPU, "certain", _blocking_collectives,
         "{share} of the excess lies between kernels, where collectives run on the same stream; most ranks that are "
         "not late have a stream for these",
         "{it:runs its|run their} collectives on the stream of the kernels, which wait for them: compare settings and "
         "process groups with the other ranks', whose collectives run beside compute",
         "collectives on a stream of their own"),
    Rule("gpu_pause", _GPU, "likely", _idles_with_work,
         "{share} of the excess lies between kernels that were launched before: the GPU runs nothing recorded there"),
    Rule("workload_imbalance", _GPU, "certain", _own_copies, _OTHER_WORK,
         "makes copies between host and GPU that {they} do not: check whether the job must wait for its copies (a "
         "checkpoint, logging)", "copies that the job need not wait for"),
    Rule("workload_imbalance", _GPU, "certain", _other_kernel, "it {runs}", "{runs}: check {check}"),
    Rule("workload_imbalance", _GPU, "certain", _exchanged_work, _OTHER_WORK, job_advice=_EVEN_EXCHANGES),
    Rule("workload_imbalance", _GPU, "certain", _different_work, _OTHER_WORK, job_advice=_EVEN_WORK),
    Rule("workload_imbalance", _GPU, "certain", _stated_work, job_advice=_EVEN_WORK),
    Rule("slow_copies", _GPU, "likely", _slow_copies,
         "{share} of the excess GPU time is in copies between host and GPU"),
    Rule("workload_imbalance", _GPU, "likely", _more_tokens,
         "its experts' matrix products are slower, kernels with {share} of the GPU time hardly are: more tokens, or a "
         "cause that slows these kernels only",
         "computes longer for its experts than the others: check how evenly the router fills the experts, then the GPU",
         "experts with as many tokens on all ranks (balancing loss, capacity, placement)",
         "compute longer for their experts in turn: check how evenly the router fills the experts (balancing loss, "
         "capacity, placement), as the busiest expert changes"),
    Rule("workload_imbalance", _GPU, "likely", _shared_work,
         "ranks that share their work take longer in the same steps", job_advice=_EVEN_WORK),
    Rule("gpu_time", _GPU, "unknown", _unknown_shapes,
         "{share} of the excess is in kernels of the same names, and their launch shapes are not recorded: more work, "
         "or a slow GPU", job_advice=_CHECK_WORK),
    Rule("gpu_pause", _GPU, "likely", _held_launches,
         "{share} of the excess is in {held} of {factor} times the usual length or more, and most others of the same "
         "kernels are shorter"),
    Rule("gpu_time", _GPU, "unknown",
         lambda _, late: Match({"kernel": short_name(*late.kernels)}) if len(late.kernels) == 1 else None,
         "most of the excess is in {kernel} alone, with the same launch shapes: more work in launches of a fixed size, "
         "or a cause that slows this kernel only",
         "takes longer for {kernel} than the others: check what it computes there and how it was chosen, then the GPU"),
    Rule("gpu_time", _GPU, "unknown", _unaffected_kernels,
         "kernels with {share} of the GPU time are hardly slower, all others are, with the same launch shapes: more "
         "work in launches of a fixed size, or a cause that slows some kernels only", job_advice=_CHECK_WORK),
    Rule("gpu_compute", _GPU, "likely",
         lambda _, late: None if late.pace is None else Match({"longer": format_percent(late.pace - 1)}),
         "its kernels take {longer} longer than the other ranks' for the same work, which varies over ranks and steps "
         "(by launch sizes, by ranks that share its work, or by kernels whose work does not vary)"),
    Rule("gpu_time", _GPU, "unknown", _whole_stage,
         "the whole pipeline stage is slower ({ranks}): more work in launches of a fixed size, or slow GPUs"),
    Rule("gpu_time", _GPU, "unknown", _unknown_batches,
         "{same} of {operations} have the same launch shape as {where}; no other rank tells how large the batches are",
         "takes longer for the same kernels in these steps: compare the sizes of their batches, then check the GPU"),
    Rule("gpu_time", _GPU, "unknown", lambda evidence, late: _same_work(evidence, late) if late.is_in_turn else None,
         f"{_SAME_WORK}: more work in launches of a fixed size, or clocks that vary", job_advice=_CHECK_WORK),
    Rule("gpu_time", _GPU, "unknown", _most_steps,
         f"{_SAME_WORK}, in most steps: more work in launches of a fixed size, or GPUs that are fast in few steps",
         "{it:takes|take} longer for the same kernels in most steps: compare the batches of these and the other steps, "
         "then check the {it:GPU's|GPUs'} clocks"),
    Rule("gpu_time", _GPU, "unknown", _every_nth,
         f"{_SAME_WORK}, in every {{nth}} step: more work in launches of a fixed size, if it is planned so",
         "{it:takes|take} longer for the same kernels in every {nth} step: check what the program does otherwise "
         "there, then the {it:GPU|GPUs}"),
    Rule("gpu_compute", _GPU, "likely", _same_work, _SAME_WORK),
    Rule("communication", _TRANSFER, "unknown", _waits_for_unrecorded, _TRANSFERS),
    Rule("slow_network", _TRANSFER, "likely",
         lambda evidence, slow: None if slow.known_gain_ns is None else _slow_transfers(evidence, slow), _TRANSFERS),
    Rule("communication", _TRANSFER, "unknown", _may_carry_more,
         f"{_TRANSFERS}; some of these ranks compute longer, too, which costs {{uneven}}: they may exchange more",
         "{it:takes|take} longer in all-to-alls, as in compute: check how evenly work is divided (the router of "
         "experts), then the network", "equal work on all ranks (routing), or a faster network"),
    Rule("communication", _TRANSFER, "likely",
         lambda evidence, slow: _slow_transfers(evidence, slow) if slow.kind == "random_transfers" else None,
         _TRANSFERS,
         "{it:communicates|communicate} slowly at times, one group after another: check what else uses the network "
         "then (other jobs, storage), its routing and flow control, and the NICs of hosts in all of these groups",
         "a network without congestion"),
    Rule("communication", _TRANSFER, "likely", _slow_inside_hosts, _TRANSFERS,
         "{it:communicates|communicate} slowly inside {it:the host|their hosts} although the ranks arrive at the "
         "same time: check NVLink, or the GPUs' PCIe links",
         "links between the GPUs of a host at full speed (check NVLink and PCIe)"),
    Rule("communication", _TRANSFER, "likely", _slow_transfers, _TRANSFERS),
)
# fmt: on
"""By precedence: the first rule of a part of time that is true decides."""
