"""A hang as plain data, and what it means: a literal list of rules over a stuck operation, with words and advice."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final, Literal, NamedTuple

from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.formatting import Ranks, abbreviate, capitalize, escape_control, format_count, format_ranks

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

    @property
    def suspects(self) -> tuple[int, ...]:
        """The culprits, without any the ranks that did not enter, or may not have; all ranks if all entered it."""
        operation = self.operation
        absent = self.culprits or operation.not_entered or (*operation.unrecorded, *operation.unknown)
        return absent or (operation.waiting if self.kind == "all_entered" else ())

    def with_evidence(self, sentences: Sequence[str]) -> "Hang":
        """Return the hang with more evidence at its end."""
        return replace(self, evidence=(*self.evidence, *(text for text in sentences if text not in self.evidence)))


_MOST: Final = THRESHOLDS.sentences.max_named


class Doubts(NamedTuple):
    """What the sources of a hang leave open."""

    is_confirmed: bool = True
    """Whether a watchdog gave up, or NCCL itself states the hang."""
    of_rank: Mapping[int, str] = {}
    """Why the dump of a rank does not tell what it did last: a key of `_REASONS`."""
    other_dumps: int = 0
    """Dumps that are of another job or run."""
    stuck_watchdogs: Mapping[int, int] = {}
    """Ranks whose watchdog made no progress, and for how long (ns)."""
    has_unnamed: bool = False
    """Whether lines of a watchdog name no process group."""
    failures: Mapping[int, str] = {}
    """Ranks whose processes ended with an error, and how."""
    silent: tuple[int, ...] = ()
    """Ranks between the others that left no dump and no line."""


class Rule(NamedTuple):
    """What is true of a stuck operation, whom it names, and how it reads."""

    kind: HangKind
    holds: Callable[[StuckOperation], object]
    headline: str
    advice: str
    names_ranks: bool = True
    """Whether the ranks that it waits for are to blame."""


def _is_alone(operation: StuckOperation) -> bool:
    """Return whether fewer ranks entered a collective than did not: these may have made a call that is too much."""
    is_counted = not operation.is_p2p and not operation.is_stated
    return is_counted and 0 < len(operation.waiting) < len(operation.not_entered)


_STOPPED: Final = (
    "look at what {ranks} did after the last call: an exception in the log, a data loader or a file that does not "
    "answer, a branch that only some ranks take; if the process lives: py-spy dump --native --pid PID"
)
_CODE: Final = (
    "compare the code that the ranks ran before this call: a branch on the rank or on its data makes them call "
    "other collectives, or with other sizes"
)
RULES: Final = (
    Rule("mismatch", lambda stuck: stuck.is_p2p and stuck.variants,
         "Hang: send and receive{group} differ: {variants}", _CODE),
    Rule("mismatch", lambda stuck: stuck.variants,
         "Hang: the ranks' calls{number}{group} differ: {variants}", _CODE),
    Rule("failed", lambda stuck: stuck.failed,
         "Hang: {ranks} failed ({failure}) and {waits}",
         "read the log of {ranks} at its end: the other ranks wait for a process that is gone"),
    Rule("unresponsive", lambda stuck: stuck.is_unresponsive and stuck.not_entered,
         "Hang: {ranks} of communicator {name} {ranks:does|do} not answer NCCL's health query",
         "look at the process of {ranks}: it is stopped or dead (its log, dmesg, out of memory), or its host is not "
         "reachable"),
    Rule("not_entered", lambda stuck: stuck.not_entered and _is_alone(stuck),
         "Hang: {waiting} alone entered {call}: {missing} did not", _CODE, names_ranks=False),
    Rule("not_entered", lambda stuck: stuck.not_entered, "Hang: {ranks} did not enter {call}", _STOPPED),
    Rule("undecided", lambda stuck: stuck.unrecorded,
         "Hang: {waits}; {absent} left no dump or line, so whether {absent:it|each of them} entered the "
         "operation is unknown",
         "collect the dumps of all members; a rank without one may have died: read its log, and dmesg on its host",
         names_ranks=False),
    Rule("undecided", lambda stuck: stuck.unknown, "Hang: {waits}; {doubts}",
         "collect whole dumps of all members, taken at one time, with a larger TORCH_NCCL_TRACE_BUFFER_SIZE",
         names_ranks=False),
    Rule("undecided", lambda stuck: not stuck.waiting,
         "Hang: ranks of communicator {name} have launched unlike numbers of collectives in two answers of NCCL's "
         "health query, and which of them wait elsewhere is not known",
         "query again for all ranks: ncclras -v -f json", names_ranks=False),
    Rule("undecided", lambda stuck: not stuck.members,
         "Hang: {waits}, and the sources do not say which ranks did not enter it",
         "collect the dumps of all members; a rank without one may have died: read its log, and dmesg on its host",
         names_ranks=False),
    Rule("not_started", lambda stuck: stuck.not_started,
         "Hang: {ranks} enqueued {call} and {ranks:has|have} not started it on the GPU",
         "look at the GPU of {ranks}: work that was enqueued before the operation does not end; check dmesg for Xid "
         "errors"),
    Rule("all_entered", lambda stuck: True, "Hang in the network or on a GPU: {whole} entered {call}{rest}",
         "check the network and the GPUs of the members: Xid errors in dmesg, link errors, NCCL_DEBUG=INFO, nccl-tests "
         "between the hosts", names_ranks=False),
)  # fmt: skip
"""In their order of precedence: the first that holds counts."""
_CIRCLE: Final = Rule(
    "not_entered",
    lambda stuck: stuck.blocking,
    "Hang: {waits}{blocker}: each for the others",
    "call the operations of these groups in the same order on all ranks; if they are, a rank made a call of one of "
    "them too few or too many, or its host stopped after a call that it does not wait for",
)
"""Of operations that wait behind each other."""
_PARTED: Final = Rule(
    "mismatch",
    lambda stuck: False,
    "Hang: before {parted} {ranks} made other calls than in other steps, unlike the other ranks; {waits}",
    _CODE,
)
"""Of such operations, and of two calls that differ, where the ranks' earlier steps tell which rank changed."""
_REASONS: Final = {
    None: "the dumps do not reach back far enough to say whether {ranks} entered it",
    "cut": "the dumps of {ranks} are cut off before the end, so whether {ranks} entered it is unknown",
    "older": "the dumps of {ranks} are older than those of ranks that completed later calls with {ranks}",
    "overwritten": "the dumps of {ranks} do not reach back to the first call that did not complete",
}


