"""The run in figures: counted, and nothing missing in silence."""

import shutil
from pathlib import Path

import pytest

import jitter
from jitter.report.json_report import report_document
from jitter.report.text.run_text import describe_alignment, describe_coverage, describe_excluded
from jitter.report.views.run_overview import build_run_overview
from tests.support.lakes import RankLake, lake_of
from tests.support.report_lakes import report_job, report_lake, step_rows

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
    traces = tmp_path / "traces"
    traces.mkdir()
    for rank in range(1, 8):
        shutil.copy(SAMPLE / f"rank{rank}.sqlite", traces)
    jitter.ingest([traces], tmp_path / "lake", executor=jitter.LocalExecutor())
    lake = jitter.open(tmp_path / "lake")
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
