"""Dependencies of operations, told from starts and ends alone; and the length of the GPU's launch queue."""

import numpy as np
import pytest

from jitter.analysis.execution import run_rules
from jitter.analysis.execution.dependencies import Launches, Wait, infer, queue_limit
from jitter.analysis.execution.run_rules import SampledSteps, threads_of
from jitter.analysis.execution.step_times import of_team
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.numeric.arrays import spread_positions
from jitter.core.step_key import StepKey
from tests.support.programs import program, step_of

RANKS = 6
US = 1000.0


pytestmark = pytest.mark.usefixtures("each_way")


def of_ranks(times) -> np.ndarray:
    return np.array([np.broadcast_to(of_operation, RANKS) for of_operation in times], float) * US


def inferred(words: str, start, end, call=None, back=None, left=None):
    """The rules of these operations, each one's times in µs: by rank, or one for all ranks.

    `left` is what the step before left, by stream.
    """
    one = program(words)
    starts, ends = of_ranks(start), of_ranks(end)
    calls = starts - 50 * US if call is None else of_ranks(call)
    backs = calls + 5 * US if back is None else of_ranks(back)
    step = step_of(starts, ends, calls, backs)
    thread = threads_of(one, [of_team(step, np.arange(RANKS), 0, len(words))])
    steps = SampledSteps(one, thread, RANKS)
    if left is not None:
        steps._tracker.enter([StepKey(None, 0)], np.ones(RANKS, np.bool_))
        steps._tracker.state.stream_end[:] = of_ranks(left).T
    steps.add(StepKey(None, 1), step)
    cells, _ = steps.sample()
    return infer(one, thread, cells, [])


def spread(seed: int, low: float, high: float) -> np.ndarray:
    return np.random.default_rng(seed).uniform(low, high, RANKS).round()


def test_an_event_wait():
    """The collective was launched long ago and starts 3 µs after the kernel, whenever that ends."""
    kernel_end = spread(1, 200, 400)
    start = [100, kernel_end + 3]
    end = [kernel_end, kernel_end + 100]
    rules = inferred("ka", start, end, call=[0, 20])
    assert rules.waits == (Wait(1, 0, "event"),)
    assert rules.by_place == {1: rules.waits}


@pytest.mark.parametrize(("rounded", "found"), [(0.001, True), (0.9, True), (1.1, False)])
def test_an_end_that_rounding_puts_after_the_start_that_waited_for_it(rounded: float, found: bool):
    """Profilers round start and duration each on its own: the waiting kernel seems to start before the other ends."""
    kernel_end = spread(2, 200, 400)
    start = kernel_end.copy()
    start[[1, 4]] -= rounded
    rules = inferred("ka", [100, start], [kernel_end, start + 100], call=[0, 20])
    assert rules.waits == ((Wait(1, 0, "event"),) if found else ())


def test_starting_once_before_the_other_ends_is_no_wait():
    kernel_end = spread(1, 200, 400)
    start = [100, kernel_end + 3]
    start[1][2] = kernel_end[2] - 30
    rules = inferred("ka", start, [kernel_end, kernel_end + 100], call=[0, 20])
    assert rules.waits == ()


def test_a_chance_coincidence_is_no_wait():
    """It starts right after its own launch, which on one rank of six is right after a kernel's end."""
    kernel_end = 200
    launched = kernel_end + np.array([4, 120, 150, 200, 260, 300])
    rules = inferred("ka", [100, launched + 6], [kernel_end, launched + 80], call=[0, launched])
    assert rules.waits == ()


def test_what_was_over_before_its_launch_explains_nothing():
    """It starts 7 µs later than usual after its launch, on three of six; a kernel ended 4 µs before that launch."""
    kernel_end = 200
    launched = kernel_end + 4
    start = launched + 5 + np.array([2, 2, 2, 9, 9, 9])
    first = 100
    rules = inferred("ka", [first, start], [kernel_end, start + 80], call=[0, launched])
    assert rules.waits == ()


