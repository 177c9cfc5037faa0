"""`jitter inspect`: show what `jitter ingest` would read; write nothing."""

import json
from pathlib import Path
from typing import Any

import click

from jitter.cli.options import PATH, choose_executor, json_option, quiet_option, reading_options
from jitter.cli.output.stdio import byte_progress, say
from jitter.core.errors import ExitCode


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
    from jitter.cli.output.ingest import NO_TRACES_HINT
    from jitter.cli.output.inspect import format_inspection, inspection_document
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
        click.echo(json.dumps(inspection_document(inspection, missing), indent=1))
    else:
        click.echo(format_inspection(inspected, missing), nl=False)
    is_usable = bool(accepted) or any(source.log for source in inspected)
    if missing:
        return ExitCode.UNUSABLE_INPUT
    return ExitCode.DONE if is_usable else ExitCode.UNUSABLE_INPUT
