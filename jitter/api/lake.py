"""A lake opened for analysis: tables, diagnosis, report, SQL."""

import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import cached_property, partial
from html import escape
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias
from weakref import finalize

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from jitter.analysis.alignment.kernel_index import KernelIndex, KernelIndices
from jitter.analysis.metrics.step_metrics import METRICS, StepMetrics
from jitter.core.arrow import coded, to_frame
from jitter.core.errors import DamagedFileError, JitterError, LakeError, UsageError
from jitter.core.formatting import format_numbers
from jitter.core.numeric.arrays import begins_of, distinct_rows, pieces_of
from jitter.core.parallel.executors import DaskExecutor, Executor, LocalExecutor, PoolExecutor, cpu_count
from jitter.core.parallel.prefetch import ROWS_PER_PIECE
from jitter.core.step_key import StepKey
from jitter.lake import catalog
from jitter.lake.folder import LakeFolder
from jitter.lake.integrity.verify import describe_left_out
from jitter.lake.log_records import intact_log_records, read_relation
from jitter.lake.rank_places import PLACE_RELATIONS, RankPlace, fill_hosts, find_rank_places, host_of_file
from jitter.lake.records import RankStepRecord, SourceRecord, batch_size, kind_of_step, records_by_step

if TYPE_CHECKING:
    from jitter.analysis.detection.passes import StepExecutor
    from jitter.analysis.detection.run_analysis import RunAnalysis
    from jitter.analysis.diagnosis.answer_cache import AnswerCache, Answers
    from jitter.analysis.diagnosis.diagnosis import Diagnosis
    from jitter.analysis.execution.dependencies import RowDependency
    from jitter.analysis.execution.inferred_groups import InferredGroups
    from jitter.analysis.execution.run_model import RunModel
    from jitter.analysis.execution.run_reader import RunReader
    from jitter.analysis.metrics.bandwidth_baseline import Baseline
    from jitter.analysis.metrics.communication import Communication
    from jitter.analysis.metrics.recorded_sizes import RecordedSizes
    from jitter.analysis.metrics.step_metrics import TtkeReading
    from jitter.analysis.replay.run_steps import RunSteps
    from jitter.lake.step_reader import StepColumns


NOTHING_LEFT_OUT: Final[Mapping[str, DamagedFileError]] = MappingProxyType({})


Frame: TypeAlias = Any
"""A pandas DataFrame; with `arrow=True` a `pyarrow.Table`."""
Steps: TypeAlias = int | StepKey | Sequence[int | StepKey] | None
"""One step or several, each as its number or its `StepKey`; None: all steps."""
_StepKeys: TypeAlias = tuple[StepKey, ...]
DerivedForm = Literal["catalog", "answers"]
DERIVED_FORMS: Final[tuple[DerivedForm, ...]] = ("catalog", "answers")


