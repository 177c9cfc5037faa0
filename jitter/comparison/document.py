"""The baseline document: what a comparison needs of a run, small enough to keep beside each commit.

`build_document` makes one of a lake, `decode_document` reads one from a file. A comparison sees documents only, so a
lake and its document give the same answers. Times are in ns.
"""

from collections.abc import Collection
from typing import Final

import msgspec

from jitter.analysis.diagnosis.causes import CAUSES
from jitter.analysis.diagnosis.model import RungTime
from jitter.analysis.thresholds import THRESHOLDS
from jitter.comparison.log_tables import BandwidthEntry, ThroughputEntry
from jitter.core.errors import JitterError, UsageError
from jitter.core.formatting import format_numbers, format_rank, format_ranks
from jitter.lake.records import TRAIN

DOCUMENT_SCHEMA_VERSION: Final = 3
"""Earlier versions are read too: neither has a usual step, jitter or waterfall, and the findings of version 1 have
neither rung, class, certainty, loss nor recurrence.
"""
DOCUMENT_KIND: Final = "jitter baseline"
DOCUMENT_SIGNATURE: Final = b'"kind":"jitter baseline"'
"""Stands in the first bytes of every document."""
MAX_DOCUMENT_BYTES: Final = 2_000_000


class StepEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One step; times are None where the step does not tell."""

    epoch: int | None
    step: int
    step_time_ns: int | None
    """None for the first of consecutive steps."""
    loss_ns: int | None
    kind: str = TRAIN
    size: float | None = None
    """Tokens that it computes, else requests in its batch, else the threads that its kernels were launched with; None
    where nothing tells."""


class Place(msgspec.Struct, frozen=True, array_like=True):
    """One kernel of a team's reference sequence, in launch order."""

    name: int
    """Position in the document's names."""
    concurrent: bool
    """Whether it runs beside the main stream's compute kernels."""
    shape: tuple[int, ...] | None
    """Launch shape: grid x, y, z, block x, y, z; None where the trace does not state it."""


class Team(msgspec.Struct, frozen=True):
    """Ranks that run one program, and what it consists of."""

    ranks: tuple[int, ...]
    places: tuple[Place, ...]
    copies: tuple[int, ...]
    """Names of the copies and fills of the sequence, by position in the document's names."""
    steps: tuple[int, ...]
    """The steps, by position, whose times are kept; a long run keeps some of them at even distances."""
    times_ns: tuple[tuple[int | None, ...], ...]
    """By place, for each of `steps`: median own time over ranks; of a collective, from its last arrival to its end."""


class TeamProgram(msgspec.Struct, frozen=True):
    """All operations of a team's commonest sequence, in launch order, and what they usually take, ns."""

    names: tuple[int, ...]
    """Positions in the document's names."""
    kinds: tuple[int, ...]
    """Codes of `jitter.core.names.kernels`; the kernels among them are the team's places, in the same order."""
    streams: tuple[int, ...]
    threads: tuple[int, ...]
    self_times: tuple[tuple[int, ...], ...]
    """By field of `SelfTimes`."""
    waits: tuple[tuple[int, int, int, bool], ...]
    """Operation, awaited operation, how many steps before, whether the host waits without a record; see `Wait`."""
    host_lead_ns: tuple[tuple[int, int], ...]
    """Operation and time, as in `Dependencies`."""
    launch_ns: float
    stream_ns: float
    queue: int | None
    interference: float
    has_launches: bool
    later_beside: tuple[tuple[int, tuple[int, ...]], ...] = ()
    """Kernel and collectives, as in `Dependencies`; files of older versions have none."""


RULES: Final = ("queue", "launch_ns", "stream_ns", "interference", "has_launches")
"""Fields of a `TeamProgram` that `Dependencies` has too."""


class UsualMeeting(msgspec.Struct, frozen=True, array_like=True):
    """The operations that meet in a collective."""

    transfer_ns: int
    """Usual time from the last arrival to the end."""
    members: tuple[tuple[int, int], ...]
    """Block and operation."""


class UsualStepEntry(msgspec.Struct, frozen=True):
    """The step that all ranks would run if each operation took what it usually takes; see `UsualProgram`."""

    teams: tuple[TeamProgram, ...]
    """In the order of the document's teams."""
    blocks: tuple[int, ...]
    """The team of each block of ranks that meet the same others."""
    meetings: tuple[UsualMeeting, ...]


