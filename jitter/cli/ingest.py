"""`jitter ingest`: trace directories into a lake."""

import os
from pathlib import Path

import click

from jitter.cli.options import ingest_options, quiet_option
from jitter.cli.output.progress import byte_progress
from jitter.core.errors import ExitCode
from jitter.lake.layout import DEFAULT_LAKE


@click.command()
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("-o", "--output", "lake", type=click.Path(path_type=Path), default=DEFAULT_LAKE, show_default=True)
@ingest_options
@click.option("--replace", is_flag=True, help="Where two sources hold the same rank and step, take the newer.")
@click.option("--scheduler", metavar="ADDRESS", help="A Dask cluster does the work: tcp://host:8786.")
@click.option("--strict", is_flag=True, help="Exit 3 if anything was left out.")
@quiet_option
def ingest(
    paths: tuple[Path, ...],
    lake: Path,
    step_pattern: str | None,
    collective: str | None,
    rank_pattern: str | None,
    rank: int | None,
    rank_map: Path | None,
    jobs: int | None,
    scheduler: str | None,
    replace: bool,
    strict: bool,
    quiet: bool,
) -> ExitCode:
    """Read traces into a lake: one parquet file per GPU per step.

    PATHS are files and directories, searched recursively, formats mixed. Run again, it adds only what is new.

    \b
    Examples:
        jitter ingest traces/
        jitter ingest node*/ -o /scratch/run17-lake
        jitter ingest odd.sqlite --rank 12
        jitter ingest traces/ --rank-map ranks.csv
        jitter ingest traces/ --step-pattern 'batch (?P<step>\\d+)'
        jitter ingest traces/ --scheduler tcp://head-node:8786
    """
    from jitter.cli.open_lake import check_lake_path

    check_lake_path(lake)
    # numpy starts threads for linear algebra, which spin for a while and then have nothing to do
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if jobs != 1 and scheduler is None:
        from jitter.core import processes
        from jitter.ingestion import worker_modules

        # loads on another core what this process is about to load, too
        processes.server_context(*worker_modules())
    from jitter.core.arrow import hide_pandas
    from jitter.ingestion.ingest import ingest as run

    hide_pandas()
    with byte_progress("Reading", quiet) as progress:
        report = run(
            paths,
            lake,
            step_pattern=step_pattern,
            collective=collective,
            rank=rank,
            rank_map=rank_map,
            rank_pattern=rank_pattern,
            replace=replace,
            jobs=jobs,
            scheduler=scheduler,
            progress=progress,
        )
    from jitter.cli.ingest_text import print_ingest_report

    return print_ingest_report(report, strict)
