"""The report as Markdown, for an issue or a chat."""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from jitter.analysis.diagnosis.causes import CAUSES
from jitter.analysis.diagnosis.diagnosis import Diagnosis
from jitter.analysis.diagnosis.loss.split import LOSS_CLASS_INFO, describe_ranks, list_classes
from jitter.analysis.diagnosis.model import StepAnswer
from jitter.analysis.diagnosis.verdict import describe_seen, name_culprit
from jitter.core.formatting import abbreviate, capitalize, escape_control, format_percent, format_time
from jitter.core.names.kernels import short_name
from jitter.report.text.fix_list import Hosts, answer_questions, describe_place
from jitter.report.text.run_text import describe_alignment, describe_coverage, describe_excluded, describe_run
from jitter.report.text.step_text import describe_cause
from jitter.report.text.tables import Column, Table, build_table
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
        "# jitter report",
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
        lines += ["", f"## {title}", "", *content] if content else []
    return "\n".join(lines) + "\n"


def _sections(diagnosis: Diagnosis, facts: RunOverview) -> Iterator[tuple[str, list[str]]]:
    """Yield the title and the lines of each section."""
    costly = sorted(diagnosis.steps, key=lambda step: -(step.loss_ns or 0))[:_MAX_STEPS]
    of_all = [f"{CAUSES[finding.cause].words}: {'; '.join(finding.evidence)}" for finding in diagnosis.of_all_ranks]
    quality = [
        *filter(None, [describe_alignment(facts)]),
        *describe_coverage(facts),
        *diagnosis.notes,
        *describe_excluded(facts),
        *(f"Not usable: {problem.first_file}: {problem.text}" for problem in facts.refused),
    ]
    yield _tabulate("Loss by part", _SHARES, [share for share in diagnosis.split if share.ns])
    yield _tabulate("Findings", _FINDINGS, diagnosis.findings)
    yield "All ranks alike", format_list(map(capitalize, [*of_all, *diagnosis.limits]))
    yield "Logs", format_list(capitalize(fact.words) for fact in diagnosis.facts)
    yield _tabulate("Costliest steps", _step_columns(costly), costly)
    yield "Data quality", format_list(quality)


def _tabulate(title: str, columns: Sequence[Column], rows: Sequence[Any]) -> tuple[str, list[str]]:
    return title, format_markdown_table(build_table(title, columns, rows)) if rows else []


_SHARES: Final = (
    Column("part", lambda share: LOSS_CLASS_INFO[share.loss_class].words),
    Column("time", "ns", format_time),
    Column("of the run", "fraction", format_percent),
    Column("ranks", lambda share: describe_ranks(share) or None),
)
_FINDINGS: Final = (
    Column("finding", name_culprit),
    Column("cause", "cause", describe_cause),
    Column("loss", "loss_ns", format_time),
    Column("of the run", "fraction", format_percent),
    Column("confidence", "confidence"),
    Column("seen in", describe_seen),
    Column("recurs", "recurs"),
    Column("time saved", "gain_ns", format_time),
    Column("where", lambda culprit: describe_place(culprit) or None),
)


def _step_columns(steps: Sequence[StepAnswer]) -> list[Column]:
    def share_of(name: str) -> Column:
        words = LOSS_CLASS_INFO[name.removesuffix("_ns")].words
        return Column(words, lambda step: step.by_class and format_time(getattr(step.by_class, name)))

    def describe_divergence(step: StepAnswer) -> str | None:
        began = step.divergence
        return None if began is None else f"{began.kernel_index} {abbreviate(short_name(began.kernel_name))}"

    return [
        Column("step", lambda step: f"{step.key}{step.kind_in_words}"),
        Column("time", "step_time_ns", format_time),
        Column("loss", "loss_ns", format_time),
        Column("loss %", "loss_fraction", format_percent),
        Column("min rank", "min_rank"),
        Column("max rank", "max_rank"),
        Column("began at", describe_divergence),
        *map(share_of, list_classes(steps)),
        Column("cause", "cause", describe_cause),
    ]


def format_markdown_table(table: Table) -> list[str]:
    """Return the lines of a table; its cells are escaped."""
    lines = ["| " + " | ".join(table.heads) + " |", "|" + "---|" * len(table.heads)]
    return lines + ["| " + " | ".join(map(escape_markdown, row)) + " |" for row in table.rows]


def format_list(sentences: Iterable[str]) -> list[str]:
    """Return the lines of a list; its items are escaped."""
    return [f"- {escape_markdown(sentence)}" for sentence in sentences]


def escape_markdown(text: str) -> str:
    """Escape everything that Markdown or a site that shows it would not take for text; return a single line."""
    words = escape_control(" ".join(text.split()))
    return _ACTIVE_TEXT.sub(lambda match: match[0] + _WORD_JOINER, _SPECIAL.sub(r"\\\1", words))
