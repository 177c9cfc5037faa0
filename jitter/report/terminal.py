"""The report in a terminal: at most 25 lines, the answer first; or the seven questions with all evidence."""

import shlex
from collections import Counter
from collections.abc import Iterator
from typing import Final, NamedTuple

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from jitter.analysis.diagnosis.causes import CAUSES
from jitter.analysis.diagnosis.diagnosis import Diagnosis
from jitter.analysis.diagnosis.limitations import explain_unrecorded
from jitter.analysis.diagnosis.model import SLOW_LINKS, Culprit
from jitter.analysis.diagnosis.verdict import (
    describe_loss,
    describe_saving_beside,
    describe_seen,
    write_advice,
    write_jitter_verdict,
)
from jitter.core.formatting import (
    capitalize,
    escape_control,
    format_count,
    format_percent,
    format_time,
)
from jitter.core.step_key import StepKey
from jitter.lake import DEFAULT_LAKE
from jitter.report.text.fix_list import (
    Hosts,
    answer_questions,
    as_typed,
    describe_finding,
    describe_rest,
    describe_symptom,
    list_evidence,
    name_rows,
    name_with_device,
    write_headline,
)
from jitter.report.text.run_text import describe_alignment, describe_coverage, describe_excluded, describe_run
from jitter.report.views.run_overview import RunOverview

MAX_LINES: Final = 25
_MOST_OF_A_PATH: Final = 30
"""Characters of a lake's path in the last line: of a longer one the command names no lake."""
_MAX_PROBLEMS: Final = 3
_BAR_WIDTH: Final = 20
_MIN_STEP_SHARE: Final = 0.5
"""Of the loss of the costliest step: steps with less are counted, not listed."""


class Limits(NamedTuple):
    """How many lines of each kind are shown."""

    evidence: int
    others: int
    of_all: int
    facts: int
    steps: int
    notes: int
    hang: int


_LIMITS: Final = (
    Limits(3, 4, 3, 4, 3, 2, 8),
    Limits(2, 3, 2, 3, 3, 1, 6),
    Limits(2, 2, 1, 2, 2, 1, 4),
    Limits(2, 2, 1, 2, 0, 1, 4),
    Limits(1, 1, 1, 1, 0, 0, 2),
)
"""Tried in this order until the report fits."""


def print_report(
    diagnosis: Diagnosis, facts: RunOverview, hosts: Hosts, console: Console, *, verbose: bool = False
) -> None:
    """Print the report: the answer on one screen, or the seven questions with all evidence."""
    shown = render_details(diagnosis, facts, hosts) if verbose else render_answer(diagnosis, facts, console)
    if console.is_terminal or console.record:
        console.print(shown)
        return
    with console.capture() as printed:
        console.print(shown)
    console.file.write("\n".join(line.rstrip(" ") for line in printed.get().split("\n")))  # no padding in a pipe


def render_answer(diagnosis: Diagnosis, facts: RunOverview, console: Console) -> RenderableType:
    """Return the costliest finding, the others, what limits all ranks, the costliest steps, and what was recorded."""
    for limits in _LIMITS:
        shown = Group(*_sections(diagnosis, facts, limits))
        if len(console.render_lines(shown)) <= MAX_LINES:
            break
    return shown


def _sections(diagnosis: Diagnosis, facts: RunOverview, limits: Limits) -> Iterator[RenderableType]:
    if (hang := diagnosis.hang) is not None:
        yield _text(hang.headline, "bold")
        yield _grid([*name_rows("seen", hang.evidence[: limits.hang]), ("do", capitalize(hang.advice))])
    verdict = write_jitter_verdict(diagnosis)
    if (first := diagnosis.headline) is not None:
        yield _text(write_headline(first), "bold")
        rows = describe_finding(first, diagnosis, limits.evidence)
        yield _grid([*rows, *name_rows("jitter", filter(None, [describe_rest(diagnosis)]))])
    elif diagnosis.measurements and not diagnosis.steps:  # what logs alone say comes first
        yield _text(diagnosis.measurements[0], "bold")
        yield _grid([*name_rows("measured", diagnosis.measurements[1 : limits.facts]), ("jitter", verdict)])
    elif hang is None or diagnosis.steps:
        yield _text(verdict, "bold")
    if diagnosis.steps and diagnosis.measurements:
        yield _grid(name_rows("measured", diagnosis.measurements[: limits.facts]))
    if others := list(_others(diagnosis, limits)):
        yield _grid(others)
    if (
        limits.steps
        and diagnosis.loss.ns is not None
        and any(finding.rung == "ranks" for finding in diagnosis.culprits)
    ):
        yield _steps(diagnosis, limits.steps)
    yield _grid(list(_data_quality(diagnosis, facts, limits)))


