"""Every form of report says the same of a lake: ranks, causes, parts and numbers never contradict each other."""

import io
import json
import re

import pytest
from rich.console import Console

import jitter
from jitter.analysis.diagnosis.causes import CAUSES
from jitter.analysis.diagnosis.verdict import name_culprit
from jitter.core.formatting import capitalize, format_percent, format_time
from jitter.query.diagnosis_rows import steps_table
from jitter.report.json_report import render_json
from jitter.report.markdown import render_markdown
from jitter.report.page import render_html
from jitter.report.terminal import print_report
from jitter.report.text.fix_list import answer_questions
from jitter.report.views.run_overview import build_run_overview
from jitter.simulate import Fault, Job, simulate
from tests.support.fuzz_depth import fuzz, some_of
from tests.support.simulated import ingest_partial_run, small

pytestmark = fuzz

JOBS: dict[str, tuple[Job, list[str], tuple[int, ...]]] = {
    "healthy": (small(ranks=8, steps=5), [], ()),
    "slow launches": (small(ranks=8, steps=6), ["slow_cpu:rank=1,factor=4"], ()),
    "slow GPU": (small(ranks=4, steps=6), ["slow_gpu:rank=2,factor=1.6"], ()),
    "late starts": (small(ranks=4, steps=6), ["late_start:rank=1,every=2,ms=6"], ()),
    "pauses on all ranks": (small(ranks=8, steps=12), ["pause:every=5,ms=3"], ()),
    "most ranks are slow": (small(ranks=8, steps=8), ["slow_gpu:ranks=0-4,factor=1.2"], ()),
    "all ranks are slow in two steps": (small(ranks=8, steps=12), ["slow_gpu:ranks=0-7,steps=4+9,factor=1.5"], ()),
    "late step ends": (small(ranks=4, steps=6), ["late_end:rank=1,ms=4"], ()),
    "slow collectives": (small(ranks=4, steps=8), ["slow_collective:steps=4-5,factor=20"], ()),
    "tensor parallel": (small("tensor_parallel", ranks=4, steps=5), ["slow_cpu:ranks=0+2,factor=3"], ()),
    "pipeline": (small("pipeline", ranks=4, steps=6), [], ()),
    "two ranks, two steps": (small(ranks=2, steps=2), ["slow_cpu:rank=1,factor=3"], ()),
    "one rank": (small(ranks=1, steps=7), ["cpu_stall:rank=0,step=4,kernel=9,ms=5"], ()),
    "one step": (small(ranks=4, steps=1), ["slow_gpu:rank=1,factor=2"], ()),
    "a rank is missing": (small(ranks=8, steps=6), ["cpu_stall:rank=3,step=3,kernel=20,ms=6"], (3,)),
    "healthy, a rank is missing": (small(ranks=8, steps=5), [], (3,)),
}