def test_what_explains_too_few_of_the_late_starts_is_no_wait():
    """Two of six start right after the kernel, the others later, and nothing explains those."""
    kernel_end = 200
    start = kernel_end + np.array([3, 4, 90, 120, 150, 200])
    rules = inferred("ka", [100, start], [kernel_end, start + 50], call=[0, 9])
    assert rules.waits == ()
    start = kernel_end + np.array([3, 4, 5, 120, 150, 200])  # half of them are enough
    rules = inferred("ka", [100, start], [kernel_end, start + 50], call=[0, 9])
    assert rules.waits == (Wait(1, 0, "event"),)


@pytest.mark.parametrize(
    ("kernel_takes", "waits"), [(50, (Wait(1, 0, "event"), Wait(3, 2, "event"))), (600, (Wait(1, 0, "event"),))]
)
def test_a_collective_on_a_busy_stream_waits_as_another_of_its_channel(kernel_takes: float, waits: tuple[Wait, ...]):
    """The second one begins when the first one ends: after its kernel, unless that takes long on one rank."""
    kernel_end = spread(1, 200, 400)
    second_end = kernel_end + 50
    second_end[3] = kernel_end[3] + kernel_takes
    start = [100, kernel_end + 3, kernel_end, kernel_end + 504]
    end = [kernel_end, kernel_end + 503, second_end, kernel_end + 704]
    assert inferred("kaka", start, end, call=[0, 10, 20, 30]).waits == waits


@pytest.mark.parametrize(("words", "is_told"), [("ka", True), ("ku", True), ("kg", False), ("pk", True), ("gk", False)])
def test_one_wait_for_a_channel_or_for_what_is_received_shows_the_others(words: str, is_told: bool):
    """The first of three waits; the others begin when the one before ends. What is gathered may be so early.

    A reduction, or a collective without a name, waits for its kernel; a slow stage waits for its first message.
    """
    first_end = spread(1, 200, 400)
    start, end = [100, first_end + 3], [first_end, first_end + 1503]
    for _ in range(2):
        start += [end[-2] + 1, end[-1] + 4]
        end += [end[-2] + 50, end[-1] + 1504]
    waits = (Wait(1, 0, "event"), Wait(3, 2, "event"), Wait(5, 4, "event"))
    found = inferred(words * 3, start, end, call=[0, 10, 20, 30, 40, 50]).waits
    assert found == (waits if is_told else waits[:1])


@pytest.mark.parametrize(
    ("received_by", "waits"), [(150, (Wait(1, 0, "event"), Wait(3, 2, "event"))), (350, (Wait(3, 2, "event"),))]
)
def test_a_kernel_behind_a_late_host_waits_for_what_is_received_as_others_do(received_by: float, waits):
    """The first kernel starts when its host launches it: after what is received, unless that comes later to one."""
    received = np.full(RANKS, 150.0)
    received[3] = received_by
    second_end = spread(1, 700, 900)
    start = [100, 307, 600, second_end + 3]
    end = [received, 500, second_end, second_end + 100]
    assert inferred("akak", start, end, call=[0, 300, 310, 320], back=[5, 305, 315, 325]).waits == waits


def test_the_order_of_a_stream_is_no_wait():
    first = spread(3, 200, 300)
    rules = inferred("kk", [100, first + 1], [first, first + 50], call=[0, 10])
    assert rules.waits == ()
    assert rules.stream_ns == 1000.0


def test_a_busy_stream_that_is_slow_to_start_the_next_waits_for_nothing():
    """Between 1 and 15 µs: some are late after all that is known, and what is before them is of their own stream."""
    first = 200
    second = first + np.array([1, 1, 1, 9, 12, 15])
    start, end = [100, second], [first, second + 50]
    assert inferred("kk", start, end, call=[0, 10]).waits == ()


