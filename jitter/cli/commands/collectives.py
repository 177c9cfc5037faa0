"""`jitter collectives`: bandwidth, waiting and hidden share of a job's communication."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from jitter.cli.options import (
    force_option,
    format_option,
    json_option,
    lake_argument,
    steps_option,
    table_output_option,
)

if TYPE_CHECKING:
    from jitter.analysis.metrics.bandwidth_baseline import Baseline
    from jitter.api import Lake


@click.command
@lake_argument
@steps_option
@click.option("--group", metavar="NAME", help="Only collectives of this process group (or ranks: 0,1,2,3).")
@click.option(
    "--by",
    type=click.Choice(["size", "group", "rank", "step"]),
    default="size",
    show_default=True,
    help="A row per operation and size (and group), per rank or per step.",
)
@click.option(
    "--baseline", metavar="FILE|LABEL", help="Bandwidths to compare with: an nccl-tests log, or a label of the lake."
)
@json_option
@format_option("text", "csv", default="text, or -o's suffix")
@table_output_option
@force_option
def collectives(
    lake: Path,
    steps: list[int] | None,
    group: str | None,
    by: str,
    baseline: str | None,
    as_json: bool,
    form: str | None,
    output: Path | None,
    force: bool,
) -> None:
    """Show what the network did: calls, sizes, bandwidth, waiting, and how much of it compute hid.

    Bandwidths are those of nccl-tests, in GB/s (1e9 bytes); a call's time is from its last rank's arrival to its end.

    \b
    Examples:
        jitter collectives
        jitter collectives --by rank
        jitter collectives --baseline nccl-tests.log
        jitter collectives run17-lake --steps 2005-2049 --json
        jitter collectives --by group --format csv -o collectives.csv
    """
    from jitter.analysis.metrics.communication import tabulate
    from jitter.cli.lakes import open_lake
    from jitter.cli.output.collectives import CollectiveReport, format_report, is_report, report_document
    from jitter.cli.output.table import choose_format, write_table
    from jitter.core.errors import UsageError
    from jitter.core.files import check_overwrite, write_text
    from jitter.report.forms import SIGNATURES

    if as_json and form is not None:
        raise UsageError("--json and --format are two forms", "give one of them")
    chosen = "json" if as_json else choose_format(form, output) or "text"
    if chosen == "parquet":
        raise UsageError(f"{output}: collectives are not written as parquet", "name it .csv or .json")
    if output is not None and chosen != "csv":
        check_overwrite(output, force or (chosen == "text" and is_report(output)), *SIGNATURES.get(chosen, ()))
    opened = open_lake(lake)
    measured = opened.measure_collectives(opened.steps_numbered(steps), group)
    report = CollectiveReport(measured, opened.hosts, None if baseline is None else _baseline(opened, baseline), by)
    if group is not None and not report.collectives:
        raise UsageError(f"{lake}: no collectives of group {group!r}", "the groups: jitter collectives --by group")
    if chosen == "csv":
        write_table(tabulate(measured, opened.hosts, by), "csv", output, force)
        return
    text = report_document(report) if chosen == "json" else format_report(report)
    if output is None:
        click.echo(text, nl=False)
    else:
        write_text(output, text)


def _baseline(lake: "Lake", named: str) -> "Baseline":
    """Read a baseline from a file, or take the lake's measurements of a label."""
    from jitter.analysis.metrics.bandwidth_baseline import Baseline
    from jitter.core.errors import UsageError

    path = Path(named)
    if path.is_file():
        from jitter.logs import parse

        tables = parse(path).tables
        baseline = Baseline(named, tables["bandwidth"].to_pylist() if "bandwidth" in tables else [])
        if not baseline:
            raise UsageError(f"{path}: holds no bandwidths", "give the output of nccl-tests or rccl-tests")
        return baseline
    measured = lake.log_table("bandwidth").to_pylist()
    labels = sorted({row["label"] for row in measured if row["label"] is not None})
    if named not in labels:
        hint = f"labels of the lake: {', '.join(labels)}" if labels else "give the output of nccl-tests or rccl-tests"
        raise UsageError(f"no file and no label {named!r}", hint)
    return Baseline(named, [row for row in measured if row["label"] == named])
