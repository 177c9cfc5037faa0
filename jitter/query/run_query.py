"""Make the relations that a SELECT over a lake names, in a database that any process can query."""

import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from jitter.core.errors import UsageError
from jitter.core.step_key import StepKey
from jitter.query.columns import describe_columns, load_sql
from jitter.query.prepared_query import Parameters, PreparedQuery, open_query_database, query_error, set_variables
from jitter.query.relations import Relation, lake_relations

if TYPE_CHECKING:
    import pandas as pd

    from jitter.api.lake import Lake


@dataclass(frozen=True)
class ParsedQuery:
    """The tables that a query names, and the (step, epoch) arguments of its calls of `metrics`."""

    tables: frozenset[str]
    calls: tuple[tuple[int, int | None], ...]
    names_all: bool
    """Whether it reads what DuckDB tells of tables, or a table function besides `metrics`."""

    @property
    def relations(self) -> frozenset[str]:
        """The relations that the query needs."""
        return self.tables | ({"metrics"} if self.calls else frozenset())

    def steps(self, lake: "Lake") -> list[StepKey]:
        """Return the steps whose metrics are needed: all, unless `metrics` is only called with single steps."""
        if "metrics" in self.tables:
            return lake.step_keys
        step_keys: list[StepKey] = []
        for step, epoch in self.calls:
            keys = [key for key in lake.step_keys if key.step == step and epoch in (None, key.epoch)]
            if not keys:
                raise UsageError(f"{lake.root}: no {StepKey(epoch, step)}", f"it holds {lake.held_steps}")
            step_keys += [key for key in keys if key not in step_keys]
        return step_keys


def parse_query(db: duckdb.DuckDBPyConnection, text: str) -> ParsedQuery:
    """Parse a query without running it; raise `UsageError` unless it is one SELECT."""
    statements = db.extract_statements(text)
    if len(statements) != 1:
        raise UsageError(f"the query has {len(statements)} statements", "give one SELECT")
    if statements[0].type == duckdb.StatementType.MULTI:
        raise UsageError("a PIVOT must name its columns here", "write: PIVOT … ON rank IN (0, 1, 2) …")
    if statements[0].type != duckdb.StatementType.SELECT:
        raise UsageError(
            "only a SELECT may be run: the lake is read, never written",
            "the relations and their columns: jitter query --relations",
        )
    tree = json.loads(db.execute("SELECT json_serialize_sql($text)", {"text": text}).fetchall()[0][0])
    if tree["error"]:
        raise UsageError(f"the query cannot be read ({tree['error_message']})", "write it as a plain SELECT")
    nodes = list(_nodes(tree["statements"]))
    return ParsedQuery(
        frozenset(node["table_name"].lower() for node in nodes if node.get("type") == "BASE_TABLE"),
        tuple(_step_named(node["function"]) for node in nodes if _is_metrics(node)),
        any(node.get("type") in ("TABLE_FUNCTION", "SHOW_REF") and not _is_metrics(node) for node in nodes),
    )


def _is_metrics(node: dict[str, Any]) -> bool:
    return node.get("type") == "TABLE_FUNCTION" and node["function"]["function_name"].lower() == "metrics"


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    if isinstance(tree, dict):
        yield tree
        tree = list(tree.values())
    if isinstance(tree, list):
        for branch in tree:
            yield from _nodes(branch)


def _step_named(call: dict[str, Any]) -> tuple[int, int | None]:
    """Return step and epoch of `metrics(2003)`, `metrics(3, 1)` or `metrics(3, epoch_number := 1)`."""
    numbers: list[int] = []
    for argument in call["arguments"]:
        literal = argument["expression"].get("literal", {})
        if literal.get("kind") != "INTEGER":
            raise UsageError(
                "metrics(…) takes the number of a step, not an expression",
                "write metrics(2003), or metrics(3, 1) for epoch 1's",
            )
        numbers.append(int(literal["text"]))
    if not 1 <= len(numbers) <= 2:
        raise UsageError("metrics(…) takes a step, or a step and an epoch", "write metrics(2003), or metrics(3, 1)")
    return numbers[0], numbers[1] if len(numbers) == 2 else None


_OF_THE_WHOLE_RUN: Final = {
    "steps",
    "culprits",
    "efficiency",
    "facts",
    "losses",
    "waits",
    "self_times",
    "collective_calls",
}
"""Relations that a diagnosis of the run fills."""
_FOLDER_PREFIX: Final = "jitter-query-"
NO_FRAMES: Final[Mapping[str, Any]] = MappingProxyType({})


class Column(NamedTuple):
    """A column of a relation: name, SQL type and description."""

    name: str
    type: str
    description: str


class RelationInfo(NamedTuple):
    name: str
    sentence: str
    columns: tuple[Column, ...]


