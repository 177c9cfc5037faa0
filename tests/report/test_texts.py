"""The report in a terminal, its fix list, and what it says of the recordings."""

import io
import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from rich.console import Console

import jitter
from jitter.analysis.diagnosis.causes import CAUSES
from jitter.analysis.diagnosis.model import CodeLocation
from jitter.analysis.diagnosis.verdict import name_culprit
from jitter.core.formatting import format_numbers, format_percent, format_time
from jitter.report.json_report import render_json, report_document
from jitter.report.terminal import MAX_LINES, print_report
from jitter.report.text.fix_list import (
    costliest_step,
    describe_cost,
    describe_jitter,
    describe_remedy,
    exported_ranks,
    list_fixes,
)
from jitter.report.text.run_text import describe_alignment, describe_coverage, describe_excluded
from jitter.report.views.run_overview import AlignmentSummary, RunOverview, build_run_overview
from jitter.simulate import Fault, Job, simulate
from tests.support.lakes import RankLake, lake_of
from tests.support.report_lakes import report_job, report_lake, step_rows
from tests.support.simulated import ingest_run, ingest_traces, small

JOBS: dict[str, tuple[Job, list[str]]] = {
    "healthy": (small(ranks=8, steps=5), []),
    "pause": (small(ranks=8, steps=6), ["cpu_stall:rank=5,step=3,kernel=17,ms=3"]),
    "two slow GPUs": (small(ranks=8, steps=6), ["slow_gpu:rank=1+6,factor=1.4"]),
    "many findings": (
        small(ranks=16, steps=8),
        [f"slow_gpu:rank={rank},steps={rank}-{rank + 1},factor=2" for rank in range(6)] + ["late_end:rank=9,ms=4"],
    ),
    "slow collectives": (small(ranks=4, steps=8), ["slow_collective:steps=4-5,factor=20"]),
    "one step": (small(ranks=4, steps=1), ["slow_gpu:rank=1,factor=2"]),
    "one rank": (small(ranks=1, steps=7), ["cpu_stall:rank=0,step=4,kernel=9,ms=5"]),
}


NUMBER = re.compile(r"[\d.]+ (?:ns|µs|ms|s)\b|[<\d.]+%")


def screen(lake: "jitter.Lake", width: int, *, verbose: bool = False) -> list[str]:
    out = io.StringIO()
    console = Console(file=out, width=width)
    print_report(lake.diagnose(), build_run_overview(lake, lake.step_keys), lake.hosts, console, verbose=verbose)
    lines = out.getvalue().splitlines()
    assert lines == [line.rstrip() for line in lines]  # nothing pads a pipe
    return lines


