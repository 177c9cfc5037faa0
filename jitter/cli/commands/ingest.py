"""`jitter ingest`: read traces into a lake."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from jitter.cli.options import (
    PATH,
    choose_executor,
    quiet_option,
    reading_options,
    same_job_option,
    scheduler_options,
)
from jitter.cli.output.stdio import byte_progress
from jitter.core.errors import ExitCode
from jitter.lake import DEFAULT_LAKE

if TYPE_CHECKING:
    from jitter.ingestion.ingest import IngestReport


@click.command
@click.argument("paths", nargs=-1, required=True, type=PATH)
@click.option(
    "-o",
    "--output",
    "lake",
    type=PATH,
    default=DEFAULT_LAKE,
    show_default=True,
    help="Lake to write to; created if missing.",
)
@reading_options
@click.option("--label", metavar="NAME", help="Name of what the logs belong to. Default: the folder of each.")
@click.option(
    "--replace",
    is_flag=True,
    help="If two sources hold the same rank and step, keep the newer; replace another job; read damaged sources again.",
)
@same_job_option
@scheduler_options("Convert")
@click.option("--strict", is_flag=True, help="Exit 3 if any trace was left out.")
@quiet_option
def ingest(paths: tuple[Path, ...], lake: Path, strict: bool, **options: Any) -> ExitCode:
    """Read traces into a lake: one Parquet file per GPU and step.

    PATHS are files and directories of any supported formats; directories are searched recursively. A second run adds
    only new traces. A lake holds one job: traces of another job are left out. Logs of the job (NCCL, nccl-tests,
    nvidia-smi, …) go into the lake too.

    \b
    Examples:
        jitter ingest traces/
        jitter ingest node*/ -o /scratch/run17-lake
        jitter ingest odd.sqlite --rank 12
        jitter ingest traces/ --rank-map ranks.csv
        jitter ingest traces/ --step-pattern 'batch (?P<step>\\d+)'
        jitter ingest nccl-tests.log --label fabric-baseline
        jitter ingest traces/ --scheduler tcp://head-node:8786
    """
    report = run_ingest(paths, lake, **options)
    # after the ingest: it loads numpy, for which `run_ingest` sets the environment
    from jitter.cli.output.ingest import print_ingest_report

    return print_ingest_report(report, paths, strict)


def run_ingest(
    paths: tuple[Path, ...],
    lake: Path,
    *,
    quiet: bool,
    jobs: int | None = None,
    scheduler: str | None = None,
    wait_s: float = 60,
    **options: Any,
) -> "IngestReport":
    """Ingest `paths` into `lake` with a progress bar; raises as `jitter.ingest` does."""
    from jitter.cli.lakes import check_lake_path

    check_lake_path(lake)
    executor = choose_executor(jobs, scheduler, wait_s)
    if jobs != 1 and scheduler is None:
        from jitter.core.parallel.processes import server_context
        from jitter.ingestion import worker_modules

        # the fork server imports on another core what this process imports too
        server_context(*worker_modules())
    from jitter.core.arrow import hide_pandas
    from jitter.ingestion.ingest import ingest as ingest_traces

    hide_pandas()

    with byte_progress("Reading", quiet) as progress:
        return ingest_traces(paths, lake, executor=executor, progress=progress, **options)
