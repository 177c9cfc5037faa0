"""What was not recorded: ranks, the partners of exchanges, the waits of hosts, steps that ranks have in common."""

import json
import random
import shutil
from itertools import product
from pathlib import Path

import numpy as np
import pytest

import jitter
from jitter.analysis.detection.run_analysis import PARTNERS, UNRECORDED, UNRECORDED_PARTNERS, Pricing
from jitter.analysis.diagnosis.causes import find_cause
from jitter.analysis.diagnosis.verdict import describe_advice
from jitter.analysis.execution.self_times import TimePart
from jitter.analysis.replay.what_if import Scenario
from jitter.core.names.kernels import COLLECTIVE
from jitter.report.json_report import report_document
from jitter.report.views.run_overview import build_run_overview
from jitter.simulate import Fault, Job, Run, simulate, write
from tests.support.databases import run_sql
from tests.support.findings import evidence_of
from tests.support.fuzz_depth import fuzz, some_of
from tests.support.printed import output_of
from tests.support.recorded_events import remove_events
from tests.support.simulated import (
    ingest_partial_run,
    ingest_run,
    ingest_traces,
    run_ns,
    small,
    true_gain_ns,
    write_traces,
)

LATE = "cpu_stall:rank=3,step=3,kernel=20,ms=6"


def lake_without(run: Run, rank: int, folder: Path) -> "jitter.Lake":
    traces = folder / "traces"
    for path in write(run, traces, "kineto"):
        if path.name.startswith(f"rank-{rank}."):
            path.unlink()
    found = ingest_traces(folder, traces)
    assert rank not in found.ranks
    return found


@pytest.mark.parametrize("fault", [LATE, "slow_gpu:rank=3,factor=1.3"])
def test_the_recorded_ranks_wait_for_one_that_was_not(tmp_path: Path, fault: str):
    run = simulate(Job(ranks=8, steps=6, kernels=300, seed=3), [Fault.parse(fault)])
    found = lake_without(run, 3, tmp_path).diagnose()
    (culprit,) = found.culprits
    assert (culprit.scope, culprit.ranks, culprit.cause, culprit.confidence) == (
        "unrecorded",
        (3,),
        "communication",
        "low",
    )
    assert 0 < culprit.gain_ns <= 1.1 * true_gain_ns(run)
    assert "An unrecorded rank or the network holds up the recorded ranks" in found.verdict


@pytest.mark.parametrize("is_alone", [True, False])
def test_what_a_slow_gpu_costs_is_unknown_without_the_ranks_that_wait_for_it(tmp_path: Path, *, is_alone: bool):
    """One rank of each tensor group was recorded: the others waited for their partners as long as it was late."""
    fault = Fault.parse("slow_gpu:rank=12,factor=1.15")
    run = simulate(small("tensor_data", ranks=32, tensor=4, steps=8, kernels=100), [fault])
    recorded = range(0, 32, 4) if is_alone else range(8, 16)
    evidence = evidence_of(ingest_partial_run(run, tmp_path, absent=frozenset(range(32)) - frozenset(recorded)))
    assert evidence.analysis.run.lone_ranks == (frozenset(recorded) if is_alone else frozenset())
    (slow,) = (one for one in evidence.analysis.candidates if one.kind == "late_rank")
    assert (slow.ranks, slow.part) == ((12,), TimePart.GPU)
    assert evidence.pricing.unpriced_ns(slow) == (slow.excess_ns if is_alone else 0)
    assert (evidence.pricing.unpriced_because == UNRECORDED_PARTNERS) == is_alone


def test_groups_of_one_recorded_rank_wait_for_one_that_was_not(tmp_path: Path):
    """Ranks 4 to 7 were not recorded. Rank 5 stalls: its tensor group waits for it, and each recorded rank's pair."""
    stall = Fault.parse("cpu_stall:rank=5,steps=3+5,kernel=20,ms=6")
    job = small("tensor_data", ranks=8, tensor=4, steps=8, kernels=100, syncs=frozenset({"after"}))
    run = simulate(job, [stall])
    (culprit,) = ingest_partial_run(run, tmp_path, absent=frozenset({4, 5, 6, 7})).diagnose().culprits
    assert (culprit.scope, culprit.ranks, culprit.confidence) == ("unrecorded", (4, 5, 6, 7), "low")
    assert culprit.gain_ns == pytest.approx(true_gain_ns(run, stall), rel=0.1)


