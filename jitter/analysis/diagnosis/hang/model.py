"""The parts of a hang verdict as plain data."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

HangKind = Literal["mismatch", "failed", "not_entered", "unresponsive", "not_started", "all_entered", "undecided"]
"""`mismatch`: ranks called different operations under one number, or wait in calls of unlike numbers. `failed`: a rank
that waits in nothing ended with an error. `not_entered`: recorded ranks did not call it.
`unresponsive`: ranks do not answer NCCL's health query. `not_started`: ranks enqueued it, and their GPUs did not begin
it. `all_entered`: all members called it, and it did not end. `undecided`: members left no record."""


@dataclass(frozen=True)
class Call:
    """A call of a collective, a send or a receive."""

    group: str | None = None
    group_description: str | None = None
    sequence: int | None = None
    operation: str | None = None
    """As the source names it."""
    collective: str | None = None
    size_bytes: int | None = None
    elements: int | None = None
    """Of the rank's input."""
    dtype: str | None = None
    source_line: str | None = None
    """`file(line): function`, outside PyTorch; None where the recording has no Python stacks."""


@dataclass(frozen=True)
class Variant:
    """What some of the ranks called, under one number or where they wait."""

    call: Call
    ranks: tuple[int, ...]


def list_variants(ranks_of: Mapping[Call, Iterable[int]]) -> tuple[Variant, ...]:
    """Return what ranks called, most ranks first."""
    variants = (Variant(call, tuple(sorted(ranks))) for call, ranks in ranks_of.items())
    return tuple(sorted(variants, key=lambda variant: (-len(variant.ranks), variant.ranks)))


@dataclass(frozen=True)
class LastCall:
    """The last call of a rank that did not enter the operation."""

    rank: int
    call: Call
    completed: bool


@dataclass(frozen=True)
class StuckOperation:
    """An operation that a rank entered and that did not complete. Ranks are global ranks."""

    call: Call
    is_p2p: bool = False
    members: tuple[int, ...] = ()
    """Of the group; empty where no source names them."""
    waiting: tuple[int, ...] = ()
    """Ranks that entered it and did not complete it."""
    failed: tuple[int, ...] = ()
    """Ranks that may be members, that wait in no operation, and whose processes ended with an error."""
    not_entered: tuple[int, ...] = ()
    not_started: tuple[int, ...] = ()
    """Ranks among `waiting` whose GPUs did not begin it, while the GPUs of others did."""
    unrecorded: tuple[int, ...] = ()
    """Members without a dump or a line in a log."""
    unknown: tuple[int, ...] = ()
    """Members with a dump that does not tell whether they entered it, or what they wait in."""
    variants: tuple[Variant, ...] = ()
    """What the ranks called, where that differs; empty if they agree."""
    since_ns: int | None = None
    """When the first rank entered it, ns since 1970."""
    waited_ns: int | None = None
    """How long a rank waited when its watchdog gave up."""
    timeout_ns: int | None = None
    is_unresponsive: bool = False
    """Whether the ranks of `not_entered` do not answer NCCL's health query, so that what they entered is unknown."""
    is_stated: bool = False
    """Whether a rank states who did not enter a monitored barrier, or called something else. Ranks are numbers in
    a process group that no line names."""

    @property
    def blocking(self) -> tuple[int, ...]:
        """The ranks that it waits for."""
        return () if self.variants else self.failed or self.not_entered or self.not_started


@dataclass(frozen=True)
class Hang:
    """The operation that the job waits in, and what else waits for it."""

    operation: StuckOperation
    kind: HangKind = "undecided"
    culprits: tuple[int, ...] = ()
    """The ranks that it waits for and that wait in no other operation; with `is_circular`, all that it waits for."""
    is_circular: bool = False
    """Whether all ranks that the stuck operations wait for wait in another of them."""
    parted_at: Call | None = None
    """The call before which the culprits called something else than in other steps, unlike the other ranks."""
    others: tuple["Hang", ...] = ()
    """The other operations that did not complete, by the time at which they were entered."""
    last_calls: tuple[LastCall, ...] = ()
    """Of ranks that did not enter the operation."""
    headline: str = ""
    """What hangs and which ranks it waits for, as a sentence."""
    evidence: tuple[str, ...] = ()
    advice: str = ""

    def with_evidence(self, sentences: Sequence[str]) -> "Hang":
        """Return the hang with more evidence at its end."""
        return replace(self, evidence=(*self.evidence, *(text for text in sentences if text not in self.evidence)))
