"""The page: complete, self-contained, escaped, small; and for a run that tells little, a page that says so."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from bokeh.core.serialization import Deserializer
from bokeh.models import GridPlot, Legend

from jitter.analysis.diagnosis.loss.waterfall import RUNG_WORDS
from jitter.analysis.diagnosis.model import ClassShares, KernelLocation, StepAnswer, WhatIf
from jitter.analysis.execution.self_times import START
from jitter.core.formatting import capitalize, format_percent, format_time
from jitter.core.step_key import StepKey
from jitter.report.figures import colors
from jitter.report.figures.frame import stack_figures
from jitter.report.figures.kernels import (
    build_kernel_axis,
    draw_collective_sizes,
    draw_divergence,
    draw_kernel_map,
    draw_other_series,
    map_columns,
    view_columns,
)
from jitter.report.figures.models import Model, as_bokeh
from jitter.report.figures.steps import build_step_axis, draw_heatmap, draw_loss_by_class, draw_step_times
from jitter.report.json_report import render_json
from jitter.report.notebook import Figures
from jitter.report.page import (
    MAX_EMBEDDED_STEPS,
    _library,
    choose_embedded_steps,
    encode,
    find_first_lines,
    render_html,
    serialize_figures,
)
from jitter.report.text.fix_list import answer_questions, list_fixes
from jitter.report.text.step_text import describe_step
from jitter.report.views.excess_heatmap import LOSS_LAYER, MAX_COLUMNS, TRANSFER_LAYER, arrange_heatmap, self_time_layer
from jitter.report.views.run_overview import build_run_overview
from jitter.report.views.run_report import RunReport, RunSeries, choose_first_layer
from jitter.report.views.step_view import (
    CUMULATIVE_COLUMNS,
    MAX_MAP_CELLS,
    MAX_MAP_ROWS,
    MAX_POINTS,
    MAX_RUNS,
    MAX_VALUES,
    PIXEL_COLUMNS,
    SELF_EXCESS,
    SERIES,
    CollectiveWaits,
    KernelMap,
    MetricSeries,
    RankRuns,
    StepView,
)
from jitter.simulate import Fault, simulate
from tests.support.page import Text, decode, item, models, page_data, sources, titles
from tests.support.report_lakes import report_job, report_lake, step_rows
from tests.support.simulated import ingest_run, sampled_lake, small

pytestmark = pytest.mark.slow

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"


@pytest.fixture(scope="module")
def lake(sample_lake):
    return sample_lake


@pytest.fixture(scope="module")
def page(sample_page):
    return sample_page


def sampled(folder, options):
    """The lake of a small job with these options of `jitter sample`, and its page."""
    lake = sampled_lake(folder, f"--ranks 4 --kernels 60 {options}")
    return lake, render_html(lake)


@pytest.fixture(scope="module")
def two_faults(tmp_path_factory):
    faults = "--fault slow_gpu:rank=1,factor=1.25 --fault cpu_stall:rank=2,step=3,kernel=30,ms=1.5"
    return sampled(tmp_path_factory.mktemp("two_faults"), f"--steps 6 {faults}")


@pytest.fixture(scope="module")
def slow_link(tmp_path_factory):
    return sampled(tmp_path_factory.mktemp("slow_link"), "--steps 5 --fault slow_link:rank=1,factor=8 --evidence")


def test_the_answers_are_the_diagnosis(page, lake):
    text, diagnosis = Text(page).all, lake.diagnose()
    assert diagnosis.culprits[0].rank == 5
    assert diagnosis.verdict in text
    for one in answer_questions(diagnosis, lake.hosts):
        assert one.question in text
        assert one.answer in text
        for line in one.evidence:
            assert _without_spaces(line) in _without_spaces(text)
    for fact in (
        "8 ranks on 2 hosts, 5 steps (4 timed), 60 kernels per step",
        "All 8 ranks in the lake recorded all 5 steps completely.",
    ):
        assert fact in text


def test_the_evidence_of_a_finding_is_on_the_page_once(two_faults):
    lake, page = two_faults
    text, culprits = _without_spaces(Text(page).all), lake.diagnose().culprits
    assert len(culprits) == 2
    assert [text.count(_without_spaces(line)) for one in culprits for line in one.evidence] == [
        1 for one in culprits for line in one.evidence
    ]


def _without_spaces(text):
    """Return a text as it can be compared with that of a page, in which code is no text in backticks."""
    return re.sub(r"[`\s]", "", text)


def test_the_first_screen_has_the_numbers_of_the_document(page, lake):
    """Headline, waterfall and fix list: what `jitter report --json` says."""
    said = json.loads(render_json(lake.diagnose(), build_run_overview(lake, lake.step_keys)))
    shown = Text(page[: page.index('<div class="folds">')]).all
    first = next(one for one in said["culprits"] if one["rung"] == "ranks")
    assert f"cost {format_time(first['loss_ns'])} = {format_percent(first['fraction'])} of the run" in shown
    assert (
        f"all jitter: {format_time(said['loss']['ns'])} over 4 steps = {format_percent(said['loss']['fraction'])}"
        in shown
    )
    rungs = [one for one in said["waterfall"] if one["step_time_ns"] is not None]
    assert f"mean step {format_time(rungs[0]['step_time_ns'])} =" in shown
    for one in rungs[1:]:
        is_small = abs(one["loss_ns"]) < 0.001 * rungs[0]["step_time_ns"]
        assert is_small or f"{RUNG_WORDS[one['rung']]} {format_time(one['loss_ns'])}" in shown
    assert f"at best {format_time(rungs[-1]['step_time_ns'])}" in shown
    assert len(said["culprits"]) > 1
    for one in said["culprits"]:
        assert f"{format_time(one['loss_ns'])} {format_percent(one['fraction'])}" in shown
    assert "Network" not in shown
    assert "The waterfall does not judge: a slow network." in Text(page).all


def test_data_in_the_page_are_the_tables(page, lake):
    for step in page_data(page)["steps"]:
        drawn = decode(step["columns"])
        key = lake.step_keys[step["place"]]
        (most,), (least,) = drawn["view"]["max_rank"], drawn["view"]["min_rank"]
        hidden = {"duration": drawn["collectives"]["kernel_index"], "gap": [58]}
        for metric in ("duration", "gap", "ttke", "launch_latency"):
            table = lake.table(metric, step=key, deviation=metric != "launch_latency")
            for line, rank in (("max", most), ("min", least)):
                expected = table[f"rank_{rank}"].astype("float64").to_numpy().copy()
                expected[hidden.get(metric, [])] = np.nan
                np.testing.assert_allclose(drawn[metric][line], expected, rtol=1e-6)
            assert [drawn["names"]["full"][code] for code in drawn[metric]["code"]] == list(table["kernel_name"])
    assert most is not None
    drawn = sources(page, "kernels")
    first = decode(page_data(page)["steps"][0]["columns"])
    assert list(drawn["shown:view"]["max_rank"]) == [5]
    for name, columns in first.items():
        for column, values in columns.items():
            np.testing.assert_array_equal(drawn[f"shown:{name}"][column], values, f"{name}.{column}")
    began = next(step.divergence for step in lake.diagnose().steps if step.key.step == 2003)
    assert drawn["shown:marks"]["kernel_index"][0] == began.kernel_index == 17


def test_durations_in_the_page_are_the_tables(page, lake):
    found = page_data(page)["durations"]
    took = decode(found["duration_ns"])
    assert found["kernels"] == list(range(60))
    for at, key in enumerate(lake.step_keys):
        table = lake.table("duration", step=key)
        np.testing.assert_array_equal(took[:, 5, at], table["rank_5"].astype(float))


def test_the_scale_of_every_figure_along_the_kernels_is_at_least_a_hundredth_of_the_step(page, lake):
    step = next(step for step in lake.diagnose().steps if step.key.step == 2003)
    found = {model["id"]: model["attributes"] for model in models(item(page))}
    figures = {attributes["name"]: attributes for attributes in found.values() if "y_range" in attributes}
    for name in ("self_excess", "gap", "duration", "waits", "ttke", "launch_latency"):
        bounds = found[figures[f"figure:{name}"]["y_range"]["id"]]
        assert bounds["end"] - bounds.get("start", 0) >= 0.01 * step.step_time_ns
    assert sum(m["attributes"].get("axis_label") == "≥ 1% of step" for m in models(item(page))) == 6


def test_every_step_is_in_the_figures_of_the_run(page, lake):
    drawn, steps = sources(page, "run"), lake.diagnose().steps
    assert list(drawn["steps"]["x"]) == [0, 1, 2, 3, 4]

    def column(name):
        return [np.nan if getattr(s, name) is None else getattr(s, name) for s in steps]

    for source, name in (("loss", "loss_ns"), ("time", "step_time_ns"), ("max_rank",) * 2, ("min_rank",) * 2):
        np.testing.assert_allclose(drawn["steps"][source], column(name))
    assert list(drawn["shown:step"]["x"]) == [3]


def test_bars_of_a_step_add_up_to_its_loss(page, lake):
    steps = sources(page, "split")["steps"]
    rows = lake.losses()
    classes = {"start": "start", "cpu": "launch", "after": "after", "gpu": "gpu", "transfer": "transfer"}
    for at, step in enumerate(lake.diagnose().steps):
        if step.loss_ns is None:
            assert all(np.isnan(steps[part][at]) for part in (*classes, "rest"))
            continue
        own = rows[rows["step"] == step.key.step].groupby("class")["loss_ns"].sum()
        for part, name in classes.items():
            assert steps[part][at] == pytest.approx(own.get(name, 0.0), abs=len(own))
            assert steps[f"{part}_to"][at] - steps[f"{part}_from"][at] == pytest.approx(steps[part][at])
        assert sum(steps[part][at] for part in (*classes, "rest")) == pytest.approx(step.loss_ns)
        ends = [steps[f"{part}_to"][at] for part in (*classes, "rest")]
        assert max(ends) == pytest.approx(sum(max(steps[part][at], 0) for part in (*classes, "rest")))


def test_bokeh_knows_every_model_and_attribute(page, monkeypatch):
    warned: list[tuple[object, ...]] = []
    monkeypatch.setattr("bokeh.core.has_props.log.warning", lambda *told: warned.append(told))
    roots = Deserializer().decode(item(page)["document"]["roots"])
    assert {type(root) for root in roots} == {GridPlot}
    assert warned == []
    as_bokeh(Model("GridPlot", toolbar_place="above"))
    assert "toolbar_place" in str(warned)


def test_every_figure_is_there(page):
    told = " ".join(titles(page))
    for words in (
        "every rank and step",
        "step time, loss on top",
        "cumulative: own time behind the median rank",
        "gap before the kernel − mean",
        "duration − mean, compute only",
        "collectives: longest wait (pale), transfer (dark)",
        "loss of each step by class",
        "rank × kernel",
        "one kernel: its duration on each rank",
        "time to kernel end − mean",
        "launch latency",
    ):
        assert words in told
    assert "Collectives by size" not in Text(page).all  # these traces do not record sizes


def test_no_element_asks_for_anything(page):
    asks = [
        (tag, a)
        for tag, a in Text(page).tags
        if "src" in a or not (a.get("href") or "#").startswith("#") or tag in ("link", "iframe", "object")
    ]
    assert asks == []
    assert "default-src 'none'" in page


def test_what_a_trace_says_stays_text(tmp_path):
    ranks = {r: {(1, 0): step_rows(r, 0, late={3: 90_000 * r}, name=lambda k: f"{EVIL}{k}")} for r in range(3)}
    lake = report_lake(tmp_path / "lake", ranks, problems=[EVIL], refused=[EVIL], host=lambda rank: EVIL)
    page = render_html(lake)
    seen = Text(page)
    assert [tag for tag, _ in seen.tags if tag == "img"] == []
    assert EVIL not in page
    assert EVIL in seen.all
    assert f"{EVIL}3" in sources(page, "kernels")["shown:names"]["full"]


def test_only_the_costliest_are_embedded_and_the_page_says_so(tmp_path):
    lake = report_job(tmp_path / "lake", ranks=2, steps=MAX_EMBEDDED_STEPS + 3, late=(1, 4, 5, 400_000))
    page, diagnosis = render_html(lake), lake.diagnose()
    assert f"Details of {MAX_EMBEDDED_STEPS} of {MAX_EMBEDDED_STEPS + 3} steps are in this page" in Text(page).all
    losses = sorted((step.loss_ns for step in diagnosis.steps if step.loss_ns is not None), reverse=True)
    assert [step.loss_ns for step in choose_embedded_steps(RunReport(lake))] == losses[:MAX_EMBEDDED_STEPS]
    options = [a for tag, a in Text(page).tags if tag == "option" and (a["value"] or "").isdigit()]
    assert len(options) == MAX_EMBEDDED_STEPS
    assert len(page_data(page)["steps"]) == MAX_EMBEDDED_STEPS


def test_a_node_that_is_late_is_seen_whole(tmp_path):
    options = "--ranks 16 --steps 8 --kernels 60 --gpus-per-node 4 --fault late_start:ranks=4-7,every=3,ms=3"
    lake = sampled_lake(tmp_path, options)
    diagnosis = lake.diagnose()
    assert diagnosis.culprits[0].scope == "host"
    assert choose_first_layer(diagnosis) == self_time_layer(START)
    cells = sources(render_html(lake), "run")["shown:excess"]["image"][0]
    assert {(row, column) for row, column in zip(*np.where(cells > 1_500_000), strict=True)} == {
        (row, column) for row in range(4, 8) for column in (3, 6)
    }


def test_slow_transfers_are_drawn_at_their_group_and_by_size(slow_experts):
    assert choose_first_layer(slow_experts.diagnose()) == TRANSFER_LAYER
    page = render_html(slow_experts)
    cells = sources(page, "run")["shown:excess"]["image"][0]
    assert cells[4:].min() > 5 * np.nan_to_num(cells[:4]).max()
    met = sources(page, "sizes")["shown:collectives"]
    known = ~np.isnan(met["bytes"])
    slow = known & (met["most_ns"] > 2 * met["usual_ns"])
    assert known.any()
    assert slow.any()
    assert (met["least_ns"] <= met["most_ns"]).all()


def test_one_rank(tmp_path):
    page = render_html(report_job(tmp_path / "lake", ranks=1, steps=2, late=(0, 0, 3, 10_000)))
    text = Text(page).all
    assert "Only one rank ran these kernels in this step" in text
    assert "With a single rank there is no comparison" in text
    assert "Clock alignment" not in text
    assert text.count("Unknown: no rank can be compared with another.") == 3  # what its program loses is no comparison
    assert "1 collective; waiting is unknown without the traces of the other ranks." in text
    assert "no rank waited" not in text
    assert {"step time, loss on top", "time to kernel end"} < set(titles(page))
    assert "cumulative: own time above its other steps" in titles(page)


def test_what_a_single_rank_loses_comes_before_what_cannot_be_compared(tmp_path):
    lake = sampled_lake(tmp_path, "--ranks 1 --steps 6 --kernels 60")
    assert lake.diagnose().of_all_ranks
    assert {share.loss_class for share in lake.diagnose().split if share.ns > 0} == {
        "start",
        "launch",
        "gpu",
        "transfer",
    }
    page = render_html(lake)
    told = Text(page).all
    assert told.index("Fix list") < told.index("How much does jitter cost?")
    for text in lake.diagnose().limits:
        assert capitalize(text) in told


def test_a_finding_without_a_saving_is_not_said_to_save_nothing(lake):
    page = RunReport(lake)
    one = page.diagnosis.culprits[0]
    unsaved = replace(page.diagnosis, culprits=(replace(one, gain_ns=0, loss_ns=0),), what_if=WhatIf(0, 9_000_000))
    page.diagnosis = unsaved
    lines = find_first_lines(page)
    assert "too small to measure" in dict(lines.rows)["cost"]
    (fix,) = (item for item in list_fixes(unsaved, lake.cohorts, lake.root) if item.is_jitter)
    assert fix.remedy.endswith("alone would save is too small to measure in these steps")


def test_a_healthy_run_is_calm(tmp_path):
    lake, page = sampled(tmp_path, "--steps 5")
    assert not lake.diagnose().culprits
    headline, diagnosis = find_first_lines(RunReport(lake)), lake.diagnose()
    told = f"Jitter costs {dict(headline.rows)['jitter']}" if diagnosis.findings else headline.text
    assert diagnosis.verdict.startswith(told)
    assert diagnosis.verdict.removeprefix(told).startswith(" All ranks ") == bool(diagnosis.findings)
    drawn = sources(page, "kernels")
    assert list(drawn["shown:view"]["is_calm"]) == [True]
    assert set(drawn["shown:runs"]["color"]) == {colors.OTHERS}
    (colours,) = (m["attributes"] for m in models(item(page)) if m["attributes"].get("name") == "excess:colours")
    assert colours["palette"] == colors.GREY_PALETTE
    lines = [m["attributes"] for m in models(item(page)) if m["attributes"].get("name") == "max-line"]
    assert {line["line_color"] for line in lines} == {colors.CALM}
    assert '<header class="calm">' in page


def test_the_page_opens_a_step_of_the_headline(two_faults):
    lake, page = two_faults
    diagnosis = lake.diagnose()
    assert (diagnosis.headline.ranks, diagnosis.costliest.max_rank) == ((1,), 2)
    assert sources(page, "kernels")["shown:view"]["max_rank"][0] == 1
    opened = choose_embedded_steps(RunReport(lake))[0]
    assert opened.key != diagnosis.costliest.key
    assert opened.max_rank == 1
    assert page_data(page)["steps"][0]["label"] == str(opened.key.step)


def test_jitter_noise_is_grey_under_a_finding_of_the_network(slow_link):
    lake, page = slow_link
    assert [one.rung for one in lake.diagnose().culprits] == ["network"]
    assert list(sources(page, "kernels")["shown:view"]["is_calm"]) == [True]
    (colours,) = (m["attributes"] for m in models(item(page)) if m["attributes"].get("name") == "excess:colours")
    assert colours["palette"] == colors.LIGHT_HEAT_PALETTE  # of the transfers above the benchmark: the headline
    assert colours["tags"][2] == colors.GREY_PALETTE
    named = {m["attributes"].get("name"): m["attributes"].get("tags") for m in models(item(page))}
    layers = {name: tags for name, tags in named.items() if name == "shown:excess" or str(name).startswith("layer:")}
    assert {name for name, tags in layers.items() if not tags[3]} == {"layer:network", "shown:excess"}


def test_a_slow_network_is_seen_in_map_and_strip(slow_link):
    """The map shows what each rank's transfers take beyond the benchmark, the strip transfer and benchmark."""
    lake, page = slow_link
    shown = sources(page, "kernels")["shown:collectives"]
    expected = np.array(shown["expected_ns"])
    assert (np.array(shown["most_ns"])[expected > 0] > 2 * expected[expected > 0]).all()
    assert (expected > 0).any()
    layer = RunReport(lake).excess.layers[0]
    assert layer.name == "network"
    examined = lake.analyze()
    above = np.clip(examined.transfers.took[2] - examined.transfers.expected[2], 0, None)
    np.testing.assert_allclose(layer.excess_ns[:, 2], np.nansum(above), rtol=1e-6)  # one group of all ranks


