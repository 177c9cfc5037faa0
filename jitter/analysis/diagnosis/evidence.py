"""What speaks for a cause, from the lake: launch shapes, data-loading ranges, launch latencies, sizes of messages."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property

import numpy as np

from jitter.analysis.detection.findings import Candidate, PricedFinding
from jitter.analysis.detection.outliers import Outlier
from jitter.analysis.detection.run_analysis import RunAnalysis
from jitter.analysis.detection.slow_collectives import SlowCommunication
from jitter.analysis.diagnosis.model import Cause, ProfileLocation
from jitter.analysis.diagnosis.scopes import RankLocation
from jitter.analysis.diagnosis.workload import MOST, find_gpu_cause
from jitter.analysis.replay.critical_path import Charge, Part
from jitter.analysis.replay.scenario_times import CPU, START
from jitter.core.formatting import format_count, format_time
from jitter.core.step_key import StepKey
from jitter.lake.host_events import DataLoading
from jitter.lake.records import RankStepRecord

_STEPS_LOOKED_AT = 3


class Evidence:
    """Asks the lake about what the examination found."""

    def __init__(self, examined: RunAnalysis, held: Mapping[StepKey, Mapping[int, RankStepRecord]]) -> None:
        self._run, self._examined, self._held = examined.lake, examined, held
        self.limits = examined.limits

    @cached_property
    def places(self) -> dict[int, RankLocation]:
        """Where each rank runs."""
        return {
            rank: RankLocation(one.record.host, one.record.device)
            for key in self._examined.keys
            for rank, one in self._held[key].items()
        }

    def compared_with(self, ranks: Collection[int]) -> int:
        """How many ranks the least compared of these were compared with."""
        run = self._examined.run
        return min(run.sizes[run.team_of[rank]] for rank in ranks if rank in run.team_of) - 1

    def doubts(self, ranks: Collection[int], *, transfers: bool) -> bool:
        """Whether something that was not recorded may explain it as well."""
        if transfers:
            return self._examined.unrecorded_ranks
        return self.compared_with(ranks) < 1

    def kernel_index(self, team: int, place: int) -> int | None:
        """The kernel index of a place of a team's program; that of the next kernel for copies and calls."""
        return self._indices[team].get(place)

    @cached_property
    def _indices(self) -> dict[int, dict[int, int]]:
        found = {}
        for team, program in self._examined.run.programs.items():
            indices: dict[int, int] = {}
            reference = set(program.places[program.reference].tolist())
            number = 0
            waiting: list[int] = []
            for place, op in enumerate(program.operations):
                waiting.append(place)
                if place in reference and op.is_kernel:
                    indices.update(dict.fromkeys(waiting, number))
                    waiting, number = [], number + 1
            indices.update(dict.fromkeys(waiting, max(number - 1, 0)))
            found[team] = indices
        return found

    def kernel_name(self, team: int, index: int) -> str:
        """The name of the kernel of this index."""
        operations = self._examined.run.programs[team].operations
        places = [place for place, own in self._indices[team].items() if own == index and operations[place].is_kernel]
        return operations[places[-1]].name

    def usual_last(self, charges: Mapping[int, Sequence[Charge]]) -> int:
        """The rank that came last most often."""
        counts = Counter(charge.rank for own in charges.values() for charge in own)
        return max(counts, key=lambda rank: (counts[rank], -rank))

    def excess_of_step(self, findings: Sequence[PricedFinding], number: int) -> float:
        """The findings' excess in a step of the run, whether it counts as one of theirs or not."""
        return sum(self._excess(found.what, number) for found in findings)

    def _excess(self, what: Candidate, number: int) -> float:
        if isinstance(what, SlowCommunication):
            return self._examined.transfer_excess(what.meetings, number)
        team = self._examined.deviations_of(what.team)
        return float(np.nan_to_num(team.total_ns[what.part, number, np.searchsorted(team.ranks, what.rank)]))

    def cause(self, suspect: Outlier) -> tuple[Cause, tuple[str, ...]]:
        """Tell the cause of one rank's own time, and why."""
        steps = sorted(suspect.steps, key=lambda number: -self._excess(suspect, number))[:_STEPS_LOOKED_AT]
        if suspect.part == START:
            return "late_start", self._start_evidence(suspect.rank, steps, suspect.excess_ns / len(suspect.steps))
        if suspect.part == CPU:
            return "cpu_launch", self._launch_evidence(suspect.rank, suspect.steps)
        return find_gpu_cause(self._examined, suspect, steps)

    def _start_evidence(self, rank: int, steps: Sequence[int], excess_ns: float) -> tuple[str, ...]:
        own = [_length(self._loading(rank, number)) for number in steps]
        others = [
            _length(self._loading(other, number))
            for number in steps
            for other in self._held[self._examined.keys[number]]
            if other != rank
        ]
        if not any(own) and not any(others):
            return ("no data-loading range was recorded",)
        more = float(np.median(own)) - (float(np.median(others)) if others else 0.0)
        told = f"its data-loading ranges take {format_time(float(np.median(own)))} a step" + (
            f", the others' {format_time(float(np.median(others)))}" if others else ""
        )
        if more >= MOST * excess_ns:
            return (f"{told}: the input pipeline stalled",)
        return (f"{told}: they do not cover it",)

    def _loading(self, rank: int, number: int) -> DataLoading | None:
        key = self._examined.keys[number]
        return self._run.host(key, rank).loading(key) if rank in self._held[key] else None

    def _launch_evidence(self, rank: int, steps: Sequence[int]) -> tuple[str, ...]:
        waited = passed = 0
        for number in steps:
            for charge in self._examined.paths[number].charges:
                if charge.rank == rank and charge.part in (Part.CPU, Part.GPU):
                    passed += 1
                    waited += charge.part == Part.CPU
        if not passed:
            return ("its launches come late; other ranks are later still where it would show",)
        return (f"on the critical path {waited} of its {passed} waits were for the host's launches, not for the GPU",)

    def link_evidence(self, links: SlowCommunication) -> tuple[str, ...]:
        """Say what is known of slow collectives."""
        number = len(links.meetings)
        usual = sum(self._examined.usual_transfers[meeting] for meeting, _ in links.meetings)
        taken = usual + links.excess_ns / max(len(links.steps), 1)
        told = [
            f"the ranks arrive together; from the last arrival to the end {format_count(number, 'collective')} a step "
            f"take {format_time(taken)}, usually {format_time(usual)}"
        ]
        if len(links.ranks) == 1:
            told.append("all slow groups have this rank in common, and no other group is slow")
        if self.doubts(links.ranks, transfers=True):
            told.append("ranks of these groups were not recorded: the wait may be for them")
        return tuple(told)

    def look_at(
        self, rank: int, charges: Mapping[int, Sequence[Charge]], steps: Sequence[int]
    ) -> ProfileLocation | None:
        """Find the stretch of the worst step in the rank's own recording."""
        number = max(charges or steps, key=lambda n: sum(c.excess_ns for c in charges.get(n, ())))
        key = self._examined.keys[number]
        if rank not in self._held[key]:
            return None
        team = self._examined.run.team_of[rank]
        arrays = self._examined.run.of_rank(key, rank)
        worst = max((c.excess_ns for c in charges.get(number, ())), default=0.0)
        places = sorted({c.place for c in charges.get(number, ()) if c.excess_ns >= worst / 100 and c.team == team})
        chosen = places or list(range(len(arrays.start)))
        begun = np.fmin(arrays.call[chosen, 0], arrays.start[chosen, 0])
        ended = np.fmax(arrays.back[chosen, 0], arrays.end[chosen, 0])
        before = arrays.back[: chosen[0], 0]
        # a stall of the host lies before the launch that it delays
        since = np.nanmax(before) if len(before) and not np.isnan(before).all() else np.nanmin(begun)
        first = float(np.fmin(since, np.nanmin(begun)))
        origin = self._run.origin_ns[rank]
        record = self._held[key][rank].record
        return ProfileLocation(record.file, origin + round(first), origin + round(float(np.nanmax(ended))))


def _length(loading: DataLoading | None) -> float:
    return 0.0 if loading is None else float((loading.end_ns - loading.start_ns).sum())