def test_the_only_recorded_rank_waits_for_one_that_was_not(tmp_path: Path):
    stall = Fault.parse("cpu_stall:rank=5,steps=4,kernel=20,ms=6")
    run = simulate(small(ranks=8, steps=8, kernels=100), [stall])
    others = frozenset(range(1, 8))
    (culprit,) = ingest_partial_run(run, tmp_path, absent=others).diagnose().culprits
    assert (culprit.scope, culprit.ranks, culprit.recurs) == ("unrecorded", tuple(sorted(others)), "unknown")
    assert [key.step for key in culprit.steps] == [4]
    assert culprit.gain_ns == pytest.approx(true_gain_ns(run, stall), rel=0.1)
    assert not any("no other group" in sentence for sentence in culprit.evidence)


def test_the_only_recorded_rank_of_unknown_groups_waits_for_one_that_was_not(tmp_path: Path):
    stall = Fault.parse("cpu_stall:rank=5,steps=4,kernel=20,ms=6")
    run = simulate(small(ranks=8, steps=8, kernels=100), [stall])
    traces = tmp_path / "traces"
    for path in write(run, traces, "nsys"):
        if path.name != "rank0.sqlite":
            path.unlink()
    (culprit,) = [one for one in ingest_traces(tmp_path, traces).diagnose().culprits if one.rung == "ranks"]
    assert (culprit.scope, culprit.cause, culprit.recurs) == ("unrecorded", "communication", "unknown")
    assert [key.step for key in culprit.steps] == [4]
    assert culprit.gain_ns == pytest.approx(true_gain_ns(run, stall), rel=0.1)


def test_ranks_that_wait_in_every_step_will_wait_again(tmp_path: Path):
    """Rank 5 of the second tensor group is slow; of each group the first rank was recorded."""
    slow = Fault.parse("slow_gpu:rank=5,factor=1.3")
    run = simulate(small("tensor_data", ranks=8, tensor=4, steps=8, kernels=100), [slow])
    (culprit,) = ingest_partial_run(run, tmp_path, absent=frozenset({1, 2, 3, 5, 6, 7})).diagnose().culprits
    assert (culprit.scope, culprit.recurs, len(culprit.steps)) == ("unrecorded", "yes", 8)


def test_a_rank_that_is_late_wherever_it_was_recorded_is_named_where_it_was_not(tmp_path: Path):
    """Rank 5 is slow in all steps, and recorded three of them; the other ranks wait for it in the other five.

    What a transfer usually takes is what it takes where no member is missing, also if that is in few steps.
    """
    slow = Fault.parse("slow_gpu:rank=5,factor=1.3")
    run = simulate(small(ranks=8, steps=8), [slow])
    first, *_ = run.job.step_numbers
    found = ingest_partial_run(run, tmp_path, sees=lambda rank, step: rank != 5 or step < first + 3).diagnose()
    absent, late = found.culprits
    assert (absent.scope, absent.ranks, late.ranks, late.recurs) == ("unrecorded", (5,), (5,), "yes")
    assert absent.loss_ns > late.loss_ns
    assert found.what_if.culprits_repaired_ns == pytest.approx(true_gain_ns(run, slow), rel=0.05)
    assert found.headline == late
    assert "%). Rank 5 executes the same kernels more slowly" in found.verdict
    assert "mend rank 5 first" in describe_advice(absent)


@pytest.mark.parametrize("slow", [True, False])
def test_two_steps_of_a_rank_show_that_it_is_slow_and_what_the_others_wait_for(tmp_path: Path, *, slow: bool):
    """Rank 5 recorded two of ten steps: too few for a usual time of its own, or of transfers with all members."""
    faults = [Fault.parse("slow_gpu:rank=5,factor=1.2")] * slow
    run = simulate(small(ranks=8, steps=10), faults)
    recorded = run.job.step_numbers[4:6]
    found = ingest_partial_run(run, tmp_path, sees=lambda rank, step: rank != 5 or step in recorded).diagnose()
    if slow:
        absent, late = found.culprits
        assert (absent.scope, absent.ranks, late.scope, late.ranks) == ("unrecorded", (5,), "rank", (5,))
        assert (late.cause, late.confidence) == ("gpu_compute", "high")
        assert found.what_if.all_repaired_ns == pytest.approx(true_gain_ns(run, *faults), rel=0.1)
        assert "mend rank 5 first" in describe_advice(absent)
    else:
        assert found.culprits == ()


