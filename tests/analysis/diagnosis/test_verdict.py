"""The verdict, the seven answers and how far to trust a step, from answers made by hand."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from jitter.analysis.diagnosis.diagnosis import Diagnosis
from jitter.analysis.diagnosis.evidence.logs.job_logs import JobLogs
from jitter.analysis.diagnosis.log_passes import add_log_evidence
from jitter.analysis.diagnosis.model import (
    FOR_UNRECORDED,
    Conclusion,
    Culprit,
    KernelLocation,
    Loss,
    LossShare,
    RankShare,
    Seen,
    StepAnswer,
    WhatIf,
)
from jitter.analysis.diagnosis.step_pattern import StepPattern
from jitter.analysis.diagnosis.verdict import advise_recurrence, describe_price, name_cause, write_advice
from jitter.analysis.metrics.clock_alignment import disagreement_ns
from jitter.core.step_key import StepKey
from jitter.lake.rank_places import RankPlace
from jitter.report.text.fix_list import answer_questions, describe_cost
from tests.support.findings import MS, culprit

QUIET = Conclusion("within_noise")


def answer(step: int, loss_ns: int | None, max_rank: int | None = None) -> StepAnswer:
    began = None if max_rank is None else KernelLocation(4, "void ns::kern<int>(float*)", 0)
    return StepAnswer(
        StepKey(None, step), 10 * MS, loss_ns, None, None, max_rank, began, None if max_rank is None else 3, "none"
    )


def diagnosis(*culprits: Culprit, steps: tuple[StepAnswer, ...] = (answer(0, None), answer(1, 5 * MS, 3))) -> Diagnosis:
    loss = Loss(5 * MS, 0.25)
    conclusion = Conclusion("found" if culprits else "within_noise")
    return Diagnosis(loss, steps, culprits, WhatIf(7 * MS, 5 * MS), 4, conclusion=conclusion)


def told(found: Diagnosis, hosts=None) -> dict[str, str]:
    return {one.question: one.answer for one in answer_questions(found, hosts or {3: None})}


def test_nobody_to_blame():
    found = diagnosis()
    assert found.verdict == (
        "Jitter costs 5.00 ms over 1 step (25.0%); no rank, host or link stands out above the run's noise."
    )
    answers = told(found)
    assert answers["Which node?"] == "No node stands out above the run's noise."
    cleared = replace(found, conclusion=Conclusion("within_noise", cleared=("rank", "host", "link")))
    assert told(cleared)["Which node?"] == "None."
    assert answers["Which GPU?"] == "No rank stands out above the run's noise."
    assert answers["Where to look?"] == "No single place."
    assert answers["CPU or GPU?"] == "Neither: nothing stands out above the run's noise."
    alone = told(diagnosis(steps=(answer(0, None),)))
    untold = "Unknown: no rank can be compared with another."
    asked = ("Which node?", "Which GPU?", "When in the step does it begin?", "Where to look?", "CPU or GPU?")
    assert [alone[question] for question in asked] == [untold] * 5


def verdict(
    loss: Loss,
    culprits: Sequence[Culprit],
    steps: Sequence[StepAnswer],
    ranks: int,
    conclusion: Conclusion = QUIET,
    split: tuple[LossShare, ...] = (),
) -> str:
    found = Diagnosis(loss, tuple(steps), tuple(culprits), WhatIf(0, None), ranks, conclusion=conclusion, split=split)
    return found.verdict


def test_what_cannot_be_told():
    found = Diagnosis(Loss(None, None), (answer(0, None),), (), WhatIf(None, None), 4, conclusion=QUIET)
    assert found.verdict.startswith("The cost of jitter is unknown; ")
    answers = told(found)
    assert answers["How much does jitter cost?"] == "Unknown: the ranks and steps recorded are too few to compare."
    assert answers["Which step?"] == "Unknown: no step has a known loss."


def test_one_rank_alone():
    said = verdict(Loss(3 * MS, 0.1), [], [answer(1, 3 * MS)], 1, QUIET)
    assert said.startswith("Only one rank was recorded")
    assert "cannot be measured" in said
    assert "other" not in said
    assert "3.00 ms" in said
    assert "Rank 3 executes" in verdict(Loss(3 * MS, 0.1), [culprit()], [answer(1, 3 * MS)], 1, QUIET)


def test_who_is_often_last_is_worth_a_look_where_jitter_costs():
    steps = [answer(1, MS, 3), answer(2, MS, 3), answer(3, MS, 1)]
    hint = ", although rank 3 is the slowest in 2 of 3 steps."
    assert verdict(Loss(3 * MS, 0.1), [], steps, 4, QUIET).endswith(
        f"no rank, host or link stands out above the run's noise{hint}"
    )
    split = (LossShare("gpu", 3 * MS, 0.03, (RankShare(3, 900_000), RankShare(1, 800_000))),)
    assert verdict(Loss(3 * MS, 0.03), [], steps, 4, QUIET, split).endswith(
        "in 2 of 3 steps: 900 µs (0.90%), and what costs less than 1% is no finding."
    )
    assert "slowest" not in verdict(Loss(3 * MS, 0.001), [], steps, 4, QUIET)
    assert "slowest" not in verdict(Loss(3 * MS, 0.1), [], steps[1:], 4, QUIET)
    assert "slowest" not in verdict(Loss(3 * MS, 0.1), [], steps[:1], 4, QUIET)


def test_doubts_withhold_the_all_clear():
    doubtful = Conclusion("within_noise", ("Rank 2 of the job was not recorded: it cannot be cleared.",))
    said = verdict(Loss(3 * MS, 0.001), [], [answer(1, 3 * MS)], 4, doubtful)
    assert said == (
        "Jitter costs 3.00 ms over 1 step (0.10%); no recorded rank stands out above the run's noise. "
        "Rank 2 of the job was not recorded: it cannot be cleared."
    )
    assert "Rank 3 executes" in verdict(Loss(3 * MS, 0.1), [culprit()], [answer(1, 3 * MS)], 4, doubtful)


def test_a_loss_that_is_spread_is_answered_from_its_split():
    ranks = (RankShare(6, 2 * MS), RankShare(0, 2 * MS), RankShare(1, MS))
    split = (LossShare("launch", 5 * MS, 0.25, ranks),)
    steps, loss, spread = (answer(0, None), answer(1, 5 * MS, 6)), Loss(5 * MS, 0.25), Conclusion("spread")
    said = verdict(loss, [], steps, 8, spread, split)
    parts = "late kernel launches (CPU) 5.00 ms (25.0% of the run), ranks 6 (40%), 0 (40%), 1 (20%)"
    assert said == (
        "Jitter costs 5.00 ms over 1 step (25.0%); the loss is spread over the ranks, and none stands out above the "
        f"run's noise: {parts}."
    )
    answers = told(Diagnosis(loss, steps, (), WhatIf(0, 5 * MS), 8, split=split, conclusion=spread))
    assert answers["CPU or GPU?"] == f"The CPU: {parts}."
    assert answers["Which GPU?"] == (
        "No single rank stands out above the run's noise; the loss is on ranks 6 (40%), 0 (40%), 1 (20%)."
    )
    assert answers["Where to look?"] == "No single place stands out: begin with rank 6 in step 1."


def test_a_rank_with_most_of_the_loss_is_not_cleared():
    split = (LossShare("launch", 5 * MS, 0.25, (RankShare(6, 5 * MS),)),)
    said = verdict(Loss(5 * MS, 0.25), [], [answer(1, 5 * MS, 6)], 8, Conclusion("spread"), split)
    assert "most of the loss is on rank 6, which does not stand out above the run's noise" in said
    assert "stands out" not in said


def test_a_loss_below_nothing_is_none():
    loss, steps = Loss(-109_000, -0.001), (answer(1, -109_000),)
    split = (LossShare("unexplained", -109_000, -0.001, ()),)
    said = verdict(loss, [], steps, 4, QUIET, split)
    assert said.startswith("Jitter costs no measurable time over 1 step; ")
    answers = answer_questions(Diagnosis(loss, steps, (), WhatIf(0, -109_000), 4, split=split, conclusion=QUIET), {})
    texts = [said, *(text for one in answers for text in (one.answer, *one.evidence))]
    assert answers[0].answer == "No measurable time over 1 step."
    assert not [text for text in texts if "109" in text or "0 ns" in text]


@pytest.mark.parametrize(
    ("more", "who"),
    [
        ({}, "Rank 3 executes"),
        ({"host": "n7"}, "Rank 3 (n7) executes"),
        ({"scope": "host", "host": "n7", "ranks": (0, 1, 2, 3)}, "Host n7 (ranks 0-3) executes"),
        ({"scope": "device", "device": 3, "ranks": (3, 7)}, "Device 3 of every host (ranks 3,7) executes"),
        ({"scope": "ranks", "ranks": (1, 3, 5)}, "The group of ranks 1,3,5 executes"),
    ],
)
def test_who_is_named(more, who: str):
    said = diagnosis(culprit(**more)).verdict
    assert said == (
        f"Jitter costs 5.00 ms over 1 step (25.0%). {who} the same kernels more slowly: check GPU clocks, "
        "power, temperature and neighbours with nvidia-smi -q or rocm-smi (seen in 2 of 2 steps, it recurs); "
        "fixing it would save about 4.00 ms."
    )


def test_of_many_the_first_three_are_named():
    found = diagnosis(*(culprit(rank, cause="late_start") for rank in range(5)))
    assert found.verdict.endswith(
        "Also rank 1 (late step starts), rank 2 (late step starts) and 2 more; "
        "fixing all findings would save about 7.00 ms."
    )
    answers = told(found)
    assert answers["Which GPU?"].endswith("; and 2 more.")
    assert answers["CPU or GPU?"] == "The CPU (late step starts)."
    assert diagnosis(culprit(1), culprit(2)).verdict.count("Also rank 2 (slow GPU);") == 1


@pytest.mark.parametrize(
    ("gain_ms", "others", "said"),
    [
        (1, 1, "), and so does rank 1; fixing both would save about 6.00 ms, rank 3 alone about 1.00 ms."),
        (0, 1, "), and so does rank 1; fixing both would save about 6.00 ms, rank 3 alone nothing."),
        (
            1,
            2,
            "), and so do rank 1 and rank 2; fixing all of them would save about 7.00 ms, rank 3 alone about 1.00 ms.",
        ),
    ],
)
def test_findings_of_one_cause_that_hide_each_other_are_one_sentence(gain_ms: int, others: int, said: str):
    hidden = {"gain_ns": gain_ms * MS, "loss_ns": 3 * MS}
    found = diagnosis(culprit(**hidden), *(culprit(1 + at, **hidden) for at in range(others)))
    assert found.verdict.endswith(said)
    first, second, *_ = found.culprits
    assert f"; with rank 1{' and rank 2' if others > 1 else ''} about {5 + others}.00 ms" in describe_cost(first, found)
    assert "; with " not in describe_cost(second, found)


@pytest.mark.parametrize(("gain_ms", "is_said"), [(2.0, True), (2.9, False)])
def test_what_both_save_is_said_where_the_first_saves_clearly_less_than_its_share(gain_ms: float, is_said: bool):
    """It was said only where that saves less than half of its share."""
    first = culprit(gain_ns=round(gain_ms * MS), loss_ns=3 * MS)
    found = diagnosis(first, culprit(1, gain_ns=0, loss_ns=3 * MS))
    assert ("; with rank 1 about 6.00 ms" in describe_cost(found.culprits[0], found)) == is_said


def test_a_finding_that_another_cause_hides_tells_its_share():
    hidden = {"gain_ns": MS, "loss_ns": 3 * MS}
    found = diagnosis(culprit(**hidden), culprit(1, cause="late_start", **hidden))
    assert "; with rank 1 about 6.00 ms" in describe_cost(found.culprits[0], found)
    assert found.verdict.endswith(
        "; fixing it alone would save about 1.00 ms, because others are as late or later; it accounts for "
        "3.00 ms of the loss. Also rank 1 (late step starts); fixing all findings would save about 7.00 ms."
    )


def test_the_verdict_begins_with_what_heads_the_report():
    """Which is not the costliest where that has low confidence."""
    said = diagnosis(culprit(1, confidence="low", loss_ns=9 * MS), culprit(3)).verdict
    assert "%). Rank 3 executes" in said
    assert "Also rank 1 (slow GPU)" in said


@pytest.mark.parametrize(
    ("more", "parentheses", "end"),
    [
        ({"seen": Seen(4, 4)}, "seen in 4 of 4 steps, it recurs", ""),
        (
            {
                "seen": Seen(1, 5),
                "step_pattern": StepPattern("one step", "epoch 1, step 2003", is_count=True),
                "recurs": "unknown",
                "more_steps": 10,
            },
            "seen in 1 of 5 steps: epoch 1, step 2003",
            " Whether it recurs is unknown: record 10 more steps.",
        ),
        (
            {
                "seen": Seen(2, 3),
                "step_pattern": StepPattern("2 of 3 steps", "0,2", is_count=True),
                "recurs": "unknown",
                "more_steps": 2,
            },
            "seen in 2 of 3 steps: 0,2",
            " Whether it recurs is unknown: record at least 5 consecutive steps.",
        ),
        (
            {
                "seen": Seen(9, 10),
                "step_pattern": StepPattern("nearly every step (9 of 10)", is_count=True),
                "recurs": "unknown",
                "more_steps": None,
            },
            "seen in 9 of 10 steps",
            " Whether ranks always differ as much is unknown: compare with a good run (jitter compare GOOD NEW).",
        ),
        (
            {
                "seen": Seen(3, 9),
                "step_pattern": StepPattern("consecutive steps", "4 to 6", is_count=True),
                "recurs": "together",
                "more_steps": None,
            },
            "seen in 3 of 9 steps: 4 to 6",
            " Several ranks are late in the same steps.",
        ),
        (
            {"seen": Seen(4, 9), "step_pattern": StepPattern("up to step 3", has_ended=True)},
            "seen in 4 of 9 steps, up to step 3, it ended within the recorded steps",
            "",
        ),
        (
            {
                "seen": Seen(3, 9),
                "scope": "job",
                "step_pattern": StepPattern("every 3rd step", "0,3,6"),
                "recurs": "no",
                "more_steps": None,
                "confidence": "low",
            },
            "seen in 3 of 9 steps, every 3rd step: 0,3,6, low confidence",
            " Any rank could be next.",
        ),
    ],
)
def test_how_often_it_was_seen_and_whether_it_recurs(more: dict[str, object], parentheses: str, end: str):
    said = diagnosis(culprit(**more)).verdict
    assert f" ({parentheses}); fixing it would save about 4.00 ms.{end}" in said
    assert said.endswith(f"ms.{end}")
    beside = diagnosis(culprit(**more), culprit(1, cause="late_start", confidence="low")).verdict
    assert f"4.00 ms.{end} Also rank 1 (late step starts)" in beside


def test_what_more_steps_would_tell_of_a_rank():
    once = {"seen": Seen(1, 5), "recurs": "unknown", "more_steps": 10}
    unknown = "Whether it recurs is unknown: record 10 more steps"
    assert advise_recurrence(culprit(**once)) == (
        f"{unknown}; rank 3 again points to its GPU, other ranks to random events."
    )
    for cause, place in (("cpu_launch", "host"), ("workload_imbalance", "share of the work")):
        assert f"; rank 3 again points to its {place}, " in advise_recurrence(culprit(**once, cause=cause))
    assert advise_recurrence(culprit(**once, scope="host", ranks=(2, 3))) == f"{unknown}."
    assert advise_recurrence(culprit()) == "It recurs."


def test_the_seven_answers():
    hosts = {3: "n1"}
    answers = told(diagnosis(culprit(host="n1")), hosts)
    assert list(answers) == [
        "How much does jitter cost?",
        "Which step?",
        "Which node?",
        "Which GPU?",
        "When in the step does it begin?",
        "Where to look?",
        "CPU or GPU?",
    ]
    assert answers["How much does jitter cost?"] == "5.00 ms over 1 step, 25.0% of the run"
    assert answers["Which step?"] == "Step 1 costs most: 5.00 ms."
    assert answers["Which node?"] == "n1 (rank 3)."
    assert answers["Which GPU?"] == "Rank 3 (n1): 4.00 ms = 20.0% of the run (high confidence)."
    assert answers["When in the step does it begin?"] == "Rank 3 (n1): kernels 4 to 9, starting at kern."
    assert answers["Where to look?"] == "/traces/r3.sqlite, 76.0565 s to 76.0580 s on its timeline."
    assert answers["CPU or GPU?"] == "The GPU (slow GPU)."


def test_a_node_and_a_network():
    host = culprit(scope="host", host="n1", ranks=(2, 3), cause="cpu_launch")
    assert told(diagnosis(host), {2: "n1", 3: "n1"})["Which node?"] == "n1: all its ranks are slow."
    link = culprit(scope="ranks", ranks=(0, 3), cause="communication", kernel_index=None, look_at=None)
    answers = told(diagnosis(link), {0: "n0", 3: "n1"})
    assert answers["Which node?"] == "No single node."
    assert answers["CPU or GPU?"].startswith("Neither: the network")
    of_rank = culprit(scope="rank", ranks=(3,), cause="slow_network", kernel_index=None)
    assert told(diagnosis(of_rank), {0: "n0", 3: "n1"})["Which node?"] == "n1 (rank 3)."
    assert answers["When in the step does it begin?"].startswith("Unknown: at no kernel")
    start = told(diagnosis(culprit(scope="host", host="n1", ranks=(2, 3), cause="late_start", kernel_index=None)), {})
    assert start["When in the step does it begin?"] == "Host n1 (ranks 2-3): before the first kernel of the step."
    assert told(diagnosis(link), {0: None, 3: None})["Which node?"] == "The traces do not name the hosts."
    both = told(diagnosis(host, culprit(0)), {2: "n1", 3: "n1", 0: "n0"})["CPU or GPU?"]
    assert both == "The CPU (late kernel launches); the GPU (slow GPU)."


def test_how_far_the_ends_of_collectives_disagree():
    """Ranks with clocks of their own: the median over collectives counts; one collective cannot be checked."""
    ends = np.arange(5)[:, None] * 1e6 + np.array([0.0, 5e9, -7e9])
    assert (disagreement_ns(ends), disagreement_ns(ends[:1])) == (0, None)
    ends[2, 1] += 30  # with the usual offsets they disagree by 0, 0, 30, 50 and 70 ns
    ends[3, 2] -= 50
    ends[4, 1] -= 70
    assert disagreement_ns(ends) == 30


@pytest.mark.parametrize(
    ("lone", "said"),
    [
        ([5], "Rank 5 runs a program of its own: a fault that slows it in every step cannot be seen."),
        (
            [0, 1, 2, 7],
            "Ranks 0-2,7 each run a program of their own: a fault that slows one of them in every step cannot be seen.",
        ),
    ],
)
def test_who_cannot_be_compared_is_not_cleared(lone: list[int], said: str):
    words = verdict(Loss(3 * MS, 0.001), [], [answer(1, 3 * MS)], 8, Conclusion("within_noise", (said,)))
    assert (
        words == f"Jitter costs 3.00 ms over 1 step (0.10%); no recorded rank stands out above the run's noise. {said}"
    )
    assert "host or link" not in words
    assert said not in verdict(
        Loss(3 * MS, 0.1), [culprit()], [answer(1, 3 * MS)], 8, Conclusion("within_noise", (said,))
    )


def test_what_the_logs_tell_of_the_first_culprit_ends_the_verdict():
    slow, usual = ({"host": None, "device": at, "sm_mhz": mhz, "reasons": []} for at, mhz in ((3, 1000.0), (1, 1410.0)))
    logs = JobLogs(gpu_clocks=[slow, usual], places={rank: RankPlace(None, rank) for rank in (1, 3)})
    plain = diagnosis(culprit(3), culprit(1))
    found = add_log_evidence(plain, logs)
    clocks = "GPU 3 (rank 3): 1,000 of 1,410 MHz, the other GPUs' median"
    by_logs = plain.verdict.replace(
        "check GPU clocks, power, temperature and neighbours with nvidia-smi -q or rocm-smi",
        "check the GPU's cooling and its power limit",
    )
    assert found.verdict == f"{by_logs} By the logs, {clocks}."
    assert add_log_evidence(found, logs) == found
    assert "By the logs" not in add_log_evidence(diagnosis(culprit(1), culprit(3)), logs).verdict


def test_what_a_likely_cause_of_the_logs_advises_comes_first():
    error = {"host": None, "device": 3, "bus_id": None, "code": 48}
    logs = JobLogs(gpu_errors=[error], places={rank: RankPlace(None, rank) for rank in (1, 3)})
    (named,) = add_log_evidence(diagnosis(culprit(3)), logs).culprits
    assert write_advice(named).startswith(
        "Rank 3 executes the same kernels more slowly: read the kernel log; reset or replace the GPU; if that is not "
        "it, check GPU clocks, power, temperature and neighbours with nvidia-smi -q or rocm-smi"
    )


def test_a_slow_port_is_evidence_where_communication_is_slow_in_every_step():
    shared = culprit(scope="job", ranks=(0, 1, 2, 3), cause="exposed_communication", rung="overlap", rank=0)
    places = {rank: RankPlace(f"n{rank}", 0) for rank in range(4)}
    row = {"device": None, "nic": "mlx5_0", "link": 1, "state": "Active", "counter": None, "count": None}
    links = [row | {"host": f"n{host}", "gb_per_s": 12.5 if host == 2 else 50.0} for host in range(4)]
    told = add_log_evidence(replace(diagnosis(), of_all_ranks=(shared,)), JobLogs(links=links, places=places))
    assert told.facts == ()
    assert "port of mlx5_0: 12.5 of 50 GB/s (1 link) on n2" in told.of_all_ranks[0].evidence
    assert "communicate without computing at the same time: check the cable" in write_advice(told.of_all_ranks[0])


def test_the_advice_on_one_rank_is_that_of_its_evidence():
    """Without advice of its evidence it is the cause's: for all ranks of the job that of several."""
    found = {"cause": "late_start", "advice": "starts its steps late: check the data loading"}
    of_job = culprit(scope="job", ranks=(0, 1, 2, 3), cause="late_start")
    cases = (culprit(**found), culprit(cause="late_start"), of_job)
    advice = [diagnosis(one).verdict.partition(": check ")[2].partition(" (seen")[0] for one in cases]
    assert advice == ["the data loading", "the data loading and the host", "the data loading and the hosts"]


