"""Find out which relations and steps a query names, from its text as DuckDB parses it, before it is run."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import duckdb

from jitter.core.errors import UsageError
from jitter.core.step_key import StepKey
from jitter.query.relations import QueryableLake


@dataclass(frozen=True)
class ParsedQuery:
    """The tables that a query names, and the (step, epoch) arguments of its calls of `metrics`."""

    tables: frozenset[str]
    calls: tuple[tuple[int, int | None], ...]

    @property
    def relations(self) -> frozenset[str]:
        """The relations that the query needs."""
        return self.tables | ({"metrics"} if self.calls else frozenset())

    def steps(self, lake: QueryableLake) -> list[StepKey]:
        """Return the steps whose metrics are needed: all, unless `metrics` is only called with single steps."""
        if "metrics" in self.tables:
            return lake.step_keys
        step_keys: list[StepKey] = []
        for step, epoch in self.calls:
            keys = [key for key in lake.step_keys if key.step == step and epoch in (None, key.epoch)]
            if not keys:
                raise UsageError(
                    f"{lake.root}: no {StepKey(epoch, step)}",
                    f"it holds {len(lake.step_keys)} steps, {lake.step_keys[0]} to {lake.step_keys[-1]}",
                )
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
        tuple(
            _step_named(node["function"])
            for node in nodes
            if node.get("type") == "TABLE_FUNCTION" and node["function"]["function_name"].lower() == "metrics"
        ),
    )


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
