"""`jitter verify`: check a lake's files against their checksums and records."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from jitter.cli.options import json_option, lake_argument, quiet_option
from jitter.cli.output.stdio import byte_progress, say
from jitter.core.errors import ExitCode
from jitter.core.formatting import escape_control, format_count, format_json

if TYPE_CHECKING:
    from jitter.ingestion.verify_sources import SourceVerification
    from jitter.lake.integrity.verify import Verification


@click.command
@lake_argument
@click.option("--sources", is_flag=True, help="Also read the traces again, where they still lie, and compare.")
@json_option
@quiet_option
def verify(lake: Path, sources: bool, as_json: bool, quiet: bool) -> ExitCode:
    """Check every file of a lake against its checksum and its record. Write nothing. Exit 3 if there is a problem.

    \b
    Examples:
        jitter verify
        jitter verify run17-lake --sources --json
    """
    from jitter.lake.integrity.verify import verify_lake

    with byte_progress("Verifying", quiet) as progress:
        verification = verify_lake(lake, progress)
    compared = None
    if sources:
        from jitter.ingestion.verify_sources import verify_sources

        with byte_progress("Comparing traces", quiet) as progress:
            compared = verify_sources(verification.records, verification.logs, progress)
    problems = verification.problems + ([] if compared is None else compared.problems)
    if as_json:
        document = {
            "schema_version": 1,
            "lake": str(lake),
            "ranks": len({record.rank for record in verification.records}),
            "files": verification.files,
            "bytes": verification.size,
            "sources": compared and {"unchanged": compared.same, "absent": list(map(str, compared.absent))},
            "notes": verification.notes,
            "problems": [problem._asdict() | {"file": str(problem.file)} for problem in problems],
        }
        click.echo(format_json(document), nl=False)
    else:
        for problem in problems:
            click.echo(escape_control(f"{problem.file}: {problem.problem}; {problem.cure}"))
        for line in _summary(lake, verification, compared):
            say(line)
    return ExitCode.UNUSABLE_INPUT if problems else ExitCode.DONE


def _summary(lake: Path, verification: "Verification", compared: "SourceVerification | None") -> list[str]:
    lines = [f"note: {note}" for note in verification.notes]
    if compared is not None and compared.absent:
        absent = format_count(len(compared.absent), "source no longer lies", "sources no longer lie")
        lines.append(f"note: {absent} where it was read, such as {escape_control(str(compared.absent[0]))}")
    checked = [
        format_count(len({record.rank for record in verification.records}), "rank"),
        format_count(verification.files, "file"),
        f"{verification.size:,} bytes",
    ]
    if compared is not None:
        checked.append(f"{format_count(compared.same, 'source')} unchanged")
    count = len(verification.problems) + (0 if compared is None else len(compared.problems))
    result = format_count(count, "problem") if count else "no problem"
    return [*lines, f"{escape_control(str(lake))}: {', '.join(checked)}: {result}"]
