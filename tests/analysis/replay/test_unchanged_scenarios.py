"""Scenarios that stand as recorded are not computed: what they gain is exactly what computing them all would say."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jitter
from jitter.analysis.detection.passes import ThreadedStepExecutor
from jitter.analysis.execution.self_times import SelfTimes, TimePart
from jitter.analysis.replay.replay import CHANGED
from jitter.analysis.replay.run_steps import RecordedSteps
from jitter.analysis.replay.what_if import Scenario, ScenarioReplay
from jitter.core.numeric.arrays import Ints
from jitter.simulate import Fault, simulate
from tests.support.fuzz_depth import fuzz, some_of
from tests.support.simulated import ingest_partial_run, small

pytestmark = pytest.mark.slow

STEPS = 8
FAULTS = [
    "cpu_stall:rank=1,step=2,kernel=9,ms=1.5",
    "slow_gpu:rank=2,factor=1.4,step=4",
    "late_start:rank=0,step=5,ms=2",
]
LOSS = frozenset({"loss"})
WAITING = {
    "data parallel": (small(steps=STEPS), frozenset()),
    "tensor parallel": (small("tensor_parallel", steps=STEPS, syncs=LOSS), frozenset()),
    "a launch queue": (small("tensor_parallel", steps=STEPS, launch_queue=12), frozenset()),
    "pipeline": (small("pipeline", steps=STEPS, syncs=frozenset({"after"})), frozenset()),
    "pipeline with a launch queue": (small("pipeline", steps=STEPS, launch_queue=40), frozenset()),
    "two blocks": (small("tensor_data", steps=STEPS, syncs=LOSS), frozenset()),
    "late returns": (small("data_parallel", steps=STEPS, cpu_bound=True), frozenset()),
    "ranks that come and go": (small(steps=STEPS), frozenset({(1, 3), (3, 0), (3, 5), (3, 6)})),
}
"""Their hosts wait for their GPUs now and then: without that none whose GPU is ahead stands as recorded again."""
JOBS = WAITING | {
    "hosts that never wait": (small("tensor_parallel", steps=STEPS), frozenset()),
    "stages that never wait": (small("pipeline", steps=STEPS), frozenset()),
}


class Counted(ScenarioReplay):
    """Tells which scenarios differ from the recording after each step."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.computed: list[list[int]] = []

    def replay(self, steps: RecordedSteps, baseline: SelfTimes) -> None:
        super().replay(steps, baseline)
        self.computed.append(np.flatnonzero(self._diverged).tolist())


class Everything(ScenarioReplay):
    """Computes all scenarios in all steps."""

    def _turns(self, scenario: Scenario, steps: RecordedSteps) -> Ints:
        return np.full(len(steps), CHANGED)


