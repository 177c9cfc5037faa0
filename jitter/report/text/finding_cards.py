"""The most expensive findings as short texts: what would help, what it saves a step, where to look, the evidence."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from jitter.analysis.diagnosis.causes import CAUSES
from jitter.analysis.diagnosis.diagnosis import Diagnosis
from jitter.analysis.diagnosis.evidence.code import describe_launch
from jitter.analysis.diagnosis.model import Culprit, StepAnswer
from jitter.analysis.diagnosis.verdict import advise_recurrence, describe_seen, name_cause, name_culprit
from jitter.core.formatting import (
    format_numbers,
    format_percent,
    format_time,
    format_timeline_span,
)
from jitter.report.text.kernel_text import describe_kernels

MAX_CARDS: Final = 3
MAX_EVIDENCE: Final = 3
"""Sentences of evidence on a card; the answer to the last question has the others."""
MAX_EXPORTED_RANKS: Final = 8
_STALLED: Final = "the input pipeline stalled"


class FindingCard(NamedTuple):
    """One finding as texts."""

    title: str
    cause: str
    confidence: str
    cause_certainty: str
    remedy: str
    place: str
    """Steps in which it was seen, and kernels."""
    recurrence: str
    """Whether it recurs, and what would tell."""
    code: str
    """Operator, scope and line of the program that launches its first kernel; empty if not recorded."""
    file: str
    """Recording and time range on its own timeline; empty if unknown."""
    evidence: tuple[str, ...]
    step: StepAnswer | None
    """The costliest of its steps."""
    export: str
    """The command that writes its timeline for Perfetto; empty without a step."""


def build_cards(diagnosis: Diagnosis, cohorts: Mapping[int, int], lake: Path) -> list[FindingCard]:
    """Return the cards of the most expensive findings, worst first.

    `cohorts` maps each rank to its cohort; `lake` is named in commands.
    """
    return [
        _card(one, diagnosis, cohorts, lake, number) for number, one in enumerate(diagnosis.culprits[:MAX_CARDS], 1)
    ]


def exported_ranks(culprit: Culprit, step: StepAnswer, cohorts: Mapping[int, int]) -> list[int]:
    """Return the ranks whose timeline shows a finding: its own, and the step's min rank to compare with.

    Only ranks of the worst rank's cohort: the clocks of different cohorts cannot be aligned.
    """
    ranks = [rank for rank in (culprit.rank, step.min_rank, *culprit.ranks) if rank is not None]
    alike = [rank for rank in ranks if cohorts.get(rank) == cohorts.get(culprit.rank)]
    return list(dict.fromkeys(alike))[:MAX_EXPORTED_RANKS]


def costliest_step(culprit: Culprit, diagnosis: Diagnosis) -> StepAnswer | None:
    """Return the step of a finding that lost most; of those with one of its ranks as max rank, if there are any."""
    own = [step for step in diagnosis.steps if step.key in culprit.steps]
    named = [step for step in own if step.max_rank in culprit.ranks]
    return max(named or own, key=lambda step: step.loss_ns or 0, default=None)


def describe_remedy(culprit: Culprit, diagnosis: Diagnosis) -> str:
    """Return what would help and what it saves: `… would save about 24 ms (3.1%), 2.4 ms a step`.

    A finding of low confidence is a lead: its remedy "might" help.
    """
    remedy = CAUSES[culprit.cause].remedy
    if culprit.cause == "late_start" and any(_STALLED in line for line in culprit.evidence):
        remedy = "more loader workers or prefetching"
    remedy = f"{remedy[0].upper()}{remedy[1:]}"
    counted = sum(step.loss_ns is not None for step in diagnosis.steps)
    saved_ns = culprit.loss_ns if culprit.is_hidden else culprit.gain_ns
    verb = "might" if culprit.confidence == "low" else "would"
    if culprit.has_unknown_gain:
        return f"{remedy} {verb} help by an unknown time: some exchanges name no partners"
    if saved_ns <= 0 or not counted:
        return f"{remedy} {verb} help; what it saves alone is too small to measure in these steps"
    loss = diagnosis.loss
    share = f" ({format_percent(saved_ns * loss.fraction / loss.ns)})" if loss.ns and loss.fraction else ""
    beside = ", if the other findings are fixed too" if culprit.is_hidden else ""
    return (
        f"{remedy} {verb} save about {format_time(saved_ns)}{share}, {format_time(saved_ns / counted)} a step{beside}"
    )


def _card(culprit: Culprit, diagnosis: Diagnosis, cohorts: Mapping[int, int], lake: Path, number: int) -> FindingCard:
    step, look = costliest_step(culprit, diagnosis), culprit.look_at
    code = describe_launch(culprit.code) or ""
    return FindingCard(
        title=name_culprit(culprit),
        cause=name_cause(culprit),
        confidence=culprit.confidence,
        cause_certainty=culprit.cause_certainty,
        remedy=describe_remedy(culprit, diagnosis),
        place=_place(culprit, diagnosis),
        recurrence=advise_recurrence(culprit),
        file="" if look is None else f"{look.file}, {format_timeline_span(look.start_ns, look.end_ns)}",
        code=code,
        evidence=tuple(line for line in culprit.evidence if line != code)[:MAX_EVIDENCE],
        step=step,
        export="" if step is None else _command(step, exported_ranks(culprit, step, cohorts), lake, number),
    )


def _place(culprit: Culprit, diagnosis: Diagnosis) -> str:
    return ", ".join(filter(None, (f"Seen in {describe_seen(culprit)}", describe_kernels(culprit, diagnosis))))


def _command(step: StepAnswer, ranks: list[int], lake: Path, number: int) -> str:
    epoch = "" if step.key.epoch is None else f" --epoch {step.key.epoch}"
    return (
        f"jitter export {shlex.quote(str(lake))} --perfetto finding-{number}.json.gz --step {step.key.step}{epoch} "
        f"--ranks {format_numbers(ranks)}"
    )