@pytest.mark.parametrize("rank", [3, 7])
def test_no_rank_is_cleared_where_one_is_missing(tmp_path: Path, rank: int):
    found = lake_without(simulate(small(ranks=8, steps=5)), rank, tmp_path).diagnose()
    assert found.culprits == ()
    said = f"Rank {rank} of the job was not recorded: waiting for it may cost up to "
    assert said in found.verdict
    of_jitter, _, _ = found.verdict.partition(" All recorded ranks wait for their GPUs")
    assert of_jitter.endswith("%), the time in collectives after the last recorded rank arrives.")
    assert "no rank, host or link" not in found.verdict
    assert [note for note in found.notes if note.startswith(said)]


def test_a_recording_of_unknown_rank_may_be_that_of_the_late_one(tmp_path: Path):
    """Nothing states the number of ranks, and the groups were not recorded."""
    run = simulate(small(ranks=8, steps=6, marker="profiler"), [Fault.parse("slow_gpu:rank=7,factor=1.3")])
    for path in write(run, tmp_path / "traces", "nsys"):
        run_sql(path, "delete from TARGET_INFO_SYSTEM_ENV where name = 'DeviceEnvironment'")
        if path.name == "rank7.sqlite":
            path.rename(path.with_name("odd.sqlite"))
    lake = ingest_traces(tmp_path, tmp_path / "traces", rejected=1)
    assert [record.left_out_because for record in lake.rejected] == ["unknown rank"]
    found = lake.diagnose()
    assert found.conclusion.cleared == ()
    assert "1 recording of unknown rank was left out: waiting for" in found.verdict
    assert "no rank, host or link" not in found.verdict
    missing = found.conclusion.unrecorded
    assert missing is not None
    assert missing.unplaced == 1
    assert missing.at_most_ns >= true_gain_ns(run)


@fuzz
@pytest.mark.parametrize(
    ("fault", "ranks"),
    some_of(product(["cpu_stall:rank=1,step=3-4,kernel=17,ms=5", "slow_gpu:rank=1,step=3-4,factor=1.5"], [2, 3, 8]), 2),
)
def test_steps_that_the_late_rank_lacks_are_not_blamed_on_the_network(tmp_path: Path, ranks: int, fault: str):
    run = simulate(Job(ranks=ranks, steps=6, kernels=60, seed=5), [Fault.parse(fault)])
    found = ingest_partial_run(run, tmp_path, sees=lambda rank, step: rank != 1 or step not in (3, 4)).diagnose()
    (culprit,) = found.culprits
    assert (culprit.scope, culprit.ranks, culprit.confidence) == ("unrecorded", (1,), "low")
    assert [key.step for key in culprit.steps] == [3, 4]
    assert "(rank 1), or for the network" in culprit.evidence[-1]
    assert culprit.gain_ns == pytest.approx(true_gain_ns(run), rel=0.1)


def test_groups_side_by_side_count_once_where_a_rank_lacks_the_slow_step(tmp_path: Path):
    """The excess is that of the rank which its collectives keep longest, not the sum over all groups."""
    slow = Fault.parse("slow_collective:step=5,factor=5")
    run = simulate(
        Job(ranks=4, steps=6, kernels=248, seed=5, shape="tensor_data", tensor=2),
        [slow, Fault.parse("slow_gpu:rank=1,step=5,factor=1.3")],
    )
    found = ingest_partial_run(run, tmp_path, sees=lambda rank, step: (rank, step) != (0, 5)).diagnose()
    waiting, late = found.culprits
    assert (waiting.scope, waiting.ranks, late.ranks) == ("unrecorded", (0,), (1,))
    assert waiting.gain_ns == pytest.approx(true_gain_ns(run, slow), rel=0.05)