@pytest.mark.parametrize(("ahead", "found"), [(-6, True), (8, True), (19, True), (25, False)])
def test_a_call_that_waits_also_on_a_clock_that_is_off(ahead: float, found: bool):
    """The host's clock is ahead of the GPU's or behind: the call seems to return before what it waited for ends."""
    kernel_end = spread(5, 200, 400)
    start, end = [100, np.nan], [kernel_end, np.nan]
    rules = inferred("ks", start, end, call=[0, 30], back=[5, kernel_end - ahead])
    assert rules.waits == ((Wait(1, 0, "sync", provenance="recorded"),) if found else ())


def test_a_call_that_waits_in_few_steps_only():
    """A checkpoint's copy on one rank; the others' calls, as of a profiler that stops, take a while for nothing."""
    kernel_end = np.full(RANKS, 110.0)
    kernel_end[2] = 14_000
    back = np.where(kernel_end > 110, kernel_end + 4, 230)
    rules = inferred("ks", [100, np.nan], [kernel_end, np.nan], call=[0, 200], back=[5, back])
    assert rules.waits == (Wait(1, 0, "sync", provenance="recorded"),)


def test_a_wait_that_binds_in_one_step_only_of_many_ranks(monkeypatch: pytest.MonkeyPatch):
    """Of 160 samples of 32 ranks, five were each rank's: without the fourth step, all ranks' kernels were slow."""
    monkeypatch.setattr(run_rules, "_LIMITS", THRESHOLDS.dependencies._replace(sampled_cells=160))
    one, of_run = program("ka"), np.arange(32)
    steps = {}
    for number in range(10):
        kernel_end = np.random.default_rng(1).uniform(300, 400, 32).round() if number == 3 else np.full(32, 110.0)
        start = np.array([np.full(32, 100.0), np.maximum(kernel_end, 220) + 3]) * US
        end = np.array([kernel_end * US, start[1] + 100 * US])
        call = start * 0 + [[0], [210 * US]]
        steps[StepKey(None, number)] = start, end, call, call + 5 * US

    class Run:
        keys, programs, ahead = list(steps), {0: one}, 0

        def ranks(self, key: StepKey, team: int) -> list[int]:
            return of_run.tolist()

        def spread_ranks(self, team: int, most: int) -> np.ndarray:
            return np.isin(of_run, spread_positions(32, most))

        def step_times(self, key: StepKey, chosen: np.ndarray):
            row = np.where(chosen, 2 * (chosen.cumsum() - 1), -1)
            return step_of(*(times[:, chosen] for times in steps[key]))._replace(row=row)

        def team_times(self, key: StepKey, team: int):
            return of_team(step_of(*steps[key]), of_run, team, 2)

        def loading(self, key: StepKey, number: int) -> np.ndarray:
            return np.empty((2, 0))

    assert Wait(1, 0, "event") in run_rules.infer_rules(Run(), 0, list(steps)).waits


def test_what_the_step_before_left():
    """The first kernel was launched early, and starts when the last collective of the step before has ended."""
    left = spread(6, 300, 500)
    start = [left + 2, left + 60]
    lanes = [90, left]
    rules = inferred("ka", start, [left + 50, left + 100], call=[100, left + 50], left=lanes)
    assert rules.waits == (Wait(0, ~1, "event"),)


def test_one_of_several_collectives_that_the_step_before_left():
    """Layers wait for their own parameters only, which the step before gathers one after the other."""
    one, gathered = program("kaa"), spread(6, 300, 500)
    call, back = of_ranks([100, 110, 120]), of_ranks([105, 115, 125])
    before = of_ranks([-200, gathered - 100, gathered + 1]), of_ranks([-100, gathered, gathered + 700])
    step = of_ranks([gathered + 2, 1500, 1600]), of_ranks([gathered + 80, 1580, 1700])
    steps = SampledSteps(one, np.zeros(3, np.int64), RANKS)
    steps.follow(StepKey(None, 0), step_of(*before, call - 400 * US, back - 400 * US))
    steps.add(StepKey(None, 1), step_of(*step, call, back))
    assert infer(one, np.zeros(3, np.int64), *steps.sample()).waits == (Wait(0, 1, "event", steps_back=1),)


