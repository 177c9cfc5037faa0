"""The usual step of a run, and the account of the difference between two of them: another run is another rung.

On the rung `steps` the ranks of a team are alike, so one rank stands for a block of ranks that meet the same others. A
usual step is replayed until it repeats: the first steps begin with idle GPUs, and hosts run ahead.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np

from jitter.analysis.account.losses import Losses
from jitter.analysis.account.noise import Noise
from jitter.analysis.account.step_account import Account
from jitter.analysis.alignment.program import Program
from jitter.analysis.collectives.matching import Attendance, lay_out_collectives
from jitter.analysis.execution.dependencies import Dependencies
from jitter.analysis.execution.job_arrays import CarriedState, state_before
from jitter.analysis.execution.run_model import InferredModel, RunModel
from jitter.analysis.execution.schedule import schedule
from jitter.analysis.execution.self_times import CPU, GPU, START, SelfTimes, median_over_steps
from jitter.analysis.execution.step_times import StepTimes
from jitter.analysis.replay.replay import Change, NodeTimes, no_shift, replay_steps
from jitter.analysis.replay.run_steps import RecordedSteps, StepEnds
from jitter.core.names.kernels import SYNC
from jitter.core.numeric.arrays import Floats, Ints
from jitter.core.step_key import StepKey

_STEPS: Final = 6
"""Steps that are replayed; the last one counts."""

Meeting = tuple[tuple[int, int], ...]
"""The (block, operation) that meet in a collective."""


class UsualStep(NamedTuple):
    """Times of a usual step, ns."""

    self_times: SelfTimes
    """(operations of all teams,)."""
    transfers: Floats
    """(meetings,) from the last arrival to the end."""


class UsualAccount(NamedTuple):
    """The account of one usual step with another one as its baseline."""

    upper_ns: float
    """Time of the one step."""
    lower_ns: float
    """Time of its baseline."""
    losses: Losses
    """They add up to the difference. The ranks are blocks, the groups meetings."""


class _Replayed(NamedTuple):
    step: RecordedSteps
    nodes: NodeTimes
    time_ns: float
    """NaN for the first step, and where no block has an operation with which its steps end."""


@dataclass(frozen=True)
class UsualProgram:
    """The program of a job in which one rank stands for each block of ranks that meet the same others."""

    programs: Mapping[int, Program]
    """By team, numbered from 0."""
    rules: Mapping[int, Dependencies]
    blocks: tuple[int, ...]
    """The team of each block, ascending."""
    meetings: tuple[Meeting, ...]

    @cached_property
    def _run(self) -> RunModel:
        team_of = dict(enumerate(self.blocks))
        sizes = {team: len(program.operations) for team, program in self.programs.items()}
        held = [[[Attendance(*member) for member in meeting]] for meeting in self.meetings]
        matching = lay_out_collectives([[block] for block in team_of], team_of, sizes, held)
        ordered = schedule(self.programs, self.rules, matching)
        model = InferredModel(team_of, dict(self.programs), dict(self.rules), matching, ordered)
        return RunModel(None, model)  # type: ignore[arg-type]  # nothing is read of a recording

    def time_ns(self, usual: UsualStep) -> float:
        """Return the time of a usual step, ns."""
        return self._replay(usual)[-1].time_ns

    def spans(self, usual: UsualStep) -> dict[int, tuple[Floats, Floats]]:
        """Return by team when the operations of a usual step start and end, ns."""
        last, spans = self._replay(usual)[-1], {}
        for team in self.programs:
            _, cells = self._run.job.slices(last.step.times, self.blocks.index(team))
            spans[team] = last.nodes.start[cells], last.nodes.end[cells]
        return spans

    def account(self, upper: UsualStep, lower: UsualStep) -> UsualAccount:
        """Charge the difference of two usual steps of this program."""
        return self._account(self._replay(upper), lower)[-1]

    def account_steps(self, steps: Sequence[SelfTimes], usual: UsualStep) -> list[UsualAccount]:
        """Charge the difference of each of some steps in which all ranks are alike to the usual step.

        `steps` are their self times, as of the usual step; each is taken to follow the one before.
        """
        return self._account(self._replay(usual, steps), usual)[_STEPS:]

    def _account(self, replayed: Sequence["_Replayed"], lower: UsualStep) -> list[UsualAccount]:
        noise = Noise(*np.zeros((2, len(replayed), len(self._run.job.launch_ns), len((START, CPU, GPU)))))
        transfers = [lower.transfers] * len(replayed)
        usual = SelfTimes(*(values[None] for values in lower.self_times))
        account = Account(self._run, transfers, noise, own_row_ns=0.0)
        accounts = [account.step(replayed_step.step, usual) for replayed_step in replayed]
        return [
            UsualAccount(replayed_step.time_ns, replayed_step.time_ns - charged.loss_ns, charged.losses)
            for replayed_step, charged in zip(replayed, accounts, strict=True)
        ]

    def with_delays(
        self, usual: UsualStep, launch_ns: Mapping[int, float], stream_ns: Mapping[int, float]
    ) -> SelfTimes:
        """Return the self times with which operations start as they do if launches and streams usually take this long.

        By team, ns.
        """
        job, last = self._run.job, self._replay(usual)[-1]
        delay = usual.self_times.delay.copy()
        for team in self.programs:
            block = self.blocks.index(team)
            operations, cells = job.slices(last.step.times, block)
            ends_ns, awaited = last.nodes.end[cells], np.full(operations.stop - operations.start, -np.inf)
            for place, at in enumerate(range(operations.start, operations.stop)):
                for awaited_op in job.wait_on[job.first_wait[at] : job.first_wait[at + 1]].tolist():
                    held = (
                        ends_ns[awaited_op] if awaited_op >= 0 else last.step.before.stream_end[0, block, ~awaited_op]
                    )
                    awaited[place] = np.fmax(awaited[place], held)
            ready = [
                np.fmax(
                    np.fmax(
                        last.nodes.back[cells] - usual.self_times.lead[operations] + launch,
                        last.nodes.free[cells] + stream,
                    ),
                    awaited,
                )
                for launch, stream in (
                    (float(job.launch_ns[team]), float(job.stream_ns[team])),
                    (launch_ns[team], stream_ns[team]),
                )
            ]
            delay[operations] += np.nan_to_num(ready[0] - ready[1])
        return usual.self_times._replace(delay=delay)

    def _replay(self, usual: UsualStep, extra: Sequence[SelfTimes] = ()) -> list[_Replayed]:
        """Return the steps of a run whose steps are all alike but for some `extra`, as a recording would have them."""
        run, job, arrays = self._run, self._run.job, self._run.collective_arrays
        team = np.array(self.blocks, np.int64)
        sizes = np.diff(job.first)[team]
        row = np.cumsum(sizes) - sizes
        operation = np.concatenate([np.arange(job.first[block], job.first[block + 1]) for block in self.blocks])
        # all blocks are on one clock, so the replay of a collective may begin anywhere: at 0
        start = np.where(job.kind[operation] == SYNC, np.nan, 0.0)
        end = start.copy()
        end[row[arrays.rank] + arrays.place] = usual.transfers[arrays.group]
        # without recorded launches, host time is a delay on the stream: no call has it
        call = np.where(np.repeat(job.has_launches[team], sizes), 0.0, np.nan)
        template = StepTimes(team, row, start, end, call, call)
        change = Change(
            np.ones((1, 3, len(team)), np.bool_), usual.transfers[None], np.zeros((1, len(usual.transfers)))
        )
        state, ends, ended_ns = state_before(job), StepEnds(run), np.nan
        before, replayed = state._replace(back=np.zeros_like(state.back)), list[_Replayed]()
        for number, of_team in enumerate([usual.self_times] * _STEPS + list(extra)):
            fresh, self_times = (
                np.full((1, len(team)), number == 0),
                SelfTimes(*(values[operation] for values in of_team)),
            )
            came, unknown = CarriedState(*(values[None] for values in before)), np.full_like(fresh, -1, np.int64)
            step = RecordedSteps(number, [StepKey(None, number)], template, self_times, came, fresh, arrays, unknown)
            nodes, of_one = NodeTimes(*np.empty((4, len(start)))), SelfTimes(*(values[None] for values in of_team))
            replay_steps(job, run.schedule.array(), step, of_one, change, state, no_shift(len(team)), nodes)
            times = StepTimes(team, row, nodes.start, nodes.end, call + nodes.back - self_times.call, call + nodes.back)
            cells = ends.cells(times)
            end_ns = float(nodes.end[cells[cells >= 0]].mean()) if (cells >= 0).any() else np.nan
            replayed.append(_Replayed(replace(step, times=times, end_cells=cells[None]), nodes, end_ns - ended_ns))
            before, ended_ns = state.copy(), end_ns
        return replayed


class UsualRun(NamedTuple):
    """The usual step of a run, and where its operations are."""

    program: UsualProgram
    step: UsualStep
    places: list[list[int]]
    """By team the operations in the run's program."""
    cells: Ints
    """(operations of all teams,) in the run's baselines."""


