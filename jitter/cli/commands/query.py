"""`jitter query`: SQL over a lake."""

import time
from contextlib import ExitStack
from pathlib import Path
from textwrap import indent
from typing import TYPE_CHECKING, Final

import click

from jitter.cli.options import force_option, format_option, table_output_option
from jitter.cli.output.stdio import say
from jitter.core.formatting import format_columns
from jitter.lake import DEFAULT_LAKE

if TYPE_CHECKING:
    from jitter.cli.output.table import RowFormat

_GB: Final = 1_000_000_000
_STOPPED_BY_SIGNAL: Final = "Query interrupted"
"""The message of DuckDB's error where a signal comes while it reads rows of Python."""
_PROCESS_MODULES: Final = ("jitter.cli.output.table", "jitter.query.prepared_query")
"""Modules of the process that executes a query."""


@click.command
@click.argument("words", nargs=-1, metavar="[LAKE] SELECT")
@click.option("--relations", "listing", is_flag=True, help="List the relations and their columns; run no query.")
@format_option("text", "csv", "json", "parquet", default="the suffix of -o, else text on a terminal and csv in a pipe")
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=0),
    default=300,
    show_default=True,
    metavar="SECONDS",
    help="Stop after this time, the computation of relations included; 0: no limit.",
)
@click.option(
    "--memory",
    "memory_gb",
    type=click.FloatRange(min=0.1),
    default=2,
    show_default=True,
    metavar="GB",
    help="Memory that the query may use; sorts, joins and groups beyond it use temporary files.",
)
@table_output_option
@force_option
def query(
    words: tuple[str, ...],
    listing: bool,
    form: str | None,
    timeout_s: float,
    memory_gb: float,
    output: Path | None,
    force: bool,
) -> None:
    """Run a SELECT (DuckDB SQL) over the relations of a lake. The query cannot write, nor read other files.

    \b
    Examples:
        jitter query --relations
        jitter query "select rank, avg(launch_latency_ns) from metrics(2003) group by rank order by 2 desc limit 5"
        jitter query run17-lake "from problems" --format json
    """
    from jitter.cli.output.table import choose_row_format
    from jitter.core.errors import UsageError
    from jitter.core.interrupts import Interrupted, TimeLimitReached

    text = None if listing or not words else words[-1]
    before = words if text is None else words[:-1]
    if len(before) > 1 or (text is None and not listing):
        raise UsageError(
            "give one SELECT in quotes, after the lake if it is not ./jitter-lake", "see jitter query --help"
        )
    if text is not None and not before and Path(text).is_dir():
        raise UsageError(
            "no query is given", f'write a SELECT in quotes after the lake: jitter query {text} "from steps"'
        )
    lake = Path(before[0]) if before else DEFAULT_LAKE
    if text is None:
        _print_relations(lake)
        return
    deadline_s = time.monotonic() + timeout_s if timeout_s else None
    try:
        _answer(lake, text, choose_row_format(form, output), output, force, deadline_s, int(memory_gb * _GB))
    except (TimeLimitReached, TimeoutError, RuntimeError) as error:
        if isinstance(error, RuntimeError):  # what DuckDB raises for a signal that comes while it makes a relation
            if str(error) != _STOPPED_BY_SIGNAL:
                raise
            if deadline_s is None or time.monotonic() < deadline_s:
                raise Interrupted from None
        raise UsageError(
            f"the query took longer than {timeout_s:g} s and was stopped",
            "limit it to few steps, as in metrics(2003), or give --timeout SECONDS (0: no limit)",
        ) from None


def _answer(
    path: Path,
    text: str,
    form: "RowFormat",
    output: Path | None,
    force: bool,
    deadline_s: float | None,
    memory_bytes: int,
) -> None:
    """Make the relations in this process; execute the query and format its rows in one that can be killed."""
    from jitter.core.parallel.processes import WorkerDied, server_context, stream_from_process

    server_context(*_PROCESS_MODULES)  # imports modules while this process makes the relations
    from jitter.cli.lakes import open_lake, prepare_diagnosis
    from jitter.cli.output.table import answer_query, write_rows
    from jitter.core.interrupts import TimeLimit
    from jitter.query.prepared_query import memory_error
    from jitter.query.run_query import prepare_query

    def prepare(relations: frozenset[str]) -> None:
        if relations & {"steps", "culprits"}:
            prepare_diagnosis(lake)

    with ExitStack() as stack:
        with TimeLimit(None if deadline_s is None else deadline_s - time.monotonic()):
            lake = open_lake(path)
            query = stack.enter_context(prepare_query(lake, text, say=say, prepare=prepare, memory_bytes=memory_bytes))
        stream = stream_from_process(answer_query, _PROCESS_MODULES, deadline_s)
        try:
            write_rows(stream(query, memory_bytes, form), form.form, output, force)
        except WorkerDied:  # the system's killer of processes, or a failed allocation that DuckDB does not survive
            raise memory_error() from None


def _print_relations(path: Path) -> None:
    from jitter.cli.lakes import open_lake
    from jitter.query.run_query import describe_relations

    open_lake(path)
    texts = []
    for relation in describe_relations():
        # the fields of a STRUCT are in its description
        lines = [column._replace(type=column.type.partition("(")[0]) for column in relation.columns]
        columns = indent(format_columns(lines, left=range(3)), "    ")
        texts.append(f"{relation.name}: {relation.sentence}\n{columns}")
    click.echo("\n".join(texts), nl=False)