@pytest.fixture(scope="module", params=JOBS)
def lake(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> "jitter.Lake":
    job, faults = JOBS[request.param]
    run = simulate(job, [Fault.parse(fault) for fault in faults])
    return ingest_run(run, tmp_path_factory.mktemp("terminal"), "nsys")


@pytest.mark.parametrize("width", [60, 160])
def test_the_report_fits_a_screen(lake: "jitter.Lake", width: int) -> None:
    lines = screen(lake, width)
    assert len(lines) <= MAX_LINES == 25
    assert max(map(len, lines)) <= width


def test_the_first_line_is_the_answer(lake: "jitter.Lake") -> None:
    first = screen(lake, 200)[0]
    diagnosis = lake.diagnose()
    above_noise = [one for one in diagnosis.culprits if one.confidence != "low"]
    costliest = max(above_noise or diagnosis.findings, key=lambda one: one.loss_ns, default=None)
    if costliest in diagnosis.culprits:
        assert any(str(rank) in first for rank in costliest.ranks) or costliest.scope == "job"
        assert f"{costliest.seen.steps} of {costliest.seen.of} step" in first or "the only step" in first
    elif costliest is not None:
        assert first.startswith(f"All ranks: {CAUSES[costliest.cause].words}")
        if not diagnosis.culprits:
            cost, _, program = diagnosis.verdict.partition(". All ranks ")
            assert f"jitter     {cost.removeprefix('Jitter costs ')}." in screen(lake, 1000)
            assert f"it costs {format_time(costliest.loss_ns)}" in program
    else:
        assert diagnosis.verdict.startswith(first)


def test_each_number_is_one_of_the_json(lake: "jitter.Lake") -> None:
    """Times and percentages of cost and steps are those of the JSON, written as everywhere."""
    lines = screen(lake, 250)
    found = json.loads(render_json(lake.diagnose(), build_run_overview(lake, lake.step_keys)))
    times, shares = {found["loss"]["ns"]}, {found["loss"]["fraction"]}
    for one in found["culprits"]:
        times |= {one["loss_ns"], one["gain_ns"]}
        shares.add(one["fraction"])
    for step in found["steps"]:
        times |= {step["step_time_ns"], step["loss_ns"]}
        shares.add(step["loss_fraction"])
    times.add(lake.diagnose().gain_of_all_ns)  # what findings that hide each other save together
    known = {format_time(ns) for ns in times} | {format_percent(share) for share in shares}
    known |= {number for one in found["culprits"] for line in one["evidence"] for number in NUMBER.findall(line)}
    start = next((n for n, line in enumerate(lines) if line.split()[:2] == ["step", "time"]), len(lines))
    end = next((n for n, line in enumerate(lines) if n > start and line.startswith("run ")), len(lines))
    checked = [line for line in lines if line.startswith(("cost ", "also "))] + lines[start + 1 : end]
    for line in checked:
        for number in NUMBER.findall(line):
            assert number in known, line
    assert checked or not found["culprits"]


def test_all_evidence_is_one_option_away(lake: "jitter.Lake") -> None:
    words = " ".join(" ".join(screen(lake, 200, verbose=True)).split())
    assert lake.diagnose().verdict in words
    assert "How much does jitter cost?" in words
    for one in lake.diagnose().culprits[:3]:
        assert all(line in words for line in one.evidence)


def test_a_pause_is_told_with_its_place_and_what_to_do(tmp_path: Path) -> None:
    job, faults = JOBS["pause"]
    lake = ingest_run(simulate(job, [Fault.parse(faults[0])]), tmp_path, "nsys")
    lines = screen(lake, 300)
    assert lines[0].startswith("Rank 5 (node0002): late kernel launches (CPU), kernel 17, 1 of 6 steps")
    heads = [line.split("  ")[0] for line in lines if not line.startswith(" ")]
    assert heads[1:7] == ["cost", "CPU", "where", "look", "do", "again"]
    assert any(re.match(r"look +\S*rank5\.sqlite  \d+\.\d{4} s to \d+\.\d{4} s$", line) for line in lines)
    [step] = [line for line in lines if "█" in line]
    assert re.search(r"\b3 .* 5  █{20}$", step)


LAKE = Path("/runs/my lake")
COHORTS = dict.fromkeys(range(40), 0)


@pytest.fixture(scope="module")
def diagnosis(sample_lake):
    return sample_lake.diagnose()


def finding(diagnosis, **changes):
    (one,) = diagnosis.culprits[:1]
    return replace(one, **{"confidence": "high", **changes})


def test_the_remedy_says_what_it_saves(diagnosis):
    for changes, text in (
        (
            {"cause": "gpu_compute", "gain_ns": 6_000_000},
            "A GPU at full speed (check clocks, power, temperature, neighbours) would save about 6.00 ms",
        ),
        ({"cause": "none", "gain_ns": 6_000_000}, "Fixing it would save about 6.00 ms"),
        ({"remedy": "more loader workers", "gain_ns": 6_000_000}, "More loader workers would save about 6.00 ms"),
        (
            {"remedy": "more loader workers", "gain_ns": 0, "loss_ns": 0},
            "What more loader workers alone would save is too small to measure in these steps",
        ),
    ):
        assert describe_remedy(finding(diagnosis, **changes)) == text


def item_of(diagnosis, name="Rank 5 (node0001)"):
    return next(one for one in list_fixes(diagnosis, COHORTS, LAKE) if one.name == name)


def test_an_item_says_where_to_look_and_how_to_export_it(diagnosis):
    item = item_of(diagnosis)
    number = 1 + [one.cause for one in diagnosis.findings].index("cpu_launch")
    step = costliest_step(diagnosis.culprits[0], diagnosis)
    assert step.key.step == 2003
    assert item.words == "late kernel launches (CPU), kernel 17, 1 of 5 steps: epoch 1, step 2003"
    assert "rank5.sqlite, 76.0565 s to 76.0580 s" in item.file
    ranks = format_numbers({5, step.min_rank})
    command = f"jitter export '/runs/my lake' --perfetto finding-{number}.json.gz --step 2003 --epoch 1 --ranks"
    assert item.export == f"{command} {ranks}"


def test_items_are_the_findings_over_all_rungs_most_time_first(diagnosis):
    items = list_fixes(diagnosis, COHORTS, LAKE)
    assert [(one.loss_ns, one.fraction) for one in items] == [(one.loss_ns, one.fraction) for one in diagnosis.findings]
    assert len(items) > len(diagnosis.culprits) == sum(one.is_jitter for one in items)
    assert [one.loss_ns for one in items] == sorted((one.loss_ns for one in items), reverse=True)


@pytest.mark.parametrize(
    ("changes", "saving"),
    [
        ({"loss_ns": 2_000_000, "gain_ns": 620_000}, "saves about 620 µs"),
        ({"loss_ns": 2_000_000, "gain_ns": 1_990_000}, ""),
        ({"loss_ns": 2_000_000, "gain_ns": 0}, "saves nothing"),
        ({"gain_ns": 620_000, "unpriced_because": "some launches were not recorded"}, ""),
    ],
)
def test_an_item_says_what_its_fix_saves_where_that_is_not_its_cost(diagnosis, changes, saving):
    assert item_of(replace(diagnosis, culprits=(finding(diagnosis, **changes),))).saving == saving


def test_few_ranks_of_a_group_are_exported(diagnosis):
    whole_host = finding(diagnosis, ranks=tuple(range(40)), rank=5)
    step = costliest_step(whole_host, diagnosis)
    ranks = exported_ranks(whole_host, step, COHORTS)
    assert ranks[:2] == [5, step.min_rank]
    assert len(ranks) == len(set(ranks)) == 8


def test_ranks_of_another_cohort_are_not_exported(diagnosis):
    pipeline = finding(diagnosis, ranks=(4, 5, 6), rank=5)
    step = costliest_step(pipeline, diagnosis)
    assert exported_ranks(pipeline, step, {4: 1, 5: 1, 6: 2, step.min_rank: 0}) == [5, 4]


def test_an_item_has_the_code_that_launches_the_kernel_once(diagnosis):
    code = CodeLocation(17, "aten::add_", "model/mlp", "backward", "train.py(12): step")
    words = "kernel 17 is launched by `aten::add_` in `model/mlp` at `train.py(12): step`, backward"
    one = finding(diagnosis, code=code, evidence=(words, "3 ms late"))
    item = item_of(replace(diagnosis, culprits=(one,)))
    assert item.code == words
    assert item.evidence == ("3 ms late",)
    assert item_of(replace(diagnosis, culprits=(finding(diagnosis, code=None),))).code == ""


def test_a_cost_is_said_once(tmp_path: Path):
    """Neither the saving nor the whole loss of jitter stands beside a cost that they nearly equal."""
    lake = ingest_run(simulate(small(ranks=4, steps=6), [Fault.parse("slow_gpu:rank=2,factor=1.6")]), tmp_path)
    diagnosis = lake.diagnose()
    (culprit,) = diagnosis.culprits
    assert abs(culprit.gain_ns - culprit.loss_ns) < 0.05 * culprit.loss_ns
    assert "would save" not in describe_cost(culprit, diagnosis)
    half = replace(culprit, gain_ns=round(0.8 * culprit.loss_ns))
    assert f"fixing it would save about {format_time(half.gain_ns)}" in describe_cost(half, diagnosis)
    alone = replace(diagnosis, loss=replace(diagnosis.loss, ns=culprit.loss_ns))
    assert "all jitter" not in describe_cost(culprit, alone)
    assert "all jitter" in describe_cost(
        culprit, replace(diagnosis, loss=replace(diagnosis.loss, ns=2 * culprit.loss_ns))
    )


def test_what_costs_little_is_no_headline_before_a_larger_loss_of_all_ranks(diagnosis):
    (late,), (of_all, *_) = diagnosis.culprits[:1], diagnosis.of_all_ranks
    small = replace(late, fraction=0.002, loss_ns=of_all.loss_ns // 50)
    assert replace(diagnosis, culprits=(small,)).headline == of_all
    assert replace(diagnosis, culprits=(small,), of_all_ranks=()).headline == small
    assert diagnosis.headline == late


def test_what_unrecorded_ranks_cost_heads_the_report_and_a_doubtful_rank_does_not(diagnosis):
    late = diagnosis.culprits[0]
    doubtful = replace(late, loss_ns=30 * late.loss_ns, confidence="low")
    assert replace(diagnosis, culprits=(doubtful, late)).headline == late
    unrecorded = replace(doubtful, scope="unrecorded", ranks=(99,))
    assert replace(diagnosis, culprits=(unrecorded, late)).headline == unrecorded


@pytest.mark.parametrize(("why", "is_first"), [("", False), ("a graph may hold collectives", True)])
def test_what_saves_nothing_is_no_headline_and_what_may_save_is(diagnosis, why: str, is_first: bool):
    late = replace(diagnosis.culprits[0], confidence="low")
    first = replace(late, loss_ns=30 * late.loss_ns, gain_ns=0, gain_range_ns=None, unpriced_because=why)
    assert replace(diagnosis, culprits=(first, late), of_all_ranks=()).headline == (first if is_first else late)


def test_jitter_that_no_finding_holds_is_told_by_class_and_rank(diagnosis):
    assert ": " not in describe_jitter(diagnosis)
    unheld = describe_jitter(replace(diagnosis, culprits=()))
    assert unheld.startswith(describe_jitter(diagnosis) + ": ")
    assert unheld.endswith("rank 5 (nearly all)")


def test_part_of_the_ranks_is_named_within_a_sentence(diagnosis):
    some = finding(diagnosis, scope="job", ranks=(6, 7), is_part_of_job=True)
    assert name_culprit(some) == "Ranks 6-7"


SAMPLE = Path(__file__).parents[2] / "data" / "sample"


def facts_of(lake, steps=None):
    chosen = lake.step_keys if steps is None else steps
    return build_run_overview(lake, chosen)


def test_a_whole_run(tmp_path):
    facts = facts_of(report_job(tmp_path / "lake"))
    assert (facts.ranks, facts.steps, facts.hosts, facts.formats) == (4, 3, ("node0", "node1"), ("nsys 2026.2",))
    assert (facts.kernels, facts.kernels_per_step) == (4 * 3 * 14, (14, 14))
    assert (facts.outside_steps, facts.before_capture) == (12, 4)
    assert describe_coverage(facts) == ["All 4 ranks in the lake recorded all 3 steps completely."]
    assert facts.alignment.steps == {"collective": 3}
    assert "unknown" in describe_alignment(facts)  # one collective a step: nothing to check it against


def test_holes_cut_and_left_out(tmp_path):
    ranks = {r: {(1, s): step_rows(r, s) for s in range(3)} for r in range(4)}
    del ranks[1][1, 2]
    del ranks[3][1, 2]
    ranks[2][1, 0] = ranks[2][1, 0][:6]  # ends before the collective
    facts = facts_of(report_lake(tmp_path / "lake", ranks, cut=[(2, 0)]))
    assert [(hole.ranks, [key.step for key in hole.steps]) for hole in facts.holes] == [((1, 3), [2])]
    assert (facts.cut, facts.left_out) == (1, 1)
    told = describe_coverage(facts)
    assert told[0] == "Ranks 1,3 have no recording of step 2 of epoch 1."
    assert "1 recording of a step by a rank is incomplete" in told[1]
    assert "1 recording of a step by a rank is excluded" in told[2]


def test_a_fact_is_in_one_warning(tmp_path):
    """A rank that is missing, and kernels outside steps, which each record counts as well."""
    lake = ingest_traces(tmp_path, *(SAMPLE / f"rank{rank}.sqlite" for rank in range(1, 8)))
    facts = facts_of(lake)
    warnings = report_document(lake.diagnose(), facts)["run"]["warnings"]
    (missing,) = [one for one in warnings if "ank 0" in one]
    assert missing.startswith("Rank 0 of the job was not recorded: waiting for it may cost up to ")
    assert [one for one in warnings if "outside" in one] == ["56 kernels lie outside step markers (ignored)."]
    assert describe_coverage(facts) == ["All 7 ranks in the lake recorded all 5 steps completely."]


def test_leaving_steps_out_counts_only_the_others(tmp_path):
    lake = report_job(tmp_path / "lake")
    facts = facts_of(lake, lake.step_keys[1:])
    assert (facts.steps, facts.steps_left_out, facts.kernels) == (2, 1, 2 * 4 * 14)
    assert "1 step left out by --steps." in describe_excluded(facts)


def test_unmatched_kernels_and_their_time(tmp_path):
    ranks = {r: {(1, 0): step_rows(r, 0)} for r in range(3)}
    extra = ranks[1][1, 0][-1] | {"kernel_name": "odd_one"}
    extra |= {"start_ns": extra["end_ns"] + 10, "end_ns": extra["end_ns"] + 4010, "launch_start_ns": extra["start_ns"]}
    ranks[1][1, 0] = [*ranks[1][1, 0], extra]
    facts = facts_of(report_lake(tmp_path / "lake", ranks))
    assert (facts.unmatched_kernels, facts.unmatched_ns) == (1, 4000)
    assert any("1 kernel (4.00 µs) without a counterpart" in told for told in describe_excluded(facts))


def test_problems_are_said_once_with_their_count(tmp_path):
    ranks = {r: {(1, 0): step_rows(r, 0)} for r in range(3)}
    facts = facts_of(
        report_lake(tmp_path / "lake", ranks, problems=["clock drifts"], refused=["no rank", "no rank", "cut"])
    )
    assert [(p.text, p.sources) for p in facts.problems] == [("clock drifts", 3)]
    assert [(p.text, p.sources) for p in facts.refused] == [("no rank", 2), ("cut", 1)]


def test_rejected_traces_are_counted_by_their_reason_and_named_once(tmp_path):
    refused = [f"/traces/{name}.sqlite: rank unknown; give it" for name in ("a", "b")]
    sources = [RankLake(0, {(1, 0): step_rows(0, 0)})]
    sources += [RankLake(None, {}, fields={"file": one.split(":")[0], "problems": [one]}) for one in refused]
    linked = {"file": "/traces/c.sqlite", "problems": ["/links/c.sqlite: rank unknown; give it"]}
    sources.append(RankLake(None, {}, fields=linked))
    (found,) = facts_of(lake_of(tmp_path / "lake", sources)).refused
    assert (found.text, found.sources, found.first_file) == ("rank unknown; give it", 3, "traces/a.sqlite")


@pytest.mark.parametrize("collective", [True, False])
def test_unaligned_ranks_are_told(tmp_path, collective):
    ranks = {r: {(1, 0): step_rows(r, 0, collective=collective)} for r in range(2)}
    words = describe_alignment(facts_of(report_lake(tmp_path / "lake", ranks)))
    assert ("cannot be aligned" in words) is not collective


def test_steps_of_pipeline_stages_are_not_told_as_steps_of_the_run():
    """12 steps of 4 stages, of which one has no collective that all of its ranks leave together."""
    summary = AlignmentSummary({"collective": 36, "none": 12}, 1_000, 0)
    said = describe_alignment(cast(RunOverview, SimpleNamespace(ranks=8, steps=12, alignment=summary)))
    assert said.startswith("In 36 of 48 steps, clocks are aligned")
    assert said.endswith("Steps of the 4 groups of ranks that run one program each are counted apart.")
