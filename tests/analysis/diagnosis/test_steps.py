"""What is said of single steps: how they start, where they diverge, what is slow for all ranks; one step alone."""

import random
from itertools import product
from pathlib import Path

import pytest

from jitter.analysis.diagnosis.limitations import first_start_spread
from jitter.analysis.diagnosis.model import Seen
from jitter.query.diagnosis_rows import steps_table
from jitter.report.text.fix_list import answer_questions
from jitter.report.text.step_table import format_steps
from jitter.simulate import Fault, Job, Run, simulate
from jitter.simulate.shapes import SHAPES
from tests.support.fuzz_depth import fuzz, some_of
from tests.support.lakes import RankLake, collective, kernel, lake_of
from tests.support.simulated import ingest_partial_run, ingest_run, run_ns, small, true_gain_ns


def test_a_late_first_start_is_said(tmp_path: Path):
    run = simulate(small(ranks=4, steps=5), [Fault.parse("late_start:rank=1,step=0,ms=7.6,loading=no")])
    lake = ingest_run(run, tmp_path, "nsys")
    assert first_start_spread(lake.analyze()) == (pytest.approx(7.6e6, rel=0.05), 1)
    found = lake.diagnose()
    assert [note for note in found.notes if note.startswith("In the first recorded step, ranks start up to 7.")]


@pytest.mark.parametrize(("ranks", "said"), [((5,), "rank 5 loses "), ((2, 5), "ranks 2,5 lose ")])
def test_who_is_late_in_a_step_of_unknown_time_is_not_cleared(tmp_path: Path, ranks: tuple[int, ...], said: str):
    faults = [Fault.parse(f"cpu_stall:rank={rank},step=0,kernel={9 * rank},ms=4") for rank in ranks]
    found = ingest_run(simulate(small(ranks=8, steps=3), faults), tmp_path, "nsys").diagnose()
    assert (found.culprits, found.conclusion.cleared) == ((), ())
    (doubt,) = (doubt for doubt in found.conclusion.doubts if doubt.startswith("Nothing tells when step 0 began"))
    assert said in doubt
    assert "(late kernel launches)" in doubt
    assert doubt in found.verdict


def test_ranks_that_start_together_need_no_note(tmp_path: Path):
    found = ingest_run(simulate(small(ranks=4, steps=5)), tmp_path, "nsys").diagnose()
    assert not [note for note in found.notes if "first recorded step" in note]


def test_ranks_without_a_kernel_on_the_main_stream(tmp_path: Path):
    """Such as a benchmark of collectives: nothing tells when a rank starts, and the run is diagnosed all the same."""
    steps = {
        (None, number): [collective("ncclDevKernel_AllReduce_Sum", 10_000 * number + 10, 10_000 * number + 900)]
        for number in range(3)
    }
    lake = lake_of(tmp_path / "lake", [RankLake(rank, steps) for rank in (0, 1)])
    assert first_start_spread(lake.analyze()) == (0.0, None)
    assert lake.diagnose().conclusion.status == "within_noise"


@pytest.mark.parametrize(("slow", "is_warm_up"), [("1", True), ("1-2", True), ("4", False)])
def test_first_steps_that_are_slow_for_all_ranks_are_a_warm_up(tmp_path: Path, slow: str, is_warm_up: bool):
    """No GPU is at fault, and the ranks are cleared; slow steps in the middle of the run are a finding."""
    run = simulate(small(ranks=4, steps=8), [Fault.parse(f"slow_gpu:ranks=0-3,steps={slow},factor=1.5")])
    lake = ingest_run(run, tmp_path, "nsys")
    found = lake.diagnose()
    assert any("a warm-up (" in note for note in found.notes) is is_warm_up
    assert [one.scope for one in found.culprits] == ([] if is_warm_up else ["job"])
    assert ("a warm-up (" in found.verdict) is is_warm_up