def test_steps_that_one_rank_lacks_may_be_slow_by_the_network(tmp_path: Path):
    """All groups are slow in steps 2 to 4; one rank lacks one of these steps."""
    run = simulate(Job(ranks=8, steps=10, kernels=60, seed=5), [Fault.parse("slow_collective:step=2-4,factor=6")])
    found = ingest_partial_run(run, tmp_path, sees=lambda rank, step: (rank, step) != (1, 3)).diagnose()
    (culprit,) = found.culprits
    assert (culprit.scope, culprit.cause) == ("job", "communication")
    assert [key.step for key in culprit.steps] == [2, 3, 4]


@fuzz
@pytest.mark.parametrize(
    ("shape", "form", "fault"),
    some_of(
        product(
            ["data_parallel", "tensor_parallel", "sharded"],
            ["kineto", "nsys"],
            ["slow_gpu:rank=6,factor=1.4", "cpu_stall:rank=6,kernel=20,ms=2", None],
        ),
        5,
    ),
)
def test_what_unrecorded_ranks_cost_is_bounded(tmp_path: Path, shape: str, form: str, fault: str | None):
    """Three of eight ranks are recorded, and the late one is not. No group is recorded by nsys."""
    run = simulate(small(shape, ranks=8, steps=5, kernels=80), [Fault.parse(fault)] if fault else [])
    found = ingest_partial_run(run, tmp_path, form, absent=frozenset({0, 2, 4, 6, 7})).diagnose()
    missing = found.conclusion.unrecorded
    assert missing is not None
    assert missing.ranks == (0, 2, 4, 6, 7)
    time_ns, gain_ns = run_ns(run), true_gain_ns(run)
    assert missing.at_most_ns >= 0.98 * gain_ns
    # it contains the transfers too, which take less than a third of these steps
    assert missing.at_most_ns < gain_ns + time_ns / 3
    assert missing.fraction == pytest.approx(missing.at_most_ns / time_ns, rel=0.01)
    assert found.conclusion.cleared == ()
    assert all(one.scope == "unrecorded" for one in found.culprits)
    if not found.culprits:
        assert "Jitter between the recorded ranks costs" in found.verdict
        assert "Ranks 0,2,4,6-7 of the job were not recorded: waiting for them may cost up to" in found.verdict


def test_what_a_recorded_rank_costs_does_not_hide_the_unrecorded_ones(tmp_path: Path):
    faults = [Fault.parse("slow_gpu:rank=6,factor=1.5"), Fault.parse("cpu_stall:rank=1,kernel=20,ms=3,step=2")]
    run = simulate(small(ranks=8, steps=6), faults)
    found = ingest_partial_run(run, tmp_path, "nsys", absent=frozenset({6, 7})).diagnose()
    assert 1 in {rank for one in found.culprits for rank in one.ranks}
    named = any(one.scope == "unrecorded" for one in found.culprits)
    assert named or "waiting for them may cost up to" in found.verdict


def test_a_slower_unrecorded_rank_may_hide_a_recorded_one(tmp_path: Path):
    """Rank 6, which was not recorded, is slower than rank 2 wherever they meet: fixing rank 2 saves nothing."""
    run = simulate(
        small("tensor_parallel", ranks=8, steps=8, kernels=100),
        [Fault.parse("slow_gpu:rank=2,factor=1.1"), Fault.parse("slow_gpu:rank=6,factor=1.4")],
    )
    found = ingest_partial_run(run, tmp_path, absent=frozenset({4, 5, 6, 7})).diagnose()
    (culprit,) = [one for one in found.culprits if one.scope == "rank"]
    assert (culprit.rank, culprit.cause, culprit.confidence) == (2, "gpu_compute", "high")
    assert culprit.gain_range_ns == (0, culprit.gain_ns)
    assert any(UNRECORDED in sentence for sentence in culprit.evidence)


def test_a_pause_that_no_wait_after_it_could_hide_has_its_price(tmp_path: Path):
    run = simulate(small(ranks=8, steps=8, kernels=100), [Fault.parse("cpu_stall:rank=2,step=3,kernel=20,ms=6")])
    (culprit,) = ingest_partial_run(run, tmp_path, absent=frozenset({5, 6, 7})).diagnose().culprits
    assert (culprit.rank, culprit.gain_range_ns) == (2, None)
    assert culprit.gain_ns == pytest.approx(true_gain_ns(run), rel=0.1)


