"""The records of a lake, one JSON file per recording. They hold the truth; the catalog is written from them."""

import math
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from sys import intern
from types import NoneType, UnionType
from typing import Annotated, Final, Literal, NamedTuple, Protocol, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from jitter.core.errors import DamagedFileError, LakeError, reason_of
from jitter.core.formatting import format_count
from jitter.core.names.launchers import MAX_RANKS
from jitter.core.step_key import StepKey
from jitter.lake.integrity.checksums import is_sealed, seal_json
from jitter.lake.integrity.containment import read_lake_file

RECORD_VERSION: Final = 2
DIGEST: Final = r"[0-9a-f]{32}(?:-[0-9]{1,9})?"
"""Pattern of a recording's digest, which names its files."""
Digest = Annotated[str, msgspec.Meta(pattern=rf"\A{DIGEST}\Z")]
Int64 = Annotated[int, msgspec.Meta(ge=-(2**62), lt=2**62)]
"""The sum of two is an int64 too."""
Identifier = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""Of a process, a thread or a stream, as the profiler numbers it."""
Rows = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
Count = Annotated[int, msgspec.Meta(ge=0, lt=2**53)]
Rank = Annotated[int, msgspec.Meta(ge=0, le=MAX_RANKS)]
Device = Annotated[int, msgspec.Meta(ge=-(2**31), lt=2**31)]
Kind = Annotated[str, msgspec.Meta(pattern=r"\A[a-z][a-z0-9_]{0,31}\Z")]
Part = Annotated[int, msgspec.Meta(ge=0, le=1 << 16)]
Record = TypeVar("Record", bound="Named")
_FIRST_SEALED_VERSION: Final = 2
"""Records have carried a checksum since this version."""


TRAIN: Final = "train"
"""The kind of a step whose marker names none."""
ON_REQUEST: Final = frozenset(("serve", "prefill", "decode", "mixed", "verify", "draft", "idle"))
"""Kinds of steps that a serving engine runs when it has requests."""
SIDE_WORK: Final = ("checkpoint", "validation")
"""Kinds of host ranges beside the training; the record of a step has the time of each."""
RANK_ASSUMED: Final = "assumption"
"""In `rank_told_by`: nothing states the rank of the lake's only recording, which counts as rank 0."""


class TimesRecord(msgspec.Struct, forbid_unknown_fields=False, gc=False):
    """Where a step lies in its recording's file of times: see `jitter.lake.times`."""

    offset: Count
    """Bytes."""
    width: Literal[4, 8]
    """Bytes of one time."""
    checksum: str


class StepRecord(msgspec.Struct, forbid_unknown_fields=False, omit_defaults=False, gc=False):
    """One step of one rank. Times in ns on the rank's own clock."""

    step: Int64
    epoch: Int64 | None
    marker: str | None
    """The marker's text; None if the step was found by repetition, or is the whole capture."""
    start_ns: Int64
    end_ns: Int64 | None
    cut: bool
    """Whether launches in it have no kernel, or its marker has no end."""
    launches_without_kernel: Rows
    kernels: Rows
    """Compute kernels and collectives, without copies and fills."""
    memory_activities: Rows
    sequence: str
    """Digest of (kernel name, concurrent or not) in launch order: equal digests are equal sequences."""
    checkpoint_ns: Int64 | None = None
    """Host time in ranges that write the model, begun in this step or since the last; None: none was recorded."""
    validation_ns: Int64 | None = None
    """Host time in ranges that evaluate the model, begun in this step or since the last; None: none was recorded."""
    checksum: str | None = None
    """Checksum of its parquet file; None in records of version 1."""
    size: Count | None = None
    """Bytes of its parquet file; None in records of older versions."""
    kind: Kind = TRAIN
    """What the step does, as its marker says: `prefill`, `decode`, `rollout`, …; `train` where it says nothing."""
    requests: Count | None = None
    """Requests in the batch of a serving engine; None: not stated."""
    tokens: Count | None = None
    """Tokens that it computes; None: not stated."""
    times: TimesRecord | None = None
    """Where its times lie; None in records of older versions."""

    @property
    def rows(self) -> int:
        """Return the rows of its file: kernels, copies and fills."""
        return self.kernels + self.memory_activities

    @property
    def key(self) -> StepKey:
        """Return the identity of the step in the run."""
        return StepKey(self.epoch, self.step)


class RepetitionRecord(msgspec.Struct, forbid_unknown_fields=False):
    """The rule by which steps without markers were found; it numbers the steps of later ranks."""

    period: Rows
    """Kernels per step on the main stream."""
    end_ns: Int64
    collectives: str | None
    """Digest of the whole sequence of collectives; None if there are none."""
    collectives_before: list[Rows]
    """For each step, the number of collectives launched before it."""


