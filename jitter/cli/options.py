"""Options that several verbs share, each defined once."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypedDict

import click

from jitter.core.errors import UsageError
from jitter.core.parallel.executors import DaskExecutor, Executor, PoolExecutor
from jitter.lake.layout import DEFAULT_LAKE

Command = Callable[..., Any]

quiet_option = click.option("--quiet", is_flag=True, help="Show no progress bar.")
force_option = click.option("--force", is_flag=True, help="Overwrite a file that jitter did not write.")
same_job_option = click.option(
    "--same-job", is_flag=True, help="Take traces that seem to be of another job than the lake's."
)
wait_option = click.option(
    "--wait",
    "wait_s",
    type=click.FloatRange(min=0),
    default=60,
    show_default=True,
    metavar="SECONDS",
    help="With --scheduler: give up after this time without a worker.",
)
lake_argument = click.argument("lake", default=DEFAULT_LAKE, type=click.Path(path_type=Path))
table_output_option = click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="Write to this file. Default: stdout."
)


class ReadingOptions(TypedDict):
    """Values of the options that say how traces are read, as `jitter.ingest` takes them."""

    step_pattern: str | None
    collective: str | None
    rank_pattern: str | None
    rank: int | None
    rank_map: Path | None
    nsys: Path | None


class IngestOptions(ReadingOptions):
    """Values of the options that `ingest_options` adds to a verb."""

    jobs: int | None


def reading_options(options: IngestOptions) -> ReadingOptions:
    """Return the options without `jobs`."""
    return {
        "step_pattern": options["step_pattern"],
        "collective": options["collective"],
        "rank_pattern": options["rank_pattern"],
        "rank": options["rank"],
        "rank_map": options["rank_map"],
        "nsys": options["nsys"],
    }


def choose_executor(jobs: int | None, scheduler: str | None = None, wait_s: float = 60) -> Executor | None:
    """Return the executor for `--jobs` and `--scheduler`, None if neither is given; raise `UsageError` for both."""
    if jobs is not None and scheduler is not None:
        raise UsageError("--jobs is for workers on this machine, --scheduler for a cluster's", "give one of them")
    if scheduler is not None:
        return DaskExecutor(scheduler, wait_s)
    return None if jobs is None else PoolExecutor(jobs)


def ingest_options(command: Command) -> Command:
    """Add the options of `ingest`, `inspect` and `report` that say how traces are read; see `IngestOptions`."""
    for option in reversed(
        (
            click.option(
                "--step-pattern",
                metavar="RE",
                help="Regular expression of a step marker, with the group step (optional: epoch, rank).",
            ),
            click.option(
                "--collective",
                metavar="RE",
                help="Regular expression of names of kernels that communicate, besides those of known libraries.",
            ),
            click.option(
                "--rank-pattern",
                metavar="RE",
                help="Regular expression of a path that states the rank: the group rank, or the first group.",
            ),
            click.option("--rank", type=click.IntRange(min=0), help="Rank of the trace; for a single file."),
            click.option(
                "--rank-map",
                type=click.Path(path_type=Path),
                metavar="CSV",
                help="CSV file with lines file,rank or file,device,rank.",
            ),
            click.option(
                "--nsys",
                type=click.Path(path_type=Path),
                metavar="PATH",
                help="The nsys program that exports .nsys-rep files. Default: nsys on PATH, if there is one.",
            ),
            click.option(
                "--jobs", type=click.IntRange(min=1), metavar="N", help="Worker processes. Default: one per CPU."
            ),
        )
    ):
        command = option(command)
    return command


def form_options(default_page: Path) -> Callable[[Command], Command]:
    """Return a decorator that adds the options which choose the forms of a report; `default_page` names its page."""

    def add(command: Command) -> Command:
        for option in reversed(
            (
                click.option(
                    "--html",
                    "as_html",
                    is_flag=True,
                    help=f"Write one self-contained page; its name may follow. Default: ./{default_page}.",
                ),
                click.option(
                    "--json",
                    "as_json",
                    is_flag=True,
                    help="Print JSON with a versioned schema, for scripts, or write it to the file that follows.",
                ),
                click.option(
                    "--markdown",
                    "as_markdown",
                    is_flag=True,
                    help="Print Markdown, for an issue or a chat, or write it to the file that follows.",
                ),
                click.option(
                    "-o",
                    "--output",
                    "outputs",
                    multiple=True,
                    type=click.Path(path_type=Path),
                    help="Write to this file; .html, .json and .md pick the form. Repeatable, one file per form.",
                ),
            )
        ):
            command = option(command)
        return command

    return add