def test_a_warm_up_is_said_beside_a_culprit(tmp_path: Path):
    faults = [Fault.parse(f"slow_gpu:{of}") for of in ("ranks=0-7,steps=1-2,factor=4", "rank=2,factor=1.2")]
    found = ingest_run(simulate(small(ranks=8, steps=10), faults), tmp_path, "nsys").diagnose()
    (culprit,) = found.culprits
    assert (culprit.ranks, culprit.cause) == ((2,), "gpu_compute")
    assert "a warm-up (" in found.verdict


def test_unlike_pauses_of_all_ranks_in_one_step_are_one_event(tmp_path: Path):
    """As when each compiles a kernel anew: no lead says that late launches repeat."""
    lengths = [40, 25, 28, 33, 22, 60, 20, 36]
    pauses = [Fault.parse(f"cpu_stall:rank={rank},step=5,kernel=20,ms={ms}") for rank, ms in enumerate(lengths)]
    (culprit,) = ingest_run(simulate(small(ranks=8, steps=12), pauses), tmp_path, "nsys").diagnose().culprits
    assert (culprit.scope, culprit.rung, [key.step for key in culprit.steps]) == ("job", "steps", [5])


@pytest.mark.parametrize(("kind", "cause"), [("unequal_work", "workload_imbalance"), ("slow_gpu", "gpu_compute")])
def test_more_work_for_all_is_told_from_slow_gpus(tmp_path: Path, kind: str, cause: str):
    run = simulate(small(ranks=8, steps=12), [Fault.parse(f"{kind}:ranks=0-7,step=4+9,factor=1.5")])
    (culprit,) = ingest_run(run, tmp_path).diagnose().culprits
    assert (culprit.scope, culprit.cause) == ("job", cause)
    assert [key.step for key in culprit.steps] == [4, 9]
    assert any("in its other steps" in line for line in culprit.evidence)


def test_guessed_steps_are_named_as_such(tmp_path: Path):
    job = Job(ranks=4, steps=8, kernels=60, marker="none")
    lake = ingest_run(simulate(job, [Fault.parse("slow_gpu:rank=2,factor=1.6")]), tmp_path, "nsys")
    assert all(record.has_guessed_steps for record in lake.sources)
    found = lake.diagnose()
    (culprit,) = found.culprits
    assert (culprit.ranks, culprit.cause, culprit.recurs) == ((2,), "gpu_compute", "yes")
    assert any("no step markers: where steps begin is inferred" in note for note in found.notes)


@pytest.mark.parametrize("form", ["nsys", "kineto"])
def test_a_pause_before_the_inputs_are_copied_is_of_the_step_that_needs_them(tmp_path: Path, form: str):
    """The copies to the GPU come before a step's first kernel: without them there it began in the step before."""
    job = Job(ranks=4, steps=8, kernels=60, marker="none")
    found = ingest_run(simulate(job, [Fault.parse("late_start:rank=2,every=2,ms=3")]), tmp_path, form).diagnose()
    (culprit,) = found.culprits
    slow = [step.key for step in found.steps if (step.loss_fraction or 0) > 0.3]
    assert [key.step for key in slow] == [2, 4, 6]
    assert (culprit.ranks, culprit.cause, list(culprit.steps)) == ((2,), "late_start", slow)
    assert {step.cause for step in found.steps if step.key in slow} == {"late_start"}


STEP = 2


@fuzz
@pytest.mark.parametrize(
    ("fault", "kernel"),
    some_of(
        product(
            ["cpu_stall:rank=2,step=2,kernel={},ms=4", "slow_gpu:rank=2,step=2,kernels={},factor=150"], [3, 9, 17, 26]
        ),
        3,
    ),
)
def test_it_is_the_faults_kernel(tmp_path: Path, fault: str, kernel: int):
    run = simulate(small("data_parallel", gpus_per_node=4), [Fault.parse(fault.format(kernel))])
    answers = ingest_run(run, tmp_path).diagnose().steps
    assert answers[STEP].max_rank == 2
    began = answers[STEP].divergence
    assert began is not None
    assert began.kernel_index == kernel
    assert [answer.divergence for number, answer in enumerate(answers) if number != STEP] == [None] * 3