def test_a_step_without_a_path_says_how_its_max_rank_was_told(tmp_path):
    page = RunReport(report_job(tmp_path / "lake", ranks=3))
    step = replace(page.diagnosis.steps[1], max_rank_loss_ns=None)
    view = page.view(page.grid(step.key))
    told = describe_step(step, view, page.lake.hosts, 1).sentence
    who = f"rank {step.max_rank} (node{step.max_rank // 2})"
    assert told == f"In {step.key}, the ranks share no collective; {who} has the largest time to kernel end."


def test_words_that_the_page_uses_are_explained(page):
    text = Text(page).all
    told = text[text.index("How to read this") :]
    for word in ("Loss", "Cohort", "Gain", "Own time", "Share of the loss", "Excess", "Began to diverge", "Deviation"):
        assert word in told


def test_one_step(tmp_path):
    page = render_html(report_job(tmp_path / "lake", ranks=3, steps=1, late=(1, 0, 3, 100_000)))
    assert "In epoch 1, step 0, rank 1 (node0) has" in Text(page).all
    assert "step time, loss on top" in titles(page)  # its span


def test_ranks_that_cannot_be_aligned(tmp_path):
    lake = report_lake(tmp_path / "lake", {r: {(None, 0): step_rows(r, 0, collective=False)} for r in range(3)})
    page = render_html(lake)
    text = Text(page).all
    assert "The clocks of its ranks cannot be aligned" in text
    assert "This step has no collectives" in text
    drawn = sources(page, "kernels")
    assert np.isnan(drawn["shown:ttke"]["low"]).all()
    # what does not depend on alignment is drawn: all three ranks, as a band
    table = lake.table("duration", step=0, deviation=True).astype("float64", errors="ignore")
    ranks = table[[f"rank_{r}" for r in range(3)]]
    np.testing.assert_allclose(drawn["shown:duration"]["low"], ranks.min(axis=1).astype(float), rtol=1e-6)


