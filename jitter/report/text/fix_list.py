"""The fix list: everything that costs the run time, over all rungs, largest first; each item with its evidence."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from jitter.analysis.diagnosis.causes import CAUSES
from jitter.analysis.diagnosis.diagnosis import Diagnosis
from jitter.analysis.diagnosis.evidence.code import describe_launch
from jitter.analysis.diagnosis.loss.split import describe_split
from jitter.analysis.diagnosis.model import Culprit, StepAnswer
from jitter.analysis.diagnosis.verdict import (
    advise_recurrence,
    describe_advice,
    describe_price,
    describe_seen,
    is_stalled_loading,
    name_cause,
    name_culprit,
    name_side,
    write_advice,
)
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.formatting import (
    abbreviate,
    capitalize,
    format_count,
    format_numbers,
    format_percent,
    format_time,
    format_time_range,
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
    loss_ns: int
    fraction: float | None
    """Of the run's time."""
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
    return f"{name_culprit(culprit)}: {_describe_loss(culprit)}"


def _describe_loss(culprit: Culprit) -> str:
    """Return what costs the time, where, and in which steps; what the program costs is in all of them."""
    seen = "" if culprit.is_of_program else f", {describe_seen(culprit)}"
    return describe_symptom(culprit) + seen


def describe_symptom(culprit: Culprit) -> str:
    """Return what the culprit does and where: `late kernel launches (CPU), kernel 17`."""
    cause = name_side(name_cause(culprit), CAUSES[culprit.cause].side)
    return ", ".join(filter(None, (cause, describe_place(culprit))))


def describe_place(culprit: Culprit) -> str:
    """Return where in the step the culprit's excess lies: `kernels 2 to 73`; empty if that is unknown."""
    cause, index = CAUSES[culprit.cause], culprit.kernel_index
    if index is None or not cause.is_at_kernels:
        return cause.place
    return f"kernel {index.first}" if index.first == index.last else f"kernels {index.first} to {index.last}"


def name_first_kernel(culprit: Culprit, diagnosis: Diagnosis) -> str:
    """Return the name of the first kernel at which a rank of the culprit diverges, in its steps and in its range."""
    index = culprit.kernel_index
    if index is None or not CAUSES[culprit.cause].is_at_kernels:
        return ""
    steps = (step for step in diagnosis.steps if step.max_rank in culprit.ranks and step.key in culprit.steps)
    began = [step.divergence for step in steps if step.divergence is not None]
    in_range = [kernel for kernel in began if index.first <= kernel.kernel_index <= index.last]
    first = min(in_range, key=lambda kernel: kernel.kernel_index, default=None)
    return "" if first is None else abbreviate(short_name(first.kernel_name))


def describe_cost(culprit: Culprit, diagnosis: Diagnosis) -> str:
    """Return the culprit's loss, what fixing it alone saves and the whole loss of jitter, where they differ."""
    parts = [describe_price(culprit)]
    is_part = format_time(culprit.loss_ns) != format_time(diagnosis.loss.ns)
    if culprit.rung == "ranks" and is_part and (whole := describe_jitter(diagnosis)):
        parts.append(f"all jitter: {whole}")
    return f"{'; '.join(parts)} ({culprit.confidence} confidence)"


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
    return max(named or finding_steps, key=lambda step: step.loss_ns or 0, default=None)


def describe_remedy(culprit: Culprit, diagnosis: Diagnosis) -> str:
    """Return what would help and what it saves: `… would save about 24 ms (3.1%), 2.4 ms a step`.

    A finding of low confidence is a lead: its remedy "might" help.
    """
    remedy = CAUSES[culprit.cause].remedy
    if is_stalled_loading(culprit):
        remedy = "more loader workers or prefetching"
    remedy = f"{remedy[0].upper()}{remedy[1:]}"
    counted = diagnosis.counted_steps
    saved_ns = culprit.loss_ns if culprit.is_hidden else culprit.gain_ns
    verb = "might" if culprit.confidence == "low" else "would"
    if culprit.has_unknown_gain:
        return f"{remedy} {verb} help by an unknown time: some exchanges name no partners"
    if culprit.gain_range_ns is not None:
        return f"{remedy} {verb} save {format_time_range(culprit.gain_range_ns)}"
    if saved_ns <= 0 or not counted:
        return f"{remedy} {verb} help; what it saves alone is too small to measure in these steps"
    loss = diagnosis.loss
    share = f" ({format_percent(saved_ns * loss.fraction / loss.ns)})" if loss.ns and loss.fraction else ""
    beside = ", if the other findings are fixed too" if culprit.is_hidden else ""
    return (
        f"{remedy} {verb} save about {format_time(saved_ns)}{share}, {format_time(saved_ns / counted)} a step{beside}"
    )


def _item(culprit: Culprit, diagnosis: Diagnosis, cohorts: Mapping[int, int], lake: Path, number: int) -> FixItem:
    step, look = costliest_step(culprit, diagnosis), culprit.look_at
    code, export = describe_launch(culprit.code) or "", ""
    if step is not None:
        epoch = "" if step.key.epoch is None else f" --epoch {step.key.epoch}"
        ranks = format_numbers(exported_ranks(culprit, step, cohorts))
        name = f"finding-{number}.json.gz"
        export = (
            f"jitter export {shlex.quote(str(lake))} --perfetto {name} --step {step.key.step}{epoch} --ranks {ranks}"
        )
    return FixItem(
        name=name_culprit(culprit),
        words=_describe_loss(culprit),
        loss_ns=culprit.loss_ns,
        fraction=culprit.fraction,
        is_jitter=culprit in diagnosis.culprits,
        certainty=f"{culprit.confidence} confidence; cause {culprit.cause_certainty}",
        remedy="" if culprit.is_of_program else describe_remedy(culprit, diagnosis),
        recurrence=write_advice(culprit) if culprit.is_of_program else advise_recurrence(culprit),
        code=code,
        file="" if look is None else f"{look.file}, {format_timeline_span(look.start_ns, look.end_ns)}",
        evidence=tuple(line for line in culprit.evidence if line != code),
        export=export,
    )
