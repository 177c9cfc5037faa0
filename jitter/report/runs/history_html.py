"""The history of a job as one HTML file; each run opens its comparison with the runs before it."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from markupsafe import Markup

from jitter.comparison.compare_documents import compare_documents
from jitter.comparison.document import Document
from jitter.history.runs import HistoryRun
from jitter.report.figures.history_figures import draw_history
from jitter.report.page import render_document, template_environment
from jitter.report.runs.history_text import change_points, describe_history, format_change, format_date, format_labels
from jitter.report.views.comparison_tables import ComparisonTable, build_tables

_BASES: Final = 5
"""Runs before a run that it is compared with."""
_MOST_COMPARED: Final = 60
"""Runs, the last ones, that have a comparison in the page."""
_MOST_ROWS: Final = 10


class RunSection(NamedTuple):
    """One run with its comparison."""

    run: HistoryRun
    title: str
    labels: str
    sentence: str
    tables: list[ComparisonTable]


def render_history_html(job: str, runs: Sequence[HistoryRun], documents: Sequence[Document]) -> str:
    """Return the page: the runs' step time, loss and split, the change points, the comparison of each run."""
    changes = change_points(runs)
    sentences, heads, rows = describe_history(runs, documents)
    sections = []
    for at in range(max(0, len(runs) - _MOST_COMPARED), len(runs)):
        change = format_change(changes.get((runs[at].job, runs[at].digest)))
        sentence, tables = _compare(documents, at)
        title = f"{runs[at].name}, {format_date(runs[at].added_ns)} {change}".strip()
        sections.append(RunSection(runs[at], title, format_labels(runs[at]), sentence, tables))
    body = (
        template_environment()
        .get_template("history.html.j2")
        .render(job=job, sentences=sentences, heads=heads, rows=rows, sections=sections)
    )
    figures = draw_history(runs, documents, changes)
    return render_document(f"history of {job}", Markup(body), {"history": figures})


def _compare(documents: Sequence[Document], at: int) -> tuple[str, list[ComparisonTable]]:
    bases = documents[max(0, at - _BASES) : at]
    if not bases:
        return "The first run of the job.", []
    comparison = compare_documents(bases, documents[at])
    return comparison.sentence, build_tables(comparison, _MOST_ROWS)
