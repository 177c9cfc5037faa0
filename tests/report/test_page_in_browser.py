"""The page in a browser without a network: it draws, tells on hover, shows what is picked, and asks for nothing."""

import io
import re

import numpy as np
import pytest
from PIL import Image

import jitter
from jitter.cli import main
from jitter.report.page import render_html
from tests.support.chromium import INK, PLACE, VIEW, open_page
from tests.support.real_recordings import TRACES, needs_traces
from tests.support.report_lakes import report_job, report_lake, step_rows
from tests.support.simulated import sampled_lake

pytestmark = pytest.mark.slow

FIGURES = ("excess", "step_time", "self_excess", "ranks", "gap", "duration", "waits")
"""Of the first screen."""
FOLDED = ("step_split", "map", "strip", "ttke", "launch_latency")
OPEN_ALL = "for (const one of document.querySelectorAll('details')) one.open = true"
REAL = TRACES / "kineto" / "amd-4rank"
EVIL = "evil<img src=x onerror=window.pwned=1>"


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    folder = tmp_path_factory.mktemp("browser")
    late = {(2, 1): {5: 400_000}, (0, 2): {8: 150_000}}
    ranks = {
        r: {
            (1, s): step_rows(r, s, late=late.get((r, s)), name=lambda k: f"void ns::{EVIL}_{k}(int)") for s in range(3)
        }
        for r in range(4)
    }
    return report_lake(folder / "lake", ranks)


@pytest.fixture(scope="module")
def path(lake):
    path = lake.root.parent / "page.html"
    path.write_text(render_html(lake), encoding="utf-8")
    return path


def opened(browser, path, scheme="light"):
    context = browser.new_context(color_scheme=scheme, offline=True, viewport={"width": 1100, "height": 800})
    return open_page(context, path.as_uri())


def clean(page, path):
    """Nothing went wrong, nothing was asked for, nothing from a trace ran."""
    assert page.errors == []
    assert page.requests == [path.as_uri()]
    assert page.evaluate("window.pwned") is None
    page.context.close()


@pytest.fixture
def page(browser, path):
    page = opened(browser, path)
    yield page
    clean(page, path)


@pytest.fixture(scope="module")
def still(browser, path):
    """The page for tests that only move the mouse over it."""
    page = opened(browser, path)
    yield page
    clean(page, path)


def hover(page, name, x, y=None):
    across, down = page.evaluate(PLACE, [name, x, y])
    page.mouse.move(across - 30, down)
    page.mouse.move(across, down, steps=3)
    tip = page.locator(".bk-tooltip-content").filter(has_text="step" if name[7:] in ("excess", "step_time") else "rank")
    tip.first.wait_for(timeout=10_000)
    return tip.first.inner_text()


def of_rank(lake, step, kernel, rank):
    """The gap's deviation as the tooltip writes it, from the table."""
    ns = float(lake.table("gap", step=step, deviation=True)[f"rank_{rank}"][kernel])
    assert 1000 <= abs(ns) < 999_999
    return f"rank {rank}: {'−' if ns < 0 else '+'}{round(abs(ns) / 1000, 3):g} µs"


def assert_all_drawn(page):
    page.evaluate(OPEN_ALL)
    page.wait_for_timeout(600)
    for name in (*FIGURES, *FOLDED):
        assert page.evaluate(INK, f"figure:{name}") > 8, name


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_figure_is_drawn(browser, path, scheme):
    page = opened(browser, path, scheme)
    assert_all_drawn(page)
    clean(page, path)


def test_hover_tells_kernel_index_and_values(still, lake):
    told = hover(still, "figure:gap", 5)
    assert "ns::evil" in told
    assert f"max {of_rank(lake, 1, 5, 2)}" in told
    assert f"min {of_rank(lake, 1, 5, 0)}" in told
    assert "others:" in told
    assert f"{EVIL}_5" in told
    assert still.locator("img").count() == 0


def test_hover_tells_a_step(still, lake):
    step = lake.diagnose().steps[1]
    told = hover(still, "figure:step_time", 1)
    assert "epoch 1, step 1" in told
    assert f"max rank {step.max_rank}" in told
    assert f"min rank {step.min_rank}" in told


