"""The findings as texts: the fix list over all rungs, largest first, and the seven questions with their answers."""

import shlex
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from operator import attrgetter
from pathlib import Path
from typing import Final, NamedTuple

from jitter.analysis.diagnosis.causes import CAUSES
from jitter.analysis.diagnosis.diagnosis import Diagnosis
from jitter.analysis.diagnosis.evidence.code import describe_launch
from jitter.analysis.diagnosis.loss.split import (
    LOSS_CLASS_INFO,
    describe_ranks_of_loss,
    describe_share,
    describe_split,
    main_rank,
)
from jitter.analysis.diagnosis.loss.waterfall import describe_waterfall
from jitter.analysis.diagnosis.model import Culprit, StepAnswer
from jitter.analysis.diagnosis.verdict import (
    advise_recurrence,
    describe_advice,
    describe_gain_of_all,
    describe_gain_with_hidden,
    describe_price,
    describe_recurrence,
    describe_saving,
    describe_seen,
    name_cause,
    name_culprit,
    name_saving,
    name_side,
    write_advice,
    write_jitter_verdict,
)
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.formatting import (
    abbreviate,
    capitalize,
    format_count,
    format_numbers,
    format_percent,
    format_rank,
    format_ranks,
    format_some,
    format_time,
    format_timeline_span,
)
from jitter.core.names.kernels import short_name

MAX_EXPORTED_RANKS: Final = 8


class FixItem(NamedTuple):
    """One item of the list as texts; a text is empty where there is nothing to say."""

    name: str
    """Rank, host, link or `All ranks`."""
    words: str
    """What costs the time, where and when."""
    loss_ns: int | None
    """None where what it costs is unknown."""
    fraction: float | None
    """Of the run's time."""
    saving: str
    """What its fix saves, where that is not its cost."""
    is_jitter: bool
    certainty: str
    remedy: str
    recurrence: str
    code: str
    """Operator, scope and line of the program that launches its first kernel."""
    file: str
    """Recording and time range on its own timeline."""
    evidence: tuple[str, ...]
    export: str
    """The command that writes its timeline for Perfetto."""


def list_fixes(diagnosis: Diagnosis, cohorts: Mapping[int, int], lake: Path) -> list[FixItem]:
    """Return the findings over all rungs, most time first.

    `cohorts` maps each rank to its cohort; `lake` is named in commands.
    """
    return [_item(finding, diagnosis, cohorts, lake, number) for number, finding in enumerate(diagnosis.findings, 1)]


def write_headline(culprit: Culprit) -> str:
    """Return who loses time, by what, where and when: `Rank 5: late kernel launches (CPU), kernel 17, 1 of 5 steps`."""
    return f"{name_with_device(culprit)}: {_describe_loss(culprit)}"


def name_with_device(culprit: Culprit) -> str:
    """Return the culprit's name, with the device of a rank whose GPU is to be looked at."""
    return name_culprit(culprit) + (_device(culprit) if CAUSES[culprit.cause].side == "GPU" else "")


def _describe_loss(culprit: Culprit) -> str:
    """Return what costs the time, where, and in which steps; most of what the program costs is in all of them."""
    is_always = culprit.is_of_program and culprit.seen.steps == culprit.seen.of
    seen = "" if is_always else f", {describe_seen(culprit)}"
    return describe_symptom(culprit) + seen


def describe_symptom(culprit: Culprit) -> str:
    """Return what the culprit does and where: `late kernel launches (CPU), kernel 17`."""
    cause = name_side(name_cause(culprit), CAUSES[culprit.cause].side)
    return ", ".join(filter(None, (cause, describe_place(culprit))))


def describe_place(culprit: Culprit) -> str:
    """Return where in the step the culprit's excess lies: `kernels 2 to 73`; empty if that is unknown."""
    cause, index = CAUSES[culprit.cause], culprit.kernel_index
    if index is None or not cause.kernels:
        return f"{cause.place} before" if culprit.is_before_steps else cause.place
    is_one = index.first == index.last
    return cause.kernels.format(f"kernel {index.first}" if is_one else f"kernels {index.first} to {index.last}")


