"""The critical path of METRICS once more: one rank, one operation, one number at a time, in global time.

Beside each operation's excess it keeps how long the path took as recorded, and how long the same path takes with every
own time at its median: the excess is the difference, nothing more and nothing less.
"""

from collections.abc import Mapping
from typing import NamedTuple

from tests.support.oracles.replay import Rank
from tests.support.oracles.replay_jobs import OracleJob


class Charged(NamedTuple):
    rank: int
    at: int
    part: str
    excess: float


class Held(NamedTuple):
    """The causes that held an operation back as recorded, each with its end; None for those that did not."""

    submitted: float
    free: float | None
    before: int | None
    """The operation before it on its stream, in this step."""
    awaited: float | None
    awaited_at: int | None
    slot: float | None
    back_before: float | None
    let_go: float | None
    """When a wait without a call let the host go, before its call."""
    let_go_by: int | None
    """What that wait was for, in this step."""


class Path:
    """One step's; walk it with `walk`."""

    def __init__(self, job: OracleJob, number: int, usual_transfer: Mapping[int, float]) -> None:
        self._job, self._number, self._usual_transfer = job, number, usual_transfer
        self._held = held(job, number)
        self._border = {
            rank: max(op.end for op in steps[number - 1] if op.kind == "collective")
            for rank, steps in job.recorded.items()
        }
        self.charges: list[Charged] = []
        self.took = 0.0
        """As recorded."""
        self.at_medians = 0.0
        self.began: float | None = None
        """The place at which the backward walk ends."""

    def _charge(self, rank: int, at: int, part: str, own: float, usual: float, passed: float = 0.0) -> None:
        self.charges.append(Charged(rank, at, part, own - usual))
        self.took += own + passed
        self.at_medians += usual + passed

    def walk(self, rank: int, at: int) -> float:
        """From the end of this rank's collective; returns that end."""
        end = self._job.recorded[rank][self._number][at].end
        here: tuple[int, int] | None = self._meeting(rank, at)
        while here is not None:
            here = self._start(*here)
        return end

    def _meeting(self, rank: int, at: int) -> tuple[int, int]:
        group = self._job.group(rank, at)
        come = {
            other: steps[self._number][at]
            for other, steps in self._job.recorded.items()
            if self._job.group(other, at) == group
        }
        last = max(sorted(come), key=lambda other: come[other].start)
        self._charge(last, at, "TRANSFER", come[last].end - come[last].start, self._usual_transfer[at])
        return last, at

    def _start(self, rank: int, at: int) -> tuple[int, int] | None:
        """Back from an operation's start to that of another one; None where the path ends."""
        op, held = self._job.recorded[rank][self._number][at], self._held[rank][at]
        if op.start <= self._border[rank]:
            self.began = op.start
            return None
        rule = self._job.rule
        until = {"host": held.submitted + rule.launch_ns}
        if held.free is not None:
            until["stream"] = held.free + rule.stream_ns
        if held.awaited is not None:
            until["other"] = held.awaited
        latest = max(until.values())
        own, usual = self._job.own[rank, self._number, at], self._job.usual[rank, self._number, at]
        by = next(name for name in ("other", "host", "stream") if until.get(name) == latest)
        if by == "host":
            self._charge(rank, at, "CPU", own.delay - own.lead, usual.delay - usual.lead, rule.launch_ns)
            return self._host(rank, at)
        self._charge(rank, at, "GPU", own.delay, usual.delay, rule.stream_ns if by == "stream" else 0.0)
        before = held.before if by == "stream" else held.awaited_at
        if before is None or before < 0:
            self.began = held.free if by == "stream" else held.awaited
            return None
        return self._end(rank, before)

    def _end(self, rank: int, at: int) -> tuple[int, int]:
        if self._job.recorded[rank][self._number][at].kind == "collective":
            return self._meeting(rank, at)
        own, usual = self._job.own[rank, self._number, at], self._job.usual[rank, self._number, at]
        self._charge(rank, at, "GPU", own.gpu, usual.gpu)
        return rank, at

    def _host(self, rank: int, at: int) -> tuple[int, int] | None:
        thread = self._job.recorded[rank][self._number][at].thread
        for place in range(at, -1, -1):
            if self._job.recorded[rank][self._number][place].thread != thread:
                continue
            op, held = self._job.recorded[rank][self._number][place], self._held[rank][place]
            own, usual = self._job.own[rank, self._number, place], self._job.usual[rank, self._number, place]
            part = "START" if place <= self._job.first_kernel else "CPU"
            self._charge(rank, place, part, own.call, usual.call)
            if op.kind == "sync" and held.awaited is not None and held.awaited > op.call:
                if held.awaited_at is None or held.awaited_at < 0:
                    self.began = held.awaited
                    return None
                return self._end(rank, held.awaited_at)
            if op.kind != "sync" and held.slot is not None and held.slot > op.call:
                freed = [
                    other for other, one in enumerate(self._job.recorded[rank][self._number]) if one.start == held.slot
                ]
                if not freed:
                    self.began = held.slot
                    return None
                return rank, freed[0]
            assert held.back_before is not None
            assert own.host is not None
            assert usual.host is not None
            if held.let_go is not None and held.let_go > held.back_before:
                lead = self._job.rule.host_lead_ns.get(place, 0.0)
                self._charge(rank, place, part, own.host, usual.host, -lead)
                if held.let_go_by is None:
                    self.began = held.let_go + lead
                    return None
                return self._end(rank, held.let_go_by)
            self._charge(rank, place, part, own.host, usual.host)
            self.began = held.back_before
            if held.back_before <= self._border[rank]:
                break
        return None


def held(job: OracleJob, number: int) -> dict[int, list[Held]]:
    """The causes that held back each operation of a step."""
    found: dict[int, list[Held]] = {}
    for rank, steps in job.recorded.items():
        state = Rank(job.rule)
        for step in steps[: number + 1]:
            state.next_step()
            own: list[Held] = []
            last: dict[int, int] = {}
            for at, op in enumerate(step):
                waits = job.rule.waits.get(at, ())
                ends = {o: state.ended.get(o) if o >= 0 else state.free_before.get(job.rule.streams[~o]) for o in waits}
                awaited = state.awaited(at)
                own.append(
                    Held(
                        op.back if op.start is None else min(op.back, op.start),
                        None if op.stream is None else state.free.get(op.stream),
                        None if op.stream is None else last.get(op.stream),
                        awaited,
                        next((o for o, end in ends.items() if end is not None and end == awaited), None),
                        state.slot() if op.kind != "sync" else None,
                        state.back.get(op.thread),
                        *state.let_go(at),
                    )
                )
                if op.stream is not None:
                    last[op.stream] = at
                state.take(op, at, op.back, op.start, op.end)
        found[rank] = own
    return found
