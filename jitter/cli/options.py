"""Options that several verbs share, each defined once."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from jitter.lake.layout import DEFAULT_LAKE

Command = Callable[..., Any]

quiet_option = click.option("--quiet", is_flag=True, help="No progress bar.")
force_option = click.option("--force", is_flag=True, help="Overwrite a file that jitter did not write.")
lake_argument = click.argument("lake", default=DEFAULT_LAKE, type=click.Path(path_type=Path))


def ingest_options(command: Command) -> Command:
    """How sources are read: `ingest` and `inspect` take the same."""
    for option in reversed(
        (
            click.option("--step-pattern", metavar="RE", help="Names a step in a marker: groups step, epoch, rank."),
            click.option("--collective", metavar="RE", help="Names further kernels that are communication."),
            click.option("--rank-pattern", metavar="RE", help="Names the rank in a path: group rank (or the first)."),
            click.option("--rank", type=click.IntRange(min=0), help="The rank, for one file."),
            click.option(
                "--rank-map",
                type=click.Path(path_type=Path),
                metavar="CSV",
                help="Lines file,rank (or file,device,rank).",
            ),
            click.option("--jobs", type=click.IntRange(min=1), help="Worker processes (default: all processors)."),
        )
    ):
        command = option(command)
    return command
