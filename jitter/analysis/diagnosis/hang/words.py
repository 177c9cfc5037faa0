"""The sentences of a hang: what the job waits in, for which ranks, where these stopped, and what to do."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

from jitter.analysis.diagnosis.hang.model import Call, Hang, HangKind, LastCall, StuckOperation
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.formatting import abbreviate, capitalize, escape_control, format_count, format_ranks

_MOST: Final = THRESHOLDS.sentences.max_named
_ADVICE: Final[dict[HangKind, str]] = {
    "mismatch": (
        "compare the code that the ranks ran before this call: a branch on the rank or on its data makes them call "
        "other collectives, or with other sizes"
    ),
    "not_entered": (
        "look at what {ranks} did after the last call: an exception in the log, a data loader or a file that does not "
        "answer, a branch that only some ranks take; if the process lives: py-spy dump --native --pid PID"
    ),
    "unresponsive": (
        "look at the process of {ranks}: it is stopped or dead (its log, dmesg, out of memory), or its host is not "
        "reachable"
    ),
    "not_started": (
        "look at the GPU of {ranks}: work that was enqueued before the operation does not end; check dmesg for Xid "
        "errors"
    ),
    "all_entered": (
        "check the network and the GPUs of the members: Xid errors in dmesg, link errors, NCCL_DEBUG=INFO, nccl-tests "
        "between the hosts"
    ),
    "undecided": (
        "collect the dumps of all members; a rank without one may have died: read its log, and dmesg on its host"
    ),
}
_BLAME: Final[dict[HangKind, str]] = {
    "not_entered": "did not enter {call}",
    "not_started": "enqueued {call} and {has} not started it on the GPU",
    "unresponsive": "of communicator {group} {do} not answer NCCL's health query",
}
_CIRCULAR: Final = "call the operations of these groups in the same order on all ranks"


def write_hang(hang: Hang, *, is_confirmed: bool) -> Hang:
    """Return the hang with its sentences; `is_confirmed`: a watchdog's lines say that it gave up."""
    evidence = [*_evidence(hang), *_doubts(hang, is_confirmed=is_confirmed)]
    ranks = format_ranks(hang.culprits) if hang.culprits else "these ranks"
    advice = _CIRCULAR if hang.is_circular else _ADVICE[hang.operation.kind].format(ranks=ranks)
    said = (escape_control(text) for text in evidence)
    return replace(hang, headline=escape_control(_headline(hang)), evidence=tuple(said), advice=advice)


def write_hang_verdict(hang: Hang) -> str:
    """Return what hangs, which ranks wait, and what to do, as sentences."""
    waiting = describe_waiting(hang.operation)
    return " ".join(capitalize(text) for text in (hang.headline, waiting, hang.advice) if text)


def describe_call(call: Call) -> str:
    """Return a call with its number, group, size and code line: `all_reduce 19 of process group 0 (default_pg), …`."""
    number = "" if call.sequence is None else f" {call.sequence}"
    facts = (_size(call), call.source_line and f"at {call.source_line}")
    return ", ".join([f"{name_operation(call)}{number}{_of_group(call)}", *filter(None, facts)])


def name_operation(call: Call) -> str:
    """Return the operation as the program calls it: `all_reduce`, `_all_gather_base`, `send 0->1`."""
    operation = call.operation or "an operation"
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


def _size(call: Call) -> str:
    if call.elements is None:
        return ""
    return f"{call.elements:,} × {call.dtype}" if call.dtype else format_count(call.elements, "element")


def _headline(hang: Hang) -> str:
    root = hang.operation
    call = describe_call(root.call)
    if hang.is_circular:
        blocker = next((stuck for stuck in hang.others if set(root.blocking) & set(stuck.waiting)), None)
        verb = _verb(root.blocking, "wait")
        where = (
            "" if blocker is None else f", and {format_ranks(root.blocking)} {verb} in {describe_call(blocker.call)}"
        )
        return f"Hang: {format_ranks(root.waiting)} {_verb(root.waiting, 'wait')} in {call}{where}: each for the others"
    if root.kind == "mismatch":
        first, *others = root.variants
        texts = "; ".join(
            f"{format_ranks(variant.ranks)} called {name_operation(variant.call)} ({_facts(variant.call)})"
            for variant in (first, *others[: _MOST - 1])
        )
        return f"Hang: the ranks' calls number {root.call.sequence}{_of_group(root.call)} differ: {texts}"
    if root.kind in _BLAME:
        has, do = ("has", "does") if len(hang.culprits) == 1 else ("have", "do")
        did = _BLAME[root.kind].format(call=call, group=root.call.group, has=has, do=do)
        return f"Hang: {format_ranks(hang.culprits)} {did}"
    if root.kind == "all_entered":
        whole = f"all {format_count(len(root.members), 'rank')}" if len(root.members) > 1 else "the rank"
        done = set(root.members) - set(root.waiting)
        rest = f"; {format_ranks(root.waiting)} did not complete it" if done else " and none completed it"
        return f"Hang in the network or on a GPU: {whole} entered {call}{rest}"
    absent = ", and the sources do not say which ranks did not enter it"
    if root.unrecorded:
        absent = (
            f"; {format_ranks(root.unrecorded)} left no dump or line, so whether {_pronoun(root.unrecorded)} entered "
            "the operation is unknown"
        )
    elif root.unknown:
        absent = f"; the dumps do not reach back far enough to say whether {format_ranks(root.unknown)} entered it"
    return f"Hang: {format_ranks(root.waiting)} {_verb(root.waiting, 'wait')} in {call}{absent}"


