"""Ranks of which a part of the recording is lost: the answers hold for what is left."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from jitter.analysis.detection.measured_run import measure_periods
from jitter.api import Lake
from jitter.core.step_key import StepKey
from jitter.report.json_report import render_json
from jitter.report.page import render_html
from jitter.report.views.run_overview import build_run_overview
from jitter.simulate import Fault, Run, simulate
from tests.support.real_recordings import TRACES, needs_traces
from tests.support.recorded_events import list_events, open_ranges, remove_events
from tests.support.simulated import PartialRun, ingest_partial_run, ingest_traces, small, true_gain_ns, write_traces

STEPS = 4
SLOW = Fault.parse("slow_gpu:rank=2,factor=1.6")


def lake_of(
    run: Run, folder: Path, sees: Callable[[int, int], bool], lose: Callable[[list[Path]], None], form: str = "kineto"
) -> Lake:
    """Return the lake of what profilers saw of a run, after `lose` took more from the traces, which are in order."""
    partial = PartialRun(run, frozenset(), sees)
    lose(write_traces(partial, folder / "in", form))  # type: ignore[arg-type]
    return ingest_traces(folder, folder / "in")


def lose_kernels(trace: Path, which: Callable[[int], bool]) -> None:
    """Remove kernels, counted from the recording's first, and not their launches: their steps are cut."""
    starts = sorted(event.start_ns for event in list_events([trace]) if event.table == "kernel")
    lost = {start for number, start in enumerate(starts) if which(number)}
    remove_events([trace], lambda event: event.table == "kernel" and event.start_ns in lost)


def test_a_rank_whose_only_step_is_cut_stays_with_its_peers(tmp_path: Path):
    """Its lost kernel is the step's first collective: that must not shift which collectives meet afterwards."""
    run = simulate(small("tensor_parallel", steps=STEPS), [SLOW])
    whole = ingest_partial_run(run, tmp_path / "whole").diagnose()
    first = next(n for n, one in enumerate(run.plan.programs[0].step) if one.kind == "collective")
    at = sum(one.kind != "memory" for one in run.plan.programs[0].step[:first])

    lake = lake_of(
        run,
        tmp_path,
        lambda rank, step: rank != 1 or step == STEPS - 1,
        lambda traces: lose_kernels(traces[1], lambda number: number == at),
    )
    last = lake.step_keys[-1]
    assert [(rank, lake.record_of(last, rank).step.cut) for rank in lake.ranks_of(last)] == [
        (0, False), (1, True), (2, False), (3, False),
    ]  # fmt: skip
    run_model = lake.analyze().run
    assert len(set(run_model.team_of.values())) == 1
    assert {len({place for _, place in members}) for members in run_model.matching.members} == {1}
    found = lake.diagnose()
    assert [(one.ranks, one.cause) for one in found.culprits] == [((2,), "gpu_compute")]
    assert found.loss.ns == pytest.approx(whole.loss.ns, rel=0.05)


def test_ranks_that_lack_the_last_step_after_a_cut_one(tmp_path: Path):
    """Ranks 1 and 3 recorded one step, cut after its last collective; ranks 0 and 2 one more."""
    run = simulate(small(steps=3), [SLOW])

    def cut(traces: list[Path]) -> None:
        for rank in (1, 3):
            kernels = sum(event.table == "kernel" for event in list_events([traces[rank]]))
            lose_kernels(traces[rank], lambda number, last=kernels - 1: number == last)

    lake = lake_of(run, tmp_path, lambda rank, step: rank % 2 == 0 or step == 1, cut)
    assert [lake.record_of(key, 1).step.cut for key in lake.step_keys if 1 in lake.ranks_of(key)] == [True]
    analysis = lake.analyze()
    assert sorted(analysis.run.matching.ranks.tolist()) == [0, 1, 2, 3]
    found = lake.diagnose()
    assert {step.key for step in found.steps} == set(lake.step_keys)
    assert not {rank for one in found.culprits if one.confidence != "low" for rank in one.ranks} - {2}


def test_an_nsys_export_whose_ranges_have_no_end(tmp_path: Path):
    def lose(traces: list[Path]) -> None:
        open_ranges(traces[2], lambda _: True)

    run = simulate(small(marker="talk", epoch=1, steps=3), [SLOW])
    lake = lake_of(run, tmp_path, lambda *_: True, lose, "nsys")
    assert all(lake.record_of(key, 2).step.cut for key in lake.step_keys)
    found = lake.diagnose()
    assert len(found.steps) == 3
    assert not {rank for one in found.culprits if one.confidence != "low" for rank in one.ranks} - {2}


