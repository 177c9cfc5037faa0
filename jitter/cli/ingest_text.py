"""What `jitter ingest` tells of what it did, on stderr."""

from collections import Counter

import click

from jitter.core.errors import ExitCode
from jitter.ingestion.ingest import IngestReport

_MOST_WARNINGS = 20


def print_ingest_report(report: IngestReport, strict: bool) -> ExitCode:
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
        f"{first[problem]}: {problem}" + (f" (and {_many(count - 1, 'more rank')})" if count > 1 else "")
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
        what = ", ".join((_many(len(ranks), "rank"), _many(len(steps), "step"), _many(kernels, "kernel")))
        parts.append(f"{what} added to {report.lake}")
    if report.unchanged:
        were = "was" if report.unchanged == 1 else "were"
        parts.append(f"{_many(report.unchanged, 'source')} {were} in {report.lake} already")
    if report.refused:
        parts.append(f"{len(report.refused)} left out")
    if not report.added and not report.unchanged:
        parts.append("nothing to read")
    if report.other_files:
        parts.append(_many(report.other_files, "other file"))
    click.echo("; ".join(parts), err=True)


def _many(count: int, word: str) -> str:
    return f"{count:,} {word}" if count == 1 else f"{count:,} {word}s"