@contextmanager
def prepare_query(
    lake: "Lake",
    text: str,
    parameters: Parameters = None,
    say: Callable[[str], None] = lambda message: None,
    prepare: Callable[[frozenset[str]], None] = lambda relations: None,
    memory_bytes: int | None = None,
    frames: "Mapping[str, pd.DataFrame | pa.Table]" = NO_FRAMES,
) -> Iterator[PreparedQuery]:
    """Make the relations that one SELECT names and give the query while the context lasts.

    `parameters` fill its placeholders. `prepare` is called with the names of the relations in the query before they
    are read, `say` with a message before a long computation. The query may use `memory_bytes`, by default 80% of the
    machine's memory, and temporary files beyond. `frames` are more tables, by name; where a
    relation has the same name, it is read.

    Raises `UsageError` for a text that is not one SELECT, for errors in the query, and for files outside the lake;
    `LakeError` if a file of the lake is missing.
    """
    names = [relation.name for relation in lake_relations()]
    with _temporary_folder() as name:
        folder = Path(name)
        variables: dict[str, Any] = {}
        try:
            with open_query_database(folder, memory_bytes) as db:
                named = parse_query(db, text)
                steps = named.steps(lake)
                prepare(named.relations)
                if _OF_THE_WHOLE_RUN & named.relations and len(lake.step_keys) > 1:
                    say(f"diagnosing {len(lake.step_keys)} steps")
                if len(steps) > 1:
                    say(f"computing the metrics of {len(steps)} steps; metrics(N) reads only step N")
                are_enough = not named.names_all and named.relations <= {*names, *frames}
                db.begin()  # of its own, each table would wait for the disk
                for relation in lake_relations():
                    is_named = relation.name in named.relations
                    if is_named or not are_enough:
                        of_steps = steps if relation.name == "metrics" else lake.step_keys
                        variables |= _create(db, relation, folder, lake if is_named else None, of_steps)
                if named.calls or not are_enough:
                    db.execute(load_sql("metrics_of_step"))
                for frame_name, frame in frames.items():
                    if frame_name not in names:
                        quoted = frame_name.replace('"', '""')
                        _insert(db, f'CREATE TABLE "{quoted}" AS FROM _rows', frame)
                db.commit()
        except duckdb.Error as error:
            raise query_error(error, names) from None
        yield PreparedQuery(text, parameters, lake.root, folder, variables, names, memory_bytes)


@contextmanager
def _temporary_folder() -> Iterator[str]:
    """Yield a temporary folder, and remove those of processes that were killed."""
    for path in Path(tempfile.gettempdir()).glob(f"{_FOLDER_PREFIX}*"):
        pid = path.name.removeprefix(_FOLDER_PREFIX).partition("-")[0]
        if pid.isdecimal() and not Path("/proc", pid).exists() and Path("/proc/self").exists():
            shutil.rmtree(path, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=f"{_FOLDER_PREFIX}{os.getpid()}-") as folder:
        yield folder


def query_table(
    lake: "Lake",
    text: str,
    parameters: Parameters = None,
    frames: "Mapping[str, pd.DataFrame | pa.Table]" = NO_FRAMES,
) -> pa.Table:
    """Run one SELECT in this process and return all its rows, without decimals; raise the errors of `prepare_query`."""
    with prepare_query(lake, text, parameters, frames=frames) as prepared, prepared.execute() as rows:
        table = pa.Table.from_batches(rows, rows.schema)
    return pa.table([_without_decimals(column) for column in table.columns], names=table.column_names)


def frames_named_in(text: str, variables: Mapping[str, Any]) -> "dict[str, pd.DataFrame | pa.Table]":
    """Return the DataFrames and Arrow tables among some variables whose names are words of a query."""
    pandas = sys.modules.get("pandas")  # without it there is no DataFrame
    kinds = (pa.Table,) if pandas is None else (pa.Table, pandas.DataFrame)
    return {word: variables[word] for word in re.findall(r"\w+", text) if isinstance(variables.get(word), kinds)}


def _without_decimals(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return decimals, as of sums of integers, as int64; as float64 where they have a fraction or are too large."""
    if not pa.types.is_decimal(column.type):
        return column
    if column.type.scale == 0:
        with suppress(pa.ArrowInvalid):
            return column.cast(pa.int64())
    return column.cast(pa.float64())


def describe_relations() -> list[RelationInfo]:
    with _temporary_folder() as folder, open_query_database(Path(folder), None) as db:
        for relation in lake_relations():
            _create(db, relation, Path(folder), None, ())
        return [_describe(db, relation) for relation in lake_relations()]


def _create(
    db: duckdb.DuckDBPyConnection,
    relation: Relation,
    folder: Path,
    lake: "Lake | None",
    steps: Sequence[StepKey],
) -> dict[str, Any]:
    """Make a relation and return the variables that its view refers to; without a lake it has no rows."""
    variables: dict[str, Any] = {}
    if relation.files is not None:
        paths = [] if lake is None else list(relation.files(lake))
        is_union = lake is not None and bool(paths) and relation.has_old_files(lake)
        if is_union or not paths:
            paths.insert(0, folder / f"{relation.name}.parquet")
            pq.write_table(relation.schema.empty_table(), paths[0])
        variables = {f"{relation.name}_files": [str(path) for path in paths], f"{relation.name}_union": is_union}
        set_variables(db, variables)
    if relation.sentence is None:
        db.execute(load_sql(relation.name))
    else:
        _insert(db, f"CREATE TABLE {relation.name} AS FROM _rows", relation.schema.empty_table())
    if relation.tables is not None and lake is not None:
        for table in relation.tables(lake, steps):
            _insert(db, f"INSERT INTO {relation.name} FROM _rows", table)
    return variables


def _insert(db: duckdb.DuckDBPyConnection, statement: str, table: "pd.DataFrame | pa.Table") -> None:
    db.register("_rows", table)
    db.execute(statement)
    db.unregister("_rows")


def _describe(db: duckdb.DuckDBPyConnection, relation: Relation) -> RelationInfo:
    """Join the columns' types with their descriptions: comments in the relation's file, or its schema's metadata."""
    if relation.sentence is None:
        sentence, descriptions = describe_columns(relation.name)
    else:
        sentence = relation.sentence
        descriptions = {field.name: field.metadata[b"description"].decode() for field in relation.schema}
    columns = db.execute(f"DESCRIBE {relation.name}").fetchall()
    documented = tuple(Column(column, kind, descriptions[column]) for column, kind, *_ in columns)
    return RelationInfo(relation.name, sentence, documented)
