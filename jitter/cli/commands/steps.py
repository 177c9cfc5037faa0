"""`jitter steps`: one line a step."""

import shutil
from pathlib import Path

import click

from jitter.cli.options import force_option, format_option, lake_argument, table_output_option
from jitter.core.errors import UsageError


@click.command
@lake_argument
@format_option("text", "csv", "json", "parquet", default="the suffix of -o, else text as wide as the terminal")
@click.option("--kind", metavar="KIND", help="Only steps of this kind: prefill, decode, rollout, …")
@table_output_option
@force_option
def steps(lake: Path, kind: str | None, form: str | None, output: Path | None, force: bool) -> None:
    """List the steps: time, loss to jitter, min rank, max rank, cause, and the kernel at which the max rank diverged.

    A wide terminal also shows the loss by class. Times are in ms; csv, json and parquet have all columns, in ns.

    \b
    Examples:
        jitter steps
        jitter steps run17-lake --format csv | sort -t, -k4 -n
    """
    from jitter.cli.lakes import open_lake, prepare_diagnosis
    from jitter.cli.output.table import write_table
    from jitter.query.diagnosis_rows import steps_table
    from jitter.report.text.step_table import format_steps

    opened = open_lake(lake)
    prepare_diagnosis(opened)
    kinds = set(opened.kinds.values())
    if kind is not None and kind not in kinds:
        raise UsageError(f"{opened.root}: no step of kind {kind}", f"it holds {', '.join(sorted(kinds))}")
    table = steps_table([step for step in opened.diagnose().steps if kind in (None, step.kind)])
    if form == "text" or (form is None and output is None):
        click.echo(format_steps(table, shutil.get_terminal_size().columns), nl=False)
    else:
        write_table(table, form, output, force)
