"""The run's answers in a terminal, in under a screen."""

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from jitter.analysis import Lake
from jitter.report.answer import answer, run_sentence
from jitter.report.run_facts import RunFacts, run_facts
from jitter.report.run_words import alignment_words, coverage_words, kernels_per_step_words, remainder_words
from jitter.words import count_words
from jitter.steps import StepKey

_MOST_PROBLEMS = 3


def print_report(lake: Lake, steps: list[StepKey], console: Console) -> None:
    """Print the summary for these steps of the lake."""
    console.print(summary(lake, steps))


def summary(lake: Lake, steps: list[StepKey]) -> RenderableType:
    """Lay out: what the run is, what jitter costs, the costliest step, how far to trust it."""
    run = lake.run(steps)
    facts = run_facts(lake, run, steps)
    parts: list[RenderableType] = [Text(_what(facts), style="dim"), Text(run_sentence(run), style="bold")]
    worst = run.costliest
    if worst.worst.ranks:
        told = answer(worst, worst.worst, lake.hosts, len(facts.cohorts))
        rows = [("costliest", f"{told.title}, loss {told.loss}")]
        if told.parts:
            rows += [
                ("magnitude", told.magnitude),
                ("max rank", told.max_rank),
                ("min rank", told.min_rank),
                ("began", told.began),
                ("of which", ", ".join(f"{part.name} {part.words}" for part in told.parts)),
            ]
        else:
            rows += [("why", told.sentence)]
        parts.append(_grid(rows))
    parts.append(_grid(_trust(facts)))
    return Group(*parts)


def _what(facts: RunFacts) -> str:
    hosts = f" on {count_words(len(facts.hosts), 'host')}" if facts.hosts else ""
    return (
        f"{count_words(facts.ranks, 'rank')}{hosts}, {count_words(facts.steps, 'step')}, "
        f"{kernels_per_step_words(facts)} kernels a step; {', '.join(facts.formats)}"
    )


def _trust(facts: RunFacts) -> list[tuple[str, str]]:
    rows = [("alignment", alignment_words(facts.alignment)), ("coverage", " ".join(coverage_words(facts)))]
    if remainder := remainder_words(facts):
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
        grid.add_row(name, Text(text))  # Text: what stands in square brackets in a kernel's name is no markup
    return grid