@pytest.fixture(scope="module", params=some_of(JOBS, 4))
def lake(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> "jitter.Lake":
    job, faults, missing = JOBS[request.param]
    folder = tmp_path_factory.mktemp("forms")
    run = simulate(job, [Fault.parse(fault) for fault in faults])
    return ingest_partial_run(run, folder, absent=frozenset(missing))


@pytest.fixture(scope="module")
def forms(lake: "jitter.Lake") -> dict[str, str]:
    """The report in every form, as plain text on one line."""
    diagnosis, facts = lake.diagnose(), build_run_overview(lake, lake.step_keys)
    screen = io.StringIO()
    print_report(diagnosis, facts, lake.hosts, Console(file=screen, width=200), verbose=True)
    page = re.sub(r"<(script|style).*?</\1>", "", render_html(lake), flags=re.S)
    found = {
        "terminal": screen.getvalue(),
        "markdown": render_markdown(diagnosis, facts, lake.hosts).replace("\\", "").replace("\u2060", ""),
        "page": re.sub(r"<[^>]+>", " ", page).replace("&#39;", "'").replace("&gt;", ">").replace("&lt;", "<"),
    }
    return {name: " ".join(text.split()) for name, text in found.items()}


def test_verdict_and_answers_are_in_every_form(lake: "jitter.Lake", forms: dict[str, str]):
    diagnosis = lake.diagnose()
    for name, text in forms.items():
        assert diagnosis.verdict in text, name
        for one in answer_questions(diagnosis, lake.hosts):
            assert " ".join(one.answer.split()) in text, (name, one.question)


def test_what_limits_all_ranks_is_in_every_form(lake: "jitter.Lake", forms: dict[str, str]):
    diagnosis = lake.diagnose()
    said = json.loads(render_json(diagnosis, build_run_overview(lake, lake.step_keys)))
    assert [(one["kind"], one["finding"]) for one in said["efficiency"]] == [
        (one.kind, one.sentence) for one in diagnosis.efficiency
    ]
    listed = [(one.rung, one.cause, one.loss_ns) for one in diagnosis.findings]
    assert [(one["rung"], one["cause"], one["loss_ns"]) for one in said["culprits"]] == listed
    rows = lake.sql("select rung, cause, loss_ns from culprits", arrow=True).to_pylist()
    assert [(row["rung"], row["cause"], row["loss_ns"]) for row in rows] == listed
    lines = [line for one in diagnosis.of_all_ranks for line in (one.evidence)]
    for name, text in forms.items():
        for line in (*lines, *diagnosis.limits):
            assert capitalize(line)[1:-1] in text, (name, line)


def test_the_loss_and_its_parts_are_the_same_numbers(lake: "jitter.Lake", forms: dict[str, str]):
    diagnosis = lake.diagnose()
    said = json.loads(render_json(diagnosis, build_run_overview(lake, lake.step_keys)))
    assert said["loss"]["ns"] == diagnosis.loss.ns
    if diagnosis.loss.ns is None:
        assert said["split"] == []
        return
    assert sum(share["ns"] or 0 for share in said["split"]) == diagnosis.loss.ns
    main = diagnosis.main_share
    if main is not None:
        for name, text in forms.items():
            assert format_time(main.ns) in text, name
            assert main.fraction is None or format_percent(main.fraction) in text, name


def test_steps_that_are_not_counted_are_named(lake: "jitter.Lake", forms: dict[str, str]):
    steps = lake.diagnose().steps
    untimed = [step.key for step in steps if step.step_time_ns is None]
    assert len(untimed) == (len(steps) > 1)
    for name, text in forms.items():
        told = [
            key
            for key in untimed
            if f"{key} is not counted: the step before was not recorded, or not asked for" in text
        ]
        assert told == untimed, name
        assert untimed or "is not counted" not in text, name


def test_findings_agree_with_steps_and_answers(lake: "jitter.Lake", forms: dict[str, str]):
    diagnosis = lake.diagnose()
    answers = {one.question: one.answer for one in answer_questions(diagnosis, lake.hosts)}
    rows = steps_table(diagnosis.steps).to_pylist()
    causes = {culprit.cause for culprit in diagnosis.culprits}
    assert {row["cause"] for row in rows} <= causes | {"none"}
    for culprit in diagnosis.culprits[:3]:
        name = name_culprit(culprit)
        assert name in answers["Which GPU?"]
        for form, text in forms.items():
            assert name in text, form
        if culprit.scope != "unrecorded":
            assert CAUSES[culprit.cause].words in answers["CPU or GPU?"]
        inside = diagnosis.loss.ns is not None and not culprit.is_beyond_loss
        assert not inside or culprit.gain_ns <= max(diagnosis.loss.ns or 0, 0)
        assert culprit.gain_ns <= max(diagnosis.what_if.culprits_repaired_ns or 0, 0)
    for row in rows:
        mine = [
            culprit
            for culprit in diagnosis.culprits
            if row["max_rank"] in culprit.ranks
            and culprit.cause != "communication"
            and row["step"] in {key.step for key in culprit.steps}
        ]
        assert not mine or row["cause"] in {culprit.cause for culprit in mine}


def test_a_run_without_findings_is_not_cleared_without_grounds(lake: "jitter.Lake", forms: dict[str, str]):
    diagnosis = lake.diagnose()
    status, doubts = diagnosis.conclusion.status, diagnosis.conclusion.doubts
    assert (status == "found") == bool(diagnosis.culprits)
    clears = "no rank, host or link stands out" in diagnosis.verdict
    if diagnosis.culprits or doubts or status == "spread":
        assert not clears
    side = next(one.answer for one in answer_questions(diagnosis, lake.hosts) if one.question == "CPU or GPU?")
    if status == "spread" and diagnosis.main_share is not None:
        assert "Neither" not in side
    if status == "within_noise":
        assert diagnosis.loss.fraction is None or diagnosis.loss.fraction < 0.02
    for text in forms.values():
        assert not doubts or diagnosis.culprits or doubts[0] in text


def test_numbers_have_sense(lake: "jitter.Lake", forms: dict[str, str]):
    for name, text in forms.items():
        for number in re.findall(r"(\d[\d,]*(?:\.\d+)?)%", text):
            assert float(number.replace(",", "")) <= 1000, (name, number)
        for number in re.findall(r"(\d+)σ", text):
            assert int(number) <= 10, (name, number)
    if len(lake.ranks) == 1:
        assert "other ranks" not in lake.diagnose().verdict
