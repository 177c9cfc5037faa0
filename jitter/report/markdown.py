"""The report as Markdown, for an issue or a chat."""

import re
from collections.abc import Iterable, Iterator, Sequence

from jitter.analysis.diagnosis.causes import CAUSES
from jitter.analysis.diagnosis.diagnosis import Diagnosis
from jitter.analysis.diagnosis.loss.split import LOSS_CLASS_INFO, describe_ranks, list_classes
from jitter.analysis.diagnosis.model import Culprit, LossShare, StepAnswer
from jitter.analysis.diagnosis.verdict import describe_seen, name_culprit
from jitter.core.formatting import abbreviate, capitalize, escape_control, format_percent, format_time
from jitter.core.names.kernels import short_name
from jitter.report.forms import MARKDOWN_SIGNATURE
from jitter.report.text.questions import Hosts, answer_questions
from jitter.report.text.run_text import describe_alignment, describe_coverage, describe_excluded, describe_run
from jitter.report.text.step_text import describe_cause
from jitter.report.views.run_overview import RunOverview

_MAX_STEPS = 10
_SPECIAL = re.compile(r"([\\`*_\[\]<>|~&#$])")
_ACTIVE_TEXT = re.compile(r"@|#|(?<=:)(?=//)|(?<=www)(?=\.)", re.IGNORECASE)
"""Places where text becomes a mention, a reference or a link even if it is escaped."""
_WORD_JOINER = "\u2060"
"""An invisible character; after an `@` no name follows any more."""


def render_markdown(diagnosis: Diagnosis, facts: RunOverview, hosts: Hosts) -> str:
    """Return the report as Markdown: verdict, hang, questions, culprits, costliest steps, data quality.

    Text from traces is escaped.
    """
    lines = [
        MARKDOWN_SIGNATURE.decode(),
        "",
        f"{escape_markdown(describe_run(facts))}",
        "",
        f"**{escape_markdown(diagnosis.verdict)}**",
        "",
    ]
    if diagnosis.hang is not None:
        lines += [*format_list(diagnosis.hang.evidence), ""]
    for number, answer in enumerate(answer_questions(diagnosis, hosts), 1):
        lines.append(f"{number}. **{answer.question}** {escape_markdown(answer.answer)}")
        lines += [f"   - {escape_markdown(line)}" for line in answer.evidence]
    for title, content in _sections(diagnosis, facts):
        lines += ["", f"## {title}", "", *content]
    return "\n".join(lines) + "\n"


def _sections(diagnosis: Diagnosis, facts: RunOverview) -> Iterator[tuple[str, list[str]]]:
    """Yield the title and the lines of each section that has something to say."""
    if diagnosis.split:
        shares = (_share(share) for share in diagnosis.split if share.ns)
        yield "Loss by part", format_markdown_table(("part", "time", "of the run", "ranks"), shares)
    if diagnosis.findings:
        heads = ("finding", "cause", "loss", "of the run", "confidence", "seen in", "recurs", "time saved", "kernels")
        yield "Findings", format_markdown_table(heads, map(_culprit, diagnosis.findings))
    of_all = [(f"{CAUSES[finding.cause].words}: {'; '.join(finding.evidence)}") for finding in diagnosis.of_all_ranks]
    if shared_sentences := [*of_all, *diagnosis.limits]:
        yield "All ranks alike", format_list(map(capitalize, shared_sentences))
    if diagnosis.facts:
        yield "Logs", format_list(capitalize(fact.words) for fact in diagnosis.facts)
    if costly := sorted(diagnosis.steps, key=lambda step: -(step.loss_ns or 0))[:_MAX_STEPS]:
        classes = list_classes(costly)
        words = [LOSS_CLASS_INFO[name.removesuffix("_ns")].words for name in classes]
        columns = ("step", "time", "loss", "loss %", "min rank", "max rank", "began at", *words, "cause")
        yield "Costliest steps", format_markdown_table(columns, (_step(step, classes) for step in costly))
    sentences = [
        *filter(None, [describe_alignment(facts)]),
        *describe_coverage(facts),
        *diagnosis.notes,
        *describe_excluded(facts),
        *(f"Not usable: {problem.first_file}: {problem.text}" for problem in facts.refused),
    ]
    if sentences:
        yield "Data quality", format_list(sentences)


def _share(share: LossShare) -> Sequence[str]:
    return (
        LOSS_CLASS_INFO[share.loss_class].words,
        format_time(share.ns),
        format_percent(share.fraction),
        describe_ranks(share) or "-",
    )


def _culprit(culprit: Culprit) -> Sequence[str]:
    at = culprit.kernel_index
    return (
        name_culprit(culprit),
        describe_cause(culprit.cause),
        format_time(culprit.loss_ns),
        format_percent(culprit.fraction),
        culprit.confidence,
        describe_seen(culprit),
        culprit.recurs,
        format_time(culprit.gain_ns),
        "-" if at is None else str(at.first) if at.first == at.last else f"{at.first} to {at.last}",
    )


def _step(step: StepAnswer, classes: Sequence[str]) -> Sequence[str]:
    began, shares = step.divergence, step.by_class
    return (
        f"{step.key}{step.kind_in_words}",
        format_time(step.step_time_ns),
        format_time(step.loss_ns),
        format_percent(step.loss_fraction),
        "-" if step.min_rank is None else str(step.min_rank),
        "-" if step.max_rank is None else str(step.max_rank),
        "-" if began is None else f"{began.kernel_index} {abbreviate(short_name(began.kernel_name))}",
        *("-" if shares is None else format_time(getattr(shares, name)) for name in classes),
        describe_cause(step.cause),
    )


def format_markdown_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table; its cells are escaped."""
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    return lines + ["| " + " | ".join(escape_markdown(cell) for cell in row) + " |" for row in rows]


def format_list(sentences: Iterable[str]) -> list[str]:
    """Return the lines of a list; its items are escaped."""
    return [f"- {escape_markdown(sentence)}" for sentence in sentences]


def escape_markdown(text: str) -> str:
    """Escape everything that Markdown or a site that shows it would not take for text; return a single line."""
    words = escape_control(" ".join(text.split()))
    return _ACTIVE_TEXT.sub(lambda match: match[0] + _WORD_JOINER, _SPECIAL.sub(r"\\\1", words))