def kind_of(operation: StuckOperation) -> HangKind:
    """Return why the operation does not complete."""
    return _rule_of(operation).kind


def judge(
    hang: Hang, doubts: Doubts, last_calls: Callable[[Sequence[int]], tuple[LastCall, ...]] = lambda ranks: ()
) -> Hang:
    """Return the hang with culprits, last calls and sentences."""
    rule = _PARTED if hang.parted_at else _CIRCLE if hang.is_circular else _rule_of(hang.operation)
    culprits = hang.culprits if rule.names_ranks else ()
    calls = last_calls(culprits or hang.operation.not_entered or hang.operation.unknown)
    hang = replace(hang, kind=rule.kind, culprits=culprits, last_calls=calls)
    values = _values(hang, doubts)
    evidence = [*_evidence(hang), *_doubts(hang, doubts)]
    return replace(
        hang,
        headline=escape_control(rule.headline.format(**values)),
        evidence=tuple(map(escape_control, evidence)),
        advice=rule.advice.format(**values),
    )


def describe_stuck_watchdogs(stuck: Mapping[int, int]) -> Iterator[str]:
    """Yield a sentence for the ranks whose watchdog made no progress, by for how long (ns)."""
    for stuck_ns in sorted(set(stuck.values())):
        ranks = sorted(rank for rank, ns in stuck.items() if ns == stuck_ns)
        yield (
            f"the watchdog of {format_ranks(ranks)} made no progress for {_seconds(stuck_ns)}: a call of CUDA or NCCL "
            "does not return there, or a thread holds Python's lock in one (py-spy dump --native --pid PID)"
        )


