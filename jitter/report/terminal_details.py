"""The report in a terminal with all evidence: the verdict, the seven questions, data quality."""

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from jitter.analysis.diagnosis.causes import CAUSES
from jitter.analysis.diagnosis.diagnosis import Diagnosis
from jitter.analysis.diagnosis.verdict import write_advice
from jitter.core.formatting import capitalize, escape_control, format_percent, format_time
from jitter.report.text.questions import Hosts, answer_questions
from jitter.report.text.run_text import (
    describe_alignment,
    describe_coverage,
    describe_excluded,
    describe_run,
)
from jitter.report.views.run_overview import RunOverview

_MAX_PROBLEMS = 3


def render_details(diagnosis: Diagnosis, facts: RunOverview, hosts: Hosts) -> RenderableType:
    """Return the report as an object that rich prints."""
    rows = []
    for answer in answer_questions(diagnosis, hosts):
        rows.append((answer.question, answer.answer))
        rows += [("", f"· {line}") for line in answer.evidence]
    return Group(
        Text(escape_control(describe_run(facts)), style="dim"),
        Text(escape_control(diagnosis.verdict), style="bold"),
        *_hang(diagnosis),
        _grid(rows),
        *_efficiency(diagnosis),
        *_facts(diagnosis),
        _grid(_data_quality(diagnosis, facts)),
    )


def _hang(diagnosis: Diagnosis) -> list[RenderableType]:
    """Return the evidence of a hang, beside what the verdict says of it."""
    lines = [] if diagnosis.hang is None else diagnosis.hang.evidence
    return [_grid([("" if number else "hang", f"· {line}") for number, line in enumerate(lines)])] if lines else []


def _efficiency(diagnosis: Diagnosis) -> list[RenderableType]:
    """Return what all ranks lose alike, and what else limits them, if anything is known of it."""
    rows: list[tuple[str, str]] = []
    for loss in diagnosis.of_all_ranks:
        cost = f"{CAUSES[loss.cause].words}: {format_time(loss.loss_ns)} = {format_percent(loss.fraction)} of the run"
        rows.append(("" if rows else "all ranks alike", capitalize(cost)))
        rows += [("", f"· {line}") for line in (*loss.evidence, write_advice(loss))]
    for sentence in diagnosis.limits:
        rows.append(("" if rows else "all ranks alike", capitalize(sentence)))
    return [_grid(rows)] if rows else []


def _facts(diagnosis: Diagnosis) -> list[RenderableType]:
    """Return what logs state that is unusual, beside the findings."""
    rows = [("" if number else "logs", capitalize(fact.words)) for number, fact in enumerate(diagnosis.facts)]
    return [_grid(rows)] if rows else []


def _data_quality(diagnosis: Diagnosis, facts: RunOverview) -> list[tuple[str, str]]:
    text_by_name = {
        "alignment": describe_alignment(facts),
        "coverage": " ".join(describe_coverage(facts)),
        "limits": " ".join(diagnosis.notes),
        "excluded": " ".join(describe_excluded(facts)),
    }
    rows = [(name, text) for name, text in text_by_name.items() if text]
    for problem in facts.refused[:_MAX_PROBLEMS]:
        rows.append(("unusable", f"{problem.first_file}: {problem.text}"))
    if len(facts.refused) > _MAX_PROBLEMS:
        rows.append(("", f"and for {len(facts.refused) - _MAX_PROBLEMS} more reasons; --html lists all"))
    return rows


def _grid(rows: list[tuple[str, str]]) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="cyan", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, text in rows:
        # Text, not str: square brackets in a kernel name are not markup
        grid.add_row(name, Text(escape_control(text)))
    return grid