@pytest.mark.parametrize("ranks", ["2", "4-7"])
def test_ranks_that_are_equally_slow_diverge_where_one_would(tmp_path: Path, ranks: str):
    """Each of four is charged a quarter of what it is late, and so of its noise."""
    job = Job(ranks=16, steps=4, kernels=200, gpus_per_node=4)
    run = simulate(job, [Fault.parse(f"slow_gpu:ranks={ranks},kernels=100-180,factor=1.2")])
    found = ingest_run(run, tmp_path).diagnose()
    (culprit,) = found.culprits
    began = [culprit.kernel_index and culprit.kernel_index.first]
    began += [step.divergence and step.divergence.kernel_index for step in found.steps]
    assert [kernel for kernel in began if kernel is None or not 100 <= kernel < 115] == []


def test_where_a_late_start_is_not_known_the_rank_diverges_nowhere(tmp_path: Path):
    """When the first step began is unknown: what else the rank loses in it is not the late start."""
    run = simulate(Job(ranks=8, steps=4, kernels=100), [Fault.parse("late_start:rank=4,ms=3")])
    answers = ingest_run(run, tmp_path).diagnose().steps
    assert [answer.divergence and answer.divergence.kernel_index for answer in answers] == [None, 0, 0, 0]


@pytest.mark.parametrize("ranks", [2, 3])
def test_the_first_step_of_few_ranks_diverges(tmp_path: Path, ranks: int):
    """Their noise of host time is not known before the first launch: what is known decides."""
    faults = [Fault.parse(f"cpu_stall:rank=1,step={step},kernel=17,ms=1.5") for step in (0, 1)]
    answers = ingest_run(simulate(small(ranks=ranks), faults), tmp_path).diagnose().steps[:2]
    assert [answer.max_rank for answer in answers] == [1, 1]
    assert [answer.divergence and answer.divergence.kernel_index for answer in answers] == [17, 17]


@pytest.mark.parametrize("form", ["nsys", "kineto"])
@pytest.mark.parametrize(
    ("fault", "cause", "part"),
    [
        ("late_end:rank=2,ms=4", "cpu_after", "after"),
        ("late_start:rank=2,ms=4,loading=no", "late_start", "start"),
        ("late_start:rank=2,ms=4", "late_start", "start"),
    ],
)
def test_a_pause_before_the_end_of_a_step_is_no_late_start(
    tmp_path: Path, fault: str, cause: str, part: str, form: str
):
    run = simulate(small(ranks=4, steps=6), [Fault.parse(fault)])
    found = ingest_run(run, tmp_path, form).diagnose()
    (culprit,) = found.culprits
    assert (culprit.ranks, culprit.cause) == ((2,), cause)
    shares = {share.loss_class: share for share in found.split}
    assert found.loss.ns is not None
    assert shares[part].ns >= 0.9 * found.loss.ns
    assert [one.rank for one in shares[part].ranks][:1] == [2]
    # the step's loss is in the class that the finding names
    losses = [step.by_class for step in found.steps if step.by_class is not None and step.cause == cause]
    mine = [one.after_ns if part == "after" else one.start_ns for one in losses]
    assert sum(mine) >= 0.9 * sum(sum(one) for one in losses) > 0
    assert sum(one.launch_ns for one in losses) <= 0.1 * sum(mine)
    heads = format_steps(steps_table(found.steps), width=160).splitlines()[0]
    assert ("after ms" in heads) == (part == "after")


