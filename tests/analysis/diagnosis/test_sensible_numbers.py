"""Numbers that a person can believe, and findings that agree with the account."""

import re
from pathlib import Path

import pandas as pd
import pytest

import jitter
from jitter.analysis.diagnosis.culprits import cap_gain, describe_excess
from jitter.analysis.diagnosis.diagnose import _limit_to_loss, diagnose
from jitter.analysis.diagnosis.loss.split import describe_ranks
from jitter.analysis.diagnosis.model import Culprit, LossShare, RankShare
from jitter.analysis.execution.self_times import TimePart
from jitter.core.formatting import format_time
from jitter.report.text.fix_list import answer_questions
from jitter.simulate import Fault, simulate
from tests.support.findings import evidence_of, late_rank
from tests.support.simulated import ingest_run, small


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> "jitter.Lake":
    faults = [Fault.parse("slow_gpu:rank=2,factor=1.5"), Fault.parse("cpu_stall:rank=1,step=2,kernel=9,ms=80")]
    return ingest_run(simulate(small(steps=5), faults), tmp_path_factory.mktemp("slow"))


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> "jitter.Lake":
    return ingest_run(simulate(small(ranks=1, steps=1)), tmp_path_factory.mktemp("alone"))


def excess_of(
    lake: "jitter.Lake", share: float, sigmas: float, steps: int, *, is_lead: bool = False
) -> tuple[str, str]:
    """What is said of rank 0's excess, this share of the usual step in so many steps, and that time in words."""
    evidence = evidence_of(lake)
    per_step_ns = share * evidence.analysis.measured.usual_step_ns
    group = late_rank(0, TimePart.GPU, tuple(range(steps)), steps * per_step_ns, sigmas, is_lead=is_lead)
    return describe_excess(group, evidence), format_time(per_step_ns)


def test_what_is_small_is_said_exactly(slow: "jitter.Lake"):
    said, time = excess_of(slow, 0.12, 7.4, 5)
    assert said == f"{time} per step above the median of the other ranks (12.0% of a step, 7σ)"
    assert excess_of(slow, 10.0, 10.0, 5)[0].endswith("(1000.0% of a step, 10σ)")


def test_a_mean_over_some_steps_is_not_said_to_be_of_all(slow: "jitter.Lake", alone: "jitter.Lake"):
    for lake, steps, where in (
        (slow, 1, "in this step"),
        (slow, 3, "per affected step"),
        (slow, 5, "per step"),
        (alone, 1, "per step"),
    ):
        said, time = excess_of(lake, 3.0, 12.0, steps)
        assert said.startswith(f"{time} {where} above")


def test_no_percentage_above_1000_and_no_sigma_above_10(slow: "jitter.Lake"):
    assert excess_of(slow, 5_550.0, 1.7e9, 5)[0].endswith("(more than 10 steps' time, > 10σ)")


def test_a_rank_without_peers_is_not_compared_with_others(alone: "jitter.Lake"):
    assert "other ranks" not in excess_of(alone, 0.1, 7.0, 1)[0]


@pytest.mark.parametrize(
    ("gain", "loss", "capped"),
    [(5.0, 9.0, 5), (9.6, 9.0, 9), (5.0, None, 5), (5.0, -3.0, 0), (-2.0, 9.0, -2), (-2.0, -3.0, -2)],
)
def test_no_saving_above_the_loss(gain: float, loss: float | None, capped: int):
    assert cap_gain(gain, loss) == capped


@pytest.mark.parametrize(
    ("shares", "loss", "limited"),
    [
        ([1_400.0, 900.0, -2_000.0], 230, [140.0, 90.0, 0.0]),
        ([100.0, 50.0], 160, [100.0, 50.0]),
        ([100.0], -5, [0.0]),
        ([-100.0], -5, [0.0]),
        ([100.0], None, [100.0]),
    ],
)
def test_costs_of_findings_add_up_to_at_most_the_loss(shares: list[float], loss: int | None, limited: list[float]):
    assert _limit_to_loss(shares, loss) == pytest.approx(limited)


def test_every_text_of_a_diagnosis(slow: "jitter.Lake"):
    found = slow.diagnose()
    assert {one.ranks for one in found.culprits} == {(1,), (2,)}
    assert all(one.gain_ns <= max(found.loss.ns or 0, 0) for one in found.culprits)
    assert (found.what_if.culprits_repaired_ns or 0) <= (found.loss.ns or 0)
    said = [found.verdict, *(line for one in found.culprits for line in one.evidence)]
    said += [line for one in answer_questions(found, slow.hosts) for line in (one.answer, *one.evidence)]
    for line in said:
        assert all(float(number) <= 1000 for number in re.findall(r"([\d.]+)%", line)), line
        assert all(float(number) <= 10 for number in re.findall(r"([\d.]+)σ", line)), line
        assert "standard deviations" not in line
        assert "noise:" not in line