def test_hover_tells_a_cell_of_the_map(still, lake):
    own_ns = lake.diagnose().steps[1].max_rank_loss_ns
    told = hover(still, "figure:excess", 1, 2)
    assert "rank 2 on node1" in told
    assert "epoch 1, step 1" in told
    excess = own_ns / 1000
    assert f"+{round(excess, 3):g} µs" in told
    assert "next to no share of the loss" in hover(still, "figure:excess", 1, 3)


def test_the_band_tells_the_last_and_the_first_rank(still, lake):
    step = lake.diagnose().steps[1]
    assert f"rank {step.max_rank} is furthest behind" in hover(still, "figure:ranks", 10, 1.5)
    assert "is furthest ahead" in hover(still, "figure:ranks", 10, 0.5)


def test_the_map_of_kernels_tells_rank_and_kernel(still):
    still.evaluate(OPEN_ALL)
    still.wait_for_timeout(600)
    told = hover(still, "figure:map", 5, 2)
    assert "rank 2" in told
    assert "kernel 5" in told
    assert re.search(r"\+(300|299\.9\d+) µs", told)


def in_view(page):
    page.evaluate("document.getElementById('step-details').open = true")
    return page.locator("#step-text").inner_text()


def test_another_step_can_be_chosen(page, lake):
    order = page.evaluate("[...document.getElementById('step').options].map((option) => option.value)")
    page.select_option("#step", index=order.index("2"))
    assert "In epoch 1, step 2" in in_view(page)
    most = lake.diagnose().steps[2].max_rank
    assert f"max rank {most}" in page.locator("#key").inner_text()
    told = hover(page, "figure:gap", 8)
    assert f"max {of_rank(lake, 2, 8, most)}" in told
    page.select_option("#step", index=order.index("1"))
    assert f"max {of_rank(lake, 1, 5, 2)}" in hover(page, "figure:gap", 5)


def test_a_cell_of_the_map_shows_its_step(page):
    for step in (2, 1, 0):
        page.mouse.click(*page.evaluate(PLACE, ["figure:excess", step, 2]))
        page.wait_for_timeout(500)  # else the next one makes a double click
        page.wait_for_function(f"document.getElementById('step-text').textContent.includes('step {step},')")
        assert f"In epoch 1, step {step}, " in in_view(page)


def test_a_bar_shows_its_step(page):
    page.mouse.click(*page.evaluate(PLACE, ["figure:step_time", 2, None]))
    page.wait_for_function("document.getElementById('step-text').textContent.includes('step 2,')")


def test_the_table_leads_to_its_step(page):
    page.locator("#steps summary").click()
    page.locator("#steps a", has_text="epoch 1, step 2").click()
    page.wait_for_function("document.getElementById('step-text').textContent.includes('step 2,')")
    assert "In epoch 1, step 2, " in in_view(page)


def test_the_map_by_keyboard(page):
    page.locator("#figures-run").focus()
    for key in ("ArrowRight", "ArrowRight", "ArrowDown", "ArrowDown"):
        page.keyboard.press(key)
    assert "rank 2, epoch 1, step 1: +" in page.locator("#cell").inner_text()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    assert "In epoch 1, step 2, " in in_view(page)


def test_kernels_by_keyboard(page):
    page.locator("#figures-kernels").focus()
    for _ in range(6):
        page.keyboard.press("ArrowRight")
    assert "kernel 5 " in page.locator("#kernel").inner_text()
    span = "(() => { const r = Bokeh.documents[0].get_model_by_name('kernels'); return r.end - r.start; })()"
    whole = page.evaluate(span)
    page.keyboard.press("+")
    assert page.evaluate(span) < whole
    page.keyboard.press("0")
    assert page.evaluate(span) == whole


def test_another_map_can_be_chosen(page):
    page.select_option("#layer", value="own:1")
    assert "next to no share" not in hover(page, "figure:excess", 1, 3)


def test_zoom_is_linked_along_kernels(page):
    start = page.evaluate(PLACE, ["figure:gap", 3, None])
    end = page.evaluate(PLACE, ["figure:gap", 7, None])
    page.mouse.move(*start)
    page.mouse.down()
    for part in (0.3, 0.6, 1):
        page.mouse.move(*(first + part * (last - first) for first, last in zip(start, end, strict=True)))
        page.evaluate("new Promise(requestAnimationFrame)")  # moves within a frame count as one, too few for a drag
    page.mouse.up()
    page.wait_for_function("Bokeh.documents[0].get_model_by_name('kernels').start > 2")
    for name in ("ttke", "duration", "self_excess", "waits", "ranks", "map"):
        shown = page.evaluate(f"Bokeh.documents[0].get_model_by_name('figure:{name}').x_range.start")
        assert shown == pytest.approx(3, abs=0.1)


