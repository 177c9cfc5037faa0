"""`jitter inspect`: show what `jitter ingest` would read; write nothing."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from jitter.cli.options import PATH, choose_executor, json_option, quiet_option, reading_options
from jitter.cli.output.stdio import byte_progress, say
from jitter.core.errors import ExitCode
from jitter.core.files import name_archive_members
from jitter.core.formatting import escape_control, format_count, format_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jitter.ingestion.inspect import InspectedJob, InspectedSource, Inspection, MissingSteps
    from jitter.lake.log_records import LogRecord
    from jitter.lake.records import SourceRecord, StepRecord


@click.command
@click.argument("paths", nargs=-1, required=True, type=PATH)
@reading_options
@click.option(
    "--expect",
    metavar="RANKSxSTEPS",
    help="Exit 3 and list what is missing unless ranks 0 to RANKS-1 recorded STEPS complete steps each, the same ones.",
)
@json_option
@quiet_option
def inspect(
    paths: tuple[Path, ...],
    expect: str | None,
    as_json: bool,
    quiet: bool,
    jobs: int | None,
    **reading: Any,
) -> ExitCode:
    """Show what `jitter ingest` would read: file, format, rank, host, steps, problems. Write nothing.

    \b
    Examples:
        jitter inspect traces/
        jitter inspect report3.sqlite --json
        jitter inspect traces/ --expect 512x10
    """
    from jitter.cli.commands.ingest import NO_TRACES_HINT
    from jitter.core.arrow import hide_pandas
    from jitter.ingestion.inspect import find_missing, parse_expectation
    from jitter.ingestion.inspect import inspect as inspect_traces

    hide_pandas()
    expected = None if expect is None else parse_expectation(expect)
    with byte_progress("Reading", quiet) as progress:
        inspection = inspect_traces(paths, progress=progress, executor=choose_executor(jobs), **reading)
    inspected = inspection.sources
    for note in inspection.notes:
        say(f"note: {note}")
    if not inspected:
        say(f"no traces in {', '.join(map(str, paths))}")
        say(NO_TRACES_HINT)
    accepted = [record for source in inspected if source.error is None for record in source.records]
    missing = None if expected is None else find_missing(accepted, expected)
    if as_json:
        click.echo(format_json(inspection_document(inspection, missing)), nl=False)
    else:
        click.echo(format_inspection(inspected, missing), nl=False)
    is_usable = bool(accepted) or any(source.log for source in inspected)
    if missing:
        return ExitCode.UNUSABLE_INPUT
    return ExitCode.DONE if is_usable else ExitCode.UNUSABLE_INPUT


def inspection_document(inspection: "Inspection", missing: "MissingSteps | None" = None) -> dict[str, Any]:
    """Return plain data: files with their ranks, notes on all of them, jobs, if they are several, what is missing."""
    findings = inspection.sources
    jobs = _jobs(findings)
    return {
        "schema_version": 1,
        "notes": inspection.notes,
        "expected": None if missing is None else _expected(missing),
        "jobs": [{"description": job.description, "taken": job.is_taken} for job in jobs],
        "files": [
            {
                "file": str(finding.path),
                "format": finding.format,
                "error": None if finding.error is None else finding.error.message,
                "hint": None if finding.error is None else finding.error.hint,
                "warnings": list(finding.warnings),
                "ranks": [_rank(record) for record in finding.records],
                "log": finding.log and _fields(finding.log, "label", "formats", "relations", "problems"),
                "job": None if finding.job is None else jobs.index(finding.job),
            }
            for finding in findings
        ],
    }


def _expected(missing: "MissingSteps") -> dict[str, Any]:
    return {
        "ranks": missing.expected.ranks,
        "steps": missing.expected.steps,
        "missing_ranks": list(missing.ranks),
        "missing_steps": [
            {"epoch": key.epoch, "step": key.step, "ranks": list(ranks)} for key, ranks in missing.steps.items()
        ],
        "absent_steps": missing.absent_steps,
    }


def _jobs(findings: "Sequence[InspectedSource]") -> "list[InspectedJob]":
    """Return each job that the files are of once; the one that an ingest takes comes first."""
    jobs = dict.fromkeys(finding.job for finding in findings if finding.job is not None)
    return sorted(jobs, key=lambda job: not job.is_taken)


def _fields(record: "SourceRecord | StepRecord | LogRecord", *names: str) -> dict[str, Any]:
    return {name: getattr(record, name) for name in names}


def _rank(record: "SourceRecord") -> dict[str, Any]:
    return {
        **_fields(record, "rank", "rank_told_by", "host", "device", "profiler_version", "steps_from"),
        "steps": [_fields(step, "epoch", "step", "kernels", "cut") for step in record.steps],
        **_fields(record, "kernels", "outside_steps", "before_capture", "problems"),
    }


def format_inspection(findings: "Sequence[InspectedSource]", missing: "MissingSteps | None" = None) -> str:
    """Return one line per rank (file, format, rank, host, steps, kernels), followed by its problems.

    If the files are of several jobs, lines after them describe the jobs. The last line says what is missing of the
    expected ranks and steps, if these were given.
    """
    from jitter.ingestion.ranks.jobs import OtherJobError

    lines = []
    jobs = _jobs(findings)
    for finding in findings:
        for record in sorted(finding.records, key=lambda record: record.rank or 0):
            steps = f"{len(record.steps)} steps"
            if record.steps:
                steps += f" ({record.steps[0].key} to {record.steps[-1].key}, by {record.steps_from})"
            lines.append(
                f"{finding.path}  {record.profiler}  rank {record.rank} (by {record.rank_told_by})  "
                f"host {record.host or 'unknown'}  device {record.device}  {steps}  {record.kernels:,} kernels"
            )
            lines += [f"    {problem}" for problem in record.problems]
        if finding.log is not None:
            rows = ", ".join(f"{relation} {format_count(n, 'row')}" for relation, n in finding.log.relations.items())
            formats = " + ".join(finding.log.formats) or "no records"
            lines.append(f"{finding.path}  {formats}  label {finding.log.label}  {rows}".rstrip())
            lines += [f"    {problem}" for problem in finding.log.problems]
        lines += [f"    {warning}" for warning in finding.warnings]
        if isinstance(finding.error, OtherJobError) and finding.job is not None:
            lines.append(f"    left out: it is of job {jobs.index(finding.job) + 1} below")
        elif finding.error is not None:
            lines.append(f"not usable: {finding.error.message}")
            if finding.error.hint:
                lines.append(f"    {finding.error.hint}")
    if jobs:
        is_clear = any(job.is_taken for job in jobs)
        lines.append(
            f"{len(jobs)} jobs, of which a lake holds one{'' if is_clear else '; none is clearly the largest'}:"
        )
        for number, job in enumerate(jobs, 1):
            lines.append(f"    {number}. {'taken' if job.is_taken else 'left out'}: {job.description}")
    if missing is not None:
        lines.append(str(missing))
    return "".join(f"{escape_control(name_archive_members(line))}\n" for line in lines)