def test_cohorts(tmp_path):
    names = (lambda k: f"stage_one_{k}", lambda k: f"stage_two_{k}")
    ranks = {
        r: {(1, s): step_rows(r, s, late={4: 200_000} if r == 3 else None, name=names[r % 2]) for s in range(2)}
        for r in range(6)
    }
    lake = report_lake(tmp_path / "lake", ranks)
    page = render_html(lake)
    text = Text(page).all
    assert "compared within 2 cohorts" in text
    assert "cohort 0: 0,2,4" in text
    assert "In epoch 1, step" in text
    drawn = sources(page, "kernels")
    assert list(drawn["shown:view"]["max_rank"]) == [3]
    assert drawn["shown:view"]["min_rank"][0] in (1, 5)  # of the same cohort
    assert drawn["shown:names"]["full"][drawn["shown:gap"]["code"][0]].startswith("stage_two")


def test_every_rank_cut(tmp_path):
    ranks = {r: {(1, 0): step_rows(r, 0)[:5]} for r in range(2)}
    page = render_html(report_lake(tmp_path / "lake", ranks, cut=[(0, 0), (1, 0)]))
    assert "There is nothing to draw" in Text(page).all


def test_epochs_that_repeat_step_numbers(tmp_path):
    lake = report_lake(
        tmp_path / "lake", {r: {(e, s): step_rows(r, s) for e in (1, 2) for s in (0, 1)} for r in range(2)}
    )
    drawn = sources(render_html(lake), "run")
    assert list(drawn["steps"]["x"]) == [0, 1, 2, 3]
    assert drawn["steps"]["step"][3] == "epoch 2, step 1"