def name_first_kernel(culprit: Culprit, diagnosis: Diagnosis) -> str:
    """Return the name of the first kernel at which a rank of the culprit diverges, in its steps and in its range."""
    index = culprit.kernel_index
    if index is None or not CAUSES[culprit.cause].is_at_kernels:
        return ""
    keys = frozenset(culprit.steps)
    steps = (step for step in diagnosis.steps if step.max_rank in culprit.ranks and step.key in keys)
    began = [step.divergence for step in steps if step.divergence is not None]
    in_range = [kernel for kernel in began if index.first <= kernel.kernel_index <= index.last]
    first = min(in_range, key=lambda kernel: kernel.kernel_index, default=None)
    return "" if first is None else abbreviate(short_name(first.kernel_name))


def describe_finding(culprit: Culprit, diagnosis: Diagnosis, most: int) -> Iterator[tuple[str, str]]:
    """Yield the rows below a headline, each with its name: cost, at most so much evidence, place, what to do."""
    yield "cost", describe_cost(culprit, diagnosis)
    side = CAUSES[culprit.cause].side or "seen"
    yield from name_rows(side, list_evidence(culprit)[:most])
    if where := ", ".join(filter(None, (name_first_kernel(culprit, diagnosis), describe_launch(culprit.code)))):
        yield "where", where
    if (look := culprit.look_at) is not None:
        yield "look", f"{as_typed(Path(look.file))}  {format_timeline_span(look.start_ns, look.end_ns)}"
    yield "do", describe_action(culprit)
    if culprit.recurs != "yes":
        yield "again", advise_recurrence(culprit)


def name_rows(name: str, texts: Iterable[str]) -> list[tuple[str, str]]:
    """Return a row for each text, the first one with the name."""
    return [("" if number else name, text) for number, text in enumerate(texts)]


def as_typed(path: Path) -> str:
    """Return a path as one types it in the working directory."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def list_evidence(culprit: Culprit) -> list[str]:
    """Return the evidence but for the code, and the cost of what is of the program, which other lines say."""
    sentences = culprit.evidence[1:] if culprit.is_of_program else culprit.evidence
    return [line for line in sentences if line != describe_launch(culprit.code)]


def describe_cost(culprit: Culprit, diagnosis: Diagnosis) -> str:
    """Return the culprit's loss, what fixing it alone saves and the whole loss of jitter, where they differ."""
    parts = [describe_price(culprit)]
    if together := describe_gain_with_hidden(culprit, diagnosis):
        parts.append(together)
    is_part = format_time(culprit.loss_ns) != format_time(diagnosis.loss.ns)
    if culprit.rung == "ranks" and is_part and (whole := describe_jitter(diagnosis)):
        parts.append(f"all jitter: {whole}")
    return f"{'; '.join(parts)} ({culprit.confidence} confidence)"


def describe_rest(diagnosis: Diagnosis) -> str:
    """Return what jitter costs beside a headline that is not of jitter, or why that is unknown; else nothing."""
    if not diagnosis.culprits:
        return capitalize(write_jitter_verdict(diagnosis).removeprefix("Jitter costs "))
    if diagnosis.loss.ns is None and diagnosis.conclusion.doubts:
        return f"What it costs the run is unknown. {diagnosis.conclusion.doubts[0]}"
    return "" if diagnosis.headline is None or diagnosis.headline.rung == "ranks" else describe_jitter(diagnosis)


def describe_jitter(diagnosis: Diagnosis) -> str:
    """Return what jitter costs the run: `1.25 ms over 4 steps = 12.0%`; empty if it costs nothing measurable.

    Where the findings hold little of it, the class and the ranks of most of it follow.
    """
    loss = diagnosis.loss
    if loss.ns is None or loss.ns <= 0:
        return ""
    whole = "" if loss.fraction is None else f" = {format_percent(loss.fraction)}"
    held_ns = sum(culprit.loss_ns for culprit in diagnosis.culprits if culprit.rung == "ranks")
    main = diagnosis.main_share
    mostly = "" if main is None or held_ns >= THRESHOLDS.main_share * loss.ns else f": {describe_split([main])}"
    return f"{format_time(loss.ns)} over {format_count(diagnosis.counted_steps, 'step')}{whole}{mostly}"


