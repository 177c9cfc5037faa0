"""The lake as relations for SQL: what each is made of. What a person sees of it is its file in `sql/relations`."""

import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, Protocol, get_args

import msgspec
import pyarrow as pa

from jitter.analysis.diagnosis.model import Diagnosis
from jitter.analysis.metrics.step_metrics import StepMetrics
from jitter.core.schema import HOST, KERNELS
from jitter.core.step_key import StepKey
from jitter.lake.host_events import host_path
from jitter.lake.layout import kernels_file
from jitter.lake.records import SIZED_RECORD_VERSION, SourceRecord, StepRecord, records_by_step
from jitter.lake.step_reader import StepFiles
from jitter.query.answer_rows import ANSWERS_SCHEMA, CULPRITS_SCHEMA, answer_rows, culprit_rows


class QueryableLake(Protocol):
    """What the relations are made from: `jitter.Lake` is one."""

    root: Path
    sources: list[SourceRecord]
    rejected: list[SourceRecord]

    @property
    def steps(self) -> list[StepKey]:
        """The steps of the run, in order."""

    def compact(self, steps: Sequence[StepKey]) -> None:
        """Bring the files of these steps together, if they are many."""

    def metrics_of(self, key: StepKey) -> StepMetrics:
        """One step's metrics."""

    def diagnose(self) -> Diagnosis:
        """What the whole run's steps say."""


@dataclass(frozen=True)
class Relation:
    """What `sql/relations/<name>.sql` selects from: the table `<name>_rows`, or the files in `<name>_files`.

    Neither is asked for before a query names the relation.
    """

    name: str
    schema: pa.Schema
    """Of either."""
    files: Callable[[], Sequence[Path]] | None = None
    tables: Callable[[Sequence[StepKey]], Iterable[pa.Table]] | None = None
    """Given the steps that the query is about, of a relation that is made step by step."""
    has_older_files: bool = False
    """Whether files may lack columns of the schema, which are null then."""


def lake_relations(lake: QueryableLake) -> list[Relation]:
    """All relations of a lake, in the order in which one asks for them."""
    diagnosis = cache(lake.diagnose)
    return [
        Relation("kernels", _PLAIN_KERNELS, files=partial(_kernel_files, lake), has_older_files=_is_older(lake)),
        Relation("metrics", METRICS_SCHEMA, tables=partial(_metric_rows, lake)),
        Relation("answers", ANSWERS_SCHEMA, tables=lambda _: [answer_rows(diagnosis())]),
        Relation("culprits", CULPRITS_SCHEMA, tables=lambda _: [culprit_rows(diagnosis())]),
        Relation("steps", _STEPS, tables=lambda _: [_step_rows(lake)]),
        Relation("ranks", _RANKS, tables=lambda _: [_rank_rows(lake)]),
        Relation("host", HOST, files=partial(_host_files, lake)),
        Relation("sources", _SOURCES, tables=lambda _: [_source_rows(lake)]),
        Relation("problems", _PROBLEMS, tables=lambda _: [_problem_rows(lake)]),
    ]


METRICS_SCHEMA = pa.schema(
    [
        ("epoch", pa.int64()),
        ("step", pa.int64()),
        ("rank", pa.int32()),
        ("cohort", pa.int32()),
        ("kernel_index", pa.int32()),
        ("position", pa.int64()),
        ("kernel_name", pa.string()),
        ("kind", pa.string()),
        ("stream", pa.int64()),
        ("on_main", pa.bool_()),
        ("start_ns", pa.int64()),
        ("end_ns", pa.int64()),
        ("launch_start_ns", pa.int64()),
        ("duration_ns", pa.int64()),
        ("gap_ns", pa.int64()),
        ("ttke_ns", pa.int64()),
        ("launch_latency_ns", pa.int64()),
        ("duration_deviation_ns", pa.float64()),
        ("gap_deviation_ns", pa.float64()),
        ("ttke_deviation_ns", pa.float64()),
        ("launch_latency_deviation_ns", pa.float64()),
    ]
)
_ARROW = {int: pa.int64(), str: pa.string(), bool: pa.bool_()}