def find_usual_step(run: RunModel, baselines: SelfTimes, numbers: Ints, transfers: Floats) -> UsualRun:
    """Return the program and the usual step of a run.

    The operations are those of each team's commonest sequence. `baselines` are the steps' medians over ranks,
    of which those of some `numbers` count, `transfers` (groups of all collectives,) those of the transfers.
    """
    places = [
        sorted(place for place in program.places[program.reference].tolist() if place >= 0)
        for _, program in sorted(run.programs.items())
    ]
    new_places = [{place: at for at, place in enumerate(team_places)} for team_places in places]
    programs, rules = {}, {}
    for team, team_places in enumerate(places):
        operations, dependencies = run.programs[team].operations, run.dependencies[team]
        programs[team] = Program(tuple(operations[place] for place in team_places), {}, run.programs[team].reference)
        rules[team] = replace(renumber(dependencies, new_places[team]), thread=dependencies.thread[team_places])
    blocks = run.matching.teams
    meetings: list[Meeting] = []
    took: list[float] = []
    for members, group in zip(run.matching.members, run.collective_arrays.first_group.tolist(), strict=False):
        meeting = tuple(
            (block, new_places[blocks[block]][place]) for block, place in members if place in new_places[blocks[block]]
        )
        # ranks of one block that meet at two places of their program, as in a ring, are represented by one rank
        alone = len({block for block, _ in meeting}) < len(meeting)
        groups = [(attendance,) for attendance in meeting] if alone else [meeting] if meeting else []
        meetings += groups
        took += [float(np.nan_to_num(transfers[group]))] * len(groups)
    cells = np.concatenate(
        [int(run.job.first[team]) + np.array(team_places, np.int64) for team, team_places in enumerate(places)]
    )
    own_times = SelfTimes(*(np.nan_to_num(values[cells]) for values in median_over_steps(baselines, numbers)))
    return UsualRun(
        UsualProgram(programs, rules, blocks, tuple(meetings)), UsualStep(own_times, np.array(took)), places, cells
    )


def renumber(rules: Dependencies, numbers: Mapping[int, int]) -> Dependencies:
    """Return what rules say of operations that have a new number, with these numbers; other fields as is."""
    waits = (
        wait._replace(
            op_index=numbers[wait.op_index],
            on_op_index=wait.on_op_index if wait.on_op_index < 0 else numbers[wait.on_op_index],
        )
        for wait in rules.waits
        if wait.op_index in numbers and (wait.on_op_index < 0 or wait.on_op_index in numbers)
    )
    leads = {numbers[place]: ns for place, ns in rules.host_lead_ns.items() if place in numbers}
    later = {
        numbers[place]: kept
        for place, others in rules.later_beside.items()
        if place in numbers and (kept := tuple(numbers[other] for other in others if other in numbers))
    }
    return replace(rules, waits=tuple(waits), later_beside=later, host_lead_ns=leads, bound_waits=(), bound_lead_ns={})