def test_the_only_rank_of_a_job_is_named_as_one():
    alone = culprit(scope="job", rank=0, cause="launch_bound", rung="launch", is_beyond_loss=True)
    said = replace(diagnosis(), of_all_ranks=(alone,)).verdict
    assert "Rank 0 launches kernels that take less time than their launch" in said
    waiting = culprit(scope="job", rank=0, cause="exposed_communication", rung="overlap", waits=FOR_UNRECORDED)
    assert write_advice(waiting).startswith(
        "Rank 0 communicates without computing: record or ingest the ranks that are missing"
    )


def test_a_cost_that_is_unknown_is_no_zero():
    unpriced = culprit(rank=2, loss_ns=0, gain_ns=0, unpriced_because="some exchanges name no partners")
    assert describe_price(unpriced).startswith("an unknown time; what fixing it would save is unknown")
    found = diagnosis(unpriced, culprit(3))
    (cost, *_) = answer_questions(found, {})
    assert not any("fixing all findings" in text for text in (found.verdict, *cost.evidence))


def test_what_costs_beside_jitter_is_told_with_its_cost():
    """The verdict states the loss of a slow network, and never a saving beyond a loss that it is no part of."""
    slow = culprit(
        cause="slow_network", rung="network", is_beyond_loss=True, loss_ns=9 * MS, fraction=0.45, gain_ns=8 * MS
    )
    said = diagnosis(slow).verdict
    assert "it costs 9.00 ms = 45.0% of the run; fixing it would save about 8.00 ms" in said