def test_the_only_rank_of_several_says_what_it_waits_for(tmp_path: Path):
    run = simulate(small(ranks=4, steps=3), [Fault.parse("slow_gpu:rank=2,factor=1.6")])
    found = ingest_partial_run(run, tmp_path, "nsys", absent=frozenset({0, 2, 3})).diagnose()
    assert found.verdict.startswith("Only one rank was recorded, so jitter between ranks cannot be measured")
    assert "Ranks 0,2-3 of the job were not recorded: waiting for them may cost up to" in found.verdict
    assert found.conclusion.unrecorded is not None
    assert found.conclusion.unrecorded.at_most_ns >= 0.98 * true_gain_ns(run)


def test_a_job_with_all_ranks_lacks_none(tmp_path: Path):
    assert ingest_partial_run(simulate(small()), tmp_path).diagnose().conclusion.unrecorded is None


@pytest.mark.parametrize(("steps", "recorded"), [(1, {1, 3}), (4, {0, 3, 6}), (4, {5})])
def test_the_wait_for_an_earlier_stage_is_no_lateness(tmp_path: Path, steps: int, recorded: set[int]):
    """A healthy pipeline: its stages wait for each other in every step, and some of them were not recorded."""
    run = simulate(small("pipeline", ranks=8, stages=4, steps=steps, noise=0.05))
    found = ingest_partial_run(run, tmp_path, absent=frozenset(range(8)) - recorded).diagnose()
    assert found.culprits == ()
    assert found.conclusion.unrecorded is not None
    assert found.conclusion.unrecorded.at_most_ns is not None


@pytest.mark.parametrize("seed", [3, 5])
def test_a_rank_that_lost_its_part_of_collectives_is_named_in_place_of_those_that_wait_for_it(tmp_path, seed: int):
    run = simulate(small("tensor_data", kernels=37, seed=seed), [Fault("slow_gpu", frozenset({0}), factor=1.4)])
    write(run, tmp_path / "traces", "kineto")
    chance = random.Random(seed)
    trace = (tmp_path / "traces").glob("*rank-0.*")
    remove_events(trace, lambda event: event.table == "kernel" and chance.random() < 0.5)
    (found,) = ingest_traces(tmp_path).diagnose().culprits
    assert (found.scope, found.cause, found.confidence, found.ranks) == ("unrecorded", "communication", "low", (0,))


def test_the_last_rank_counts_as_unrecorded_where_its_recording_cannot_be_read(tmp_path):
    """No world size is recorded, and without the last rank no rank below it is missing."""
    write(simulate(small("data_parallel", seed=3)), tmp_path / "traces", "rocprof-csv")
    (kernels,) = (tmp_path / "traces").glob("rank-3*kernel_trace.csv")
    kernels.write_text(kernels.read_text().splitlines()[0] + "\n")
    found = ingest_traces(tmp_path, rejected=1).diagnose()
    assert "rank" not in found.conclusion.cleared
    assert "Rank 3 of the job has a recording that could not be read" in found.verdict


def test_a_rank_whose_steps_are_all_cut_counts_as_unrecorded(tmp_path):
    write(simulate(small("data_parallel", seed=3)), tmp_path / "traces", "rocpd")
    chance = random.Random(1)
    files = (tmp_path / "traces").glob("rank-3_*")
    remove_events(files, lambda event: "kernel" in event.table and chance.random() < 0.6)
    found = ingest_traces(tmp_path).diagnose()
    assert found.conclusion.unrecorded is not None
    assert found.conclusion.unrecorded.ranks == (3,)
    assert "rank" not in found.conclusion.cleared
    assert "Rank 3 of the job recorded no step completely" in found.verdict


def test_an_excess_in_a_step_of_unknown_time_is_no_saving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Pricing, "unpriced_ns", lambda _, candidate: candidate.excess_ns)
    run = simulate(small("data_parallel", ranks=6, steps=4), [Fault.parse("slow_gpu:rank=2,factor=1.3")])
    (culprit,) = ingest_run(run, tmp_path).diagnose().culprits
    assert culprit.gain_range_ns is None  # the excess in the 3 timed steps is what a replay saves


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> "jitter.Lake":
    """A pipeline of four stages in nsys exports, which record no groups; rank 3's GPU is slow.

    The stages that it exchanges with have no recording.
    """
    job = small("pipeline", ranks=8, stages=4, steps=8, kernels=200, marker="nvtx", epoch=1, gpus_per_node=4)
    folder: Path = tmp_path_factory.mktemp("unknown")
    run = simulate(job, [Fault.parse("slow_gpu:rank=3,factor=1.3")])
    return ingest_partial_run(run, folder, "nsys", absent=frozenset({0, 1, 4, 5}))


