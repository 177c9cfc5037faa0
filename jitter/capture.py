"""One recording's rows, joined: which call launched which activity, and in which step; may exceed memory."""

import re
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from itertools import count as count_up
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

import duckdb
import numpy as np
import pyarrow as pa

from jitter.calls import capture_edge, is_launch, is_synchronising
from jitter.kernels import collective_operation, is_collective
from jitter.launches import count, join_launches
from jitter.readers import Batch
from jitter.schema import ACTIVITIES, CALLS
from jitter.sql import sql
from jitter.steps import Marker, StepRange, is_data_loading, read_marker

SPILL_BYTES = 64 << 20
"""A recording with more rows than that goes to disk as it is read; of a smaller one no file is written."""
_ON_DISK_LIMIT = "400MB"
_IN_MEMORY_LIMIT = "1GB"  # several times what rows of that size come to, joined
_CONFIG: dict[str, str | bool | int | float | list[str]] = {
    "threads": 1,
    "preserve_insertion_order": False,
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
}
_NEVER = np.iinfo(np.int64).max
_NUMBERS = count_up()
_ROWS_AN_INSERT = 122_880  # a row group of DuckDB: fewer go through its log first
_STEP_ROWS_AT_ONCE = 49_152
_NAMES = pa.schema(
    [
        ("name", pa.int32()),
        ("text", pa.string()),
        ("kind", pa.string()),
        ("operation", pa.string()),
        ("is_launch", pa.bool_()),
        ("is_synchronising", pa.bool_()),
        ("capture_edge", pa.string()),
    ]
)
_STEP_RANGES = pa.schema(
    [("process", pa.int32()), ("step_row", pa.int32()), ("start_ns", pa.int64()), ("until_ns", pa.int64())]
)
_DATA_LOADING = pa.schema(
    [
        ("process", pa.int32()),
        ("text", pa.string()),
        ("thread", pa.int64()),
        ("start_ns", pa.int64()),
        ("end_ns", pa.int64()),
    ]
)


class Gpu(NamedTuple):
    """One GPU that one process used: what becomes a rank."""

    process: int
    device: int | None


@dataclass(frozen=True)
class GpuUse:
    """What one process did on one GPU, over the whole capture."""

    gpu: Gpu
    kernels: int
    compute_kernels: int
    main_stream: int | None
    """The stream with the most compute kernels (ties: the lowest id)."""
    first_ns: int
    last_ns: int


