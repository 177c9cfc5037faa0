"""`jitter query`: SQL over the lake."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from jitter.cli.options import force_option
from jitter.lake.layout import DEFAULT_LAKE

if TYPE_CHECKING:
    from jitter.query.run_query import RelationInfo


@click.command()
@click.argument("words", nargs=-1, metavar="[LAKE] SELECT")
@click.option("--relations", "listing", is_flag=True, help="List the relations and their columns instead.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "csv", "json", "parquet"]),
    help="Default: -o's suffix; text on a terminal, else csv.",
)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write here instead of to stdout.")
@force_option
def query(words: tuple[str, ...], listing: bool, form: str | None, output: Path | None, force: bool) -> None:
    """Answer a SELECT of DuckDB's SQL over the lake's relations; it can neither write nor read anything else.

    \b
    Examples:
        jitter query --relations
        jitter query "select rank, avg(launch_latency_ns) from metrics(2003) group by rank order by 2 desc limit 5"
        jitter query run17-lake "from problems" --format json
    """
    from jitter.cli.open_lake import open_lake, preparation_progress, prepare_diagnosis
    from jitter.cli.output.rows import write_rows
    from jitter.core.errors import UsageError
    from jitter.query.run_query import describe_relations, run_query

    text = None if listing or not words else words[-1]
    before = words if text is None else words[:-1]
    if len(before) > 1 or (text is None and not listing):
        raise UsageError(
            "a query is a lake, if not ./jitter-lake, and one SELECT in quotes", "see: jitter query --help"
        )
    lake = open_lake(Path(before[0]) if before else DEFAULT_LAKE)
    if text is None:
        click.echo("\n\n".join(_told(relation) for relation in describe_relations(lake)))
        return

    def prepare(relations: frozenset[str]) -> None:
        if relations & {"answers", "culprits"}:
            prepare_diagnosis(lake)
        if "kernels" in relations:
            lake.prepare(preparation_progress(), forms=["compacted"])

    with run_query(lake, text, say=lambda words: click.echo(words, err=True), prepare=prepare) as rows:
        write_rows(rows, form, output, force)


def _told(relation: "RelationInfo") -> str:
    widest = max(len(column.name) for column in relation.columns)
    types = max(len(column.type) for column in relation.columns)
    lines = [f"    {column.name:{widest}}  {column.type:{types}}  {column.description}" for column in relation.columns]
    return "\n".join([f"{relation.name}: {relation.sentence}", *lines])