def describe_action(culprit: Culprit) -> str:
    """Return what to do, as a sentence."""
    return capitalize(describe_advice(culprit).rpartition(": ")[2])


def exported_ranks(culprit: Culprit, step: StepAnswer, cohorts: Mapping[int, int]) -> list[int]:
    """Return the ranks whose timeline shows a finding: its own, and the step's min rank to compare with.

    Only ranks of the worst rank's cohort: the clocks of different cohorts cannot be aligned.
    """
    ranks = [rank for rank in (culprit.rank, step.min_rank, *culprit.ranks) if rank is not None]
    alike = [rank for rank in ranks if cohorts.get(rank) == cohorts.get(culprit.rank)]
    return list(dict.fromkeys(alike))[:MAX_EXPORTED_RANKS]


def costliest_step(culprit: Culprit, diagnosis: Diagnosis) -> StepAnswer | None:
    """Return the step of a finding that lost most; of those with one of its ranks as max rank, if there are any."""
    finding_steps = [step for step in diagnosis.steps if step.key in culprit.steps]
    named = [step for step in finding_steps if step.max_rank in culprit.ranks]
    # all ranks are slow in a step of the rung `steps`, which its loss does not contain
    key = attrgetter("step_time_ns" if culprit.rung == "steps" else "loss_ns")
    return max(named or finding_steps, key=lambda step: key(step) or 0, default=None)


def describe_remedy(culprit: Culprit) -> str:
    """Return what would help and what it saves: `A GPU at full speed would save about 24 ms`."""
    clause = describe_saving(culprit, culprit.remedy or CAUSES[culprit.cause].remedy)
    return f"{clause[0].upper()}{clause[1:]}"


def _item(culprit: Culprit, diagnosis: Diagnosis, cohorts: Mapping[int, int], lake: Path, number: int) -> FixItem:
    step, look = costliest_step(culprit, diagnosis), culprit.look_at
    code, export = describe_launch(culprit.code) or "", ""
    if step is not None:
        epoch = "" if step.key.epoch is None else f" --epoch {step.key.epoch}"
        ranks = format_numbers(exported_ranks(culprit, step, cohorts), in_full=True)
        name = f"finding-{number}.json.gz"
        export = (
            f"jitter export {shlex.quote(str(lake))} --perfetto {name} --step {step.key.step}{epoch} --ranks {ranks}"
        )
    return FixItem(
        name=name_culprit(culprit),
        words=_describe_loss(culprit),
        loss_ns=None if culprit.is_of_unknown_cost else culprit.loss_ns,
        fraction=None if culprit.is_of_unknown_cost else culprit.fraction,
        saving="" if culprit.is_of_unknown_cost else name_saving(culprit),
        is_jitter=culprit in diagnosis.culprits,
        certainty=f"{culprit.confidence} confidence; cause {culprit.cause_certainty}",
        remedy="" if culprit.is_of_program else describe_remedy(culprit),
        recurrence=write_advice(culprit) if culprit.is_of_program else advise_recurrence(culprit),
        code=code,
        file="" if look is None else f"{look.file}, {format_timeline_span(look.start_ns, look.end_ns)}",
        evidence=tuple(line for line in culprit.evidence if line != code),
        export=export,
    )


Hosts = Mapping[int, str | None]
_MOST = 3
_MAIN_SHARE = 0.25
"""Of the loss. A part of at least this size answers whether the CPU or the GPU costs the time."""
_NOTHING = "nothing stands out above the run's noise"
_UNKNOWN = "Unknown: no rank can be compared with another."