@pytest.mark.parametrize("shape", ["data_parallel", "sharded", "expert"])
def test_ranks_that_join_bring_no_wait_for_what_is_not_recorded(tmp_path: Path, shape: str):
    """The host runs ahead of the GPU: the first kernel of a rank that joins waits for kernels of an earlier step."""
    run = simulate(small(shape, steps=STEPS))
    lake = ingest_partial_run(run, tmp_path, sees=lambda rank, step: rank == 2 or step == STEPS - 1)
    found = lake.diagnose()
    assert 0 <= (found.loss.fraction or 0.0) < 0.05
    assert found.culprits == ()


def test_the_baseline_of_a_collective_that_no_step_has_whole(tmp_path: Path):
    """Rank 1 lost the same collective in every step, so its usual time is what the other ranks recorded."""
    run = simulate(small(steps=3))
    kernels = run.plan.programs[0].kernels
    at = next(n for n, one in enumerate(o for o in run.plan.programs[0].step if o.kind != "memory")
              if one.kind == "collective")  # fmt: skip

    def lose(traces: list[Path]) -> None:
        for trace in traces[:2]:
            lose_kernels(trace, lambda number: (number - run.job.warmup_kernels) % kernels == at)

    lake = lake_of(run, tmp_path, lambda *_: True, lose)
    analysis = lake.analyze()
    assert not np.isnan(analysis.transfers.baseline).any()
    assert not any(np.isnan(account.losses.loss_ns).any() for account in analysis.account.of_steps)
    render_json(lake.diagnose(), build_run_overview(lake, lake.step_keys))
    render_html(lake)


@needs_traces
def test_the_page_of_two_ranks_of_a_real_job(tmp_path: Path):
    assert "<html" in render_html(ingest_traces(tmp_path, TRACES / "kineto" / "hta" / "sampled-pair"))


def test_a_transfer_takes_no_longer_than_recorded_where_ranks_lack_the_step(tmp_path: Path):
    """In step 0 both recorded ranks wait for rank 2, which recorded nothing, and in step 1 rank 0 is alone."""
    run = simulate(small("tensor_parallel", ranks=3, steps=2), [Fault.parse("slow_gpu:rank=2,step=0,factor=2")])
    lake = ingest_partial_run(run, tmp_path, absent=frozenset({2}), sees=lambda rank, step: rank == 0 or step == 0)
    loss = lake.diagnose().loss
    assert loss.ns is not None
    assert loss.ns >= 0


def test_a_step_that_ends_before_the_one_before_it_has_no_time():
    ends_ns = np.array([[100.0, 100.0], [90.0, 150.0], [80.0, np.nan], [900.0, 900.0]])
    keys = [StepKey(None, number) for number in (1, 2, 3, 5)]  # step 4 is missing
    np.testing.assert_array_equal(measure_periods(ends_ns, keys), [np.nan, 50, np.nan, np.nan])


def test_no_loss_is_told_where_the_replay_contradicts_the_recording(tmp_path: Path):
    """With every rank at the median speed the steps take longer: what waited for what is not known."""
    lake = ingest_partial_run(simulate(small(steps=STEPS), [SLOW]), tmp_path)
    analysis = lake.analyze()
    loss_ns = analysis.account.loss_ns
    assert not analysis.account.contradicts_recording
    del analysis.account.contradicts_recording
    analysis.account.loss_ns = -loss_ns
    found = lake.diagnose()
    assert analysis.account.contradicts_recording
    assert found.loss.ns is None
    assert {step.loss_ns for step in found.steps} == {None}
    assert {one.confidence for one in found.culprits} <= {"low"}
    assert found.verdict.startswith("The cost of jitter is unknown")
    assert any("would take longer than recorded" in doubt for doubt in found.conclusion.doubts)
    assert found.conclusion.cleared == ()


def test_stages_that_recorded_other_steps_have_a_diagnosis(tmp_path: Path):
    """No step follows another, and in each a team has no rank."""
    run = simulate(small("pipeline", steps=STEPS), [])
    lake = ingest_partial_run(run, tmp_path, sees=lambda rank, step: step == (1 if rank < 2 else 3))
    assert len(lake.diagnose().steps) == 2