class Capture:
    """The rows of one recording, in a database that lies in memory or, if they are many, on disk.

    A context manager. Feed it with `add`, then call `join` once, then `in_steps` and the counts.
    """

    def __init__(self, pattern: re.Pattern[str], scratch: Path) -> None:
        self._scratch = scratch
        self._end = ExitStack()
        self._opened: duckdb.DuckDBPyConnection | None = None
        self._held: dict[str, list[pa.RecordBatch]] = {"activities": [], "calls": []}
        self._held_bytes = 0
        self._parts = 0  # tables that the view of activities is made of; 0: it is no view
        self._pattern = pattern
        self._data_loading: list[tuple[int, str, int | None, int, int | None]] = []
        self.markers: dict[int, list[Marker]] = defaultdict(list)
        """Ranges whose text names a step, by process."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.close()

    def add(self, batch: Batch) -> None:
        """Take in some rows, in any order."""
        if batch.table == "ranges":
            self._add_ranges(batch.rows)
            return
        held = self._held[batch.table]
        if self._opened is None:
            held.append(batch.rows)
            self._held_bytes += batch.rows.nbytes
            if self._held_bytes > SPILL_BYTES:
                self._spill()
            return
        if held and held[0].schema != batch.rows.schema:
            self._insert(batch.table)
        held.append(batch.rows)
        if sum(rows.num_rows for rows in held) >= _ROWS_AN_INSERT:
            self._insert(batch.table)

    @property
    def _db(self) -> duckdb.DuckDBPyConnection:
        assert self._opened is not None  # by `join` at the latest
        return self._opened

    def _spill(self) -> None:
        """Begin a database on disk with the rows held so far."""
        folder = self._end.enter_context(tempfile.TemporaryDirectory(dir=self._scratch, prefix="spill-"))
        # not in memory: tables there are held too tight to work beside them once they outgrow it
        self._opened = duckdb.connect(
            Path(folder) / "capture.duckdb",
            config=_CONFIG | {"memory_limit": _ON_DISK_LIMIT, "temp_directory": folder},
        )
        self._end.callback(self._opened.close)
        self._db.execute("PRAGMA disable_checkpoint_on_shutdown")  # nobody opens it again
        for table, schema in (("activities", ACTIVITIES), ("calls", CALLS)):
            self._create(table, schema.empty_table())
            self._insert(table)

    def _stay(self) -> None:
        """Make a database in memory of the rows held; activities are left where they are."""
        self._opened = _memory().cursor()
        self._end.callback(self._opened.close)
        name = f"capture_{next(_NUMBERS)}"
        self._db.execute(f"ATTACH ':memory:' AS {name}; USE {name}")
        self._end.callback(self._opened.execute, f"USE memory; DETACH {name}")
        self._create("calls", CALLS.empty_table())
        self._insert("calls")
        parts = [ACTIVITIES.empty_table(), *_tables(self._held["activities"])]
        for number, part in enumerate(parts):
            self._db.register(f"part_{number}", part)
        union = " UNION ALL BY NAME ".join(f"FROM part_{number}" for number in range(len(parts)))
        self._db.execute(f"CREATE TEMP VIEW activities AS {union}")
        self._held["activities"].clear()
        self._parts = len(parts)

    def _drop_activities(self) -> None:
        """They are joined by now."""
        if not self._parts:
            self._db.execute("DROP TABLE activities")
            return
        self._db.execute("DROP VIEW activities")
        for number in range(self._parts):
            self._db.unregister(f"part_{number}")
        pa.default_memory_pool().release_unused()

    def _insert(self, table: str) -> None:
        for rows in _tables(self._held[table]):
            self._db.register("_batch", rows)
            self._db.execute(f"INSERT INTO {table} BY NAME SELECT {', '.join(rows.schema.names)} FROM _batch")
            self._db.unregister("_batch")
        self._held[table].clear()
        pa.default_memory_pool().release_unused()  # else it stays beside what the database now holds

    def _add_ranges(self, rows: pa.RecordBatch) -> None:
        columns = (rows.column(name).to_pylist() for name in ("process", "thread", "text", "start_ns", "end_ns"))
        for process, thread, text, start_ns, end_ns in zip(*columns, strict=True):
            marker = read_marker(self._pattern, thread, text, start_ns, end_ns)
            if marker is not None:
                self.markers[process].append(marker)
            elif is_data_loading(text):
                self._data_loading.append((process, text, thread, start_ns, end_ns))

    def join(self, names: Sequence[str]) -> None:
        """Find each activity's launching call; to be called once, after the last `add`."""
        rows = {
            "name": range(len(names)),
            "text": names,
            "kind": ["collective" if is_collective(name) else "compute" for name in names],
            "operation": [collective_operation(name) for name in names],
            "is_launch": [is_launch(name) for name in names],
            "is_synchronising": [is_synchronising(name) for name in names],
            "capture_edge": [capture_edge(name) for name in names],
        }
        if self._opened is None:
            self._stay()
        for table in self._held:
            self._insert(table)
        self._create("names", pa.table(rows, schema=_NAMES))
        self._create("data_loading", _table(self._data_loading, _DATA_LOADING))
        self.unlaunched = join_launches(self._db)
        """Activities without a launching call."""
        self._drop_activities()
        self.has_launches = {
            process
            for (process,) in self._db.execute(
                "SELECT DISTINCT process FROM placed WHERE launch_start_ns IS NOT NULL"
            ).fetchall()
        }

    def gpus(self) -> list[GpuUse]:
        """Who used which GPU, by process and device."""
        uses: dict[Gpu, GpuUse] = {}
        for process, device, stream, kernels, first_ns, last_ns, compute in self._db.execute(
            sql("capture/streams")
        ).fetchall():
            gpu = Gpu(process, device)
            before = uses.get(gpu)
            if before is None:
                uses[gpu] = GpuUse(gpu, kernels, compute, stream if compute else None, first_ns, last_ns)
            else:
                uses[gpu] = GpuUse(
                    gpu,
                    before.kernels + kernels,
                    before.compute_kernels + compute,
                    before.main_stream,
                    min(before.first_ns, first_ns),
                    max(before.last_ns, last_ns),
                )
        return list(uses.values())

    def sequence(self, gpu: Gpu, kind: str, stream: int | None = None) -> pa.Table:
        """What one GPU ran in launch order: `name` (position in the recording's names), `place_ns`.

        Of one kind (compute, collective), on one stream or on all of them; copies and fills left out.
        """
        bound = {"process": gpu.process, "device": gpu.device, "kind": kind, "stream": stream}
        return self._db.sql(sql("capture/sequence"), params=bound).to_arrow_table()

    def set_steps(self, ranges: dict[int, list[StepRange]]) -> None:
        """Decide the steps of each process, in order; they must not overlap."""
        rows = [
            (process, row, step.start_ns, step.until_ns)
            for process, steps in ranges.items()
            for row, step in enumerate(steps)
        ]
        self._create("step_ranges", _table(rows, _STEP_RANGES))
        self._ranges = ranges

    def in_steps(self) -> Iterator[tuple[Gpu, pa.Table]]:
        """Yield some steps of one GPU at a time: whole ones, in order, rows in launch order, `step_row` with each.

        `step_row` is the position in the process's steps.
        """
        steps = self._db.execute(
            "SELECT step_row, min(start_ns), CASE WHEN bool_and(until_ns IS NOT NULL) THEN max(until_ns) END "
            "FROM step_ranges GROUP BY step_row ORDER BY step_row"
        ).fetchall()
        together = max(1, _STEP_ROWS_AT_ONCE * len(steps) // max(1, count(self._db, "placed")))
        for at in range(0, len(steps), together):
            group = steps[at : at + together]
            untils = [until for _, _, until in group]
            bound = {"from": min(start for _, start, _ in group), "until": None if None in untils else max(untils)}
            for gpu, rows in _by_gpu(self._db.sql(sql("capture/in_order"), params=bound).to_arrow_table()):
                in_steps = self._of_steps(gpu, rows, range(group[0][0], group[-1][0] + 1))
                if in_steps.num_rows:
                    yield gpu, in_steps

    def _of_steps(self, gpu: Gpu, rows: pa.Table, steps: range) -> pa.Table:
        """Those of the rows that lie in one of these steps, with `step_row`; not in SQL, where it takes far longer."""
        ranges = self._ranges.get(gpu.process, [])
        starts = np.array([step.start_ns for step in ranges], np.int64)
        untils = np.array([_NEVER if step.until_ns is None else step.until_ns for step in ranges], np.int64)
        place_ns = rows["place_ns"].to_numpy()
        step_rows = np.searchsorted(starts, place_ns, side="right") - 1
        inside = (step_rows >= steps.start) & (step_rows < steps.stop)
        inside[inside] = place_ns[inside] < untils[step_rows[inside]]
        rows = rows.drop_columns("place_ns").append_column("step_row", pa.array(step_rows.astype(np.int32)))
        return rows if inside.all() else rows.filter(inside)

    def before_capture(self) -> dict[Gpu, int]:
        """Count the kernels that were launched before the capture began: they belong to no step."""
        return {
            Gpu(process, device): kernels
            for process, device, kernels in self._db.execute(
                "SELECT process, device, count(*) FROM placed WHERE place_ns IS NULL AND NOT is_memory GROUP BY ALL"
            ).fetchall()
        }

    def lost_launches(self) -> dict[tuple[int, int], int]:
        """Count the launches whose kernels were lost by (process, position in its steps)."""
        return {(process, row): n for process, row, n in self._db.execute(sql("capture/lost")).fetchall()}

    def host(self) -> pa.Table:
        """What held the hosts up: `process`, `step_row` (null: in no step) and the columns of `schema.HOST`."""
        return self._db.sql(sql("capture/host")).to_arrow_table()

    def _create(self, table: str, rows: pa.Table) -> None:
        self._db.register("_rows", rows)
        self._db.execute(f"CREATE OR REPLACE TABLE {table} AS FROM _rows")
        self._db.unregister("_rows")


@cache
def _memory() -> duckdb.DuckDBPyConnection:
    """One for all recordings of this process: to make one takes longer than to join a short recording."""
    return duckdb.connect(":memory:", config=_CONFIG | {"memory_limit": _IN_MEMORY_LIMIT, "temp_directory": ""})


def _tables(batches: Sequence[pa.RecordBatch]) -> list[pa.Table]:
    """Put together those that follow each other and have the same columns."""
    return [pa.Table.from_batches(list(some)) for _, some in groupby(batches, key=attrgetter("schema"))]


def _table(rows: Sequence[tuple[object, ...]], schema: pa.Schema) -> pa.Table:
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    return pa.table(
        [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)], schema=schema
    )


def _by_gpu(rows: pa.Table) -> Iterator[tuple[Gpu, pa.Table]]:
    """Split rows that are in order of process and device."""
    keys = rows.select(["process", "device"])
    sizes = keys.group_by(keys.column_names, use_threads=False).aggregate([([], "count_all")])
    offset = 0
    for process, device, size in zip(*(column.to_pylist() for column in sizes.columns), strict=True):
        yield Gpu(process, device), rows.slice(offset, size)
        offset += size