def write_hang_verdict(hang: Hang) -> str:
    """Return what hangs, which ranks wait, and what to do, as sentences."""
    waiting = _describe_waiting(hang.operation)
    return " ".join(capitalize(text) for text in (hang.headline, waiting, hang.advice) if text)


def _rule_of(operation: StuckOperation) -> Rule:
    return next(rule for rule in RULES if rule.holds(operation))


def _values(hang: Hang, doubts: Doubts) -> dict[str, object]:
    root = hang.operation
    blocker = next((other for other in hang.others if set(root.blocking) & set(other.operation.waiting)), None)
    call, waiting, blocking = _describe_call(root.call), Ranks(root.waiting), Ranks(root.blocking)
    is_apart = _is_apart(root)
    return {
        "call": call,
        "number": "" if root.call.sequence is None or is_apart else f" number {root.call.sequence}",
        "parted": "" if hang.parted_at is None else f"call {hang.parted_at.sequence}{_of_group(hang.parted_at)}",
        "group": _of_group(root.call),
        "name": root.call.group,
        "failure": "; ".join(dict.fromkeys(doubts.failures[rank] for rank in root.failed if rank in doubts.failures)),
        "ranks": Ranks(hang.culprits),
        "waiting": waiting,
        "waits": f"{waiting} {waiting:waits|wait} in {call}",
        "missing": Ranks(root.not_entered),
        "absent": Ranks(root.unrecorded),
        "whole": {0: "the rank", 1: "the rank", 2: "both ranks"}.get(
            len(root.members), f"all {len(root.members)} ranks"
        ),
        "rest": f"; {format_ranks(root.waiting)} did not complete it"
        if set(root.members) - set(root.waiting)
        else " and none completed it",
        "blocker": ""
        if blocker is None
        else f", and {blocking} {blocking:waits|wait} in {_describe_call(blocker.operation.call)}",
        "doubts": "; ".join(_unknown(root, doubts)),
        "variants": "; ".join(
            f"{format_ranks(variant.ranks)} called {_name_operation(variant.call)} "
            f"{f'{variant.call.sequence} ' if is_apart else ''}({_details(variant.call) or 'size not recorded'})"
            for variant in root.variants[:_MOST]
        ),
    }


def _is_apart(operation: StuckOperation) -> bool:
    """Return whether ranks wait in calls of unlike numbers of one group."""
    return not operation.is_p2p and len({variant.call.sequence for variant in operation.variants}) > 1


def _unknown(operation: StuckOperation, doubts: Doubts) -> Iterator[str]:
    for reason, words in _REASONS.items():
        ranks = [rank for rank in operation.unknown if doubts.of_rank.get(rank) == reason]
        if ranks:
            yield words.format(ranks=format_ranks(ranks))


def _evidence(hang: Hang) -> Iterator[str]:
    root = hang.operation
    if waiting := _describe_waiting(root):
        yield waiting
    if _is_apart(root):
        ahead = format_ranks([rank for variant in root.variants[1:] for rank in variant.ranks])
        behind = Ranks(root.waiting)
        waits = f"{behind} {behind:waits|wait}"
        yield f"{ahead} completed calls after the one that {waits} in: one made another call before"
    for last in hang.last_calls[:_MOST]:
        state = "completed" if last.completed else "not completed"
        yield f"rank {last.rank}'s last call is {_describe_call(last.call)}, {state}"
    if len(hang.last_calls) > _MOST:
        yield f"{len(hang.last_calls) - _MOST} more ranks that did not enter it have last calls (--json lists them)"
    if hang.culprits and (both := Ranks(sorted(set(root.blocking) - set(hang.culprits)))):
        elsewhere = next((other.operation for other in hang.others if set(both) & set(other.operation.waiting)), None)
        where = "" if elsewhere is None else f" in {_describe_call(elsewhere.call)}"
        yield f"{both} did not enter it either, and {both:waits|wait}{where}"
    if (root.variants or root.failed) and (others := sorted(set(root.not_entered) - set(root.failed))):
        yield f"{format_ranks(others)} did not enter it"
    for other in hang.others[: _MOST - 1]:
        stuck = other.operation
        what = "start" if stuck.blocking == stuck.not_started else "enter"
        lack = f", which {format_ranks(stuck.blocking)} did not {what}" if stuck.blocking else ""
        yield f"also stuck: {format_ranks(stuck.waiting)} in {_describe_call(stuck.call)}{lack}"
    if len(hang.others) > _MOST - 1:
        yield f"{format_count(len(hang.others) - _MOST + 1, 'more operation')} stuck (--json lists them)"