class LossRow(msgspec.Struct, frozen=True, array_like=True):
    """One row of the account of a run, the mean over the steps next to the median one."""

    rank: int | None
    """None for a transfer, and for what all ranks lose alike."""
    team: int | None
    loss_class: str
    operation: int | None
    """In the team's program; None for the sum of what has no row of its own."""
    loss_ns: int


class CollectiveEntry(msgspec.Struct, frozen=True):
    """Collectives of one operation, size, type and group size; None where unknown."""

    collective: str | None
    size_bytes: int | None
    dtype: str | None
    group_size: int | None
    hosts: str | None
    """`one` or `many`."""
    calls_per_step: float
    time_us: float | None
    busbw: float | None
    wait_us: float | None


class RankEntry(msgspec.Struct, frozen=True):
    rank: int
    host: str | None
    excess_ns: int | None
    """What a usual step loses to it: the sum of the rank's jitter; of an earlier version the mean over all steps."""


class HostEntry(msgspec.Struct, frozen=True, array_like=True):
    """What operations of a name take of the usual host's time between launches, in a step."""

    is_start: bool
    """Whether they lie before the launch of the first kernel, after the last launch of the step before; else later."""
    name: str
    time_ns: int


class CulpritEntry(msgspec.Struct, frozen=True):
    """One finding of the run's diagnosis."""

    scope: str
    rank: int
    ranks: tuple[int, ...]
    host: str | None
    device: int | None
    cause: str
    confidence: str
    """Of a document of version 1 it is lower where the finding was seen in few steps, or beside few ranks."""
    excess_ns: int
    gain_ns: int
    steps: int
    """In how many steps it occurs."""
    rung: str | None = None
    loss_class: str | None = msgspec.field(name="class", default=None)
    cause_certainty: str | None = None
    of_steps: int | None = None
    """Of how many recorded steps."""
    recurs: str | None = None
    """None in a document of version 1."""
    loss_ns: int | None = None
    fraction: float | None = None

    @property
    def name(self) -> str:
        if self.scope == "host" and self.host is not None:
            return f"host {self.host}"
        return format_ranks(self.ranks) if len(self.ranks) > 1 else format_rank(self.rank, self.host)

    @property
    def cause_in_words(self) -> str:
        """The cause in prose; one that is unknown to this version as it stands."""
        return CAUSES[self.cause].words if self.cause in CAUSES else self.cause  # type: ignore[index]

    @property
    def side(self) -> str | None:
        """Whose time its cause is; None if that is unknown to this version."""
        return CAUSES[self.cause].side if self.cause in CAUSES else None  # type: ignore[index]


class Environment(msgspec.Struct, frozen=True):
    """Software and network of a run as its records and logs name them; empty where they name nothing."""

    profilers: tuple[str, ...] = ()
    nccl: tuple[str, ...] = ()
    networks: tuple[str, ...] = ()
    transports: tuple[str, ...] = ()


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """The data of a run that a comparison reads."""

    kind: str
    schema_version: int
    jitter_version: str
    label: str
    digest: str
    """Digest of the recordings and steps it was made of: equal runs have equal digests."""
    ranks: int
    hosts: tuple[str, ...]
    formats: tuple[str, ...]
    marker: str | None
    """Text of the step markers with # for numbers; None where steps were found without markers."""
    steps: tuple[StepEntry, ...] = ()
    names: tuple[str, ...]
    """Kernel names."""
    teams: tuple[Team, ...] = ()
    loss_ns: int | None = None
    loss_fraction: float | None = None
    rank_entries: tuple[RankEntry, ...]
    collectives: tuple[CollectiveEntry, ...] = ()
    culprits: tuple[CulpritEntry, ...] = ()
    environment: Environment
    throughput: tuple[ThroughputEntry, ...] = ()
    bandwidths: tuple[BandwidthEntry, ...] = ()
    notes: tuple[str, ...] = ()
    has_unrecorded_ranks: bool = False
    """Whether the job had ranks that the lake lacks: transfers hold what they are late."""
    usual: UsualStepEntry | None = None
    jitter: tuple[LossRow, ...] = ()
    """What the steps next to the median one lose to jitter."""
    slow_steps: tuple[LossRow, ...] = ()
    """What they lose without it, on all ranks alike, against the usual step."""
    waterfall: tuple[RungTime, ...] = ()
    hosts_time: tuple[HostEntry, ...] | None = None
    """The longest first; None in files of older versions."""
    step_kind: str = TRAIN
    """The kind of the steps that are compared; usual step, jitter and kernel times are of these alone."""
    step_size: float | None = None
    """The least size of the steps that are compared, which are hardly larger; None: they are of any size."""

    sizes_of: str | None = None
    """Digest of the kernel sequence whose launched threads the sizes are; None: tokens or requests."""

    @property
    def compared_steps(self) -> tuple[StepEntry, ...]:
        return tuple(
            step
            for step in self.steps
            if step.kind == self.step_kind and is_of_size(step.size, self.step_size, self.sizes_of)
        )

    def has_marker_of(self, other: "Document") -> bool:
        """Return whether the same step marker bounds the steps of both runs."""
        return self.marker is not None and self.marker == other.marker


