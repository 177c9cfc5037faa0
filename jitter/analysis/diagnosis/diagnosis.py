"""The diagnosis of a run: all its parts together, and as a small HTML document for notebooks."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

from jitter.analysis.diagnosis.causes import CAUSES
from jitter.analysis.diagnosis.efficiency.finding import EfficiencyFinding
from jitter.analysis.diagnosis.hang.model import Hang
from jitter.analysis.diagnosis.loss.parts import LOSS_CLASS_INFO, describe_ranks, format_share
from jitter.analysis.diagnosis.model import Conclusion, Culprit, Fact, Loss, LossShare, Rung, StepAnswer, WhatIf
from jitter.analysis.diagnosis.recurrence_words import describe_seen
from jitter.analysis.diagnosis.verdict import name_culprit
from jitter.core.formatting import format_time


@dataclass(frozen=True)
class Diagnosis:
    """The diagnosis of a run; every form of report is made from it."""

    loss: Loss
    steps: tuple[StepAnswer, ...]
    culprits: tuple[Culprit, ...]
    """Worst first; empty for a healthy run."""
    what_if: WhatIf
    verdict: str
    notes: tuple[str, ...] = ()
    """Limits of the diagnosis: unrecorded groups, too few ranks or steps to compare."""
    split: tuple[LossShare, ...] = ()
    """The loss by class and rank; the shares add up to it. Empty if the loss is unknown."""
    conclusion: Conclusion = field(default_factory=lambda: Conclusion("within_noise"))
    efficiency: tuple[EfficiencyFinding, ...] = ()
    """Limits of all ranks alike, whether or not the job has jitter."""
    lower_rungs: Mapping[Rung, int] = field(default_factory=dict)
    """The step time, ns, of each rung of the waterfall below `ranks` that is judged."""
    unexplained_fraction: float | None = None
    """Share of the step time in host gaps that vary on most ranks and that no wait explains; None without traces."""
    facts: tuple[Fact, ...] = ()
    """What logs state that is unusual and belongs to no finding, by precedence."""
    hang: Hang | None = None
    """What the job hangs in, by its logs; None if they show no hang."""

    def _repr_html_(self) -> str:
        """Return what a notebook shows: verdict, findings, split of the loss; text from traces is escaped."""
        parts = [f"<p><b>{escape(self.verdict)}</b></p>"]
        if self.culprits:
            heads = ("finding", "cause", "confidence", "saving", "seen in", "recurs", "evidence")
            parts.append(_table(heads, map(_cells, self.culprits)))
        shares = [share for share in self.split if share.ns]
        if shares:
            rows = [(LOSS_CLASS_INFO[one.loss_class].words, format_share(one), describe_ranks(one)) for one in shares]
            parts.append(_table(("loss by class", "time", "ranks"), rows))
        parts += [f"<p>{escape(note)}</p>" for note in self.notes]
        return "".join(parts)

    @property
    def main_share(self) -> LossShare | None:
        """The class with most of the loss; None where nothing of it is explained."""
        known = [one for one in self.split if LOSS_CLASS_INFO[one.loss_class].cause != "none" and one.ns > 0]
        return max(known, key=lambda share: share.ns, default=None)

    @property
    def costliest(self) -> StepAnswer:
        """The step with the largest loss, the earliest of equals; the first if no loss is known."""
        return max(self.steps, key=lambda step: (step.loss_ns is not None, step.loss_ns or 0))


def _cells(culprit: Culprit) -> Sequence[str]:
    return (
        name_culprit(culprit),
        CAUSES[culprit.cause].words,
        culprit.confidence,
        format_time(culprit.gain_ns),
        describe_seen(culprit),
        culprit.recurs,
        "; ".join(culprit.evidence),
    )


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(text)}</th>" for text in heads)
    body = "".join("<tr>" + "".join(f"<td>{escape(text)}</td>" for text in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
