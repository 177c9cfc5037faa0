"""`jitter export`: steps in other tools' formats."""

from pathlib import Path

import click

from jitter.cli.options import force_option, lake_argument


@click.command()
@lake_argument
@click.option(
    "--csv", "folder", type=click.Path(path_type=Path), required=True, help="The talk's CSV, into this folder."
)
@click.option("--step", "numbers", metavar="LIST", help="Steps: 2003 or 2000-2004,2010. Default: all.")
@click.option("--epoch", type=int, help="Only of this epoch.")
@click.option("--ranks", metavar="LIST", help="Ranks: 0-7,180. Default: all.")
@force_option
def export(lake: Path, folder: Path, numbers: str | None, epoch: int | None, ranks: str | None, force: bool) -> None:
    """Write one CSV a GPU a step, with the twelve columns of the talk.

    \b
    Examples:
        jitter export --csv out --step 2003
        jitter export run17-lake --csv out --step 2000-2004 --ranks 180,392
    """
    from jitter.analysis import open_lake
    from jitter.cli.output import check_target
    from jitter.errors import UsageError
    from jitter.export.talk_csv import COLUMNS, csv_name, talk_rows, write_talk_csv
    from jitter.numbers import parse_numbers

    opened = open_lake(lake)
    wanted = None if numbers is None else set(parse_numbers(numbers, "--step"))
    chosen = None if ranks is None else set(parse_numbers(ranks, "--ranks"))
    steps = [
        key for key in opened.steps if (wanted is None or key.step in wanted) and (epoch is None or key.epoch == epoch)
    ]
    pairs = [(key, rank) for key in steps for rank in opened.ranks_of(key) if chosen is None or rank in chosen]
    if not pairs:
        raise UsageError(f"{lake}: no such step and rank", f"it holds {opened.steps[0]} to {opened.steps[-1]}")
    folder.mkdir(parents=True, exist_ok=True)
    heading = ",".join(COLUMNS).encode()
    for key, rank in pairs:
        check_target(folder / csv_name(key, rank), force, heading)
    for key, rank in pairs:
        path = folder / csv_name(key, rank)
        write_talk_csv(path, talk_rows(opened, key, rank))
        click.echo(path)