def test_savings_that_the_replay_prices_above_the_loss_are_capped(slow: "jitter.Lake", monkeypatch: pytest.MonkeyPatch):
    lake = jitter.open(slow.root)
    analysis = lake.analyze()
    gains = analysis.gains
    monkeypatch.setattr(analysis, "gains", lambda scenarios: [3 * gain for gain in gains(scenarios)])
    found = diagnose(evidence_of(lake))
    assert found.culprits
    assert max(one.gain_ns for one in found.culprits) == found.what_if.culprits_repaired_ns == found.loss.ns


def test_a_lead_states_no_deviation_from_noise(slow: "jitter.Lake"):
    """A lead is not significant: a number of sigmas beside that would contradict it."""
    assert excess_of(slow, 0.2, 40.0, 5, is_lead=True)[0].endswith("where the job waited for it (20.0% of a step)")


def test_ranks_whose_share_rounds_to_nothing_are_not_listed():
    shares = (RankShare(3, 900_000), RankShare(1, 99_000), RankShare(0, 700), RankShare(2, 300))
    assert describe_ranks(LossShare("gpu", 1_000_000, 0.1, shares)) == "ranks 3 (90%), 1 (10%)"
    nearly = (RankShare(3, 999_000), RankShare(1, 1_000))
    assert describe_ranks(LossShare("gpu", 1_000_000, 0.1, nearly)) == "rank 3 (nearly all)"


@pytest.mark.parametrize("steps", [1, 2])
def test_one_rank_hears_nothing_of_others(tmp_path: Path, steps: int):
    lake = ingest_run(simulate(small(ranks=1, steps=steps)), tmp_path)
    found = lake.diagnose()
    said = [found.verdict, *(one.answer for one in answer_questions(found, lake.hosts))]
    assert not [line for line in said if re.search(r"other ranks|the others|slower ranks", line)]


def test_one_rank_whose_step_times_are_known_is_not_told_the_opposite(tmp_path: Path):
    lake = ingest_run(simulate(small(ranks=1, steps=3)), tmp_path)
    found = lake.diagnose()
    assert [step.step_time_ns is None for step in found.steps] == [True, False, False]
    cost = answer_questions(found, lake.hosts)[0].answer
    assert cost == "Unknown: the ranks and steps recorded are too few to compare."
    alone = ingest_run(simulate(small(ranks=1, steps=1)), tmp_path / "one").diagnose()
    assert answer_questions(alone, {})[0].answer == "Unknown: the ranks and steps recorded are too few to compare."
    assert (alone.steps[0].step_time_ns or 0) > 0  # its span


def test_the_only_step_is_not_counted(tmp_path: Path):
    lake = ingest_run(simulate(small(ranks=4, steps=1)), tmp_path)
    said = " ".join([lake.diagnose().verdict, *(one.answer for one in answer_questions(lake.diagnose(), lake.hosts))])
    assert "1 of 1" not in said


def test_an_unknown_first_step_does_not_lower_the_excess_per_step(tmp_path: Path):
    """The late start of the first recorded step is unknown: the mean is over the other steps."""
    run = simulate(small(ranks=4, steps=5, noise=0.0), [Fault.parse("late_start:rank=1,ms=3")])
    (culprit,) = ingest_run(run, tmp_path).diagnose().culprits
    found = re.match(r"([\d.]+) ms per step", culprit.evidence[0])
    assert found is not None
    assert float(found[1]) == pytest.approx(3.0, rel=0.05)
    assert culprit.look_at is not None
    # the place to look at holds the pause, not only the launch after it
    assert culprit.look_at.end_ns - culprit.look_at.start_ns >= 2_900_000


def test_a_drift_is_told_with_its_steps_and_is_not_said_to_be_small(tmp_path: Path):
    run = simulate(small(ranks=8, steps=12), [Fault.parse("unequal_work:rank=5,factor=1.6,drift=yes")])
    (culprit,) = ingest_run(run, tmp_path).diagnose().culprits
    assert culprit.confidence in ("high", "medium")  # from ramps alone, a rank that wanders cannot be told for sure
    assert culprit.step_pattern.words == "from step 1 on, and it grows"
    assert not re.search(r"\b[0-2]σ", culprit.evidence[0])


def test_collectives_of_one_rank_are_not_said_to_span_all_ranks(tmp_path: Path):
    notes = " ".join(ingest_run(simulate(small(ranks=1, steps=6)), tmp_path, "nsys").diagnose().notes)
    assert "span all ranks" not in notes
    assert "the ranks that it waits for" in notes


