"""A diagnosis as a small HTML document for notebooks: verdict, findings, split of the loss."""

from collections.abc import Iterable, Sequence
from html import escape

from jitter.analysis.diagnosis.causes import CAUSES
from jitter.analysis.diagnosis.loss.parts import LOSS_PART_INFO, describe_ranks, format_share
from jitter.analysis.diagnosis.model import Culprit, Diagnosis
from jitter.analysis.diagnosis.verdict import name_culprit
from jitter.core.formatting import format_time


def render_diagnosis(diagnosis: Diagnosis) -> str:
    """Return the diagnosis as HTML; text from traces is escaped."""
    parts = [f"<p><b>{escape(diagnosis.verdict)}</b></p>"]
    if diagnosis.culprits:
        heads = ("finding", "cause", "confidence", "saving", "steps", "evidence")
        parts.append(_table(heads, map(_cells, diagnosis.culprits)))
    shares = [share for share in diagnosis.split if share.ns]
    if shares:
        rows = [(LOSS_PART_INFO[share.part].words, format_share(share), describe_ranks(share)) for share in shares]
        parts.append(_table(("loss by part", "time", "ranks"), rows))
    parts += [f"<p>{escape(note)}</p>" for note in diagnosis.notes]
    return "".join(parts)


def _cells(culprit: Culprit) -> Sequence[str]:
    return (
        name_culprit(culprit),
        CAUSES[culprit.cause].words,
        culprit.confidence,
        format_time(culprit.gain_ns),
        culprit.step_pattern,
        "; ".join(culprit.evidence),
    )


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(text)}</th>" for text in heads)
    body = "".join("<tr>" + "".join(f"<td>{escape(text)}</td>" for text in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