class QuestionAnswer(NamedTuple):
    """A question, its answer and the evidence for it, one sentence each."""

    question: str
    answer: str
    evidence: tuple[str, ...] = ()


def answer_questions(diagnosis: Diagnosis, hosts: Hosts, *, evidence: bool = True) -> list[QuestionAnswer]:
    """Return the seven questions with their answers, in the order of the report; none of a lake without traces.

    `hosts` maps each rank to its host, None where the traces do not name it. Without `evidence`, that of the findings
    is left out, as for a report that states it elsewhere.
    """
    culprits = diagnosis.culprits
    if not diagnosis.steps:
        return []
    seen = tuple(  # whether the first one recurs, the verdict says
        f"{name_culprit(finding)}: seen in {describe_seen(finding)}{f'; {describe_recurrence(finding)}' if at else ''}"
        for at, finding in enumerate(culprits[:_MOST])
    )
    return [
        QuestionAnswer("How much does jitter cost?", _cost(diagnosis), _gains(diagnosis)),
        QuestionAnswer("Which step?", _steps(diagnosis), seen),
        QuestionAnswer("Which node?", _node(diagnosis, hosts)),
        QuestionAnswer("Which GPU?", _gpu(diagnosis, hosts)),
        QuestionAnswer("When in the step does it begin?", _when(diagnosis)),
        QuestionAnswer("Where to look?", _where(diagnosis)),
        QuestionAnswer("CPU or GPU?", _side(diagnosis), _evidence(diagnosis) if evidence else ()),
    ]


def _evidence(diagnosis: Diagnosis) -> tuple[str, ...]:
    """Return the evidence of the first findings; of several each sentence names its finding."""
    findings = diagnosis.culprits[:_MOST]
    names = [f"{name_culprit(finding)}: " if len(diagnosis.culprits) > 1 else "" for finding in findings]
    return tuple(f"{name}{line}" for name, finding in zip(names, findings, strict=True) for line in finding.evidence)


def _cost(diagnosis: Diagnosis) -> str:
    loss = diagnosis.loss
    if loss.ns is None:
        if all(step.step_time_ns is None for step in diagnosis.steps):
            return "Unknown: the step times are not known."
        if diagnosis.communication_doubt is not None:
            return f"Unknown: {diagnosis.communication_doubt}."
        return "Unknown: the ranks and steps recorded are too few to compare."
    counted = format_count(diagnosis.counted_steps, "step")
    if loss.ns <= 0:
        return f"No measurable time over {counted}."
    share = "" if loss.fraction is None else f", {format_percent(loss.fraction)} of the run"
    return f"{format_time(loss.ns)} over {counted}{share}"


def _gains(diagnosis: Diagnosis) -> tuple[str, ...]:
    parts = describe_split(diagnosis.split)
    waterfall = describe_waterfall(diagnosis.waterfall)
    split = (*((f"of it: {parts}",) if parts else ()), *_uncounted(diagnosis), *((waterfall,) if waterfall else ()))
    if not diagnosis.culprits:
        return split
    at_median = f"every rank at the median speed: {format_time(diagnosis.what_if.all_repaired_ns)}"
    return (*split, "; ".join(filter(None, (describe_gain_of_all(diagnosis), at_median))))


def _uncounted(diagnosis: Diagnosis) -> tuple[str, ...]:
    """Say which steps have no time and so no loss, if others have a loss."""
    untimed = [step.key for step in diagnosis.steps if step.step_time_ns is None and step.loss_ns is None]
    if not 0 < len(untimed) < len(diagnosis.steps):
        return ()
    named, began = (f"{untimed[0]} is", "it") if len(untimed) == 1 else (f"{len(untimed):,} steps are", "they")
    return (
        f"{named} not counted: the step before was not recorded, or not asked for, so when {began} began is unknown",
    )