def _others(diagnosis: Diagnosis, limits: Limits) -> Iterator[tuple[str, str]]:
    others = [finding for finding in diagnosis.findings if finding is not diagnosis.headline]
    yield from name_rows("also", (_describe_other(finding, diagnosis) for finding in others[: limits.others]))
    if len(others) > limits.others:
        yield "", f"and {format_count(len(others) - limits.others, 'more finding')}"
    facts = [fact.words for fact in diagnosis.facts]
    of_program = "program" if diagnosis.ranks == 1 else "all ranks"
    for name, texts, most in ((of_program, diagnosis.limits, limits.of_all), ("logs", facts, limits.facts)):
        yield from name_rows(name, map(capitalize, texts[:most]))
        if len(texts) > most:
            yield "", f"and {len(texts) - most} more"


def _describe_other(finding: Culprit, diagnosis: Diagnosis) -> str:
    lead = ", low confidence" if finding.confidence == "low" else ""
    details = list_evidence(finding)[:1] if finding.is_of_program else [describe_seen(finding)]
    if not finding.is_of_program:
        details.append(describe_saving_beside(finding, diagnosis))
    said = ", ".join(filter(None, (describe_symptom(finding), *details)))
    return f"{name_with_device(finding)}: {describe_loss(finding, of_run='')}{lead}; {said}"


