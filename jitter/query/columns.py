"""The columns of the relations, as `sql/<name>.sql` declares them, with a comment on each."""

import re
from functools import cache
from importlib.resources import files
from typing import Final

import pyarrow as pa

_TYPES: Final = {
    "BIGINT": pa.int64(),
    "INTEGER": pa.int32(),
    "DOUBLE": pa.float64(),
    "VARCHAR": pa.string(),
    "BOOLEAN": pa.bool_(),
}
_DECLARED: Final = re.compile(r'^ +"?(\w+)"? +([A-Z].*?),? +-- (.*)$', re.M)
"""A column of a table: name, type, comment."""
_SELECTED: Final = re.compile(r'(\w+)"?,? +-- (.*)$', re.M)
"""A column of a view: name, comment."""


@cache
def load_sql(name: str) -> str:
    """Return the statement that makes a relation, or another one of the folder `sql`."""
    return files(__package__).joinpath(f"sql/{name}.sql").read_text(encoding="utf-8")


@cache
def table_schema(name: str) -> pa.Schema:
    """Return the columns of a relation that is a table."""
    return pa.schema([(column, _arrow_type(kind)) for column, kind, _ in _DECLARED.findall(load_sql(name))])


def describe_columns(name: str) -> tuple[str, dict[str, str]]:
    """Return the sentence on a relation's rows, and the comment on each of its columns."""
    text = load_sql(name)
    declared = {column: comment for column, _, comment in _DECLARED.findall(text)}
    return " ".join(re.findall(r"^-- (.*)$", text, re.M)), declared or dict(_SELECTED.findall(text))


def _arrow_type(kind: str) -> pa.DataType:
    if kind.endswith("[]"):
        return pa.list_(_arrow_type(kind.removesuffix("[]")))
    if kind.startswith("STRUCT("):
        return pa.struct([(name, _TYPES[field]) for name, field in re.findall(r'"(\w+)" (\w+)', kind)])
    return _TYPES[kind]