@pytest.mark.parametrize(
    ("fault", "cause"), [("slow_gpu:ranks=0-3,factor=1.3", "gpu"), ("late_start:ranks=0-3,ms=3", "late_start")]
)
@pytest.mark.parametrize("slow", [(2, 3, 5, 8, 10, 11, 13), (1, 2, 4, 5, 7, 8, 9, 11, 13, 14)])
def test_steps_in_which_all_ranks_are_slow_may_be_most_of_them(
    tmp_path: Path, fault: str, cause: str, slow: tuple[int, ...]
):
    """The median step is a slow one, or no usual one, and nothing was said."""
    run = simulate(Job(ranks=4, steps=16, kernels=60, seed=7), [Fault.parse(f"{fault},step={step}") for step in slow])
    found = ingest_run(run, tmp_path).diagnose().culprits[0]
    # where most steps are slow, batches may be larger there
    cause = cause.replace("gpu", "gpu_time" if 2 * len(slow) > 16 else "gpu_compute")
    assert (found.ranks, found.cause, found.rung, found.confidence) == ((0, 1, 2, 3), cause, "steps", "high")
    assert tuple(key.step for key in found.steps) == slow
    assert found.gain_ns == pytest.approx(run_ns(run) - run_ns(simulate(run.job)), rel=0.1)


@pytest.mark.parametrize(("short", "steps"), [((3, 6), 8), ((2, 5, 9), 11)])
def test_where_most_steps_are_the_longer_ones_work_is_not_excluded(tmp_path: Path, short: tuple[int, ...], steps: int):
    """Of batches of two sizes, which nothing states, the smaller ones may be few."""
    longer = [step for step in range(steps) if step not in short]
    faults = [Fault.parse(f"slow_gpu:ranks=0-7,factor=1.4,step={step}") for step in longer]
    run = simulate(Job(ranks=8, steps=steps, kernels=60, seed=7), faults)
    found = [one for one in ingest_run(run, tmp_path).diagnose().culprits if one.rung == "steps"]
    assert {(one.cause, one.cause_certainty) for one in found} == {("gpu_time", "unknown")}


def test_more_than_half_of_the_ranks_that_pause_unlike_in_the_same_steps_are_named(tmp_path: Path):
    """The median rank's pause was no more than how unlike the pauses are; its part is beside the loss, all is saved."""
    chance = random.Random(3)
    stalls = [(rank, step, chance.uniform(2, 6)) for step in (4, 8) for rank in range(5)]
    faults = [Fault.parse(f"cpu_stall:rank={rank},step={step},kernel=60,ms={ms:.2f}") for rank, step, ms in stalls]
    run = simulate(small(ranks=8, steps=10, kernels=240), faults)
    diagnosis = ingest_run(run, tmp_path).diagnose()
    (found,) = diagnosis.culprits
    assert (found.ranks, found.cause, found.seen.steps) == ((0, 1, 2, 3, 4), "cpu_launch", 2)
    assert diagnosis.loss.ns is not None
    assert found.gain_ns == pytest.approx(run_ns(run) - run_ns(simulate(run.job)), rel=0.02)
    assert found.loss_ns + diagnosis.loss.ns == pytest.approx(found.gain_ns, rel=0.1)


def test_data_loading_that_all_ranks_wait_for_in_a_step_is_compared_with_the_other_steps(tmp_path: Path):
    run = simulate(small(ranks=4, steps=7), [Fault.parse("late_start:ranks=0-3,ms=4,step=3")])
    found = ingest_run(run, tmp_path, "kineto").diagnose()
    (culprit,) = found.culprits
    assert (culprit.scope, culprit.cause, culprit.cause_certainty) == ("job", "late_start", "certain")
    assert culprit.advice == "start their steps late: check the data loading"
    told = culprit.evidence[2]  # after the excess and the place: what makes the cause certain
    assert told.startswith("its data-loading ranges take 4.")
    assert ", in its other steps " in told
    assert culprit.look_at is not None
    assert 3.9e6 < culprit.look_at.end_ns - culprit.look_at.start_ns < 5e6
    answers = {one.question: one.answer for one in answer_questions(found, {})}
    assert answers["Which step?"].startswith("Step 3 is slow for all ranks: it takes 6.")


def test_data_loading_counts_once(tmp_path: Path):
    run = simulate(small(ranks=4, steps=6), [Fault.parse("late_start:rank=2,ms=4")])
    lake = ingest_run(run, tmp_path, "kineto")
    (culprit,) = lake.diagnose().culprits
    (told,) = (line for line in culprit.evidence if "data-loading ranges" in line)
    assert told.startswith("its data-loading ranges take 4.")


