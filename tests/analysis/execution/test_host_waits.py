"""Waits of the host that no call records: found where calls follow an end, and nowhere else."""

import numpy as np
import pytest

from jitter.analysis.alignment.program import Operation, Program
from jitter.analysis.execution.host_waits import HostSample, HostWaits, find_host_waits
from jitter.core.names.kernels import COMPUTE

US = 1_000.0
RANKS, STEPS, KERNELS = 4, 10, 6
CELLS = RANKS * STEPS
WAITING = 3


def waits_in(since: np.ndarray, until: np.ndarray, ends: np.ndarray) -> HostWaits:
    """Find the waits in (ranks, steps, kernels) times of hosts, and ends on their GPUs."""
    before = np.full_like(ends, np.nan)
    before[:, 1:] = ends[:, :-1]
    since, until, ends, before = (values.reshape(-1, KERNELS) for values in (since, until, ends, before))
    operations = tuple(Operation(f"kernel_{at}", COMPUTE, 0, 0) for at in range(KERNELS))
    program = Program(operations, {("", ()): np.arange(KERNELS)}, ("", ()))  # type: ignore[dict-item,arg-type]
    steps = len(since) // RANKS
    rank_of, step_of = np.repeat(np.arange(RANKS), steps), np.tile(np.arange(steps), RANKS)
    sample = HostSample(since, until, (ends, before), {}, rank_of, step_of, np.zeros_like(since))
    return find_host_waits(program, frozenset(), sample)


def sampled(
    gap_us: np.ndarray, gpu_us: np.ndarray, *, waits_for: int | None = None, pace_us: float = 0.0, steps: int = STEPS
) -> HostWaits:
    """A host that launches six kernels, 5 µs each, with a gap before the fourth; cells are rank by rank.

    `gap_us` (cells,) is its own time there, after a wait for the end of the kernel `waits_for`; `gpu_us` (cells,
    kernels) the durations. With a pace, it launches that kernel no earlier than each multiple of it. The waits are
    inferred from the first `steps`.
    """
    since, until, ends = np.full((3, RANKS, STEPS, KERNELS), np.nan)
    for rank in range(RANKS):
        host = gpu = 0.0
        for step in range(STEPS):
            cell, at = rank * STEPS + step, (rank, step)
            for op in range(KERNELS):
                since[*at, op] = host
                if op == WAITING:
                    host = max(host, ends[*at, waits_for] if waits_for is not None else host) + gap_us[cell] * US
                    host = max(host, (step + 1) * pace_us * US)
                else:
                    host += 2 * US
                until[*at, op] = host
                host += 5 * US
                gpu = max(gpu, host) + gpu_us[cell, op] * US
                ends[*at, op] = gpu
    return waits_in(*(values[:, :steps] for values in (since, until, ends)))


def uniform(seed: int, low: float, high: float, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).uniform(low, high, shape or (CELLS,))


def test_a_wait_for_an_end_of_the_step():
    found = sampled(uniform(1, 8, 12), uniform(2, 50, 150, CELLS, KERNELS), waits_for=1)
    (wait,) = found.waits
    assert wait[:5] == (WAITING, 1, "sync", 0, "inferred")
    assert wait.spread_ns is not None
    assert wait.gap_spread_ns is not None
    assert wait.spread_ns < 5 * US < wait.gap_spread_ns
    assert found.unexplained == 0
    # it binds in every step: the host may have worked, as long as the GPU did, before it waited
    assert found.host_lead_ns == {WAITING: 0.0}
    assert found.bound_lead_ns[WAITING] > 20 * US


def test_a_wait_that_binds_at_times_shows_the_hosts_own_time():
    gpu = uniform(3, 5, 15, CELLS, KERNELS)
    gpu[::3, 1] += 400  # else the GPU is done before the host comes
    found = sampled(uniform(4, 58, 62), gpu, waits_for=1)
    assert [wait[:4] for wait in found.waits] == [(WAITING, 1, "sync", 0)]


@pytest.mark.parametrize("pace_us", [0.0, 900.0])
def test_no_wait_is_invented_where_the_host_is_slow_or_paced(pace_us: float):
    """The GPU is done within the gap, at a time that does not move the next launch."""
    found = sampled(uniform(5, 300, 600), uniform(6, 10, 40, CELLS, KERNELS), pace_us=pace_us)
    assert found.waits == ()
    assert found.host_lead_ns == {}


def test_a_gap_that_does_not_move_with_any_end_is_the_hosts_own():
    found = sampled(uniform(7, 395, 405), uniform(8, 10, 100, CELLS, KERNELS))
    assert found == HostWaits((), {}, (), {}, 0.0)


