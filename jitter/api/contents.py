"""The contents of a lake, by its records: recordings, logs, steps, ranks and hosts, and the rows of its files."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from jitter.core.errors import DamagedFileError, JitterError, LakeError, UsageError
from jitter.core.formatting import format_numbers
from jitter.core.numeric.arrays import begins_of, pieces_of
from jitter.core.parallel.prefetch import ROWS_PER_PIECE
from jitter.core.step_key import StepKey
from jitter.lake.folder import LakeFolder
from jitter.lake.integrity.verify import describe_left_out
from jitter.lake.log_records import intact_log_records, read_relation
from jitter.lake.rank_places import PLACE_RELATIONS, RankPlace, fill_hosts, find_rank_places, host_of_file
from jitter.lake.records import RankStepRecord, SourceRecord, StepRecord, batch_size, commonest_kind, records_by_step

if TYPE_CHECKING:
    from jitter.lake.step_reader import StepColumns


NOTHING_LEFT_OUT: Final[Mapping[str, DamagedFileError]] = MappingProxyType({})


class LakeContents:
    """Recordings, logs, steps, ranks and hosts of one job as recorded, without any result of the analysis."""

    def __init__(self, root: Path, without: Mapping[str, DamagedFileError] = NOTHING_LEFT_OUT) -> None:
        self.root = root
        folder = LakeFolder(root)
        folder.require()
        records, damaged = folder.intact_records()
        logs, damaged_logs = intact_log_records(root)
        for damaged_file in (*damaged, *damaged_logs):
            if damaged_file.path.stem not in without:
                raise damaged_file.error
        self.damaged = [describe_left_out(root, digest, error, records) for digest, error in without.items()]
        """A sentence for each recording or log that is left out, because a file of its is damaged."""
        ranks_without = {record.rank for record in records if record.digest in without and record.rank is not None}
        records = [record for record in records if record.digest not in without]
        self.sources = [record for record in records if record.rank is not None]
        """One record per recording in the lake."""
        self.rejected = [record for record in records if record.rank is None]
        """One record per recording that could not be ingested; `problems` states the reason."""
        self.unread_ranks = frozenset(
            {record.claimed_rank for record in self.rejected if record.claimed_rank is not None} | ranks_without
        )
        """Ranks whose recordings could not be ingested, or are left out because a file of theirs is damaged."""
        self.logs = [log for log in logs if log.digest not in without]
        """One record per log in the lake."""
        self._recorded = self.sources
        self.sources = self._with_hosts(self.sources)
        self._by_step = records_by_step(self.sources)
        self._kept_columns: dict[StepKey, StepColumns] = {}
        if not self._by_step and not self.logs and without:  # nothing is intact
            first = next(iter(without.values()))
            raise LakeError(first.message, first.hint)
        if not self._by_step and not self.logs:
            raise LakeError(f"{root}: holds no steps", "see why with: jitter inspect TRACES")

    def _with_hosts(self, sources: list[SourceRecord]) -> list[SourceRecord]:
        """Name the hosts that logs state and recordings do not."""
        if all(record.host is not None for record in sources):
            return sources
        named: dict[int, str] = {}
        with suppress(JitterError):  # a damaged log is told when its rows are asked for
            named = fill_hosts(sources, find_rank_places(sources, self._place_rows()))
        return [
            record if record.host is not None else msgspec.structs.replace(record, host=named.get(record.rank or 0))
            for record in sources
        ]

    @cached_property
    def places(self) -> dict[int, RankPlace]:
        """Host, GPU and process of each rank, by its recording and the logs, and where they state them differently.

        Raises `LakeError` if a file of the lake is missing or damaged.
        """
        rows = self._place_rows()
        clocks = self.log_table("gpu_clocks").select(["host", "device", "bus_id"])
        gpus = clocks.group_by(["host", "device", "bus_id"]).aggregate([]).to_pylist()
        return find_rank_places(self._recorded, {**rows, "gpu_clocks": gpus})

    def _place_rows(self) -> dict[str, list[dict[str, Any]]]:
        from jitter.logs import SCHEMAS

        held = {name for log in self.logs for name in log.relations}
        names = [name for name in PLACE_RELATIONS if name in held]
        return {name: read_relation(self.root, name, SCHEMAS[name], self.logs).to_pylist() for name in names}

    def __repr__(self) -> str:
        return f"<Lake {str(self.root)!r}: {len(self.ranks)} ranks, {len(self.step_keys)} steps>"

    @cached_property
    def step_keys(self) -> list[StepKey]:
        """The steps of the run, in order."""
        return sorted(self._by_step, key=lambda key: key.order)

    @cached_property
    def kinds(self) -> dict[StepKey, str]:
        """The kind of each step, as most ranks' markers say: `train`, `prefill`, `decode`, `rollout`, …."""
        return {key: commonest_kind(self._by_step[key].values()) for key in self.step_keys}

    @cached_property
    def batch_sizes(self) -> dict[StepKey, float]:
        """The tokens that each step computes, else the requests in its batch; NaN where its markers state neither."""
        return {key: batch_size(self._by_step[key].values()) for key in self.step_keys}

    @cached_property
    def ranks(self) -> list[int]:
        """The ranks that recorded at least one step, in ascending order."""
        return sorted({rank for ranks_of_step in self._by_step.values() for rank in ranks_of_step})

    @cached_property
    def hosts(self) -> dict[int, str | None]:
        """The host of each rank; None if neither its trace nor, for all ranks, NCCL's log names it."""
        return {record.rank: record.host for record in self.sources if record.rank is not None}

    @property
    def held_steps(self) -> str:
        """Number and range of the steps, in words."""
        keys = self.step_keys
        return f"{len(keys)} steps, {keys[0]} to {keys[-1]}" if keys else "logs and no steps"

    def step(self, step: int, epoch: int | None = None) -> StepKey:
        """Return the step of this number; raise `UsageError` if there is none, or if it is in several epochs."""
        matching_keys = [key for key in self.step_keys if key.step == step and epoch in (None, key.epoch)]
        epochs = [key for key in self.step_keys if key.step == step]
        if not matching_keys and epochs:
            raise UsageError(f"{self.root}: no epoch {epoch}, step {step}", f"it holds {', '.join(map(str, epochs))}")
        if not matching_keys:
            raise UsageError(f"{self.root}: no step {step}", f"it holds {self.held_steps}")
        if len(matching_keys) > 1:
            raise UsageError(
                f"{self.root}: step {step} is in epochs {', '.join(str(key.epoch) for key in matching_keys)}",
                "give --epoch",
            )
        return matching_keys[0]

    def steps_numbered(self, numbers: Collection[int] | None) -> list[StepKey]:
        """Return the steps of these numbers (None: all), in order; raise `UsageError` if there is none."""
        chosen = [key for key in self.step_keys if numbers is None or key.step in numbers]
        if numbers is not None and not chosen:
            raise UsageError(
                f"{self.root}: holds none of the steps {format_numbers(numbers)}", f"it holds {self.held_steps}"
            )
        return chosen

    def ranks_of(self, key: StepKey) -> list[int]:
        """Return the ranks that recorded this step, in ascending order."""
        return sorted(self._by_step[key])

    def steps_of(self, rank: int) -> list[StepRecord]:
        """Return the records of one rank's steps, in order."""
        return [self._by_step[key][rank].step for key in self.step_keys if rank in self._by_step[key]]

    def record_of(self, key: StepKey, rank: int) -> RankStepRecord:
        """Return the record of one rank in one step; raise `KeyError` if the rank lacks the step."""
        return self._by_step[key][rank]

    def log_table(self, relation: str) -> pa.Table:
        """Return the rows of a relation that logs fill, of all logs in the lake; see `jitter query --relations`.

        Raises `UsageError` for an unknown relation, `LakeError` if a file of the lake is missing or damaged.
        """
        from jitter.logs import SCHEMAS

        if relation not in SCHEMAS:
            raise UsageError(f"no relation {relation!r}", f"logs fill {', '.join(SCHEMAS)}")
        schema = SCHEMAS[relation]
        if "host" not in schema.names:
            return read_relation(self.root, relation, schema, self.logs)
        hosts = {host for host in self.hosts.values() if host is not None}
        tables = [schema.empty_table()]
        for log in self.logs:
            table = read_relation(self.root, relation, schema, [log])
            if (host := host_of_file(log.file, hosts)) is not None:
                named = pc.fill_null(table["host"], host)
                table = table.set_column(schema.get_field_index("host"), schema.field("host"), named)
            tables.append(table)
        return pa.concat_tables(tables)

    def step_columns(self, key: StepKey, columns: Sequence[str], ranks: Sequence[int] | None = None) -> "StepColumns":
        """Return columns of one step's rows (`jitter explain lake`), of these ranks in ascending order; default: all.

        Raises `LakeError` if a file of the lake is missing or damaged.
        """
        from jitter.lake.step_reader import read_step

        kept = self._kept_columns.get(key)
        is_whole = kept is not None and (ranks is None or tuple(ranks) == kept.ranks)
        if kept is not None and is_whole and set(columns) <= set(kept.table.column_names):
            return replace(kept, table=kept.table.select(list(columns)))
        return read_step(self.root, key, self._by_step[key], columns, ranks)

    def step_pieces(self, key: StepKey, columns: Sequence[str]) -> Iterator["StepColumns"]:
        """Yield `step_columns` of some ranks, then of others: about a million rows at once. All if they are kept."""
        if key in self._kept_columns:
            yield self.step_columns(key, columns)
            return
        ranks = self.ranks_of(key)
        for piece in pieces_of(begins_of(self._by_step[key][rank].step.rows for rank in ranks), ROWS_PER_PIECE):
            yield self.step_columns(key, columns, ranks[piece])

    @contextmanager
    def keep_columns(self, key: StepKey, read: "StepColumns") -> Iterator[None]:
        """Take columns of one step from `read`, which has all its ranks, in all calls in the block."""
        self._kept_columns[key] = read
        try:
            yield
        finally:
            self._kept_columns.pop(key, None)

    def _chosen(self, steps: int | StepKey | Sequence[int | StepKey] | None) -> tuple[StepKey, ...]:
        if steps is None:
            return tuple(self.step_keys)
        is_one = isinstance(steps, StepKey) or not isinstance(steps, Iterable)  # a number of numpy is no int
        return tuple(map(self._key, [steps] if is_one else steps))  # type: ignore[arg-type]

    def _key(self, step: int | StepKey, epoch: int | None = None) -> StepKey:
        return step if isinstance(step, StepKey) else self.step(step, epoch)
