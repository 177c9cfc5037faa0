"""What a diagnosis reads of a lake."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from jitter.analysis.alignment.kernel_index import KernelIndex
from jitter.analysis.metrics.communication import Communication
from jitter.analysis.metrics.step_metrics import TtkeReading
from jitter.core.step_key import StepKey
from jitter.lake.log_records import LogRecord
from jitter.lake.rank_places import RankPlace
from jitter.lake.records import RankStepRecord, SourceRecord
from jitter.lake.step_reader import StepColumns


class DiagnosedLake(Protocol):
    """`jitter.Lake` has these members. What reads files raises `LakeError` if one is missing or damaged."""

    root: Path
    sources: list[SourceRecord]
    logs: list[LogRecord]
    unread_ranks: frozenset[int]
    unplaced: int

    @property
    def places(self) -> dict[int, RankPlace]:
        """Host, GPU and process of each rank."""

    def ranks_of(self, key: StepKey) -> list[int]:
        """Return the ranks that recorded this step."""

    def record_of(self, key: StepKey, rank: int) -> RankStepRecord:
        """Return the record of one rank in one step."""

    def step_columns(self, key: StepKey, columns: Sequence[str], ranks: Sequence[int] | None = None) -> StepColumns:
        """Return columns of one step's rows."""

    def kernel_indices(self, key: StepKey) -> list[KernelIndex]:
        """Return the alignment of each cohort's ranks in one step."""

    def log_table(self, relation: str) -> pa.Table:
        """Return the rows of a relation that logs fill."""

    def measure_collectives(self, steps: Sequence[StepKey]) -> Communication:
        """Return what the network did in these steps."""

    def ttke_readings(self, steps: Sequence[StepKey]) -> list[TtkeReading]:
        """Return the reading of the times to kernel end, one a cohort and step."""