def _steps(diagnosis: Diagnosis, most: int) -> RenderableType:
    """Return the costliest steps with their time, loss and max rank; the other ones are counted.

    To a step that is slow for all ranks counts what it takes longer than the others, which the loss does not contain.
    """
    slow_ns = Counter[StepKey]()
    for culprit in (culprit for culprit in diagnosis.culprits if culprit.rung == "steps"):
        slow_ns.update(dict.fromkeys(culprit.steps, culprit.excess_ns // len(culprit.steps)))
    by_loss = sorted(
        (step for step in diagnosis.steps if step.loss_ns is not None),
        key=lambda step: -(step.loss_ns or 0) - slow_ns[step.key],
    )
    worst = max((step.loss_ns or 0 for step in by_loss), default=0)
    shown = [
        step for step in by_loss[:most] if slow_ns[step.key] or (step.loss_ns or 0) > max(_MIN_STEP_SHARE * worst, 0)
    ]
    table = Table.grid(padding=(0, 2))
    for column in ("step", "time", "loss", "max rank", ""):
        table.add_column(justify="left" if column == "" else "right", no_wrap=True)
    table.add_row(*(Text(head, style="cyan") for head in ("step", "time", "loss", "max rank")))
    for step in sorted(shown, key=lambda step: step.key):
        share = "" if step.loss_fraction is None else f" = {format_percent(step.loss_fraction)}"
        bar = "█" * round(_BAR_WIDTH * (step.loss_ns or 0) / worst) if worst else ""
        # the rank that is last by its own time has no part in what slow links cost
        rank = "network" if step.cause in SLOW_LINKS else "-" if step.max_rank is None else str(step.max_rank)
        cells = (
            step.key.label + step.kind_in_words,
            format_time(step.step_time_ns),
            format_time(step.loss_ns) + share,
            rank,
        )
        table.add_row(*cells, Text(bar, style="yellow"))
    if other_steps := [step for step in by_loss if step not in shown]:
        losses_ns = sorted(step.loss_ns or 0 for step in other_steps)
        usual_ns, most_ns = losses_ns[(len(losses_ns) - 1) // 2], losses_ns[-1]
        each = f", half of them at most {format_time(usual_ns)}, each" if 2 * usual_ns < most_ns else ", each"
        most_left = f"{each if len(other_steps) > 1 else ','} at most {format_time(most_ns)}" if most_ns > 0 else ""
        counted = format_count(len(other_steps), "other step" if shown else "step")
        return Group(table, Text(f"({counted}{most_left})", style="dim"))
    return table


def _data_quality(diagnosis: Diagnosis, facts: RunOverview, limits: Limits) -> Iterator[tuple[str, str]]:
    yield "run", describe_run(facts)
    missing = diagnosis.conclusion.unrecorded
    if diagnosis.culprits and missing is not None:
        yield "missing", explain_unrecorded(missing)
    if diagnosis.culprits and diagnosis.warm_up is not None:  # else the verdict, shown above, says it
        yield "warm-up", diagnosis.warm_up
    if not facts.whole or facts.steps_left_out:
        yield "gaps", " ".join(describe_coverage(facts))
    unusable = [f"{problem.first_file}: {problem.text}" for problem in facts.refused[: limits.notes]]
    if (others := len(facts.refused) - limits.notes) > 0:
        unusable.append(f"{format_count(others, 'more reason' if unusable else 'reason')} why files are unusable")
    yield from name_rows("unusable", unusable)
    if diagnosis.conclusion.unverified_transfers is not None and diagnosis.culprits:
        yield "network", "slow for all ranks? unknown without nccl-tests: ingest their output"
    limited = f"{format_count(len(diagnosis.notes), 'limit')} and " if diagnosis.notes else ""
    lake = "" if facts.lake == DEFAULT_LAKE else f" {shlex.quote(as_typed(facts.lake))}"
    lake = lake if len(lake) <= _MOST_OF_A_PATH else " LAKE"
    yield "more", f"{limited}all evidence: jitter report{lake} -v"


def render_details(diagnosis: Diagnosis, facts: RunOverview, hosts: Hosts) -> RenderableType:
    """Return the verdict, the seven questions with all evidence, and the data quality."""
    questions = []
    for answer in answer_questions(diagnosis, hosts):
        questions.append((answer.question, answer.answer))
        questions += [("", f"· {line}") for line in answer.evidence]
    hang = () if diagnosis.hang is None else diagnosis.hang.evidence
    groups = (
        name_rows("hang", (f"· {line}" for line in hang)),
        questions,
        _efficiency(diagnosis),
        name_rows("logs", (capitalize(fact.words) for fact in diagnosis.facts)),
        _all_data_quality(diagnosis, facts),
    )
    return Group(
        _text(describe_run(facts), "dim"),
        _text(diagnosis.verdict, "bold"),
        *(_grid(group, min_width=0) for group in groups if group),
    )


def _efficiency(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    """Return what all ranks lose alike, and what else limits them, if anything is known of it."""
    texts: list[str] = []
    for loss in diagnosis.of_all_ranks:
        cost = f"{CAUSES[loss.cause].words}: {format_time(loss.loss_ns)} = {format_percent(loss.fraction)} of the run"
        texts += [capitalize(cost), *(f"· {line}" for line in (*loss.evidence, write_advice(loss)))]
    return name_rows("all ranks alike", [*texts, *map(capitalize, diagnosis.limits)])


def _all_data_quality(diagnosis: Diagnosis, facts: RunOverview) -> list[tuple[str, str]]:
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


def _grid(rows: list[tuple[str, str]], min_width: int = 9) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="cyan", no_wrap=True, min_width=min_width)
    grid.add_column(overflow="fold")
    for name, text in rows:
        grid.add_row(name, _text(text))
    return grid


def _text(text: str, style: str = "") -> Text:
    """Return text from traces: brackets in a kernel's name are no markup, control characters command no terminal."""
    return Text(escape_control(text), style=style)