class SourceRecord(msgspec.Struct, forbid_unknown_fields=False, omit_defaults=False, kw_only=True):
    """One recording of one rank, or a recording that was rejected (`rank` is None)."""

    record_version: Count = RECORD_VERSION
    digest: Digest
    """Digest of the file's content, with the number of the GPU if the file holds several."""
    file: str
    file_digest: str
    size: Count
    mtime_ns: Int64
    part: Part = 0
    parts: Part = 1
    """GPUs in the file. Each has a record, and the file counts as ingested only when all have."""
    step_pattern: str | None = None
    """The `--step-pattern` it was read with."""
    format: str
    reader_version: Count = 0
    profiler_version: str | None = None
    rank: Rank | None = None
    rank_told_by: str | None = None
    host: str | None = None
    device: Device | None = None
    pid: Identifier | None = None
    clock: str = "unknown"
    """`utc` if the profiler recorded the wall clock, else `unknown`."""
    utc_offset_ns: Int64 | None = None
    """Added to a time of this recording, gives UTC."""
    main_stream: Identifier | None = None
    has_launches: bool = False
    steps_from: str = "none"
    """`marker`, `repetition` or `whole capture`; `none` of a recording that was rejected."""
    repetition: RepetitionRecord | None = None
    kernels: Count = 0
    outside_steps: Count = 0
    """Kernels outside every step."""
    before_capture: Count = 0
    """Kernels outside every step because they were launched before the capture."""
    steps: list[StepRecord] = []
    problems: list[str] = []
    collective_pattern: str | None = None
    """The --collective it was read with: names of kernels that the user declares as communication."""
    host_rows: Count | None = None
    """Rows of the file of host events, which exists if there are any; None: not known."""
    reader: str | None = None
    """Name of the reader; None in records of older versions, where `format` is the name."""
    world_size: Rank | None = None
    """Number of ranks of the job, if the recording states it."""
    gpu_model: str | None = None
    """Model of the GPU, if the recording states it."""
    bus_id: str | None = None
    """PCI address of the GPU as `domain:bus:device`, if the recording states it; None in records of older versions."""
    kernel_columns: Count = 27
    """Columns of its parquet files. Records written before this field existed lack it; their files have 27."""
    host_checksum: str | None = None
    """Checksum of the file of host events; None if there is none, and in records of version 1."""
    host_size: Count | None = None
    """Bytes of the file of host events; None if there is none, and in records of older versions."""
    claimed_rank: Rank | None = None
    """Of a recording that was rejected: the rank that it, or its name, states; None if none."""
    left_out_because: str | None = None
    """Of such a recording: `unknown rank`, `another recording`, `damaged` or `unusable`; older records state none."""
    empty_columns: list[str] = []
    """Columns of its parquet files that are null in every row of every step; older records state none."""

    @property
    def has_assumed_rank(self) -> bool:
        """Whether nothing states its rank, which counts as 0 as long as no other recording is in the lake."""
        return self.rank_told_by == RANK_ASSUMED

    @property
    def utc_range(self) -> tuple[int, int] | None:
        """First and last time of its steps in ns since 1970; None without a wall clock or steps."""
        if self.utc_offset_ns is None or not self.steps:
            return None
        first, last = self.steps[0], self.steps[-1]
        end_ns = last.start_ns if last.end_ns is None else last.end_ns
        return self.utc_offset_ns + first.start_ns, self.utc_offset_ns + end_ns

    @property
    def has_guessed_steps(self) -> bool:
        """Whether the steps were found without markers: by repetition, or the whole capture as one step."""
        return self.rank is not None and self.steps_from != "marker"

    @property
    def may_be_any_rank(self) -> bool:
        """Whether it was rejected and states no rank: it may be of a rank that the lake lacks."""
        is_placed = self.rank is not None or self.claimed_rank is not None
        return not is_placed and self.left_out_because in ("unknown rank", "damaged")

    def describe_kernels(self) -> list[str]:
        """Say which of its kernels belong to no step, and whether launches are missing: what its fields count."""
        sentences = []
        if self.outside_steps:
            sentences.append(f"{format_count(self.outside_steps, 'kernel lies', 'kernels lie')} outside every step")
        if self.before_capture:
            early = format_count(self.before_capture, "kernel was", "kernels were")
            sentences.append(f"{early} launched before the capture, in no step")
        if not self.has_launches:
            sentences.append("no launches were recorded: kernels belong to the step in which they start")
        return sentences

    @property
    def name(self) -> str:
        """Return the record's file name."""
        return f"{self.digest}.json"

    @property
    def profiler(self) -> str:
        """Format and version. A version's text may begin with the format's name: `nsys 2026.2`, `Kineto schema 1`."""
        version = self.profiler_version or ""
        return version if version.lower().startswith(self.format) else f"{self.format} {version}".strip()


class RecordVersionError(ValueError):
    """A record of a version that this version of jitter does not read."""


class _Head(msgspec.Struct):
    record_version: Count


_decode_head = msgspec.json.Decoder(_Head).decode
_decode = msgspec.json.Decoder(SourceRecord).decode


def encode_record(record: SourceRecord) -> bytes:
    """Return the content of the record's file: indented JSON, fields in their order, and a checksum."""
    if record.record_version < _FIRST_SEALED_VERSION:
        record = msgspec.structs.replace(record, record_version=RECORD_VERSION)
    return seal_json(msgspec.json.format(msgspec.json.encode(record), indent=1))