def _steps(diagnosis: Diagnosis) -> str:
    first = diagnosis.headline
    is_of_all = first is not None and first.rung == "steps" and first.scope == "job"
    slow = costliest_step(first, diagnosis) if first is not None and is_of_all else None
    if slow is not None:  # its loss compares ranks, and does not contain it
        return f"{str(slow.key).capitalize()} is slow for all ranks: it takes {format_time(slow.step_time_ns)}."
    if all(step.loss_ns is None for step in diagnosis.steps):
        return "Unknown: no step has a known loss."
    worst = diagnosis.costliest
    if (worst.loss_ns or 0) <= 0:
        return "None: no step loses measurable time."
    share = "" if worst.loss_fraction is None else f" ({format_percent(worst.loss_fraction)})"
    return f"{str(worst.key).capitalize()} costs most: {format_time(worst.loss_ns)}{share}."


def _incomparable(diagnosis: Diagnosis) -> bool:
    return all(step.max_rank is None for step in diagnosis.steps)


def _node(diagnosis: Diagnosis, hosts: Hosts) -> str:
    culprits = diagnosis.culprits
    if not culprits:
        main = main_rank(diagnosis.split)
        host = None if main is None else hosts.get(main)
        return _without_finding(
            diagnosis,
            "No single node: the loss is spread over them."
            if main is None
            else "The traces do not name the hosts."
            if host is None
            else f"{host}, by its rank {main}.",
            "None." if "host" in diagnosis.conclusion.cleared else "No node stands out above the run's noise.",
            "None of the recorded nodes stands out.",
        )
    whole = [finding.host for finding in culprits if finding.scope == "host" and finding.host is not None]
    if whole:
        return f"{', '.join(dict.fromkeys(whole))}: all its ranks are slow."
    unnamed = [name_culprit(finding) for finding in culprits if finding.scope == "host"]
    if unnamed:
        return f"{'; '.join(unnamed)}: all its ranks are slow. The traces do not name the hosts."
    if all(finding.scope in ("job", "unrecorded") for finding in culprits):
        return "No single node."
    ranks_of: defaultdict[str, set[int]] = defaultdict(set)
    # of a group whose communication is slow, no rank is to blame
    of_ranks = [finding for finding in culprits if CAUSES[finding.cause].side != "network" or len(finding.ranks) == 1]
    for finding in of_ranks:
        for rank in () if finding.scope in ("job", "unrecorded") else finding.ranks:
            if (host := hosts.get(rank)) is not None:
                ranks_of[host].add(rank)
    if not ranks_of:
        return "The traces do not name the hosts." if not any(hosts.values()) else "No single node."
    return f"{format_some([f'{host} ({format_ranks(sorted(ranks))})' for host, ranks in ranks_of.items()], _MOST)}."


def _gpu(diagnosis: Diagnosis, hosts: Hosts) -> str:
    if diagnosis.culprits:
        rest_count = len(diagnosis.culprits) - _MOST
        named = "; ".join(
            f"{name_culprit(finding)}{_device(finding)}: {describe_price(finding)} ({finding.confidence} confidence)"
            for finding in diagnosis.culprits[:_MOST]
        )
        return named + (f"; and {rest_count} more" if rest_count > 0 else "") + "."
    last = Counter(step.max_rank for step in diagnosis.steps if step.max_rank is not None)
    if not last:
        return _UNKNOWN
    has_path = any(step.max_rank_loss_ns is not None for step in diagnosis.steps)
    rank, times = last.most_common(1)[0]
    steps = len(diagnosis.steps)
    when = "in the only step" if steps == 1 else f"in {times} of {steps} steps"
    if diagnosis.conclusion.status == "spread":
        most = describe_ranks_of_loss(diagnosis.split)
        if main_rank(diagnosis.split) is not None:
            return f"Most of the loss is on {most}; no rank stands out above the run's noise."
        return "No single rank stands out above the run's noise" + (f"; the loss is on {most}." if most else ".")
    subject = "recorded rank" if diagnosis.conclusion.doubts else "rank"
    if times * 2 <= steps:
        return f"No {subject} stands out above the run's noise."
    named = format_rank(rank, hosts.get(rank))
    most = "largest share of the loss" if has_path else "largest time to kernel end"
    return f"No {subject} stands out above the run's noise; {named} has the {most} {when}."


