"""`jitter query`: SQL over a lake."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from jitter.cli.options import force_option, table_output_option
from jitter.cli.output.stdio import say
from jitter.lake.layout import DEFAULT_LAKE

if TYPE_CHECKING:
    from jitter.query.run_query import RelationInfo


@click.command(short_help="Run SQL over the lake.")
@click.argument("words", nargs=-1, metavar="[LAKE] SELECT")
@click.option("--relations", "listing", is_flag=True, help="List the relations and their columns; run no query.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "csv", "json", "parquet"]),
    help="Default: the suffix of -o, else text on a terminal and csv in a pipe.",
)
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=0),
    default=300,
    show_default=True,
    metavar="SECONDS",
    help="Stop the query after this time; 0: no limit.",
)
@table_output_option
@force_option
def query(
    words: tuple[str, ...], listing: bool, form: str | None, timeout_s: float, output: Path | None, force: bool
) -> None:
    """Run a SELECT (DuckDB SQL) over the relations of a lake. The query cannot write, nor read other files.

    \b
    Examples:
        jitter query --relations
        jitter query "select rank, avg(launch_latency_ns) from metrics(2003) group by rank order by 2 desc limit 5"
        jitter query run17-lake "from problems" --format json
    """
    from jitter.cli.open_lake import open_lake, prepare_diagnosis
    from jitter.cli.output.progress import preparation_progress
    from jitter.cli.output.rows import write_rows
    from jitter.core.errors import UsageError
    from jitter.query.run_query import describe_relations, run_query

    text = None if listing or not words else words[-1]
    before = words if text is None else words[:-1]
    if len(before) > 1 or (text is None and not listing):
        raise UsageError(
            "give one SELECT in quotes, after the lake if it is not ./jitter-lake", "see jitter query --help"
        )
    lake = open_lake(Path(before[0]) if before else DEFAULT_LAKE)
    if text is None:
        click.echo("\n\n".join(_format_relation(relation) for relation in describe_relations(lake)))
        return

    def prepare(relations: frozenset[str]) -> None:
        if relations & {"answers", "culprits"}:
            prepare_diagnosis(lake)
        if "kernels" in relations:
            lake.prepare(preparation_progress(), forms=["compacted"])

    with run_query(lake, text, say=say, prepare=prepare, timeout_s=timeout_s or None) as rows:
        write_rows(rows, form, output, force)


def _format_relation(relation: "RelationInfo") -> str:
    widest = max(len(column.name) for column in relation.columns)
    types = max(len(column.type) for column in relation.columns)
    lines = [f"    {column.name:{widest}}  {column.type:{types}}  {column.description}" for column in relation.columns]
    return "\n".join([f"{relation.name}: {relation.sentence}", *lines])
