"""What `jitter ingest` tells of what it did, on stderr."""

from collections import Counter

import click

from jitter.errors import ExitCode
from jitter.intake import IngestReport

_MOST_WARNINGS = 20


def say_ingested(report: IngestReport, strict: bool) -> ExitCode:
    """Say what went in and what did not, and return the exit code for it."""
    for error in report.refused:
        click.echo(f"left out: {error.message}", err=True)
        if error.hint:
            click.echo(f"  {error.hint}", err=True)
    for line in _warnings(report):
        click.echo(f"note: {line}", err=True)
    _say_sum(report)
    usable = report.added or report.unchanged
    if not usable or (strict and report.refused):
        return ExitCode.UNUSABLE_INPUT
    return ExitCode.DONE


def _warnings(report: IngestReport) -> list[str]:
    """Each once, and how many sources it holds for: 960 ranks say the same thing."""
    counts: Counter[str] = Counter(problem for record in report.added for problem in record.problems)
    first = {problem: record.file for record in reversed(report.added) for problem in record.problems}
    lines = report.warnings + [
        f"{first[problem]}: {problem}" + (f" (and {count - 1} more ranks)" if count > 1 else "")
        for problem, count in counts.items()
    ]
    if len(lines) > _MOST_WARNINGS:
        left = len(lines) - _MOST_WARNINGS
        lines = [*lines[:_MOST_WARNINGS], f"{left} more; all of them are in {report.lake / 'sources'}"]
    return lines


def _say_sum(report: IngestReport) -> None:
    ranks = {record.rank for record in report.added}
    steps = {step.key for record in report.added for step in record.steps}
    kernels = sum(step.kernels for record in report.added for step in record.steps)
    parts = []
    if report.added:
        parts.append(f"{len(ranks)} ranks, {len(steps)} steps, {kernels:,} kernels added to {report.lake}")
    if report.unchanged:
        parts.append(f"{report.unchanged} sources were in {report.lake} already")
    if report.refused:
        parts.append(f"{len(report.refused)} left out")
    if not report.added and not report.unchanged:
        parts.append(f"nothing to read ({report.other_files} files are no traces)")
    elif report.other_files:
        parts.append(f"{report.other_files} other files")
    click.echo("; ".join(parts), err=True)