ONE_STEP = "Only one step was recorded, which cannot tell whether anything recurs: record at least 5 consecutive steps."


def one_step(shape: str = "data_parallel", **more: object) -> Job:
    return small(shape, **({"ranks": 8, "kernels": 120, "steps": 1} | more))


def gain_ns(run: Run) -> int:
    """Return by how much earlier the step ends without the faults, ns."""
    return run.last_collective_ends()[0] - run.without().last_collective_ends()[0]


@fuzz
@pytest.mark.parametrize("shape", some_of(sorted(SHAPES), 3))
def test_the_late_rank_of_the_only_step_is_named_with_its_cost(tmp_path: Path, shape: str):
    run = simulate(one_step(shape), [Fault.parse("cpu_stall:rank=6,kernel=40,ms=4")])
    found = ingest_run(run, tmp_path).diagnose()
    (culprit,) = found.culprits
    assert (culprit.scope, culprit.ranks, culprit.cause) == ("rank", (6,), "cpu_launch")
    # the ranks begin up to 0.4 ms apart, which hides as much of it, and is no part of the step
    assert 0.9 * gain_ns(run) < culprit.gain_ns < 1.1 * gain_ns(run) + 4e5
    (step,) = found.steps
    assert step.step_time_ns is not None
    assert step.loss_ns is not None
    assert found.loss.fraction == pytest.approx(step.loss_ns / step.step_time_ns)
    assert found.conclusion.status == "found"
    assert (culprit.confidence, culprit.seen, culprit.recurs) == ("high", Seen(1, 1), "unknown")
    assert found.verdict.endswith(ONE_STEP)
    assert ONE_STEP in found.notes


@fuzz
@pytest.mark.parametrize("shape", some_of(sorted(SHAPES), 3, first=1))
def test_no_rank_of_a_healthy_step_is_named(tmp_path: Path, shape: str):
    found = ingest_run(simulate(one_step(shape, noise=0.01)), tmp_path).diagnose()
    assert found.culprits == ()
    assert found.loss.fraction is not None
    assert found.loss.fraction < 0.1


@fuzz
@pytest.mark.parametrize("shape", some_of(sorted(SHAPES), 3, first=2))
def test_the_host_time_from_the_marker_to_the_first_launch_is_the_ranks_own(tmp_path: Path, shape: str):
    run = simulate(one_step(shape), [Fault.parse("late_start:rank=6,ms=5,loading=no")])
    found = ingest_run(run, tmp_path).diagnose()
    (culprit,) = found.culprits
    assert (culprit.ranks, culprit.cause) == ((6,), "late_start")
    # other ranks begin up to 0.4 ms after it, which is no part of the fault
    assert culprit.gain_ns == pytest.approx(gain_ns(run), abs=5e5)


@pytest.mark.parametrize("shape", ["data_parallel", "sharded"])
def test_a_rank_that_begins_the_only_step_late_hides_no_slow_one(tmp_path: Path, shape: str):
    """As where profilers start at different times: what a slow GPU costs was hidden by the rank that began last."""
    job = small(shape, ranks=8, kernels=120, steps=2)
    slow, pause = (Fault.parse(one) for one in ("slow_gpu:rank=6,factor=1.3", "late_end:rank=1,step=0,ms=20"))
    lake = ingest_partial_run(simulate(job, [slow, pause]), tmp_path, sees=lambda _, step: step == 1)
    found = lake.diagnose()
    (culprit,) = found.culprits
    assert (culprit.ranks, culprit.cause) == ((6,), "gpu_compute")
    assert culprit.gain_ns == pytest.approx(true_gain_ns(simulate(job, [slow])), rel=0.1)
    step_ns = run_ns(simulate(job, [slow]))
    assert found.steps[0].step_time_ns == pytest.approx(step_ns, rel=0.1)
    assert found.conclusion.doubts[0].startswith("Rank 1 begins the recorded step last, 2")


