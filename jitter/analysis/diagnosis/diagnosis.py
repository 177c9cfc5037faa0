"""The diagnosis of a run: all its parts together, and as a small HTML document for notebooks."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Final

from jitter.analysis.diagnosis.causes import CAUSES
from jitter.analysis.diagnosis.efficiency import EfficiencyFinding
from jitter.analysis.diagnosis.hang.model import Hang
from jitter.analysis.diagnosis.loss.split import LOSS_CLASS_INFO, describe_ranks, format_share
from jitter.analysis.diagnosis.model import (
    RUNGS,
    SLOW_LINKS,
    Conclusion,
    Culprit,
    Fact,
    Loss,
    LossShare,
    Rung,
    RungTime,
    StepAnswer,
    WhatIf,
)
from jitter.analysis.diagnosis.verdict import describe_seen, name_culprit, write_verdict
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.formatting import abbreviate, format_count, format_time

_REPR_LENGTH: Final = 100


@dataclass(frozen=True, repr=False)
class Diagnosis:
    """The diagnosis of a run; every form of report is made from it."""

    loss: Loss
    steps: tuple[StepAnswer, ...]
    culprits: tuple[Culprit, ...]
    """Findings about jitter and slow steps, worst first; empty for a healthy run."""
    what_if: WhatIf
    ranks: int
    """How many recorded a step completely."""
    notes: tuple[str, ...] = ()
    """Limits of the diagnosis: unrecorded groups, too few ranks or steps to compare."""
    split: tuple[LossShare, ...] = ()
    """The loss by class and rank; the shares add up to it. Empty if the loss is unknown."""
    conclusion: Conclusion = field(default_factory=lambda: Conclusion("within_noise"))
    of_all_ranks: tuple[Culprit, ...] = ()
    """Findings about what all ranks lose alike to the program, on the rungs `sync` to `overlap`, worst first."""
    efficiency: tuple[EfficiencyFinding, ...] = ()
    """Facts about all ranks alike whose cost is not known."""
    lower_rungs: Mapping[Rung, int] = field(default_factory=dict)
    """The step time, ns, of each rung of the waterfall below `ranks` that is judged."""
    unexplained_fraction: float | None = None
    """Share of the step time in host gaps that vary on most ranks and that no wait explains; None without traces."""
    facts: tuple[Fact, ...] = ()
    """What logs state that is unusual and belongs to no finding, by precedence."""
    hang: Hang | None = None
    """What the job hangs in, by its logs; None if they show no hang."""
    warm_up: str | None = None
    """A sentence on first steps that are slow for all ranks."""
    communication_doubt: str | None = None
    """Why the communication is not known well enough to blame or clear a rank; None if it is."""
    measurements: tuple[str, ...] = ()
    """What logs measured of a job without traces, as sentences."""

    def __repr__(self) -> str:
        """Return the size of the diagnosis and the first words of its verdict; `verdict` has all of them."""
        counts = f"{format_count(len(self.steps), 'step')}, {format_count(len(self.findings), 'finding')}"
        return f"<Diagnosis of {counts}: {abbreviate(self.verdict, _REPR_LENGTH)}>"

    def _repr_html_(self) -> str:
        parts = [f"<p><b>{escape(self.verdict)}</b></p>"]
        if self.findings:
            parts.append(tabulate_findings(self.findings))
        shares = [share for share in self.split if share.ns]
        if shares:
            rows = [
                (LOSS_CLASS_INFO[share.loss_class].words, format_share(share), describe_ranks(share))
                for share in shares
            ]
            parts.append(_table(("loss by class", "time", "ranks"), rows))
        parts += [f"<p>{escape(note)}</p>" for note in self.notes]
        return "".join(parts)

    @property
    def verdict(self) -> str:
        """The answer in sentences: what jitter costs, which rank, host or link causes it, and what to do."""
        return write_verdict(self)

    @property
    def findings(self) -> tuple[Culprit, ...]:
        """All findings over all rungs, the largest loss first: the list of what to fix."""
        return tuple(sorted((*self.culprits, *self.of_all_ranks), key=lambda culprit: -culprit.order_ns))

    @property
    def limits(self) -> tuple[str, ...]:
        """Sentences on all ranks alike that are no evidence of a finding."""
        evidence = {line for culprit in self.findings for line in culprit.evidence}
        return tuple(finding.sentence for finding in self.efficiency if finding.sentence not in evidence)

    @property
    def headline(self) -> Culprit | None:
        """The largest finding about jitter or slow steps above the noise; None without any finding.

        Else the largest one whose fix alone saves anything, or may, or the largest. One that costs too little to be
        worth a person's time stands behind a larger one, and so do one that may name the wrong rank, unless it names
        all, and ranks without a recording that are late where they have one.
        """
        certain = [culprit for culprit in self.culprits if culprit.confidence != "low"]
        named = {rank for culprit in certain for rank in culprit.ranks}
        for culprit in self.culprits:
            is_worth_it = culprit.fraction is None or culprit.fraction >= THRESHOLDS.min_cost_share
            costs_more = bool(named) and culprit.scope == "unrecorded" and named.isdisjoint(culprit.ranks)
            if is_worth_it and (culprit in certain or costs_more or culprit.scope == "job"):
                return culprit
        saving = (
            finding
            for finding in self.findings
            if finding.gain_ns > 0 or finding.gain_range_ns or finding.unpriced_because
        )
        return next(saving, next(iter(self.findings), None))

    @property
    def timed_steps(self) -> list[StepAnswer]:
        """The steps of known time that have a loss; if the loss of none is known, all of known time."""
        timed = [step for step in self.steps if step.step_time_ns is not None]
        return [step for step in timed if step.loss_ns is not None] or timed

    @property
    def time_ns(self) -> int:
        """The time of these steps."""
        return sum(step.step_time_ns or 0 for step in self.timed_steps)

    @property
    def waterfall(self) -> tuple[RungTime, ...]:
        """Every rung from the recorded time down.

        Below `ranks` none takes longer than the one above: the median of every operation can be slower than what the
        ranks did together, and no change of the program costs time.
        """
        times: dict[Rung, int] = {}
        if count := len(timed := self.timed_steps):
            times = {"recorded": round(self.time_ns / count), **self.lower_rungs}
            if timed[0].loss_ns is not None:
                times["ranks"] = times["recorded"] - round(sum(step.loss_ns or 0 for step in timed) / count)
        rung_times, above = [], None
        for rung in RUNGS:
            time = times.get(rung)
            if time is not None and above is not None and rung in self.lower_rungs:
                time = min(time, above)
            rung_times.append(RungTime(rung, time, None if time is None or above is None else above - time))
            above = above if time is None else time
        return tuple(rung_times)

    @property
    def counted_steps(self) -> int:
        """How many steps have a loss."""
        return sum(step.loss_ns is not None for step in self.steps)

    @property
    def gain_of_all_ns(self) -> int:
        """What fixing all findings would save: the replay of the ranks' together, and what the network loses."""
        network_ns = sum(culprit.loss_ns for culprit in self.culprits if culprit.rung == "network")
        links_ns = [culprit.gain_ns for culprit in self.culprits if culprit.cause in SLOW_LINKS]
        return max((self.what_if.culprits_repaired_ns or 0) + network_ns, *links_ns, 0)

    @property
    def main_share(self) -> LossShare | None:
        """The class with most of the loss; None where nothing of it is explained."""
        explained = [
            share for share in self.split if LOSS_CLASS_INFO[share.loss_class].cause != "none" and share.ns > 0
        ]
        return max(explained, key=lambda share: share.ns, default=None)

    @property
    def costliest(self) -> StepAnswer:
        """The step with the largest loss, the earliest of equals; the first if no loss is known."""
        return max(self.steps, key=lambda step: (step.loss_ns is not None, step.loss_ns or 0))


def tabulate_findings(findings: Iterable[Culprit]) -> str:
    """Return findings as a table in HTML, a row each."""
    heads = ("finding", "cause", "confidence", "loss", "saving", "seen in", "recurs", "evidence")
    rows = (
        (
            name_culprit(culprit),
            CAUSES[culprit.cause].words,
            culprit.confidence,
            format_time(culprit.loss_ns),
            format_time(culprit.gain_ns),
            describe_seen(culprit),
            culprit.recurs,
            "; ".join(culprit.evidence),
        )
        for culprit in findings
    )
    return _table(heads, rows)


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(text)}</th>" for text in heads)
    body = "".join("<tr>" + "".join(f"<td>{escape(text)}</td>" for text in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