def test_a_single_culprit_is_shown_on_the_path(lake):
    assert choose_first_layer(lake.diagnose()) == LOSS_LAYER


def test_host_time_after_the_last_launch_is_drawn_on_its_own(tmp_path):
    found = ingest_run(simulate(small(ranks=4, steps=6), [Fault.parse("late_end:rank=2,ms=4")]), tmp_path)
    grid = Figures(found).split()
    (legend,) = grid.select({"type": Legend})
    assert [item.label.value for item in legend.items][:3] == ["late start", "CPU", "after last launch"]
    steps = legend.items[0].renderers[0].data_source.data
    assert np.nanmax(np.subtract(steps["after_to"], steps["after_from"])) == pytest.approx(4e6, rel=0.1)
    assert np.nanmax(steps["cpu"]) < 4e5
    assert np.nanmax(steps["start"]) < 4e5


def test_figures_have_a_short_repr(tmp_path):
    lake = report_job(tmp_path / "lake", ranks=3, steps=2, late=(1, 1, 5, 400_000))
    assert repr(Figures(lake)) == f"<Figures of {tmp_path / 'lake'}: 2 steps, 3 ranks>"


RANKS, LIMIT = 960, 8_000_000
POINTS = max(MAX_POINTS, 8 * PIXEL_COLUMNS + 2)  # four lines with a highest and a lowest in each column, and both ends