def _doubts(hang: Hang, doubts: Doubts) -> Iterator[str]:
    root = hang.operation
    named = root.unrecorded if hang.kind == "undecided" else root.failed
    if absent := Ranks(sorted({*root.unrecorded, *(() if root.members else doubts.silent)}.difference(named))):
        yield f"{absent} left no dump or line and {absent:is|are} neither blamed nor cleared"
    if hang.kind != "undecided":
        yield from _unknown(root, doubts)
    if doubts.other_dumps:
        yield f"{format_count(doubts.other_dumps, 'dump')} of another job, or of an earlier run, not used"
    if root.is_stated:
        yield "ranks are numbers in the process group of this call, which the lines do not name"
    if doubts.has_unnamed:
        yield (
            "watchdog lines that name no process group: different calls under one number may be of different groups, "
            "and a rank without a prefix may be a number in its group"
        )
    yield from describe_stuck_watchdogs(doubts.stuck_watchdogs)
    if not doubts.is_confirmed and hang.kind != "failed":
        yield "no watchdog timeout was read: dumps of a healthy job show calls in progress, too"


def _describe_call(call: Call) -> str:
    """Return a call with its number, group, size and code line: `all_reduce 19 of process group 0 (default_pg), …`."""
    number = "" if call.sequence is None else f" {call.sequence}"
    return ", ".join(filter(None, (f"{_name_operation(call)}{number}{_of_group(call)}", _details(call))))


def _name_operation(call: Call) -> str:
    """Return the operation as the program calls it: `all_reduce`, `_all_gather_base`, `send 0->1`."""
    operation = call.operation or ("an operation" if call.sequence is None else "operation")
    library, colon, name = operation.partition(":")
    if colon and library.islower():  # nccl:, xccl:
        return abbreviate(name)
    return abbreviate(operation if call.collective in (None, "send_recv") else call.collective or operation)


def _of_group(call: Call) -> str:
    if call.group is None:
        return ""
    described = call.group_description
    members = f" ({abbreviate(described)})" if described and described not in ("undefined", call.group) else ""
    return f" of process group {abbreviate(call.group)}{members}"


def _details(call: Call) -> str:
    """Return elements, type and code line of a call; empty where none is recorded."""
    size = ""
    if call.elements is not None:
        size = f"{call.elements:,} × {call.dtype}" if call.dtype else format_count(call.elements, "element")
    return ", ".join(filter(None, (size, call.source_line and f"at {call.source_line}")))


def _describe_waiting(operation: StuckOperation) -> str:
    """Return which ranks wait, since when and how long; empty if none is known to wait."""
    if not operation.waiting:
        return ""
    since = "" if operation.since_ns is None else f" since {_date(operation.since_ns)}"
    waited = ""
    if operation.waited_ns is not None:
        waited = f"; the watchdog gave up after {_seconds(operation.waited_ns)}"
    elif operation.timeout_ns is not None:
        waited = f"; the watchdog's limit is {_seconds(operation.timeout_ns)}"
    waiting = Ranks(operation.waiting)
    return f"{waiting} {waiting:waits|wait}{since}{waited}"


def _date(ns: int) -> str:
    try:
        return datetime.fromtimestamp(ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):
        return f"{ns} ns"


def _seconds(ns: int) -> str:
    return f"{ns / 1e9:,.0f} s"
