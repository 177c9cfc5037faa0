"""The run's answers in a terminal, in under a screen."""

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from jitter.analysis.diagnosis.model import Diagnosis
from jitter.core.formatting import escape_control, format_count
from jitter.report.questions import Hosts, answer_questions
from jitter.report.run_text import describe_alignment, describe_coverage, describe_excluded, format_kernels_per_step
from jitter.report.views.run_overview import RunOverview

_MOST_PROBLEMS = 3
_MOST_EVIDENCE = 4


def print_report(diagnosis: Diagnosis, facts: RunOverview, hosts: Hosts, console: Console) -> None:
    """Print the seven answers."""
    console.print(render_terminal(diagnosis, facts, hosts))


def render_terminal(diagnosis: Diagnosis, facts: RunOverview, hosts: Hosts) -> RenderableType:
    """Lay out: what the run is, the verdict, the seven answers, how far to trust them."""
    rows = []
    for one in answer_questions(diagnosis, hosts):
        rows.append((one.question, one.answer))
        rows += [("", f"· {line}") for line in one.evidence[:_MOST_EVIDENCE]]
    return Group(
        Text(escape_control(describe_run(facts)), style="dim"),
        Text(escape_control(diagnosis.verdict), style="bold"),
        _grid(rows),
        _grid(_trust(diagnosis, facts)),
    )


def describe_run(facts: RunOverview) -> str:
    """Say in a line what the run is."""
    hosts = f" on {format_count(len(facts.hosts), 'host')}" if facts.hosts else ""
    return (
        f"{format_count(facts.ranks, 'rank')}{hosts}, {format_count(facts.steps, 'step')}, "
        f"{format_kernels_per_step(facts)} kernels a step; {', '.join(facts.formats)}"
    )


def _trust(diagnosis: Diagnosis, facts: RunOverview) -> list[tuple[str, str]]:
    rows = [("alignment", describe_alignment(facts.alignment)), ("coverage", " ".join(describe_coverage(facts)))]
    if diagnosis.notes:
        rows.append(("limits", " ".join(diagnosis.notes)))
    if remainder := describe_excluded(facts):
        rows.append(("not in it", " ".join(remainder)))
    for problem in facts.refused[:_MOST_PROBLEMS]:
        rows.append(("refused", f"{problem.first_file}: {problem.text}"))
    if len(facts.refused) > _MOST_PROBLEMS:
        rows.append(("", f"and for {len(facts.refused) - _MOST_PROBLEMS} more reasons: see --html"))
    return rows


def _grid(rows: list[tuple[str, str]]) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="cyan", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, text in rows:
        # Text: what stands in square brackets in a kernel's name is no markup
        grid.add_row(name, Text(escape_control(text)))
    return grid