def noise(rng, *shape):
    return rng.normal(0, 1e5, shape)


def view_of(rng, step, kernels=20_000, met=300):

    def line(points):
        kept = np.sort(rng.choice(kernels, points, replace=False)).astype(np.int32)
        codes = rng.integers(0, 200, points).astype(np.int32)
        return MetricSeries(
            kept, codes, *noise(rng, 4, points), *rng.integers(0, RANKS, (2, points)).astype(np.float64)
        )

    series = {name: line(8 * CUMULATIVE_COLUMNS + 2 if name == SELF_EXCESS else POINTS) for name in SERIES}
    left = np.arange(2.0 * MAX_RUNS)
    runs = RankRuns(
        (left >= MAX_RUNS).astype(np.int32),
        left,
        left + 1,
        rng.integers(0, RANKS, left.size).astype(np.int32),
        left > 9,
    )
    wide = MAX_MAP_CELLS // MAX_MAP_ROWS
    rows = tuple(tuple(range(at, at + 10)) for at in range(0, RANKS, 10))
    columns = tuple((at, at + kernels // wide - 1) for at in range(0, kernels, kernels // wide))[:wide]
    cells = KernelMap(rows, columns, noise(rng, len(rows), len(columns)).astype(np.float32))
    collectives = CollectiveWaits(
        np.sort(rng.choice(kernels, met, replace=False)).astype(np.int32),
        ("all_reduce",) * met,
        abs(noise(rng, met)),
        rng.integers(0, RANKS, met).astype(np.int32),
        abs(noise(rng, met)),
        rng.integers(0, RANKS, met).astype(np.int32),
        *abs(noise(rng, 4, met)),
        rng.integers(1, 10**9, met).astype(np.float64),
    )
    return StepView(
        key=StepKey(None, step),
        cohort=0,
        ranks=RANKS,
        max_rank=5,
        min_rank=7,
        others=RANKS - 2,
        values=False,
        kernels=kernels,
        points=POINTS,
        scale_ns=1e6,
        is_calm=False,
        names=tuple(f"void at::native::kernel_{n}<{'float, ' * 30}>" for n in range(200)),
        series=series,
        runs=runs,
        map=cells,
        collectives=collectives,
        recorded_collectives=len(collectives.kernel_index),
        waited_ns=0.0,
        waits=(1, 2),
        divergence=9,
        alignment="collective",
        negative_latencies=0,
    )


def run_of(steps):
    began, by_class = KernelLocation(9, "k" * 200, 0), ClassShares(1, 2, 1, 3, -1, 0, 1, 2)
    answers = tuple(
        StepAnswer(StepKey(None, n), 10**8, 10**6, 0.01, 7, 5, began, 6, "gpu_compute", by_class) for n in range(steps)
    )
    labels = tuple(str(n) for n in range(steps))
    return RunSeries(answers, labels, is_calm=False)


def size_of(steps):
    rng = np.random.default_rng(7)
    run, ranks = run_of(steps), list(range(RANKS))
    layers = {name: (name, noise(rng, RANKS, steps)) for name in ("path", "transfers", "gpu", "cpu", "start")}
    hosts = {rank: f"node{rank // 8:04}" for rank in ranks}
    excess = arrange_heatmap(ranks, hosts, layers, np.ones((RANKS, steps), np.bool_), 1.0)
    views = [view_of(rng, step) for step in range(MAX_EMBEDDED_STEPS)]
    steps, kernels = build_step_axis(run, 0, range(MAX_EMBEDDED_STEPS)), build_kernel_axis(views[0])
    groups = {
        "run": [draw_heatmap(steps, excess, {5}), draw_step_times(steps)],
        "kernels": draw_divergence(kernels, views),
        "series": draw_other_series(kernels, views),
        "split": [draw_loss_by_class(steps)],
        "map": [draw_kernel_map(kernels, views[0].map)],
        "sizes": [draw_collective_sizes(kernels)],
    }
    text = serialize_figures({name: stack_figures(drawn, has_toolbar=False) for name, drawn in groups.items()})
    text += json.dumps([encode(view_columns(view) | map_columns(view.map)) for view in views])
    text += json.dumps(encode(np.zeros(MAX_VALUES, np.float32)))
    return len(text.encode()) + len(_library())


@pytest.mark.parametrize("per_host", [8, 64])
@pytest.mark.parametrize("culprit", [5, 77, 413])
def test_the_row_of_a_finding_is_labelled_and_hosts_where_there_is_room(per_host: int, culprit: int):
    ranks = list(range(512))
    hosts = {rank: f"node{rank // per_host:02}" for rank in ranks}
    drawn = arrange_heatmap(ranks, hosts, {"path": ("path", np.ones((512, 2)))}, np.ones((512, 2), np.bool_), 1.0)
    plot = draw_heatmap(build_step_axis(run_of(2), 0, [0]), drawn, {culprit})
    ticks, rows = plot.y_axis.attributes["ticker"].attributes["ticks"], len(drawn.rows)
    assert next(at for at, row in enumerate(drawn.rows) if culprit in row) in ticks
    px = (plot.attributes["height"] - 44) / rows
    assert 12 <= px * np.diff(ticks).min() <= px * np.diff(ticks).max() < 40
    assert per_host == 8 or {drawn.hosts[at] for at in ticks} == set(hosts.values())


def test_no_page_is_larger_than_eight_megabytes():
    assert size_of(2 * MAX_COLUMNS) < LIMIT  # two steps a column