@pytest.fixture(scope="module")
def lake(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> "jitter.Lake":
    job, unseen = JOBS[request.param]
    run = simulate(job, [Fault.parse(fault) for fault in FAULTS])
    folder: Path = tmp_path_factory.mktemp("come-back")
    first = job.first_step
    return ingest_partial_run(run, folder, sees=lambda rank, step: (rank, step - first) not in unseen)


def scenarios(examined) -> list[Scenario]:
    """Of one step, of two apart, of the last, of a transfer, and of every step: the others come back."""
    first_of_last = int(examined.run.collective_arrays.first_group[-2])
    return [
        Scenario(),
        Scenario({(1, TimePart.CPU): frozenset({2})}),
        Scenario({(2, TimePart.GPU): frozenset({4})}),
        Scenario({(0, TimePart.START): frozenset({5})}),
        Scenario({(1, TimePart.CPU): frozenset({2}), (2, TimePart.GPU): frozenset({2, 6})}),
        Scenario({(0, TimePart.GPU): frozenset({0})}),
        Scenario({(3, TimePart.CPU): frozenset({STEPS - 1})}),
        Scenario(transfers={first_of_last: frozenset({1, 2})}),
        Scenario({(2, TimePart.GPU): frozenset(range(STEPS))}),
        Scenario(everything=True),
    ]


def gone(kind: type[ScenarioReplay], examined, chosen: list[Scenario], pool: ThreadPoolExecutor | None = None) -> Any:
    found = kind(examined.run, chosen, examined.transfers.baseline, pool)
    for step in examined.steps.steps():
        found.replay(step, examined.steps.find_baselines(step))
    return found


@fuzz
@pytest.mark.parametrize("lake", some_of(JOBS, 2), indirect=True)
def test_the_same_to_the_last_bit(lake: "jitter.Lake"):
    examined = lake.analyze()
    chosen = scenarios(examined)
    some, every = gone(Counted, examined, chosen), gone(Everything, examined, chosen)
    np.testing.assert_array_equal(np.stack(some.gained), np.stack(every.gained))
    gained = np.nansum(np.stack(some.gained), axis=0)
    assert (np.abs(gained[[1, 2, 3, 4, 8, 9]]) > 0).sum() >= 2
    assert gained[0] == 0


@fuzz
@pytest.mark.parametrize("lake", some_of(JOBS, 3), indirect=True)
def test_the_same_on_several_threads(lake: "jitter.Lake"):
    examined = lake.analyze()
    chosen = scenarios(examined)
    with ThreadPoolExecutor(4) as pool:
        threads: set[int] = set()

        class Noted(Everything):
            def _replay(self, *arguments: Any) -> Any:
                threads.add(threading.get_ident())
                return super()._replay(*arguments)

        there = gone(Noted, examined, chosen, pool)
    assert threading.get_ident() not in threads
    np.testing.assert_array_equal(np.stack(there.gained), np.stack(gone(Everything, examined, chosen).gained))


@pytest.mark.parametrize("lake", WAITING, indirect=True)
def test_who_repairs_nothing_any_more_comes_back(lake: "jitter.Lake"):
    examined = lake.analyze()
    chosen = scenarios(examined)
    computed = gone(Counted, examined, chosen).computed
    for number, rows in enumerate(computed):
        repairing = {at for at, scenario in enumerate(chosen) if scenario.at(number)}
        assert repairing <= set(rows)
        assert not [at for at in rows if at not in repairing and min(chosen[at].steps) > number]
    in_all = sum(map(len, computed))
    assert in_all < len(chosen) * STEPS * 0.7
    once = [at for at, scenario in enumerate(chosen) if scenario.steps and len(scenario.steps) <= 2]
    came_back = [at for at in once if any(at not in rows for rows in computed[max(chosen[at].steps) + 1 :])]
    assert len(came_back) >= 3


@fuzz
@pytest.mark.parametrize("lake", some_of(JOBS, 3), indirect=True)
@pytest.mark.parametrize("chosen", [[Scenario()], [Scenario({(1, TimePart.CPU): frozenset({2})})]])
def test_where_nothing_is_repaired_nothing_is_computed(lake: "jitter.Lake", chosen: list[Scenario]):
    examined = lake.analyze()
    some, every = gone(Counted, examined, chosen), gone(Everything, examined, chosen)
    np.testing.assert_array_equal(np.stack(some.gained), np.stack(every.gained))
    first = min((step for scenario in chosen for step in scenario.steps), default=STEPS)
    assert some.computed[:first] == [[]] * min(first, STEPS)
    assert first == STEPS or some.computed[first] == [0]


@pytest.mark.parametrize("lake", ["data parallel", "ranks that come and go"], indirect=True)
def test_a_pass_ends_when_all_is_as_recorded_again(lake: "jitter.Lake"):
    examined = lake.analyze()
    chosen = [
        Scenario({(1, TimePart.CPU): frozenset({2})}),
        Scenario({(1, TimePart.CPU): frozenset({2}), (0, TimePart.START): frozenset({3})}),
    ]
    every = gone(Everything, examined, chosen)
    gained = ThreadedStepExecutor(examined.steps).replay(examined.transfers.baseline, chosen).gained_ns
    np.testing.assert_array_equal(np.nan_to_num(gained), np.nan_to_num(np.stack(every.gained)))
    assert np.any(gained)
