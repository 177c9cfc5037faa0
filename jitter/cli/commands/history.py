"""`jitter history`: runs of a job over time, in an SQLite file or a PostgreSQL database."""

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import click

from jitter.cli.options import PATH, force_option, json_option, lake_argument, parse_pairs, steps_option
from jitter.cli.output.stdio import say
from jitter.core.errors import UsageError

if TYPE_CHECKING:
    from jitter.comparison.document import Document
    from jitter.history.runs import HistoryRun

DEFAULT_PAGE = Path("jitter-history.html")
"""The path of the page without `-o`."""

_db_option = click.option(
    "--db",
    metavar="FILE|URL",
    help="SQLite file, or postgresql://host/database. Default: $JITTER_HISTORY, ~/.local/share/jitter/history.sqlite.",
)


@click.group
def history() -> None:
    """Keep the runs of a job, show how its step time changes, and check new runs against their spread.

    \b
    Examples:
        jitter history add run17-lake --job gpt-13b --label commit=ab12cd,driver=560.35
        jitter history list --job gpt-13b
        jitter history show --job gpt-13b --html
        jitter check run18-lake --baseline history:gpt-13b --last 10 --max-regression 3%
    """


@history.command()
@lake_argument
@click.option("--job", required=True, metavar="NAME", help="Job that the run belongs to: its runs are compared.")
@click.option("--label", "labels", multiple=True, metavar="NAME=VALUE,…", help="Labels of the run; repeatable.")
@click.option("--name", help="Name of the run. Default: the lake's folder.")
@steps_option
@_db_option
def add(
    lake: Path, job: str, labels: tuple[str, ...], name: str | None, steps: list[int] | None, db: str | None
) -> None:
    """Add a lake, or a file of `jitter export --baseline`, to a job. The same run is added once.

    \b
    Example:
        jitter history add run17-lake --job gpt-13b --label commit=ab12cd
    """
    from jitter.cli.lakes import damaged_files, open_prepared
    from jitter.comparison.runs import load_run
    from jitter.history.database import Database, history_location
    from jitter.history.runs import add_run

    damaged_files().forbid()

    parts = [part for option in labels for part in option.split(",")]
    given = parse_pairs(parts, "--label", "NAME=VALUE", "write it like commit=ab12cd,driver=560.35")
    with closing(Database(history_location(db))) as database:
        document = load_run(lake, steps, name, open_lake=open_prepared)
        added = add_run(database, job, document, given)
        say(f"{'added' if added else 'there already:'} {document.label} of job {job} in {database.named}")


@history.command(name="list")
@click.option("--job", metavar="NAME", help="Only this job.")
@json_option
@_db_option
def list_(job: str | None, as_json: bool, db: str | None) -> None:
    """List the runs: step time, loss, labels, changes of the step time.

    \b
    Example:
        jitter history list --job gpt-13b --json
    """
    from jitter.cli.output.table import print_table
    from jitter.core.formatting import format_json
    from jitter.report.history import history_document, tabulate_runs

    runs, _ = _read(db, job, with_documents=False)
    if as_json:
        click.echo(format_json(history_document(runs)), nl=False)
    elif not runs:
        say("the history is empty; add a run with: jitter history add LAKE --job NAME")
    else:
        print_table(tabulate_runs(runs))


@history.command()
@click.option("--job", required=True, metavar="NAME", help="The job.")
@click.argument("page", required=False, metavar="", type=PATH)
@click.option(
    "--html",
    "as_html",
    is_flag=True,
    help=f"Write one self-contained page; its name may follow. Default: ./{DEFAULT_PAGE}.",
)
@click.option("-o", "--output", type=PATH, help="Write the page to this file.")
@force_option
@_db_option
def show(job: str, page: Path | None, as_html: bool, output: Path | None, force: bool, db: str | None) -> None:
    """Show step time, loss, split and findings of a job over its runs.

    In the page, each run opens its comparison with the runs before it.

    \b
    Example:
        jitter history show --job gpt-13b --html gpt-13b.html
    """
    if page is not None and (output is not None or not as_html):
        raise UsageError(f"{page}: what is to be done with it?", f"write the page to it with `--html {page}`")
    is_page = as_html or output is not None
    path = page or output or DEFAULT_PAGE
    if is_page:
        from jitter.core.files import check_overwrite
        from jitter.report.forms import SIGNATURES

        check_overwrite(path, force, *SIGNATURES["html"])
    runs, documents = _read(db, job)
    if is_page:
        from jitter.core.files import write_text
        from jitter.report.history import render_history_html

        write_text(path, render_history_html(job, runs, documents))
        click.echo(path)
        return
    from jitter.cli.output.table import print_table
    from jitter.report.history import describe_history, tabulate_job

    print_table(tabulate_job(runs, documents))
    for sentence in describe_history(runs, documents):
        click.echo(sentence)


def _read(db: str | None, job: str | None, *, with_documents: bool = True) -> "tuple[list[HistoryRun], list[Document]]":
    from jitter.history.database import Database, history_location
    from jitter.history.runs import list_runs, read_documents

    with closing(Database(history_location(db))) as database:
        runs = list_runs(database, job)
        return runs, read_documents(database, runs) if with_documents else []