def test_the_slow_rank_is_a_lead_of_unknown_cost(lake: "jitter.Lake"):
    found = lake.diagnose()
    assert lake.results().unpaired > 0
    (one,) = found.culprits
    assert (one.ranks, one.cause, one.confidence, one.unpriced_because) == ((3,), "gpu_compute", "low", PARTNERS)
    assert one.gain_ns < 0.01 * sum(step.step_time_ns or 0 for step in found.steps)
    assert "what fixing it would save is unknown, because some exchanges name no partners." in found.verdict
    assert any(line.startswith("whether that delays other ranks is unknown") for line in one.evidence)


def test_a_loss_in_communication_whose_partners_are_unknown_is_no_slow_gpu(lake: "jitter.Lake"):
    evidence = evidence_of(lake)
    analysis = evidence.analysis
    (finding,) = (one for one in analysis.candidates if one.ranks == (3,) and one.part is TimePart.GPU)
    assert evidence.share_in_exchanges(finding.worst) < 0.5
    assert find_cause(evidence, finding).cause == "gpu_compute"
    kinds = analysis.run.programs[finding.worst.team].kinds
    place = int(np.flatnonzero(kinds == COLLECTIVE)[0])
    for account in analysis.account.of_steps:
        account.losses.place[:] = place
    assert evidence.share_in_exchanges(finding.worst) == 1
    judgement = find_cause(evidence, finding)
    assert (judgement.cause, judgement.certainty) == ("gpu_time", "unknown")
    assert "100.0% of its loss lies in communication, where some exchanges name no partners" in judgement.sentences[0]


def test_a_range_names_missing_partners_only_where_they_make_it_wide(lake: "jitter.Lake"):
    analysis, whole = lake.analyze(), [Scenario(everything=True)]
    pricing, gains = Pricing(analysis), analysis.gains(whole)
    (narrow,), (wide,) = (
        pricing.ranges(whole, gains, [{pricing.unpriced_because: delay_ns}], [0.0]) for delay_ns in (0.0, 1e9)
    )
    assert narrow is None or PARTNERS not in narrow.unknown
    assert wide is not None
    assert (wide.most_ns, wide.unknown[-1]) == (10**9, PARTNERS)


def test_a_healthy_run_clears_no_rank(tmp_path: Path):
    job = small("pipeline", ranks=8, stages=4, steps=8, kernels=200, marker="nvtx", epoch=1, gpus_per_node=4)
    found = ingest_partial_run(simulate(job), tmp_path, "nsys", absent=frozenset({0, 1, 4, 5})).diagnose()
    assert found.culprits == found.conclusion.cleared == ()
    assert "waiting in them cannot be attributed to a rank" in found.verdict
    assert "no rank, host or link" not in found.verdict


SAMPLE = Path(__file__).parents[3] / "data" / "sample"


@pytest.fixture(scope="module")
def without(tmp_path_factory: pytest.TempPathFactory) -> "jitter.Lake":
    """The sample without its synchronising calls."""
    folder = tmp_path_factory.mktemp("without")
    for source in SAMPLE.glob("*.sqlite"):
        export = folder / source.name
        shutil.copyfile(source, export)
        run_sql(
            export,
            "DELETE FROM CUPTI_ACTIVITY_KIND_RUNTIME WHERE nameId IN "
            "(SELECT id FROM StringIds WHERE value LIKE '%ynchroni%')",
        )
    return ingest_traces(tmp_path_factory.mktemp("lakes"), folder)


def test_the_culprit_has_the_price_that_it_has_with_its_calls(without: "jitter.Lake"):
    found = without.diagnose()
    (culprit,) = found.culprits
    assert (culprit.ranks, culprit.cause) == ((5,), "cpu_launch")
    assert culprit.gain_ns == pytest.approx(1_159_365, rel=0.05)
    assert "Hosts wait for their GPU at 1 place" in " ".join(found.notes)