def test_ranks_that_recorded_no_step_together_are_no_groups_of_their_own(tmp_path: Path):
    """As where the profilers of two hosts ran one after the other: one host may wait for the other."""
    run = simulate(small(ranks=8, steps=16), [Fault.parse("slow_gpu:rank=2,factor=1.2")])
    lake = ingest_partial_run(run, tmp_path, "nsys", sees=lambda rank, step: (step < 8) == (rank < 4))
    (culprit,) = lake.diagnose().culprits
    assert (culprit.ranks, culprit.cause, culprit.seen) == ((2,), "gpu_compute", Seen(8, 8))
    assert culprit.step_pattern.words == "every step"  # of those that it recorded


def test_a_rank_that_stands_out_of_few_is_a_lead(tmp_path: Path):
    """The work of all ranks varies, so that no test of one step is significant."""
    job = one_step(ranks=4, noise=0.05, variable_work=0.03)
    found = ingest_run(simulate(job, [Fault.parse("slow_gpu:rank=2,factor=1.15")]), tmp_path).diagnose()
    (culprit,) = found.culprits
    assert (culprit.ranks, culprit.confidence, culprit.seen) == ((2,), "low", Seen(1, 1))
    assert (culprit.recurs, culprit.more_steps) == ("unknown", 4)
    assert "it has the largest share of the loss of the only step" in culprit.evidence


@pytest.mark.parametrize("shape", ["sharded", "tensor_parallel"])
def test_what_a_finding_leaves_of_the_loss_has_a_lead_too(tmp_path: Path, shape: str):
    """A host that cost most of the loss hid a slow GPU that no test of one step tells: it had no name."""
    faults = [Fault.parse(fault) for fault in ("slow_gpu:rank=2,factor=1.15", "late_start:rank=1,ms=4")]
    found = ingest_run(simulate(one_step(shape, noise=0.05, variable_work=0.03), faults), tmp_path).diagnose()
    late, slow = found.culprits
    assert (late.ranks, late.cause, late.confidence) == ((1,), "late_start", "high")
    assert (slow.ranks, slow.confidence) == ((2,), "low")


def test_a_rank_that_begins_late_for_an_unknown_reason_is_not_cleared(tmp_path: Path):
    """Its marker begins late: the reason lies before the recording, and waiting for it is no part of the loss."""

    def rows(waited_ns: int) -> list[dict[str, object]]:
        work = [kernel(f"work{at}", 100_000 * at, 100_000 * at + 90_000) for at in range(1, 9)]
        return [*work, collective("ncclDevKernel_AllReduce_Sum", 1_000_000, 1_100_000 + waited_ns)]

    ranks = [RankLake(rank, {(None, 7): rows(0 if rank == 2 else 500_000)}) for rank in range(4)]
    found = lake_of(tmp_path / "lake", ranks).diagnose()
    assert found.culprits == ()
    (doubt,) = found.conclusion.doubts
    assert doubt.startswith("Rank 2 begins the recorded step last, 500 µs after the first rank (")
    assert found.conclusion.cleared == ()
    assert doubt in found.verdict
    together = [RankLake(rank, {(None, 7): rows(0)}) for rank in range(4)]
    assert lake_of(tmp_path / "other", together).diagnose().conclusion.doubts == ()


def test_late_launches_of_every_rank_in_turn_are_the_finding_of_one_step(tmp_path: Path):
    """As of a tensor-parallel job that all its hosts hold up, each at other collectives."""
    stalls = [
        Fault.parse(f"cpu_stall:rank={rank},kernel={kernel},ms=1")
        for rank in range(4)
        for kernel in range(10 + 4 * rank, 106 + 4 * rank, 16)
    ]
    run = simulate(one_step("tensor_parallel", ranks=4), stalls)
    found = ingest_run(run, tmp_path).diagnose()
    assert found.loss.ns == pytest.approx(gain_ns(run), rel=0.1)
    (culprit,) = found.culprits
    assert (culprit.scope, culprit.cause) == ("job", "cpu_launch")
    assert culprit.gain_ns > 0.8 * gain_ns(run)
