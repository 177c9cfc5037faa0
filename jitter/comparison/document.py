"""The baseline document: what a comparison needs of a run, small enough to keep beside each commit.

`build_document` makes one of a lake, `decode_document` reads one from a file. A comparison sees documents only, so a
lake and its document give the same answers. Times are in ns.
"""

from typing import Final

import msgspec

from jitter.core.errors import JitterError

DOCUMENT_SCHEMA_VERSION: Final = 2
"""Version 1, whose findings have neither rung, class, certainty, loss nor recurrence, is read too."""
DOCUMENT_KIND: Final = "jitter baseline"
DOCUMENT_SIGNATURE: Final = b'"kind":"jitter baseline"'
"""Stands in the first bytes of every document."""
MAX_DOCUMENT_BYTES: Final = 2_000_000


class StepEntry(msgspec.Struct, frozen=True):
    """One step; times are None where the step does not tell."""

    epoch: int | None
    step: int
    step_time_ns: int | None
    """None for the first of consecutive steps."""
    parts_ns: tuple[int, ...] | None
    """By `PathPart`; they add up to the step's time."""
    loss_ns: int | None


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
    """One rank."""

    rank: int
    host: str | None
    excess_ns: int | None
    """Its own share of the loss, mean over steps."""


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


class ThroughputEntry(msgspec.Struct, frozen=True):
    """The result of a training, from a log beside the traces."""

    label: str
    """The log's file name without its suffix."""
    seconds: float
    samples_per_s: float | None


class Environment(msgspec.Struct, frozen=True):
    """Software and network of a run as its records and logs name them; empty where they name nothing."""

    profilers: tuple[str, ...] = ()
    nccl: tuple[str, ...] = ()
    networks: tuple[str, ...] = ()
    transports: tuple[str, ...] = ()


class Document(msgspec.Struct, frozen=True):
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
    steps: tuple[StepEntry, ...]
    names: tuple[str, ...]
    """Kernel names."""
    teams: tuple[Team, ...]
    loss_ns: int | None
    loss_fraction: float | None
    rank_entries: tuple[RankEntry, ...]
    collectives: tuple[CollectiveEntry, ...]
    culprits: tuple[CulpritEntry, ...]
    environment: Environment
    throughput: tuple[ThroughputEntry, ...] = ()
    notes: tuple[str, ...] = ()


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
        head = msgspec.json.decode(content, type=_Head)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise JitterError(
            f"{named}: is no baseline of jitter, or a truncated one",
            "write one with: jitter export LAKE --baseline FILE",
        ) from None
    if head.kind != DOCUMENT_KIND:
        raise JitterError(f"{named}: is no baseline of jitter", "write one with: jitter export LAKE --baseline FILE")
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