OWN = ["start", "launch", "after", "gpu"]
CLASSES = {
    "late_start": ["start"],
    "cpu_launch": ["launch"],
    "cpu_after": ["start", "after", "launch"],
    "gpu_compute": ["gpu"],
    "communication": ["transfer"],
}
JOBS = {
    "one slow GPU": ("data_parallel", ["slow_gpu:rank=2,factor=1.4"]),
    "two ranks that are equally late": (
        "data_parallel",
        ["late_start:rank=1,step=3,ms=2,loading=no", "late_start:rank=6,step=3,ms=2,loading=no"],
    ),
    "a pause and a slow GPU later": (
        "data_parallel",
        ["cpu_stall:rank=1,step=1,kernel=9,ms=9", "slow_gpu:rank=5,step=3,factor=1.5"],
    ),
    "a pause at the end": ("data_parallel", ["late_end:rank=2,ms=4"]),
    "tensor parallel": ("tensor_parallel", ["slow_gpu:rank=3,factor=1.3"]),
    "groups": ("tensor_data", ["slow_gpu:rank=3,factor=1.3", "cpu_stall:rank=6,step=2,kernel=9,ms=2"]),
    "slow transfers": ("sharded", ["slow_link:rank=2,factor=6"]),
    "nothing": ("data_parallel", []),
}


@pytest.fixture(scope="module", params=JOBS)
def lake(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> "jitter.Lake":
    shape, faults = JOBS[request.param]
    run = simulate(small(shape, ranks=8, steps=5), [Fault.parse(fault) for fault in faults])
    return ingest_run(run, tmp_path_factory.mktemp("account"))


@pytest.fixture(scope="module")
def rows(lake: "jitter.Lake") -> pd.DataFrame:
    found: pd.DataFrame = lake.losses()
    return found


def test_steps(lake: "jitter.Lake", rows: pd.DataFrame):
    for step in lake.diagnose().steps:
        own = rows[rows["step"] == step.key.step]
        if step.loss_ns is None:
            assert own.empty
            assert step.by_class is None
            continue
        assert own["loss_ns"].sum() == pytest.approx(step.loss_ns, abs=1)
        assert step.by_class is not None
        assert sum(step.by_class) == step.loss_ns
        sums = own.groupby("class")["loss_ns"].sum()
        for name, ns in step.by_class._asdict().items():
            assert ns == pytest.approx(sums.get(name.removesuffix("_ns"), 0.0), abs=len(step.by_class))
        of_ranks = own[own["class"].isin([*OWN, "overlap", "carried"])].groupby("rank")["loss_ns"].sum()
        assert of_ranks[step.max_rank] == of_ranks.max() > 0
        mine = own[own["class"].isin(OWN) & (own["rank"] == step.max_rank)]["loss_ns"].sum()
        assert step.max_rank_loss_ns == round(mine)


def test_the_run(lake: "jitter.Lake", rows: pd.DataFrame):
    found = lake.diagnose()
    assert found.loss.ns == sum(step.loss_ns or 0 for step in found.steps)
    assert sum(share.ns for share in found.split) == found.loss.ns
    for share in found.split:
        own = rows[rows["class"] == share.loss_class]
        assert share.ns == pytest.approx(own["loss_ns"].sum(), abs=len(own) + 1)
        for one in share.ranks:
            assert one.ns == pytest.approx(own[own["rank"] == one.rank]["loss_ns"].sum(), abs=len(found.steps))


def test_findings(lake: "jitter.Lake", rows: pd.DataFrame):
    found = lake.diagnose()
    for culprit in found.culprits:
        assert culprit.loss_ns == pytest.approx(charged_to(culprit, rows), abs=2)
        assert found.loss.ns is not None
        assert culprit.loss_ns <= found.loss.ns
        assert culprit.gain_ns <= found.loss.ns


def charged_to(culprit: Culprit, rows: pd.DataFrame) -> float:
    """Return what the rows of a finding add up to."""
    steps = [key.step for key in culprit.steps]
    own = rows[rows["class"].isin(CLASSES[culprit.cause]) & rows["origin_step"].isin(steps)]
    if culprit.cause == "communication":
        return float(own[[set(ranks) <= set(culprit.ranks) for ranks in own["ranks"]]]["loss_ns"].sum())
    if culprit.cause == "cpu_after":  # after the last launch, or before the end of the marker: at the next start
        own = own[own["class"].isin(["start", "after"])]
    return float(own[own["rank"].isin(culprit.ranks)]["loss_ns"].sum())


def test_ranks_that_are_equally_late_have_equal_shares(tmp_path: Path):
    shape, faults = JOBS["two ranks that are equally late"]
    run = simulate(small(shape, ranks=8, steps=5), [Fault.parse(fault) for fault in faults])
    found = ingest_run(run, tmp_path).diagnose()
    late = [one for one in found.culprits if one.cause == "late_start"]
    assert sorted(rank for one in late for rank in one.ranks) == [1, 6]
    assert found.loss.ns is not None
    shares = {one.rank: one.ns for share in found.split for one in share.ranks if share.loss_class == "start"}
    assert shares[1] == pytest.approx(shares[6], rel=0.05)
    assert shares[1] + shares[6] >= 0.9 * found.loss.ns