def decode_record(content: bytes) -> SourceRecord:
    """Return the record in the content of a file.

    Raises `RecordVersionError` for another version, and `ValueError` if the content is damaged.
    """
    sealed = is_sealed(content)
    version = _decode_head(content).record_version
    if not 1 <= version <= RECORD_VERSION:
        raise RecordVersionError(f"record version {version}, this one reads 1 to {RECORD_VERSION}")
    if version >= _FIRST_SEALED_VERSION and not sealed:
        raise ValueError("it has no checksum")
    record = _decode(content)
    for step in record.steps:  # the ranks of a step share them
        step.sequence = intern(step.sequence)
        step.marker = None if step.marker is None else intern(step.marker)
    return record


def plain_fields(record: type[msgspec.Struct]) -> dict[str, tuple[type, bool]]:
    """Return the type of each int, str and bool field of a record, and whether it may be None."""
    fields = {}
    for name, hint in get_type_hints(record).items():  # without the bounds of the fields
        kinds = get_args(hint) or (hint,)
        plain = [kind for kind in kinds if kind in (int, str, bool)]
        if len(plain) == 1 and set(kinds) <= {plain[0], NoneType} and get_origin(hint) in (None, UnionType, Union):
            fields[name] = (plain[0], len(kinds) > 1)
    return fields


class Named(Protocol):
    """A record of one source, in a file named by its digest."""

    digest: str


def read_record_files(
    paths: Iterable[Path], decode: Callable[[bytes], Record], sources: str, cure: str
) -> tuple[list[Record], list[DamagedFileError]]:
    """Return the records in files that can be decoded, in order, and the damaged ones; `cure` says what to do then.

    Raises `LakeError` for a record of another version; `sources` is the word for what is to be ingested again.
    """
    intact: list[Record] = []
    damaged: list[DamagedFileError] = []
    for path in paths:
        try:
            record = decode(read_lake_file(path))
            if record.digest != path.stem:
                raise ValueError(f"it is the record of {record.digest}")
            intact.append(record)
        except FileNotFoundError:  # another run has just removed it
            continue
        except RecordVersionError as error:
            raise LakeError(
                f"{path}: was written by another version of jitter ({error})",
                f"install that version, or ingest the {sources} into another lake",
            ) from None
        except (ValueError, OSError) as error:
            damaged.append(DamagedFileError(path, f"the record is damaged ({reason_of(error)})", cure))
    return intact, damaged


class RankStepRecord(NamedTuple):
    """One rank in one step: the record of its recording, and of the step in it."""

    record: SourceRecord
    step: StepRecord

    @property
    def empty_columns(self) -> list[str]:
        """Return the columns that need not be read: null in every row, in a file that the checksum proves unchanged."""
        return [] if self.step.checksum is None else self.record.empty_columns


def records_by_step(records: Iterable[SourceRecord]) -> dict[StepKey, dict[int, RankStepRecord]]:
    """Return the records of ingested recordings by step and rank."""
    records_of_step: dict[StepKey, dict[int, RankStepRecord]] = {}
    for record in records:
        if record.rank is None:
            continue
        for step in record.steps:
            named = (step.epoch, step.step)  # equal to `step.key`, and made in a third of the time
            if named not in records_of_step:
                records_of_step[step.key] = {}
            records_of_step[named][record.rank] = RankStepRecord(record, step)  # type: ignore[index]
    return records_of_step


def commonest_kind(kinds: Iterable[str]) -> str:
    """Return the commonest of some kinds of steps, of equally common ones the first by name; `TRAIN` of none."""
    counts = Counter(kinds)
    return min(counts, key=lambda kind: (-counts[kind], kind), default=TRAIN)


def kind_of_step(of_ranks: Iterable[RankStepRecord]) -> str:
    """Return the kind of a step: that of most of its ranks."""
    return commonest_kind(rank_record.step.kind for rank_record in of_ranks)


def batch_size(of_ranks: Iterable[RankStepRecord]) -> float:
    """Return the tokens that a step computes, else the requests in its batch: the most of any rank.

    As its markers state; NaN where they do not.
    """
    steps = [rank_record.step for rank_record in of_ranks]
    for sizes in ([step.tokens for step in steps], [step.requests for step in steps]):
        if stated := [size for size in sizes if size is not None]:
            return float(max(stated))
    return math.nan


def step_times_utc(records: Iterable[SourceRecord]) -> dict[StepKey, tuple[int, int]]:
    """Return the first start and the last end of each step over its ranks, ns since 1970.

    Recordings without a wall clock, and steps whose range has no end, are left out.
    """
    spans: dict[StepKey, tuple[int, int]] = {}
    for record in records:
        if record.utc_offset_ns is None:
            continue
        for step in record.steps:
            if step.end_ns is None:
                continue
            start, end = step.start_ns + record.utc_offset_ns, step.end_ns + record.utc_offset_ns
            first, last = spans.get(step.key, (start, end))
            spans[step.key] = min(first, start), max(last, end)
    return spans
