"""The registry of causes is complete: names, entries, rules and simulated faults."""

from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from jitter.analysis.account.losses import LossClass
from jitter.analysis.detection.findings import of_one_rank
from jitter.analysis.detection.standouts import Outlier
from jitter.analysis.diagnosis.causes import CAUSES, RULES, Match, Rule, find_cause, share_of_launches
from jitter.analysis.diagnosis.model import Cause
from jitter.analysis.execution.self_times import TimePart
from jitter.simulate import Fault, simulate, write
from jitter.simulate.faults import FAULT_KINDS
from tests.support.simulated import ingest_traces, small

NAMED = [cause for cause in get_args(Cause) if cause != "none"]


def test_every_cause_has_an_entry():
    assert set(CAUSES) == set(get_args(Cause))


@pytest.mark.parametrize("cause", NAMED)
def test_an_entry_says_all_that_a_report_needs(cause: Cause):
    info = CAUSES[cause]
    assert info.words
    assert info.behaviour
    assert info.side is not None
    assert info.part is not None


def test_every_cause_has_a_simulated_fault():
    simulated = {kind.cause for kind in FAULT_KINDS.values()}
    of_all_ranks = {"sync_calls", "blocking_copies", "launch_bound", "exposed_communication", "serial_copies"}
    # `slow_network` is a slow collective in every step, of a lake with a benchmark
    # undecided between two; stages of tests/accuracy/layouts; options of a job, not faults
    assert simulated == set(NAMED) - {"gpu_time", "slow_network", "unequal_stages", *of_all_ranks}


def test_what_one_rank_or_link_can_have_has_a_rule():
    simulated = {kind.cause for kind in FAULT_KINDS.values()}
    assert {rule.cause for rule in RULES} == {*simulated, "gpu_time", "slow_network"}


@pytest.mark.parametrize("part", TimePart)
def test_every_part_of_time_has_a_cause_that_is_always_found(part: TimePart):
    last = [rule for rule in RULES if part in rule.parts][-1]
    assert CAUSES[last.cause].part is part


def test_the_first_rule_that_is_true_decides(monkeypatch: pytest.MonkeyPatch):
    def rule(cause: Cause, match: Match | None, part: TimePart = TimePart.GPU) -> Rule:
        return Rule(cause, (part,), "likely", lambda evidence, candidate: match, "{size} units")

    def found(*rules: Rule) -> tuple[str, str, tuple[str, ...]]:
        monkeypatch.setattr("jitter.analysis.diagnosis.causes.RULES", rules)
        late = of_one_rank(Outlier(0, 0, TimePart.GPU, (0,), 1.0, 9.0))
        return find_cause(None, late)[:3]  # type: ignore[arg-type]

    two, three = Match({"size": "2"}), Match({"size": "3"}, ("more",))
    of_cpu = rule("cpu_launch", two, TimePart.CPU)
    assert found(of_cpu, rule("gpu_time", None), rule("gpu_compute", three), rule("gpu_time", two)) == (
        "gpu_compute",
        "likely",
        ("3 units", "more"),
    )
    assert found(of_cpu, rule("gpu_time", None)) == ("none", "unknown", ())


@pytest.mark.parametrize(
    ("by_launches_ns", "lost_ns", "share"),
    [(40.0, 100.0, 0.4), (100.0, 100.0, 1.0), (0.5, 100.0, None), (120.0, 100.0, 1.0), (-1.0, -2.0, None)],
)
def test_launches_that_cost_next_to_nothing_are_not_what_a_rank_loses(
    by_launches_ns: float, lost_ns: float, share: float | None
):
    by_class = np.zeros(len(LossClass))
    by_class[[LossClass.LAUNCH, LossClass.GPU]] = by_launches_ns, lost_ns - by_launches_ns
    assert share_of_launches(by_class) == share


@pytest.mark.parametrize(("detailed", "certainty"), [([0], "unknown"), ([0, 1, 2, 3], "likely"), ([1], "likely")])
def test_a_rank_that_is_recorded_in_more_detail_is_to_be_recorded_as_the_others(
    tmp_path: Path, detailed: list[int], certainty: str
):
    run = simulate(small(steps=6, cpu_bound=True), [Fault.parse("slow_cpu:rank=0,factor=1.6")])
    plain, with_operators = write(run, tmp_path / "plain", "kineto"), write(run, tmp_path / "all", "kineto", cpu_ops=1)
    lake = ingest_traces(tmp_path, *((with_operators if rank in detailed else plain)[rank] for rank in range(4)))
    found = next(one for one in lake.diagnose().culprits if one.rung == "ranks")
    assert (found.ranks, found.cause, found.cause_certainty) == ((0,), "cpu_launch", certainty)
    assert ("record all ranks alike" in found.advice) == (certainty == "unknown")


def test_graphs_that_one_rank_records_as_a_whole_are_no_other_work(tmp_path: Path):
    run = simulate(small(steps=5), [Fault.parse("slow_gpu:rank=1,factor=1.3")])
    kernels, graphs = write(run, tmp_path / "kernels", "nsys"), write(run, tmp_path / "graphs", "nsys", graphs="graph")
    lake = ingest_traces(tmp_path, *((graphs if rank == 1 else kernels)[rank] for rank in range(4)))
    found = next(one for one in lake.diagnose().culprits if one.rung == "ranks")
    assert (found.ranks, found.cause, found.cause_certainty) == ((1,), "gpu_time", "unknown")