def _device(finding: Culprit) -> str:
    """Return which GPU of its host a single rank has, as far as that is known: its number, else its PCI address."""
    if finding.scope != "rank":
        return ""
    number = f", device {finding.device}" if finding.device is not None else ""
    return number or (f", GPU at {finding.bus_id}" if finding.bus_id is not None else "")


def _without_finding(diagnosis: Diagnosis, spread: str, cleared: str, doubtful: str) -> str:
    """Return the answer of a run without findings: unknown, spread, cleared, or not cleared."""
    if _incomparable(diagnosis):
        return _UNKNOWN
    if diagnosis.conclusion.status == "spread":
        return spread
    return doubtful if diagnosis.conclusion.doubts else cleared


def _findings(diagnosis: Diagnosis) -> tuple[Culprit, ...]:
    """Return the findings of jitter; where there are none, the one that all ranks lose most to."""
    return diagnosis.culprits or diagnosis.findings[:1]


def _when(diagnosis: Diagnosis) -> str:
    findings = _findings(diagnosis)
    if not findings:
        return _without_finding(
            diagnosis,
            "Unknown: no single kernel stands out.",
            f"Nowhere: {_NOTHING}.",
            f"{_NOTHING.capitalize()}.",
        )
    places = []
    for finding in findings[:_MOST]:
        name = name_first_kernel(finding, diagnosis)
        where = describe_place(finding) + (f", starting at {name}" if name else "")
        if where:
            places.append(f"{name_culprit(finding)}: {where}")
    if places:
        return "; ".join(places) + ("" if places[-1].endswith("…") else ".")
    if not diagnosis.culprits:
        return "At no single kernel."
    return (
        "Unknown: the ranks share no collective."
        if _incomparable(diagnosis)
        else "Unknown: at no kernel that the ranks have in common."
    )


def _where(diagnosis: Diagnosis) -> str:
    places = [
        f"{loss.look_at.file}, {format_timeline_span(loss.look_at.start_ns, loss.look_at.end_ns)} on its timeline"
        for loss in diagnosis.culprits[:_MOST]
        if loss.look_at is not None
    ]
    if places:
        return "; ".join(places) + "."
    costliest = diagnosis.costliest
    share = diagnosis.main_share
    first = "" if share is None or not share.ranks else f": begin with rank {share.ranks[0].rank} in {costliest.key}"
    return _without_finding(diagnosis, f"No single place stands out{first}.", "No single place.", "No single place.")


def _sides_of_loss(diagnosis: Diagnosis) -> str:
    """Return the sides with at least a quarter of the loss, from its split: `The CPU, on every rank; …`."""
    sides = []
    whole = sum(share.ns for share in diagnosis.split if share.ns > 0)
    for share in sorted(diagnosis.split, key=lambda share: -share.ns):
        side = LOSS_CLASS_INFO[share.loss_class].side
        if side is None or share.ns < _MAIN_SHARE * whole:
            continue
        sides.append(f"the {side}: {describe_share(share)}")
    text = "; ".join(sides) or "unknown: what waited for what is not known well enough"
    return f"{text[:1].upper()}{text[1:]}."


def _side(diagnosis: Diagnosis) -> str:
    findings = _findings(diagnosis)
    causes = [CAUSES[cause] for cause in dict.fromkeys(finding.cause for finding in findings)]
    if not causes:
        return _without_finding(
            diagnosis,
            _sides_of_loss(diagnosis),
            f"Neither: {_NOTHING}.",
            f"{_NOTHING.capitalize()} in what was recorded.",
        )
    if all(finding.scope == "unrecorded" for finding in findings):
        return "Unknown: an unrecorded rank or the network holds up the recorded ranks."
    sides = "; ".join(f"the {cause.side} ({cause.words})" for cause in causes)
    return f"Neither: {sides}." if all(cause.side == "network" for cause in causes) else f"T{sides[1:]}."