def test_figures_follow_the_colour_scheme(page):
    for scheme, ink, last in (
        ("dark", "#d5dae1", "#fff3e6"),
        ("light", "#1c2128", "#4a1c00"),
        ("dark", "#d5dae1", "#fff3e6"),
    ):
        page.emulate_media(color_scheme=scheme)
        page.wait_for_function(f"Bokeh.documents[0].get_model_by_name('title:gap').text_color == '{ink}'", timeout=5000)
        assert page.evaluate("Bokeh.documents[0].get_model_by_name('map:colours').palette.at(-1)") == last


def written(lake, path):
    path.write_text(render_html(lake), encoding="utf-8")
    return path


def test_a_run_that_tells_nothing_draws_what_there_is(browser, tmp_path):
    path = written(report_job(tmp_path / "lake", ranks=1, steps=1, late=(0, 0, 3, 10_000)), tmp_path / "one.html")
    page = opened(browser, path)
    assert "rank 0: 20.087 µs" in hover(page, "figure:duration", 3)
    assert "max rank" not in page.locator("#key").inner_text()
    assert page.evaluate("Bokeh.documents[0].get_model_by_name('figure:ranks')") is None
    clean(page, path)


def test_a_single_step_time_has_an_axis_that_can_be_read_and_printed(browser, tmp_path):
    path = written(report_job(tmp_path / "lake", ranks=2, steps=2, late=(1, 1, 5, 400_000)), tmp_path / "two.html")
    page = opened(browser, path)
    start, end = page.evaluate(
        "(({start, end}) => [start, end])(Bokeh.documents[0].get_model_by_name('figure:step_time').y_range)"
    )
    assert start < 50_000_000 < end
    assert end - start >= 0.01 * 50_000_000  # ticks of fractions of a nanosecond keep a browser busy for ever
    assert len(page.pdf()) > 10_000
    clean(page, path)


def test_print_keeps_the_keys_to_the_figures_and_light_colours(browser, path):
    page = opened(browser, path, "dark")
    page.emulate_media(media="print")
    page.wait_for_function("Bokeh.documents[0].get_model_by_name('title:gap').text_color == '#1c2128'", timeout=5000)
    style = "(one) => getComputedStyle(one).printColorAdjust"
    assert page.locator(".key i").first.evaluate(style) == "exact"
    assert not page.locator("#kernel-keys").is_visible()
    clean(page, path)


def test_what_was_not_recorded_is_not_drawn(browser, tmp_path):
    rows = {
        r: {
            (1, s): [row | {"launch_start_ns": None, "launch_end_ns": None} for row in step_rows(r, s)]
            for s in range(2)
        }
        for r in range(2)
    }
    path = written(report_lake(tmp_path / "lake", rows), tmp_path / "no-launches.html")
    page = opened(browser, path)
    page.evaluate(OPEN_ALL)
    assert page.evaluate("Bokeh.documents[0].get_model_by_name('figure:launch_latency')") is None
    page.select_option("#step", index=1)
    page.locator("#figures-kernels").focus()
    page.keyboard.press("ArrowRight")
    assert "kernel 0 " in page.locator("#kernel").inner_text()
    assert "launch latency" not in page.locator("#kernel").inner_text()
    clean(page, path)


@needs_traces
def test_real_traces(browser, tmp_path):
    assert main(["ingest", str(REAL), "-o", str(tmp_path / "lake"), "--quiet"]) == 0
    path = written(jitter.open(tmp_path / "lake"), tmp_path / "page.html")
    page = opened(browser, path)
    assert_all_drawn(page)
    clean(page, path)


LEGEND = f"""(name) => {{ {VIEW}
  for (const view of walk(found)) if (view.model.type == "Legend") {{
    view.el.scrollIntoView({{block: "center"}});
    const {{ x, y, width, height }} = view.el.getBoundingClientRect();
    return {{ x, y, width, height }};
  }}
}}"""
"""Of a figure: where on the page its legend is."""