def test_the_wait_and_its_fit_are_dependencies(without: "jitter.Lake"):
    (wait,) = [one for one in without.dependencies() if one.provenance == "inferred"]
    assert (wait.ordinal, wait.kind, wait.steps_back) == (0, "sync", 1)
    assert wait.spread_ns is not None
    assert wait.spread_ns < 50_000


def test_the_report_states_the_fit_and_each_range(without: "jitter.Lake"):
    document = report_document(without.diagnose(), build_run_overview(without, without.step_keys))
    assert document["run"]["unexplained_fraction"] == 0
    assert all("gain_range_ns" in one for one in document["culprits"])
    json.dumps(document)


SENTENCE = "The ranks recorded no step in common, so they cannot be compared, and no rank can be cleared"


def test_ranks_without_a_common_step(tmp_path: Path, capsys):
    (tmp_path / "in").mkdir()
    for rank, first in ((0, 0), (1, 10)):
        run = simulate(Job(ranks=2, steps=2, kernels=16, first_step=first))
        write(run, tmp_path / f"{rank}", "nsys")
        shutil.move(tmp_path / f"{rank}" / f"rank{rank}.sqlite", tmp_path / "in")
    diagnosis = ingest_traces(tmp_path, tmp_path / "in").diagnose()  # a warning is an error here
    assert diagnosis.verdict.startswith(SENTENCE)
    assert diagnosis.culprits == ()
    assert diagnosis.conclusion.status == "unknown"
    assert any(doubt.startswith(SENTENCE) for doubt in diagnosis.conclusion.doubts)
    assert SENTENCE in " ".join(output_of(capsys, "report", tmp_path / "lake").split())


@pytest.mark.parametrize(
    ("job", "fault", "absent"),
    [
        # the slow group is recorded, and waits for groups that the missing rank holds up
        (small("tensor_data", ranks=8, steps=10), "slow_link:rank=0,factor=20", 7),
        # a rank without peers, which may wait for the stage after it
        (small("pipeline", ranks=4, stages=4, steps=10), "slow_gpu:rank=1,steps=4-5,factor=2", 3),
    ],
)
def test_what_an_unrecorded_rank_may_explain_as_well_has_low_confidence(
    tmp_path: Path, job: Job, fault: str, absent: int
):
    run = simulate(job, [Fault.parse(fault)])
    whole = ingest_run(run, tmp_path / "whole").diagnose()
    partial = ingest_partial_run(run, tmp_path / "partial", absent=frozenset({absent})).diagnose()
    (of_all,), (of_some, *_) = whole.culprits, partial.culprits
    assert of_all.rank in of_some.ranks
    assert (of_all.confidence, of_some.confidence) == ("high", "low")


@pytest.mark.parametrize(("factor", "named"), [(1.1, [((5,), "gpu_compute", "low")]), (1.0, [])])
def test_of_ranks_without_known_communication_the_slow_one_is_named_at_no_cost(
    tmp_path: Path, factor: float, named: list[tuple[object, ...]]
):
    """It was said that no rank stands out."""
    (tmp_path / "traces").mkdir()
    for rank in range(8):
        slow = Fault.parse(f"slow_gpu:rank=0,factor={factor if rank == 5 else 1}")
        run = simulate(Job(ranks=1, steps=8, kernels=40, seed=rank), [slow])
        (trace,) = write_traces(run, tmp_path / f"alone-{rank}", "kineto")
        document = json.loads(trace.read_text())
        events = document["traceEvents"]
        gone = {event["args"].get("correlation") for event in events if "nccl" in event["name"]} - {None}
        document["traceEvents"] = [
            event
            for event in events
            if "nccl" not in event["name"] and event.get("args", {}).get("correlation") not in gone
        ]
        document["distributedInfo"] = {"rank": rank, "world_size": 8}
        (tmp_path / "traces" / f"rank-{rank}.pt.trace.json").write_text(json.dumps(document))
    diagnosis = ingest_traces(tmp_path).diagnose()
    assert [(one.ranks, one.cause, one.confidence) for one in diagnosis.culprits] == named
    assert diagnosis.loss.ns is None
    assert not any(one.loss_ns for one in diagnosis.culprits)
    assert "what fixing it would save is unknown" in diagnosis.verdict or not named
