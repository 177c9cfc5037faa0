"""`jitter export`: write steps in the formats of other tools."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from jitter.cli.options import PATH, force_option, lake_argument, numbers_option, require_step_of_epoch
from jitter.cli.output.stdio import say

if TYPE_CHECKING:
    from jitter.api import Lake


@click.command
@lake_argument
@click.option("--csv", "folder", type=PATH, help="Write one CSV file per GPU and step into this folder.")
@click.option(
    "--perfetto",
    "timeline",
    type=PATH,
    help="Write ranks of one step on one aligned timeline to FILE.json or FILE.json.gz, for ui.perfetto.dev.",
)
@click.option(
    "--baseline",
    "baseline",
    type=PATH,
    help="Write what a comparison needs of the lake into this file, at most 2 MB; see `jitter compare`.",
)
@click.option("--label", help="Name of the run in the baseline. Default: the lake's folder.")
@numbers_option(
    "--step",
    "wanted",
    metavar="LIST",
    help="Steps: 2003 or 2000-2004,2010. Default: all; for --perfetto the costliest.",
)
@click.option("--epoch", type=int, help="Use only this epoch.")
@numbers_option(
    "--ranks",
    "chosen",
    metavar="LIST",
    help="Ranks: 0-7,180. Default: all; for --perfetto the min rank, the max rank and their neighbours.",
)
@force_option
def export(
    lake: Path,
    folder: Path | None,
    timeline: Path | None,
    baseline: Path | None,
    label: str | None,
    wanted: list[int] | None,
    epoch: int | None,
    chosen: list[int] | None,
    force: bool,
) -> None:
    """Write one CSV file per GPU and step with a row per kernel, the timeline of one step, or a baseline to compare to.

    \b
    Examples:
        jitter export --csv out --step 2003
        jitter export run17-lake --csv out --step 2000-2004 --ranks 180,392
        jitter export --perfetto step.json.gz
        jitter export run17-lake --perfetto step2003.json --step 2003 --ranks 176-183
        jitter export run17-lake --baseline base.json
    """
    from jitter.cli.lakes import open_lake
    from jitter.core.errors import UsageError

    if sum(given is not None for given in (folder, timeline, baseline)) != 1:
        raise UsageError("nothing to write", "give one of --csv DIR, --perfetto FILE.json and --baseline FILE.json")
    if label is not None and baseline is None:
        raise UsageError("--label names the run of a baseline", "give --baseline FILE.json")
    if timeline is not None:
        require_step_of_epoch(wanted, epoch)
    if baseline is not None:
        if epoch is not None or chosen is not None:
            raise UsageError(
                "a baseline is of all ranks and epochs", "--epoch and --ranks are for --csv and --perfetto"
            )
        _baseline(lake, baseline, wanted, label, force)
        return
    opened = open_lake(lake)
    if folder is not None:
        _csv(opened, folder, wanted, epoch, chosen, force)
    elif timeline is not None:
        _timeline(opened, timeline, wanted, epoch, chosen, force)


def _baseline(lake: Path, path: Path, wanted: list[int] | None, label: str | None, force: bool) -> None:
    from jitter.cli.lakes import damaged_files, open_prepared
    from jitter.comparison.document import DOCUMENT_SIGNATURE, encode_document
    from jitter.comparison.runs import load_run
    from jitter.core.errors import UsageError
    from jitter.core.files import atomic_file, check_overwrite

    damaged_files().forbid()
    check_overwrite(path, force, DOCUMENT_SIGNATURE)
    if lake.is_file():
        raise UsageError(f"{lake}: is a file", "name a lake")
    content = encode_document(load_run(lake, wanted, label, open_lake=open_prepared))
    with atomic_file(path) as half:
        half.write_bytes(content)
    click.echo(path)


def _csv(
    lake: "Lake", folder: Path, wanted: list[int] | None, epoch: int | None, chosen: list[int] | None, force: bool
) -> None:
    from jitter.core.errors import DamagedFileError, LakeError, UsageError
    from jitter.core.files import check_overwrite
    from jitter.export.kernel_csv import CSV_COLUMNS, csv_file_name, read_csv_rows, write_kernel_csv

    steps = [
        key
        for key in lake.step_keys
        if (wanted is None or key.step in wanted) and (epoch is None or key.epoch == epoch)
    ]
    pairs = [(key, rank) for key in steps for rank in lake.ranks_of(key) if chosen is None or rank in chosen]
    if not pairs:
        raise UsageError(f"{lake.root}: no such step and rank", f"it holds {lake.held_steps}")
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file", "choose a folder")
    folder.mkdir(parents=True, exist_ok=True)
    heading = ",".join(CSV_COLUMNS).encode()
    for key, rank in pairs:
        check_overwrite(folder / csv_file_name(key, rank), force, heading)
    damaged: list[DamagedFileError] = []
    for key, rank in pairs:
        path = folder / csv_file_name(key, rank)
        try:
            rows = read_csv_rows(lake, key, rank)
        except DamagedFileError as error:  # the other files do not rest on it
            damaged.append(error)
            say(f"note: {path} is not written: {error.message}")
            continue
        write_kernel_csv(path, rows)
        click.echo(path)
    if len(damaged) == len(pairs):
        raise LakeError(damaged[0].message, damaged[0].hint)


def _timeline(
    lake: "Lake", path: Path, wanted: list[int] | None, epoch: int | None, chosen: list[int] | None, force: bool
) -> None:
    from jitter.cli.lakes import prepare_diagnosis
    from jitter.core.errors import UsageError
    from jitter.core.files import check_overwrite
    from jitter.core.formatting import format_numbers
    from jitter.export.perfetto import AlignedStep, choose_ranks, is_perfetto_export, write_perfetto

    if wanted is not None and len(wanted) != 1:
        raise UsageError("a timeline holds one step", "give one number with --step")
    check_overwrite(path, force or is_perfetto_export(path))
    key = None if wanted is None else lake.step(wanted[0], epoch)
    if key is None or not chosen:
        steps = None if key is None else [key]
        prepare_diagnosis(lake, steps)
        step = lake.diagnose(steps).costliest
        key, chosen = step.key, chosen or choose_ranks(lake, step)
    seen = AlignedStep(lake, key, chosen)
    write_perfetto(path, seen)
    say(f"{key}, ranks {format_numbers(seen.ranks)}, aligned by {seen.method}")
    click.echo(path)