def test_a_few_calls_prove_a_wait_that_fits_much_better():
    """Twelve calls within 2 µs of an end, after gaps that vary by 300 µs."""
    gap, gpu = uniform(9, 8, 12), uniform(10, 50, 150, CELLS, KERNELS)
    assert [wait[:4] for wait in sampled(gap, gpu, waits_for=1, steps=3).waits] == [(WAITING, 1, "sync", 0)]


def test_one_step_of_four_ranks_proves_no_wait_but_rules_none_out():
    found = sampled(uniform(9, 8, 12), uniform(10, 50, 150, CELLS, KERNELS), waits_for=1, steps=1)
    assert found.waits == ()
    assert [wait[:4] for wait in found.bound_waits] == [(WAITING, 1, "sync", 0)]


def test_a_few_calls_do_not_prove_a_wait_that_fits_little_better():
    """Gaps that may be waits make prices a range, and count as unexplained."""
    short = sampled(uniform(9, 8, 400), uniform(10, 50, 150, CELLS, KERNELS), waits_for=1, steps=3)
    assert short.waits == ()
    assert [wait.op_index for wait in short.bound_waits] == [WAITING]
    assert short.unexplained > 0.1


def test_a_host_waits_for_no_kernel_that_has_ended():
    """Gaps of 100 to 400 µs of a host that launches too slowly: its kernels take 3 µs."""
    found = sampled(uniform(9, 100, 400), uniform(10, 2, 3, CELLS, KERNELS))
    assert found.waits == ()
    assert found.unexplained < 0.05


def test_calls_right_after_an_end_wait_for_it_though_no_gap_varies():
    """The host has work of 40 µs in a gap of 4 ms, the GPU of a run without noise decides the rest: as soon after the
    end in every step, a call is no accident.
    """
    gap, gpu = uniform(11, 39, 41), uniform(12, 1_999, 2_001, CELLS, KERNELS)
    found = sampled(gap, gpu, waits_for=1, steps=4)
    assert [wait[:4] for wait in found.waits] == [(WAITING, 1, "sync", 0)]
    assert sampled(uniform(13, 3_999, 4_001), uniform(14, 9, 11, CELLS, KERNELS), steps=4).waits == ()


@pytest.mark.parametrize("seed", [2, 5])
def test_ends_right_after_each_other_are_one_choice(seed: int):
    """Three kernels end within a few microseconds: as three independent choices they would ask for more calls."""
    gpu = uniform(seed, 2, 3, CELLS, KERNELS)
    gpu[:, 0] = uniform(seed + 50, 50, 250)
    found = sampled(uniform(seed + 99, 80, 320), gpu, waits_for=2, steps=6)
    assert [wait[:5] for wait in found.waits] == [(WAITING, 2, "sync", 0, "inferred")]


def sampled_with_checks(*, every: int, steps: int, waits: bool = True) -> HostWaits:
    """A host, ahead of its GPU, that in each `every`th step launches a kernel more and, if it `waits`, waits for it."""
    rng = np.random.default_rng(every)
    since, until, ends = np.full((3, RANKS, steps, KERNELS), np.nan)
    for rank in range(RANKS):
        host = gpu = back = 0.0
        for step in range(steps):
            is_check = step % every == every - 1
            for op in range(KERNELS if is_check else KERNELS - 1):
                host += rng.uniform(1, 3) * US
                since[rank, step, op], until[rank, step, op] = back, host
                host = back = host + 5 * US
                gpu = max(gpu, host) + rng.uniform(90, 160) * US
                ends[rank, step, op] = gpu
            if is_check:
                host = gpu if waits else host + rng.uniform(200, 900) * US
    return waits_in(since, until, ends)


@pytest.mark.parametrize(("every", "steps"), [(2, 8), (3, 12), (5, 20)])
def test_a_wait_after_steps_that_run_more(every: int, steps: int):
    """A validation pass, a checkpoint, a logged value: the steps after others begin while the GPU is busy."""
    found = sampled_with_checks(every=every, steps=steps)
    assert [wait[:5] for wait in found.waits] == [(0, KERNELS - 1, "sync", 1, "inferred")]
    assert found.unexplained == 0


def test_a_wait_after_one_step_that_runs_more_is_possible():
    found = sampled_with_checks(every=3, steps=6)
    assert found.waits == ()
    assert (0, KERNELS - 1, "sync", 1) in [wait[:4] for wait in found.bound_waits]


@pytest.mark.parametrize("every", [2, 3])
def test_no_wait_is_invented_where_the_host_is_slow_after_steps_that_run_more(every: int):
    assert sampled_with_checks(every=every, steps=4 * every, waits=False).waits == ()