def test_legends_have_their_symbols(browser, tmp_path):
    lake = sampled_lake(tmp_path, "--format kineto --ranks 4 --steps 3 --kernels 60")
    path = written(lake, tmp_path / "page.html")
    page = opened(browser, path)
    page.evaluate(OPEN_ALL)
    page.wait_for_timeout(600)
    for name in ("figure:collectives", "figure:step_split"):
        shot = page.screenshot(clip=page.evaluate(LEGEND, name))
        pixels = np.asarray(Image.open(io.BytesIO(shot)).convert("RGB")).astype(int)
        assert (np.ptp(pixels, axis=2) > 60).sum() > 20, name  # letters and ground are grey
    clean(page, path)


def test_a_click_on_a_kernel_shows_its_durations(page, lake):
    page.mouse.click(*page.evaluate(PLACE, ["figure:gap", 5, None]))
    page.wait_for_function("document.getElementById('strip-words').textContent.startsWith('kernel 5: ')")
    data = page.evaluate(
        "(({took, rank, step}) => took.map((ns, n) => [ns, rank[n], step[n]]))"
        "(Bokeh.documents[0].get_model_by_name('strip').data)"
    )
    expected = [
        [lake.table("duration", step=key)[f"rank_{rank}"][5], rank, str(key.step)]
        for rank in range(4)
        for key in lake.step_keys
    ]
    assert data == expected
    assert page.locator("#kernels").get_attribute("open") is not None
    assert "kernel=5" in page.evaluate("location.hash")


def test_keys_walk_through_the_steps_and_search_kernels(page):
    order = page.evaluate("[...document.getElementById('step').options].map((option) => option.value)")
    first = page.input_value("#step")
    assert order[order.index(first)] == first
    by = "n" if order.index(first) + 1 < len(order) else "p"
    page.keyboard.press(by)
    page.wait_for_function(f"document.getElementById('step').value != {first!r}")
    page.keyboard.press("p" if by == "n" else "n")
    page.wait_for_function(f"document.getElementById('step').value == {first!r}")
    page.keyboard.press("/")
    page.keyboard.type("_7(int)")
    page.wait_for_function("Bokeh.documents[0].get_model_by_name('matches').data.x.length == 1")
    assert "1 of 14 kernels match" in page.locator("#kernel").inner_text()
    page.keyboard.press("Enter")
    assert "kernel 7 " in page.locator("#kernel").inner_text()


def test_a_page_prints_on_few_sheets_and_crops_nothing(browser, path):
    page = opened(browser, path)
    sheets = page.pdf(prefer_css_page_size=True).count(b"/Type /Page\n") + 1
    assert 1 <= sheets <= 3
    assert page.locator("#evidence").get_attribute("open") is not None
    page.emulate_media(media="print")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    clean(page, path)


@pytest.mark.parametrize(("width", "columns"), [(1440, 2), (800, 1)])
def test_figures_that_are_side_by_side_on_the_screen_are_so_on_paper(browser, path, width, columns):
    page = opened(browser, path)
    page.set_viewport_size({"width": width, "height": 900})
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print")
    page.set_viewport_size({"width": 816, "height": 900})  # what a browser takes paper to be, before it reads its size
    tracks = page.evaluate("getComputedStyle(document.querySelector('main')).gridTemplateColumns")
    assert len(tracks.split()) == columns
    clean(page, path)


def test_the_page_is_small_and_painted_at_once(browser, tmp_path, sample_page):
    path = tmp_path / "page.html"
    path.write_text(sample_page, encoding="utf-8")
    assert path.stat().st_size < 1_500_000
    page = opened(browser, path)
    assert "late" in page.locator(".answer").inner_text()
    words = page.evaluate("document.body.innerText.split(/\\s+/).filter((word) => word).length")
    assert words < 400
    page.set_viewport_size({"width": 1440, "height": 900})
    page.reload()
    page.wait_for_selector("html[data-drawn]", timeout=60_000)
    page.wait_for_timeout(600)
    assert page.evaluate("document.documentElement.scrollHeight") <= 900
    for part in (".answer", ".waterfall", "#figures-run", "#figures-kernels", ".fixes", ".folds"):
        box = page.locator(part).first.bounding_box()
        assert box["y"] >= 0
        assert box["y"] + box["height"] <= 900, part
    page.requests[1:] = []
    clean(page, path)