def test_the_verdict_ends_with_a_headline_about_all_ranks():
    shared = culprit(
        scope="job",
        ranks=(0, 1, 2, 3),
        cause="launch_bound",
        rung="launch",
        is_beyond_loss=True,
        loss_ns=9 * MS,
        fraction=0.45,
        gain_ns=8 * MS,
    )
    quiet = replace(diagnosis(), of_all_ranks=(shared,))
    assert quiet.verdict == (
        f"{diagnosis().verdict} All ranks launch kernels that take less time than their launch: fuse them, or launch "
        "them as a graph; it costs 9.00 ms = 45.0% of the run; fixing it alone would save about 8.00 ms."
    )
    late = replace(diagnosis(culprit()), of_all_ranks=(shared,))
    assert late.verdict == diagnosis(culprit()).verdict


def test_what_the_gpus_of_a_host_have_in_common_is_said_once():
    """Three limited GPUs of a slow host are one sentence of evidence, and one of the verdict."""
    limited = {"sm_mhz": 1000.0, "reasons": ["hw_thermal_slowdown"], "host": "n0"}
    usual = {"sm_mhz": 1410.0, "reasons": [], "host": "n1"}
    clocks = [one | {"device": device} for device in range(3) for one in (limited, usual, usual)]
    places = {device: RankPlace("n0", device) for device in range(3)}
    slow = diagnosis(culprit(scope="host", host="n0", ranks=(0, 1, 2)))
    told = add_log_evidence(slow, JobLogs(gpu_clocks=clocks, places=places))
    (said,) = (one for one in told.culprits[0].evidence if "heat" in one)
    assert said.startswith("3 GPUs of n0 (ranks 0-2) limited by heat: 1,000 of 1,410 MHz")
    assert told.verdict.endswith(f"By the logs, {said}.")


@pytest.mark.parametrize(
    ("loss_class", "words"), [("start", "late step starts and kernel launches"), ("launch", "late kernel launches")]
)
def test_a_host_that_is_slow_throughout_is_named_by_what_the_job_loses_to_it(loss_class: str, words: str):
    assert name_cause(culprit(cause="cpu_launch", loss_class=loss_class)) == words