class Lake:
    """The traces of one job, opened for reading. Made by `jitter.open`.

    `table`, `steps`, `losses`, `kernels`, `collectives`, `waits`, `self_times`, `collective_calls` and `sql` return a
    pandas DataFrame; with `arrow=True` a `pyarrow.Table`. A column of whole numbers is int64, or pandas' Int64 where
    some are unknown (NA). Results are computed at first use and kept in memory. Times are in nanoseconds on each rank's
    own clock. No method but `prepare` writes to the lake, and every method works on a read-only lake. Methods raise
    `UsageError` for an unknown step, and `LakeError` if a file of the lake is missing or damaged.

    `steps=` takes a number, a `StepKey` (from `step_keys`, where the same number occurs in several epochs), or several.
    """

    def __init__(self, root: Path, without: Mapping[str, DamagedFileError] = NOTHING_LEFT_OUT) -> None:
        """Open a lake without these recordings and logs (digests): a file of each is damaged, as its error says."""
        self.root = root
        folder = LakeFolder(root)
        folder.require()
        records, damaged = folder.intact_records()
        logs, damaged_logs = intact_log_records(root)
        for error in (*damaged, *damaged_logs):
            if error.path.stem not in without:
                raise error
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
        self.unplaced = sum(record.may_be_any_rank for record in self.rejected)
        """Recordings that could not be ingested and are of an unknown rank."""
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
        self._kernel_indices = KernelIndices(root, self._by_step)
        self._analyses: dict[_StepKeys, RunAnalysis] = {}
        self._by_traces: dict[_StepKeys, Answers] = {}
        self._answers: dict[_StepKeys, Answers] = {}
        self._connections = ExitStack()
        finalize(self, self._connections.close)

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
        """Host, GPU and process of each rank, by its recording and the logs, and where they state them differently."""
        rows = self._place_rows()
        if "gpu_clocks" not in self._relations:
            return find_rank_places(self._recorded, rows)
        clocks = self.log_table("gpu_clocks").select(["host", "device", "bus_id"])
        # `group_by` loads pyarrow.dataset
        first, _ = distinct_rows(*(coded(column)[1].astype(np.int64) for column in clocks.columns))
        gpus = clocks.take(first).to_pylist()
        return find_rank_places(self._recorded, {**rows, "gpu_clocks": gpus})

    def _place_rows(self) -> dict[str, list[dict[str, Any]]]:
        names = [name for name in PLACE_RELATIONS if name in self._relations]
        if not names:  # the parsers of logs take long to import
            return {}
        from jitter.logs import SCHEMAS

        return {name: read_relation(self.root, name, SCHEMAS[name], self.logs).to_pylist() for name in names}

    @property
    def _relations(self) -> set[str]:
        """The relations of which logs in the lake have rows."""
        return {name for log in self.logs for name in log.relations}

    def __repr__(self) -> str:
        return f"<Lake {str(self.root)!r}: {len(self.ranks)} ranks, {len(self.step_keys)} steps>"

    @cached_property
    def step_keys(self) -> list[StepKey]:
        """The steps of the run, in order."""
        return sorted(self._by_step, key=lambda key: key.order)

    @cached_property
    def kinds(self) -> dict[StepKey, str]:
        """The kind of each step, as most ranks' markers say: `train`, `prefill`, `decode`, `rollout`, …."""
        return {key: kind_of_step(self._by_step[key].values()) for key in self.step_keys}

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

    @cached_property
    def host_names(self) -> tuple[str, ...]:
        """The hosts that are named, in order."""
        return tuple(sorted({host for host in self.hosts.values() if host is not None}))

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

    def record_of(self, key: StepKey, rank: int) -> RankStepRecord:
        """Return the record of one rank in one step; raise `KeyError` if the rank lacks the step."""
        return self._by_step[key][rank]

    def log_table(self, relation: str) -> pa.Table:
        """Return the rows of a relation that logs fill, of all logs in the lake; see `jitter query --relations`.

        Raises `UsageError` for an unknown relation.
        """
        from jitter.logs import SCHEMAS

        if relation not in SCHEMAS:
            raise UsageError(f"no relation {relation!r}", f"logs fill {', '.join(SCHEMAS)}")
        schema = SCHEMAS[relation]
        if "host" not in schema.names:
            return read_relation(self.root, relation, schema, self.logs)
        tables = [schema.empty_table()]
        for log in self.logs:
            table = read_relation(self.root, relation, schema, [log])
            if (host := host_of_file(log.file, self.host_names)) is not None:
                named = pc.fill_null(table["host"], host)
                table = table.set_column(schema.get_field_index("host"), schema.field("host"), named)
            tables.append(table)
        return pa.concat_tables(tables)

    def step_columns(self, key: StepKey, columns: Sequence[str], ranks: Sequence[int] | None = None) -> "StepColumns":
        """Return columns of a step's rows (`jitter explain lake`), of these ranks in ascending order; default: all."""
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

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the report's first screen, or the lake's size while nothing is diagnosed."""
        if tuple(self.step_keys) in self._answers:
            return self._render("screen")
        counts = {"ranks": len(self.ranks), "steps": len(self.step_keys), "hosts": len(self.host_names) or "unknown"}
        counts["formats"] = ", ".join(sorted({record.format for record in self.sources}))
        cells = "".join(f"<tr><th>{name}</th><td>{escape(str(value))}</td></tr>" for name, value in counts.items())
        return f"<p><b>{escape(str(self.root))}</b></p><table><tbody>{cells}</tbody></table>"

    @property
    def cohorts(self) -> dict[int, int]:
        """The cohort of each rank: ranks of one cohort run the same kernels and are compared with each other."""
        return self._kernel_indices.cohorts

    @property
    def cohort_members(self) -> Mapping[int, frozenset[int]]:
        """The ranks of each cohort."""
        return self._kernel_indices.members

    def kernel_indices(self, key: StepKey) -> list[KernelIndex]:
        """Return the alignment of each cohort's ranks in one step."""
        return self._kernel_indices.of(key)

    def metrics(self, step: int | StepKey, epoch: int | None = None) -> StepMetrics:
        """Return all metrics of one step: every kernel of every rank, with deviations and alignment."""
        return self._metrics(self._key(step, epoch), METRICS)

    def table(
        self,
        metric: str = "ttke",
        step: int | StepKey | None = None,
        epoch: int | None = None,
        *,
        by: str | None = None,
        cohort: int | None = None,
        deviation: bool = False,
        ranks: Sequence[int] | None = None,
        arrow: bool = False,
    ) -> Frame:
        """Return one metric of one step, kernels × ranks, in ns; with `by`, the time of groups of kernels across ranks.

        `metric` is "duration", "gap", "ttke" (time to kernel end) or "launch_latency"; `step` is by default the
        costliest. The index is `kernel_index` (with `arrow` the first column). Columns: `kernel_name`; `mean`, over all
        ranks of the cohort; and `rank_<R>` for each rank, or each of `ranks`. With `deviation`, the ranks' columns hold
        value − mean. Unknown values are NA.

        `by` is "kernel", "operator", "scope", "phase", "source_line" or "stream": a row per group with its time per
        step across ranks, of `step` or of all steps. Or it is "step": a row per step and rank with its time by part,
        which add up to the step: `step_ns`, `compute_ns` (without communication), `hidden_ns` (communication during
        compute), `exposed_ns` (communication alone), `waiting_ns` (for late ranks, in collectives), `copies_ns`,
        `idle_ns` (the GPU waits for its host). `jitter explain metrics` describes all columns.

        Raises `UsageError` for an unknown metric, group or rank, and if there are several cohorts and none is given.
        """
        if by is not None:
            return _frame(self._grouped_times(by, None if step is None else self._key(step, epoch), ranks), arrow)
        if metric not in METRICS:
            raise UsageError(f"no metric {metric!r}", f"there are {', '.join(METRICS)}")
        from jitter.analysis.metrics.step_metrics import build_metric_table, frame_metric

        key = self.diagnose().costliest.key if step is None else self._key(step, epoch)
        chosen, measured = self._choose_cohort(cohort), self._metrics(key, (metric,))
        table = build_metric_table(measured, metric, chosen, deviation, ranks)
        return table if arrow else frame_metric(table)

    def _grouped_times(self, by: str, key: StepKey | None, ranks: Sequence[int] | None) -> pa.Table:
        from jitter.analysis.metrics.breakdown import breakdown_table, columns_of, tabulate_groups

        missing = sorted(set(ranks or ()) - set(self.ranks))
        if missing:
            raise UsageError(f"{self.root}: no rank {missing[0]}", f"it holds {format_numbers(self.ranks)}")
        keys = self._chosen(key)
        if by == "step":
            return _of_ranks(breakdown_table(self.measure_collectives(keys).rank_steps), ranks)
        columns = columns_of(by)
        parts = (part for step in keys for part in self.step_pieces(step, columns))
        return tabulate_groups(by, parts, self.ranks, ranks)

    def steps(self, steps: Steps = None, *, arrow: bool = False) -> Frame:
        """Return one row per step, as `jitter steps` prints them: time, loss, min and max rank, where and why.

        Columns: `epoch`, `step`, `kind`, `step_time_ns`, `loss_ns`, `loss_fraction`, `min_rank`, `max_rank`,
        `kernel_index` and `kernel_name` (at which the delay of the max rank begins), `start_ns`, `launch_ns`,
        `after_ns`, `gpu_ns`, `transfer_ns`, `overlap_ns`, `carried_ns`, `unexplained_ns` (the
        loss by class) and `cause`. Unknown values are NA. Errors are those of `diagnose`.
        """
        return self._rows("steps", steps, arrow)

    def kernels(
        self,
        steps: Steps = None,
        *,
        name: str | None = None,
        ranks: Sequence[int] | None = None,
        arrow: bool = False,
    ) -> Frame:
        """Return one row per kernel, rank and step with its times and deviations, in ns.

        `name` is a regular expression that occurs in the kernel's name, in any case; `ranks` are the ranks to return.
        The deviations are from the mean over all ranks of the cohort. Columns are those of the relation `metrics`
        (`jitter query --relations`), among them `step`, `rank`, `kernel_index`, `kernel_name`, `kind`, `duration_ns`,
        `gap_ns`, `ttke_ns`, `launch_latency_ns` and `duration_deviation_ns`. A run of 960 ranks × 50 steps has 40
        million rows: choose steps or a name. Raises the errors of `table`.
        """
        from jitter.query.columns import table_schema
        from jitter.query.relations import metric_rows

        tables = [table_schema("metrics").empty_table()]
        for rows in metric_rows(self, self._chosen(steps)):
            named = rows
            if name is not None:
                try:
                    named = rows.filter(pc.match_substring_regex(rows["kernel_name"], name, ignore_case=True))
                except pa.ArrowInvalid as error:
                    raise UsageError(f"{name!r} is no regular expression: {error}", "escape brackets with \\") from None
            tables.append(_of_ranks(named, ranks))
        return _frame(pa.concat_tables(tables), arrow)

    def collectives(
        self, steps: Steps = None, *, by: str = "size", group: str | None = None, arrow: bool = False
    ) -> Frame:
        """Return what the network did, as `jitter collectives` prints it: calls, sizes, bandwidth, waiting.

        `by` chooses the rows: "size" (operation, size, type and number of ranks), "group" (of each process group too),
        "rank" or "step" (mean times in ms). `group` is the name of the only process group to measure, or its ranks
        ("0,1,2,3"). Sizes are in bytes, bandwidths in GB/s (1e9 bytes) as nccl-tests states them; `jitter explain
        metrics` describes the columns. Unknown values are NA. Raises `UsageError` for an unknown `by`.
        """
        from jitter.analysis.metrics.communication import tabulate

        return _frame(tabulate(self.measure_collectives(steps, group), self.hosts, by), arrow)

    def ttke_readings(self, steps: Steps = None) -> "list[TtkeReading]":
        """Return the talk's reading of these steps (all), one a cohort and step, in order."""
        from jitter.analysis.metrics.step_metrics import read_ttke

        readings = []
        for key in self._chosen(steps):
            measured = self._metrics(key, ("ttke",))
            readings += [read_ttke(key, measured, index.cohort) for index in measured.indices]
        return readings

    def diagnose(self, steps: Steps = None, executor: Executor | None = None) -> "Diagnosis":
        """Diagnose these steps (default: all): loss, steps, culprits, what-if gains, verdict and notes.

        `executor` is where the work is done; None uses several processors for a large run. Raises `JitterError` if a
        cluster fails.
        """
        self._require_steps(self._chosen(steps))
        return self.results(steps, executor).diagnosis

    def results(self, steps: Steps = None, executor: Executor | None = None) -> "Answers":
        """Return the diagnosis of these steps (default: all) together with its data quality; see `diagnose`.

        Of a lake without steps, return what its logs say: `diagnosis.efficiency`.
        """
        keys = self._chosen(steps)
        if keys not in self._answers:
            self._answers[keys] = self._with_evidence(
                self._without_evidence(keys, executor) if keys else _nothing_compared(), keys
            )
        return self._answers[keys]

    def _without_evidence(self, steps: _StepKeys, executor: Executor | None) -> "Answers":
        """Return the diagnosis of these steps by the traces alone, which is what the lake keeps."""
        if steps not in self._by_traces:
            cached = None if self._cache is None else self._cache.get(steps)
            self._by_traces[steps] = cached or self._diagnose(steps, executor)
        return self._by_traces[steps]

    def _diagnose(self, steps: _StepKeys, executor: Executor | None) -> "Answers":
        from jitter.analysis.diagnosis.diagnose import diagnose_traces

        return diagnose_traces(self.analyze(steps, executor), self, self._benchmark)

    def _with_evidence(self, answers: "Answers", steps: _StepKeys) -> "Answers":
        """Add what the program and the job's logs tell of the culprits, their GPUs, and the logs of the whole job."""
        from jitter.analysis.diagnosis.evidence.code import add_code_evidence
        from jitter.analysis.diagnosis.evidence.locations import name_gpus

        diagnosis = add_code_evidence(answers.diagnosis, self)
        if self.logs:
            from jitter.analysis.diagnosis.log_passes import pass_over_logs

            diagnosis = pass_over_logs(diagnosis, self, steps, self._benchmark)
        named, of_all_ranks = (name_gpus(some, self.places) for some in (diagnosis.culprits, diagnosis.of_all_ranks))
        return replace(answers, diagnosis=replace(diagnosis, culprits=named, of_all_ranks=of_all_ranks))

    @cached_property
    def _benchmark(self) -> "Baseline | None":
        """Bandwidths that a benchmark among the logs measured; None without one."""
        if "bandwidth" not in self._relations:
            return None
        from jitter.analysis.metrics.bandwidth_baseline import Baseline

        return Baseline("nccl-tests", self.log_table("bandwidth").to_pylist())

    @cached_property
    def _cache(self) -> "AnswerCache | None":
        """None if the lake is too small to keep answers."""
        from jitter.analysis.diagnosis.answer_cache import MIN_ACTIVITIES, STEP_ACTIVITIES, AnswerCache

        activities = sum(step.rows + STEP_ACTIVITIES for source in self.sources for step in source.steps)
        digests = [log.digest for log in self.logs]
        return AnswerCache(self.root, self.sources, digests) if activities >= MIN_ACTIVITIES else None

    def analyze(self, steps: Steps = None, executor: Executor | None = None) -> "RunAnalysis":
        """Return what the diagnosis of these steps (default: all) rests on.

        That is: dependencies, replay, account and findings, each computed at first use. Arguments and errors
        are those of `diagnose`.
        """
        from jitter.analysis.detection.run_analysis import RunAnalysis

        keys = self._chosen(steps)
        self._require_steps(keys)
        if keys not in self._analyses:
            make = self._step_executor(executor)
            self._analyses[keys] = RunAnalysis(self.run_reader(keys), make, self._benchmark)
        return self._analyses[keys]

    def _require_steps(self, steps: _StepKeys) -> None:
        """Raise `LakeError` if there are none, as in a lake of logs alone."""
        if not steps:
            raise LakeError(f"{self.root}: holds logs and no steps", "ingest the job's traces too")

    def _step_executor(self, executor: Executor | None) -> "Callable[[RunSteps], StepExecutor]":
        from jitter.analysis.detection.passes import ThreadedStepExecutor

        if isinstance(executor, DaskExecutor):
            from jitter.analysis.detection.dask_executor import dask_executor

            return self._connections.enter_context(dask_executor(executor, self.root))
        if isinstance(executor, LocalExecutor):
            return partial(ThreadedStepExecutor, threads=1)
        if isinstance(executor, PoolExecutor):
            return partial(ThreadedStepExecutor, threads=executor.workers or cpu_count())
        return ThreadedStepExecutor

    def losses(self, steps: Steps = None, executor: Executor | None = None, *, arrow: bool = False) -> Frame:
        """Return the account of lost time: every share of each step's loss, in ns; those of a step add up to it.

        Arguments and errors are those of `diagnose`. Columns (`jitter explain account`): `epoch`, `step`, `kind`,
        `origin_epoch`, `origin_step`, `rung`, `rank`, `host`, `device`, `team`, `collective`, `ranks`, `class`,
        `operation`, `kernel_index`, `kernel_name`, `phase`, `loss_ns`, `excess_ns`. Steps of unknown loss have no rows.
        """
        from jitter.query.columns import table_schema
        from jitter.query.relations import loss_rows

        rows = table_schema("losses").empty_table()
        if self.step_keys:
            rows = loss_rows(self, self.analyze(steps, executor), self.diagnose(steps, executor).steps)
        return _frame(rows, arrow)

    def waits(self, *, arrow: bool = False) -> Frame:
        """Return which operation of each team's program waits for which, how that is known, and how well it fits.

        Columns as in the relation `waits`; `jitter query --relations` describes them.
        """
        return self._rows("waits", None, arrow)

    def self_times(self, steps: Steps = None, *, arrow: bool = False) -> Frame:
        """Return each rank's own time in each operation of these steps (default: all), and its baseline, in ns.

        Columns as in the relation `self_times`.
        """
        return self._rows("self_times", steps, arrow)

    def collective_calls(self, steps: Steps = None, *, arrow: bool = False) -> Frame:
        """Return each rank's wait in each of its collectives in these steps (default: all), and the transfer, in ns.

        Columns as in the relation `collective_calls`.
        """
        return self._rows("collective_calls", steps, arrow)

    def dependencies(self, cohort: int | None = None) -> "list[RowDependency]":
        """Return which operation of a cohort's step waits for which, as inferred from the run.

        Operations are numbered in launch order of the cohort's commonest sequence. If ranks of the cohort exchange
        data in different orders (pipeline stages), the dependencies are those of its first stage.

        Raises `UsageError` for an unknown cohort, `LakeError` if no rank of it recorded a whole step.
        """
        from jitter.analysis.execution.dependencies import row_dependencies

        chosen = self._choose_cohort(cohort)
        run = self.analyze().run
        teams = {team for rank, team in run.team_of.items() if self.cohorts[rank] == chosen}
        if not teams:
            raise LakeError(f"{self.root}: no rank recorded a whole step", "see why with: jitter report")
        team = min(teams)
        return row_dependencies(run.programs[team], run.dependencies[team])

    def measure_collectives(self, steps: Steps = None, group: str | None = None) -> "Communication":
        """Return the measurements that `collectives` tabulates, of one process group or of all."""
        from jitter.analysis.execution.run_reader import ActivityReader
        from jitter.analysis.metrics.collective_calls import COLUMNS, COLUMNS_OF_ALL, read_calls
        from jitter.analysis.metrics.communication import MeasuredStep, measure_communication
        from jitter.core.parallel.prefetch import MOST_ROWS, map_ahead

        keys, activities = self._chosen(steps), ActivityReader(self.root)
        rows = {key: {rank: rank_record.step.rows for rank, rank_record in self._by_step[key].items()} for key in keys}
        reasons, groups = Counter[str](), self.inferred_groups(keys)

        is_small = 2 * max((sum(of_ranks.values()) for of_ranks in rows.values()), default=0) < MOST_ROWS

        def read(key: StepKey) -> MeasuredStep:
            every = activities.columns_of_step(self._by_step[key])
            if is_small:  # one reading is faster than picking calls
                others = self.step_columns(key, [name for name in COLUMNS if name not in COLUMNS_OF_ALL])
                return MeasuredStep(key, every.beside(others), every)
            return MeasuredStep(key, read_calls(partial(self.step_columns, key, COLUMNS), rows[key]), every)

        def complete(step: MeasuredStep) -> MeasuredStep:
            filled = groups.filled(step.key, step.calls, reasons)
            return step._replace(calls=self.recorded_sizes.filled(step.key, filled, reasons))

        communication = measure_communication(map(complete, map_ahead(read, keys, int(is_small))), self.hosts, group)
        communication.reasons.update(reasons)
        groups.explain(communication.reasons)
        return communication

    def inferred_groups(self, steps: Steps = None) -> "InferredGroups":
        """Return the groups of collectives whose trace states none, for these steps (default: all)."""
        from jitter.analysis.execution.inferred_groups import InferredGroups

        return InferredGroups(partial(self._model, self._chosen(steps)))

    def _model(self, steps: _StepKeys) -> "RunModel":
        """Return what is inferred of the run: by an analysis of these steps and others, else from all steps."""
        for analyzed, analysis in self._analyses.items():
            if set(analyzed) >= set(steps):
                return analysis.run
        from jitter.analysis.replay.run_steps import RunSteps

        return RunSteps(self.run_reader(self.step_keys)).run

    def run_reader(self, steps: Sequence[StepKey]) -> "RunReader":
        """Return the reader of these steps that an analysis uses."""
        from jitter.analysis.execution.run_reader import RunReader

        sizes = self.recorded_sizes or None
        return RunReader(self.root, self._by_step, self.kernel_indices, steps, sizes)

    @cached_property
    def recorded_sizes(self) -> "RecordedSizes":
        """The sizes of collectives that logs recorded; `disagreements` lists those that contradict the traces."""
        from jitter.analysis.metrics.recorded_sizes import RECORDED_COLUMNS, SIZE_COLUMNS, RecordedSizes

        rows = self.log_table("recorded").select(RECORDED_COLUMNS).to_pylist() if self.logs and self.step_keys else []
        return RecordedSizes(rows, lambda: ((key, self.step_columns(key, SIZE_COLUMNS)) for key in self.step_keys))

    def sql(
        self, text: str, parameters: Sequence[Any] | Mapping[str, Any] | None = None, *, arrow: bool = False
    ) -> Frame:
        """Answer one SELECT over the lake's relations (`jitter query --relations` lists them).

        `parameters` fill the placeholders of the query: a sequence for `?` or `$1`, a mapping for `$name`. The query
        may name DataFrames and Arrow tables that the caller has as variables; where a relation has the same name, the
        relation is read. Whole numbers are int64, others float64. Raises `UsageError` for a text that is not one
        SELECT, and for errors in the query.
        """
        from jitter.query.run_query import frames_named_in, query_table

        caller = sys._getframe(1)
        frames = frames_named_in(text, {**caller.f_globals, **caller.f_locals})
        return _frame(query_table(self, text, parameters, frames), arrow)

    def report(self, path: str | Path, steps: Steps = None, *, force: bool = False) -> Path:
        """Write the report of these steps (default: all) and return its path.

        The suffix chooses the form: .html (one self-contained page), .json or .md. A report that jitter wrote is
        replaced, another file only with `force`. Raises `UsageError` for another suffix or file, `JitterError` if the
        file cannot be written, and the errors of `diagnose`.
        """
        from jitter.core.files import check_overwrite, write_text
        from jitter.report.forms import SIGNATURES, form_of

        target = Path(path)
        form = form_of(target)
        check_overwrite(target, force, *SIGNATURES[form])
        write_text(target, self._render(form, steps))
        return target

    def _render(self, form: str, steps: Steps = None) -> str:
        from jitter.report.forms import render_report

        return render_report(self, list(self._chosen(steps)), form)

    def prepare(
        self,
        *,
        forms: Collection[DerivedForm] = DERIVED_FORMS,
        steps: Steps = None,
        executor: Executor | None = None,
    ) -> None:
        """Write what makes later calls and commands faster and the lake lacks.

        `forms` chooses among "catalog" (the records for SQL) and "answers" (the diagnosis of `steps`, default: all,
        computed on `executor`; a small lake gets none). A lake that cannot be written to is left as it is. Raises the
        errors of `diagnose`.
        """
        if "catalog" in forms:
            catalog.refresh(self.root, lambda: LakeFolder(self.root).intact_records()[0])
        if "answers" in forms and self._cache is not None and self._cache.get(keys := self._chosen(steps)) is None:
            self._cache.keep(keys, self._without_evidence(keys, executor))

    def _rows(self, relation: str, steps: Steps, arrow: bool) -> Frame:
        from jitter.query.relations import relation_table

        return _frame(relation_table(self, relation, self._chosen(steps)), arrow)

    def _metrics(self, key: StepKey, metrics: Sequence[str]) -> StepMetrics:
        read, indices = partial(self.step_columns, key), self.kernel_indices(key)
        return StepMetrics(self.root, key, self._by_step[key], read, indices, self.cohort_members, metrics)

    def _choose_cohort(self, cohort: int | None) -> int:
        """Return `cohort`, or the only one; raise `UsageError` with a list of cohorts otherwise."""
        members = self.cohort_members
        if cohort is None and len(members) == 1:
            return next(iter(members))
        if cohort is not None and cohort in members:
            return cohort
        listed = "; ".join(f"cohort {n}: {len(ranks)} ranks from {min(ranks)}" for n, ranks in members.items())
        problem = "several cohorts run different kernels" if cohort is None else f"no cohort {cohort}"
        raise UsageError(f"{self.root}: {problem} ({listed})", "choose one with --cohort")


def _frame(rows: pa.Table, arrow: bool) -> Frame:
    return rows if arrow else to_frame(rows)


def _nothing_compared() -> "Answers":
    from jitter.analysis.diagnosis.answer_cache import Answers
    from jitter.analysis.diagnosis.diagnosis import Diagnosis
    from jitter.analysis.diagnosis.model import Conclusion, Loss, WhatIf

    diagnosis = Diagnosis(Loss(None, None), (), (), WhatIf(None, None), 0, conclusion=Conclusion("unknown"))
    return Answers(diagnosis, (), {}, 0)


def _of_ranks(rows: pa.Table, ranks: Sequence[int] | None) -> pa.Table:
    return rows if ranks is None else rows.filter(pc.is_in(rows["rank"], pa.array(ranks, pa.int32())))
