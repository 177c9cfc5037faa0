"""`jitter table`: one metric of one step, kernels by ranks; or times of groups of kernels, or of parts of the step."""

from pathlib import Path

import click

from jitter.cli.options import (
    force_option,
    format_option,
    lake_argument,
    numbers_option,
    require_step_of_epoch,
    table_output_option,
)
from jitter.cli.output.stdio import say


@click.command
@lake_argument
@click.option(
    "--metric",
    type=click.Choice(["duration", "gap", "ttke", "launch_latency"]),
    default="ttke",
    show_default=True,
    help="Metric; ttke is the time to kernel end.",
)
@click.option(
    "--by",
    type=click.Choice(["kernel", "operator", "scope", "phase", "source_line", "stream", "step"]),
    help="Instead: time per step of each kernel name, operator, …, across ranks; step: each rank's step by part.",
)
@click.option("--step", type=int, help="Default: the costliest step, named on stderr; with --by all steps.")
@click.option("--epoch", type=int, help="Epoch, if several have the same step number.")
@click.option("--cohort", type=int, help="Cohort, if ranks run different kernels.")
@click.option("--deviation", is_flag=True, help="Show value − mean in the columns of the ranks.")
@numbers_option(
    "--ranks",
    metavar="LIST",
    help="Ranks to show: 0-7,180. Default: all. The mean is over all ranks.",
)
@click.option("--unmatched", is_flag=True, help="List the kernels without a kernel index instead.")
@format_option("csv", "json", "parquet", default="the suffix of -o, else csv; on a terminal a table")
@table_output_option
@force_option
def table(
    lake: Path,
    metric: str,
    by: str | None,
    step: int | None,
    epoch: int | None,
    cohort: int | None,
    deviation: bool,
    ranks: list[int] | None,
    unmatched: bool,
    form: str | None,
    output: Path | None,
    force: bool,
) -> None:
    """Print one metric of one step in nanoseconds: one row per kernel, one column per rank.

    \b
    Examples:
        jitter table --metric gap --step 2003 --deviation
        jitter table --by operator
        jitter table --metric duration --step 2003 --ranks 0-7,180
        jitter table run17-lake --metric ttke -o ttke.parquet
    """
    from jitter.cli.lakes import open_lake, prepare_diagnosis
    from jitter.cli.output.table import write_table

    require_step_of_epoch(step, epoch)
    opened = open_lake(lake)
    if by is not None:
        write_table(opened.table(by=by, step=step, epoch=epoch, ranks=ranks, arrow=True), form, output, force)
        return
    if step is None:
        prepare_diagnosis(opened)
        costliest = opened.diagnose().costliest.key
        step, epoch = costliest.step, costliest.epoch
        say(f"{costliest}: the costliest step (choose another with --step)")
    if unmatched:
        from jitter.analysis.metrics.step_metrics import select_unmatched

        rows = select_unmatched(opened.metrics(step, epoch).rows)
    else:
        rows = opened.table(metric, step, epoch, cohort=cohort, deviation=deviation, ranks=ranks, arrow=True)
    write_table(rows, form, output, force)