def test_of_two_only_what_mattered():
    """Kernels on two other streams: the one that is always long over by then explains nothing."""
    late, early = spread(7, 300, 400), 150
    start = [100, 100, late + 4]
    rules = inferred("kKa", start, [early, late, late + 50], call=[0, 0, 20])
    assert rules.waits == (Wait(2, 1, "event"),)


def test_both_where_each_was_the_last_somewhere():
    one, other = np.full(RANKS, 300.0), np.full(RANKS, 300.0)
    one[:3], other[3:] = 350.0, 390.0
    start = [100, 100, np.maximum(one, other) + 4]
    rules = inferred("kKa", start, [one, other, start[2] + 50], call=[0, 0, 20])
    assert {wait.on_op_index for wait in rules.waits} == {0, 1}


def test_the_latest_that_has_always_ended_is_awaited():
    """Of two kernels of a stream it waits for the second; of the first it would be true too."""
    second = spread(8, 300, 400)
    start = [50, 101, second + 3]
    rules = inferred("kka", start, [100, second, second + 50], call=[0, 1, 2])
    assert rules.waits == (Wait(2, 1, "event"),)


@pytest.mark.parametrize(
    ("call", "start", "end"),
    [
        ([0, 2, 900], [12, 302, 912], [300, 400, 950]),  # from a launch's return 7 µs, where only that held
        # the third kernel was launched 10 µs after the second ended, and the stream takes 2 µs: the launch held it
        ([0, 2, 310], [7, 302, 322], [300, 305, 400]),
    ],
)
def test_usual_times_to_a_start(call: list[int], start: list[int], end: list[int]):
    rules = inferred("kkk", start, end, call=call)
    assert (rules.launch_ns, rules.stream_ns) == (7 * US, 2 * US)


def test_only_what_surely_held_tells_the_usual_times():
    """Two thirds of the kernels were launched 5 µs after the end of the one before: either may have held them."""
    call = [0, 300, 400, 900]
    start = [12, 319, 419, 912]
    end = [300, 400, 500, 950]
    assert inferred("kkkk", start, end, call=call).launch_ns == 7 * US


def launched(places: int | None, count: int = 60, kernel: float = 40 * US, call: float = 5 * US) -> Launches:
    """A host that is ahead of its GPU: with so many places in the queue it waits for one of them."""
    now, free = 0.0, 0.0
    calls, backs, starts = [], [], []
    for _ in range(count):
        calls.append(now)
        now += call
        if places is not None and sum(start > now for start in starts) >= places:
            now = sorted(starts)[-places]
        backs.append(now)
        starts.append(max(now + 2 * US, free))
        free = starts[-1] + kernel
    return Launches(np.array(calls), np.array(backs), np.array(starts))


@pytest.mark.parametrize("places", [8, 16, 30])
def test_a_queue_that_was_full(places: int):
    assert queue_limit([launched(places)]) == places
    assert queue_limit([launched(places), launched(places, kernel=4 * US)]) == places


def test_none_is_seen_where_none_was_full():
    assert queue_limit([launched(None)]) is None
    assert queue_limit([launched(40, count=30)]) is None
    assert queue_limit([launched(16, kernel=4 * US)]) is None
    assert queue_limit([launched(7)]) is None  # so few that it may be the host's own pace
    assert queue_limit([]) is None
    nothing = np.empty(0)
    assert queue_limit([Launches(nothing, nothing, nothing)]) is None


def test_long_calls_that_end_when_no_place_became_free():
    """Five calls are long for a reason of their own while the GPU is busy with one kernel."""
    call = np.arange(20) * 10 * US
    call[15:] += np.arange(5) * 500 * US
    back = call + 5 * US
    back[15:] += 400 * US
    start = np.full(20, 1e9)
    assert queue_limit([Launches(call, back, start)]) is None
    freed = np.full(20, 1e9)
    freed[:5] = back[15:] - 3 * US  # as soon as one has started, one more may go in
    assert queue_limit([Launches(call, back, freed)]) == 15