def _schema_of(struct: type[msgspec.Struct]) -> pa.Schema:
    """The columns of a record's plain fields; what is nested is left out."""
    found = []
    for field in msgspec.structs.fields(struct):
        kinds = [kind for kind in (get_args(field.type) or (field.type,)) if kind is not types.NoneType]
        if len(kinds) == 1 and kinds[0] in _ARROW and not hasattr(field.type, "__origin__"):
            found.append((field.name, _ARROW[kinds[0]]))
    return pa.schema(found)


_PLAIN_KERNELS = pa.schema([(f.name, f.type.value_type if pa.types.is_dictionary(f.type) else f.type) for f in KERNELS])
_SOURCES = _schema_of(SourceRecord)
_STEPS = pa.schema([("source", pa.string()), ("rank", pa.int64()), *_schema_of(StepRecord)])
_PROBLEMS = pa.schema([("source", pa.string()), ("file", pa.string()), ("rank", pa.int64()), ("problem", pa.string())])
_RANKS = pa.schema(
    [
        ("rank", pa.int64()),
        ("host", pa.string()),
        ("device", pa.int64()),
        ("main_stream", pa.int64()),
        ("format", pa.string()),
        ("steps", pa.int64()),
    ]
)


def _kernel_files(lake: QueryableLake) -> list[Path]:
    """Compacted parts that are fresh throughout, and the ranks' own files for the rest.

    Parts come first: DuckDB takes the columns from the first file, and a part has all that the relation needs.
    """
    lake.compact(lake.steps)
    compact: list[Path] = []
    small: list[Path] = []
    for key, held in records_by_step(lake.sources).items():
        files = StepFiles(lake.root, key, held)
        whole = [part for part in files.parts if all(files.holder.get(piece.rank) is part for piece in part.pieces)]
        compact += [part.path for part in whole]
        small += [lake.root / kernels_file(key, rank) for rank in held if files.holder.get(rank) not in whole]
    return compact + small


def _is_older(lake: QueryableLake) -> bool:
    return any(record.record_version < SIZED_RECORD_VERSION for record in lake.sources)


def _host_files(lake: QueryableLake) -> list[Path]:
    paths = [host_path(lake.root, record) for record in lake.sources]
    return [path for path in paths if path is not None]


def _metric_rows(lake: QueryableLake, steps: Sequence[StepKey]) -> Iterator[pa.Table]:
    for key in steps:
        rows = lake.metrics_of(key).rows
        for name, value in (("step", key.step), ("epoch", key.epoch)):
            rows = rows.append_column(name, pa.repeat(pa.scalar(value, pa.int64()), rows.num_rows))
        yield rows.select(METRICS_SCHEMA.names).cast(METRICS_SCHEMA)


def _source_rows(lake: QueryableLake) -> pa.Table:
    return _table(_SOURCES, [_values(record, _SOURCES.names) for record in [*lake.sources, *lake.rejected]])


def _step_rows(lake: QueryableLake) -> pa.Table:
    names = _STEPS.names[2:]
    return _table(_STEPS, [(r.digest, r.rank, *_values(step, names)) for r in lake.sources for step in r.steps])


def _problem_rows(lake: QueryableLake) -> pa.Table:
    return _table(
        _PROBLEMS,
        [(r.digest, r.file, r.rank, problem) for r in [*lake.sources, *lake.rejected] for problem in r.problems],
    )


def _rank_rows(lake: QueryableLake) -> pa.Table:
    last = {record.rank: record for record in lake.sources if record.steps}
    steps: dict[int | None, int] = {}
    for record in lake.sources:
        steps[record.rank] = steps.get(record.rank, 0) + len(record.steps)
    return _table(
        _RANKS, [(r.rank, r.host, r.device, r.main_stream, r.format, steps[r.rank]) for _, r in sorted(last.items())]
    )


def _values(record: msgspec.Struct, names: Sequence[str]) -> tuple[Any, ...]:
    return tuple(getattr(record, name) for name in names)


def _table(schema: pa.Schema, rows: Sequence[tuple[Any, ...]]) -> pa.Table:
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    return pa.table(
        [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)], schema=schema
    )
