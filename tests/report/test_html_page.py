"""The page: complete, self-contained, escaped; and for a run that tells little, a page that says so."""

import numpy as np
import pytest
from page import Text, item, sources, titles
from report_lakes import job, lake_of, step_rows

from jitter.report.html import MOST_STEPS, html_report, worst

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    return job(tmp_path_factory.mktemp("page") / "lake")


@pytest.fixture(scope="module")
def page(lake):
    return html_report(lake)


def test_the_answer(page):
    text = Text(page).all
    assert (
        "In epoch 1, step 1 rank 2 (node1) was 300 µs later than the mean of 4 ranks, from kernel 5 (kernel_5) on"
        in (text)
    )
    assert "in gaps between kernels (CPU)" in text
    for fact in (
        "ranks 4",
        "steps 3",
        "hosts 2",
        "kernels a step 14",
        "nsys 2026.2",
        "Outside every step: 12 kernels.",
    ):
        assert fact in text


def test_data_in_the_page_are_the_tables(page, lake):
    drawn = sources(page, "profile")
    for metric in ("duration", "gap", "ttke", "launch_latency"):
        source = drawn[f"shown:{metric}"]
        table = lake.table(metric, step=1, deviation=metric != "launch_latency")
        assert source["tags"][0] == 2
        np.testing.assert_allclose(source["max"], table["rank_2"].astype("float64"), atol=1e-6)
        assert [drawn["names"]["full"][code] for code in source["code"]] == list(table["kernel_name"])
    assert list(drawn["shown:marks"]["kernel_index"]) == [5, 11]
    assert drawn["names"]["short"][0] == "kernel_0"


def test_every_step_is_in_the_figures_of_the_run(page, lake):
    drawn, run = sources(page, "run"), lake.run()
    assert list(drawn["steps"]["x"]) == [0, 1, 2]
    np.testing.assert_allclose(drawn["steps"]["loss"], [step.loss_ns for step in run.steps])
    np.testing.assert_allclose(
        drawn["steps"]["time"], [np.nan if s.step_time_ns is None else s.step_time_ns for s in run.steps]
    )
    assert list(drawn["cohorts"]["max_rank"]) == [step.worst.max_rank for step in run.steps]
    assert list(drawn["cohorts"]["min_rank"]) == [step.worst.min_rank for step in run.steps]
    assert list(drawn["shown:step"]["x"]) == [1]


def test_every_figure_of_the_talk_is_there(page):
    told = " ".join(titles(page, "profile") + titles(page, "run"))
    for words in (
        "duration − its mean",
        "Gap",
        "Time to kernel end − its mean",
        "Launch latency",
        "Step time",
        "max rank",
    ):
        assert words in told


def test_no_element_asks_for_anything(page):
    asks = [(tag, a) for tag, a in Text(page).tags if {"src", "href"} & set(a) or tag in ("link", "iframe", "object")]
    assert asks == []
    assert "default-src 'none'" in page


def test_what_a_trace_says_stays_text(tmp_path):
    ranks = {r: {(1, 0): step_rows(r, 0, late={3: 90_000 * r}, name=lambda k: f"{EVIL}{k}")} for r in range(3)}
    lake = lake_of(tmp_path / "lake", ranks, problems=[EVIL], refused=[EVIL], host=lambda rank: EVIL)
    page = html_report(lake)
    seen = Text(page)
    assert [tag for tag, _ in seen.tags if tag == "img"] == []
    assert EVIL not in page
    assert EVIL in seen.all
    assert f"{EVIL}3" in sources(page, "profile")["names"]["full"]
    assert "{safe}" not in str(item(page, "profile"))


def test_only_the_costliest_are_embedded_and_the_page_says_so(tmp_path):
    lake = job(tmp_path / "lake", ranks=2, steps=MOST_STEPS + 3, late=(1, 4, 5, 400_000))
    page = html_report(lake)
    assert f"The {MOST_STEPS} costliest of {MOST_STEPS + 3} steps" in Text(page).all
    losses = sorted((step.loss_ns for step in lake.run().steps), reverse=True)
    assert [summary.loss_ns for _, summary in worst(lake.run())] == losses[:MOST_STEPS]
    options = [a for tag, a in Text(page).tags if tag == "option"]
    assert len(options) == MOST_STEPS
    assert f"view-{MOST_STEPS - 1}:gap" in sources(page, "profile")


def test_one_rank(tmp_path):
    page = html_report(job(tmp_path / "lake", ranks=1, steps=2, late=(0, 0, 3, 10_000)))
    assert "Only one rank of this step was recorded" in Text(page).all
    assert "Nothing to align" in Text(page).all
    assert titles(page, "profile")[0] == "Time to kernel end"
    assert "No step names a min and a max rank" in Text(page).all
    assert titles(page, "run") == ["Step time"]


def test_one_step(tmp_path):
    page = html_report(job(tmp_path / "lake", ranks=3, steps=1, late=(1, 0, 3, 100_000)))
    assert "In epoch 1, step 0 rank 1" in Text(page).all
    assert titles(page, "run") == ["Loss and magnitude of every step", "Min rank and max rank of every step"]


def test_ranks_that_cannot_be_aligned(tmp_path):
    lake = lake_of(tmp_path / "lake", {r: {(None, 0): step_rows(r, 0, collective=False)} for r in range(3)})
    page = html_report(lake)
    assert "The ranks of this step cannot be aligned" in Text(page).all
    assert "No collective lies in this step" in Text(page).all
    drawn = sources(page, "profile")
    assert np.isnan(drawn["shown:ttke"]["low"]).all()
    # what does not depend on alignment is drawn: all three ranks, as a band
    table = lake.table("duration", step=0, deviation=True).astype("float64", errors="ignore")
    ranks = table[[f"rank_{r}" for r in range(3)]]
    np.testing.assert_allclose(drawn["shown:duration"]["low"], ranks.min(axis=1).astype(float), atol=1e-6)


def test_cohorts(tmp_path):
    names = (lambda k: f"stage_one_{k}", lambda k: f"stage_two_{k}")
    ranks = {
        r: {(1, s): step_rows(r, s, late={4: 200_000} if r == 3 else None, name=names[r % 2]) for s in range(2)}
        for r in range(6)
    }
    lake = lake_of(tmp_path / "lake", ranks)
    page = html_report(lake)
    text = Text(page).all
    assert "compared within 2 cohorts" in text
    assert "cohort 0: 0,2,4" in text
    assert "In epoch 1, step" in text
    assert "cohort 1 · loss" in text
    drawn = sources(page, "profile")
    assert drawn["names"]["full"][drawn["shown:gap"]["code"][0]].startswith("stage_two")


def test_every_rank_cut(tmp_path):
    ranks = {r: {(1, 0): step_rows(r, 0)[:5]} for r in range(2)}
    page = html_report(lake_of(tmp_path / "lake", ranks, cut=[(0, 0), (1, 0)]))
    assert "There is nothing to draw" in Text(page).all


def test_epochs_that_repeat_step_numbers(tmp_path):
    lake = lake_of(tmp_path / "lake", {r: {(e, s): step_rows(r, s) for e in (1, 2) for s in (0, 1)} for r in range(2)})
    drawn = sources(html_report(lake), "run")
    assert list(drawn["steps"]["x"]) == [0, 1, 2, 3]
    assert drawn["steps"]["step"][3] == "epoch 2, step 1"
