"""`jitter inspect`: what would be ingested; writes nothing."""

import json
from pathlib import Path

import click

from jitter.cli.options import ingest_options, quiet_option
from jitter.cli.output.progress import byte_progress
from jitter.core.errors import ExitCode


@click.command()
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path))
@ingest_options
@click.option("--json", "as_json", is_flag=True, help="For other programs.")
@quiet_option
def inspect(
    paths: tuple[Path, ...],
    step_pattern: str | None,
    collective: str | None,
    rank_pattern: str | None,
    rank: int | None,
    rank_map: Path | None,
    jobs: int | None,
    as_json: bool,
    quiet: bool,
) -> ExitCode:
    """Tell what `jitter ingest` would take in: file, format, rank, host, steps, problems. Writes nothing.

    \b
    Examples:
        jitter inspect traces/
        jitter inspect report3.sqlite --json
    """
    from jitter.cli.inspect_text import format_inspection, inspection_document
    from jitter.ingestion.inspect import inspect as run

    with byte_progress("Reading", quiet) as progress:
        findings = run(
            paths,
            step_pattern=step_pattern,
            collective=collective,
            rank=rank,
            rank_map=rank_map,
            rank_pattern=rank_pattern,
            jobs=jobs,
            progress=progress,
        )
    if not findings:
        click.echo(f"no traces in {', '.join(map(str, paths))}", err=True)
    if as_json:
        click.echo(json.dumps(inspection_document(findings), indent=1))
    else:
        click.echo(format_inspection(findings), nl=False)
    return ExitCode.DONE if any(finding.records for finding in findings) else ExitCode.UNUSABLE_INPUT