def test_what_one_rank_alone_recorded_of_a_message_is_no_slow_communication(tmp_path: Path):
    """Each stage recorded every other step: in step 4 the first one waits for the second one, which is slow unseen."""
    slow = Fault.parse("slow_gpu:rank=2-3,steps=4,factor=2")
    run = simulate(small("pipeline", ranks=4, stages=2, steps=8), [slow])
    found = ingest_partial_run(run, tmp_path, sees=lambda rank, step: step % 2 == rank // 2).diagnose()
    assert (found.culprits, found.conclusion.cleared) == ((), ())
    assert (found.loss.fraction or 0) < 0.01


@pytest.mark.parametrize(
    ("table", "every", "least"),
    [
        ("kernel", 3, 0.95),
        ("cuda_runtime", 2, 0.95),
        # what waits for what is known in part, and then so little that the price is unknown
        ("cuda_runtime", 3, 0.4),
        ("cuda_runtime", 4, None),
    ],
)
def test_events_that_one_rank_lost_cost_nothing_and_are_told(
    tmp_path: Path, table: str, every: int, least: float | None
):
    """Kernels, or launches: what is left does not tell what is usual of the only other rank of its stage."""
    run = simulate(small("pipeline", ranks=8, steps=6), [SLOW])

    def lose(traces: list[Path]) -> None:
        starts = sorted(event.start_ns for event in list_events([traces[7]]) if event.table == table)
        gone = set(starts[::every])
        remove_events([traces[7]], lambda event: event.table == table and event.start_ns in gone)

    found, gain_ns = lake_of(run, tmp_path, lambda *_: True, lose).diagnose(), true_gain_ns(run, SLOW)
    (culprit,) = found.culprits
    assert (culprit.ranks, culprit.cause) == ((2,), "gpu_compute")
    assert any(doubt.startswith("Rank 7: more than 5% of the kernels or launches") for doubt in found.conclusion.doubts)
    if table == "kernel":
        assert found.loss.ns == pytest.approx(gain_ns, rel=0.2)
        assert culprit.gain_ns == pytest.approx(gain_ns, rel=0.05)
    elif least is None:
        assert culprit.confidence == "low"
        assert culprit.unpriced_because == "launches or kernels are missing in the recordings of rank 7"
    else:
        assert least * gain_ns <= culprit.gain_ns <= 1.05 * gain_ns


def test_a_capture_that_ends_within_a_step_puts_no_other_step_in_doubt(tmp_path: Path):
    run = simulate(small("data_parallel", steps=6), [SLOW])

    def end(traces: list[Path]) -> None:
        for trace in traces:
            starts = sorted(event.start_ns for event in list_events([trace]) if event.table == "kernel")
            last = starts[-len(starts) // 12]  # in the middle of the last step
            remove_events([trace], lambda event, last=last: event.table == "kernel" and event.start_ns > last)

    found = lake_of(run, tmp_path, lambda *_: True, end).diagnose()
    (culprit,) = found.culprits
    assert (culprit.ranks, culprit.cause, culprit.confidence) == ((2,), "gpu_compute", "high")
    assert not any("were not recorded" in doubt for doubt in found.conclusion.doubts)


def test_lost_kernels_that_no_rank_waits_for_make_no_price_a_range(tmp_path: Path):
    """Each third one that computes: when the rank came to its collectives is known."""
    run = simulate(small("pipeline", ranks=8, steps=6), [SLOW])

    def lose(traces: list[Path]) -> None:
        document = json.loads(traces[7].read_text())
        computing = [one for one in document["traceEvents"] if one.get("cat") == "kernel" and "nccl" not in one["name"]]
        gone = set(map(id, computing[::3]))
        document["traceEvents"] = [one for one in document["traceEvents"] if id(one) not in gone]
        traces[7].write_text(json.dumps(document))

    found = lake_of(run, tmp_path, lambda *_: True, lose).diagnose()
    (culprit,) = found.culprits
    assert culprit.gain_ns == pytest.approx(true_gain_ns(run, SLOW), rel=0.05)
    assert culprit.gain_range_ns is None
    assert any(doubt.startswith("Rank 7: more than 5% of the kernels or launches") for doubt in found.conclusion.doubts)


@pytest.mark.parametrize(
    ("ran", "told"),
    [
        ((12, 12, 3, 12), "it waits for rank 2."),
        ((12, 3, 3, 12, 12), "it waits for one of ranks 1-2."),
        ((12, 11, 3, 10), None),
        ((12, 12, 12, 12), None),
    ],
)
def test_of_a_step_that_no_rank_ended_the_rank_that_got_least_far_is_told(
    tmp_path: Path, ran: tuple[int, ...], told: str | None
):
    def cut(traces: list[Path]) -> None:
        for trace, kernels in zip(traces, ran, strict=True):
            events = list_events([trace])
            ranges = [event for event in events if event.table == "user_annotation"]
            longest = sorted(ranges, key=lambda event: event.end_ns - event.start_ns)[-STEPS:]
            began = max(event.start_ns for event in longest)
            started = sorted(event.start_ns for event in events if event.table == "kernel" and event.start_ns > began)
            later = {began, *started[kernels:]}
            remove_events([trace], lambda event, later=later: event.start_ns in later)  # type: ignore[misc]

    run = simulate(small(ranks=len(ran), steps=STEPS))
    notes = lake_of(run, tmp_path, lambda *_: True, cut).diagnose().notes
    assert [told in note for note in notes if "Outside every step" in note] == ([] if told is None else [True])