def is_of_size(size: float | None, least: float | None, sizes_of: str | None) -> bool:
    """Return whether a batch is hardly larger than the `least` one; None: of any size. `sizes_of` as in a `Document`.

    Stated sizes of like batches differ by less than the work of a kernel sequence.
    """
    more = THRESHOLDS.tolerance_share if sizes_of is None else THRESHOLDS.gpu_spread_share
    return least is None or (size is not None and least <= size <= least * (1 + more))


class _Head(msgspec.Struct):
    kind: str
    schema_version: int


def encode_document(document: Document) -> bytes:
    """Return the document's file: one line of JSON."""
    return msgspec.json.encode(document) + b"\n"


def decode_document(content: bytes, named: str) -> Document:
    """Return the document of a file; `named` names the file in errors.

    Raises `JitterError` for a file that is none, is damaged, or is of a newer jitter.
    """
    try:
        head, or_truncated = msgspec.json.decode(content, type=_Head), ""
    except (msgspec.DecodeError, UnicodeDecodeError):
        head, or_truncated = _Head("", 0), ", or a truncated one"
    if head.kind != DOCUMENT_KIND:
        hint = "write one with: jitter export LAKE --baseline FILE"
        raise JitterError(f"{named}: is no baseline of jitter{or_truncated}", hint)
    if head.schema_version > DOCUMENT_SCHEMA_VERSION:
        raise JitterError(
            f"{named}: was written by a newer jitter (schema {head.schema_version}, this one reads "
            f"{DOCUMENT_SCHEMA_VERSION})",
            "install that version, or write the baseline again with this one",
        )
    try:
        return msgspec.json.decode(content, type=Document)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise JitterError(f"{named}: is a damaged baseline: {error}", "write it again with: jitter export") from None


def select_steps(document: Document, numbers: Collection[int]) -> Document:
    """Return the document of the steps with these numbers; raise `UsageError` if it holds none of them.

    The usual step, jitter, collectives, ranks and findings stay those of all steps, and a note says so.
    """
    wanted = [at for at, step in enumerate(document.steps) if step.step in numbers]
    if not wanted:
        first, last = (document.steps[0].step, document.steps[-1].step) if document.steps else (None, None)
        raise UsageError(
            f"{document.label}: holds none of the steps {format_numbers(numbers)}", f"it holds {first} to {last}"
        )
    if len(wanted) == len(document.steps):
        return document
    steps = []
    for at in wanted:
        step, before = document.steps[at], document.steps[at - 1] if at - 1 in wanted else None
        follows = before is not None and (before.epoch, before.step + 1) == (step.epoch, step.step)
        # when a step began is unknown without the step before
        steps.append(step if follows else msgspec.structs.replace(step, step_time_ns=None, loss_ns=None))
    timed = [step for step in steps if step.step_time_ns and step.loss_ns is not None]
    whole = sum(step.step_time_ns or 0 for step in timed)
    whole_run_fields = "usual step, jitter, collectives and findings"
    note = f"{document.label}: {whole_run_fields} are those of all its {len(document.steps)} steps."
    return msgspec.structs.replace(
        document,
        steps=tuple(steps),
        teams=tuple(_team(team, wanted) for team in document.teams),
        loss_ns=sum(step.loss_ns or 0 for step in steps) if any(step.loss_ns is not None for step in steps) else None,
        loss_fraction=sum(step.loss_ns or 0 for step in timed) / whole if whole else None,
        notes=(*document.notes, note),
    )


def _team(team: Team, wanted: list[int]) -> Team:
    new = {at: number for number, at in enumerate(wanted)}
    kept = [column for column, at in enumerate(team.steps) if at in new]
    return Team(
        team.ranks,
        team.places,
        team.copies,
        tuple(new[team.steps[column]] for column in kept),
        tuple(tuple(times[column] for column in kept) for times in team.times_ns),
    )
