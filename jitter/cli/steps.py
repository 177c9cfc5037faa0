"""`jitter steps`: one line a step."""

from pathlib import Path

import click

from jitter.cli.options import force_option, lake_argument


@click.command()
@lake_argument
@click.option("--format", "form", type=click.Choice(["text", "csv", "json", "parquet"]), help="Default: text.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write here instead of to stdout.")
@force_option
def steps(lake: Path, form: str | None, output: Path | None, force: bool) -> None:
    """Show one line a step: its time, what jitter costs it, who came first and last, where that began, the cause.

    \b
    Examples:
        jitter steps
        jitter steps run17-lake --format csv | sort -t, -k4 -n
    """
    import pyarrow as pa

    from jitter.cli.open_lake import open_lake, prepare_diagnosis
    from jitter.cli.output.table import write_table
    from jitter.report.step_table import format_steps, tabulate_steps

    opened = open_lake(lake)
    prepare_diagnosis(opened)
    frame = tabulate_steps(opened.diagnose().steps)
    if form == "text" or (form is None and output is None):
        click.echo(format_steps(frame), nl=False)
    else:
        write_table(pa.Table.from_pandas(frame, preserve_index=False), form, output, force)