def _facts(call: Call) -> str:
    return ", ".join(filter(None, (_size(call), call.source_line and f"at {call.source_line}"))) or "size not recorded"


def _verb(ranks: Sequence[int], verb: str) -> str:
    return f"{verb}s" if len(ranks) == 1 else verb


def _pronoun(ranks: Sequence[int]) -> str:
    return "it" if len(ranks) == 1 else "each of them"


def _evidence(hang: Hang) -> Iterator[str]:
    root = hang.operation
    waiting = describe_waiting(root)
    if waiting:
        yield waiting
    for last in hang.last_calls[:_MOST]:
        yield describe_last_call(last)
    if len(hang.last_calls) > _MOST:
        yield f"{len(hang.last_calls) - _MOST} more ranks that did not enter it have last calls (--json lists them)"
    if both := sorted(set(root.blocking) - set(hang.culprits)):
        elsewhere = next((stuck for stuck in hang.others if set(both) & set(stuck.waiting)), None)
        where = "" if elsewhere is None else f" in {describe_call(elsewhere.call)}"
        yield f"{format_ranks(both)} did not enter it either, and {_verb(both, 'wait')}{where}"
    if root.kind == "mismatch" and root.not_entered:
        yield f"{format_ranks(root.not_entered)} did not enter it"
    for stuck in hang.others[: _MOST - 1]:
        yield f"also stuck: {format_ranks(stuck.waiting)} in {describe_call(stuck.call)}{_of_blocking(stuck)}"
    if len(hang.others) > _MOST - 1:
        yield f"{format_count(len(hang.others) - _MOST + 1, 'more operation')} stuck in other groups"


def _of_blocking(operation: StuckOperation) -> str:
    return (
        f", which {format_ranks(operation.blocking)} did not {'enter' if operation.not_entered else 'start'}"
        if operation.blocking
        else ""
    )


def describe_waiting(operation: StuckOperation) -> str:
    """Return which ranks wait, since when and how long; empty if none is known to wait."""
    if not operation.waiting:
        return ""
    since = "" if operation.since_ns is None else f" since {_date(operation.since_ns)}"
    waited = ""
    if operation.waited_ns is not None:
        waited = f"; the watchdog gave up after {_seconds(operation.waited_ns)}"
    elif operation.timeout_ns is not None:
        waited = f"; the watchdog's limit is {_seconds(operation.timeout_ns)}"
    return f"{format_ranks(operation.waiting)} {_verb(operation.waiting, 'wait')}{since}{waited}"


def describe_last_call(last: LastCall) -> str:
    """Return the last call of a rank as a sentence."""
    state = "completed" if last.completed else "not completed"
    return f"rank {last.rank}'s last call is {describe_call(last.call)}, {state}"


def _doubts(hang: Hang, *, is_confirmed: bool) -> Iterator[str]:
    root = hang.operation
    if root.unrecorded and root.kind != "undecided":
        verb = "is" if len(root.unrecorded) == 1 else "are"
        yield f"{format_ranks(root.unrecorded)} left no dump or line and {verb} neither blamed nor cleared"
    if root.unknown and root.kind != "undecided":
        yield f"the dumps do not reach back far enough to say whether {format_ranks(root.unknown)} entered it"
    if not is_confirmed:
        yield "no watchdog timeout was read: dumps of a healthy job show calls in progress, too"


def _date(ns: int) -> str:
    try:
        return datetime.fromtimestamp(ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):
        return f"{ns} ns"


def _seconds(ns: int) -> str:
    return f"{ns / 1e9:,.0f} s"
