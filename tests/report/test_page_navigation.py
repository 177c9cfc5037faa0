"""The page as a place to work: its address, the back button, the map, zoom, tables, copies as CSV."""

import csv
import io

import pytest

import jitter
from jitter.report.page import render_html
from tests.support.chromium import PLACE, VIEW, open_page
from tests.support.simulated import sampled_lake

pytestmark = pytest.mark.slow

FRAME = f"(name) => {{ {VIEW}\n  return found.frame.bbox.width; }}"
"""Of a figure: the width of its frame, px."""
KERNELS = 260
STEPS = 9


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    folder = tmp_path_factory.mktemp("navigation")
    job = f"--ranks 4 --gpus-per-node 2 --first-step 0 --steps {STEPS} --kernels {KERNELS}"
    faults = "--fault cpu_stall:rank=2,step=4,kernel=5,ms=9 --fault cpu_stall:rank=1,step=7,kernel=8,ms=2"
    sampled_lake(folder, f"{job} {faults}")
    lake = jitter.open((folder / "lake").rename(folder / "my lake"))
    path = folder / "page.html"
    path.write_text(render_html(lake), encoding="utf-8")
    return path


@pytest.fixture
def page(request, browser, path):
    """The page in a window of 1280 × 720, or of the size that a test asks for."""
    width, height = getattr(request, "param", (1280, 720))
    context = browser.new_context(viewport={"width": width, "height": height})
    page = open_page(context, path.as_uri())
    yield page
    assert page.errors == []
    context.close()


def opened(page, path, address=""):
    page.goto("about:blank")
    page.goto(path.as_uri() + address)
    page.wait_for_selector("html[data-drawn]", timeout=60_000)


def of(page, name, what):
    return page.evaluate(f"Bokeh.documents[0].get_model_by_name('{name}').{what}")


def hash_of(page):
    return page.evaluate("location.hash")


def set_range(page, start, end):
    page.evaluate(f"Bokeh.documents[0].get_model_by_name('kernels').setv({{start: {start}, end: {end}}})")


def shown(page):
    return page.evaluate("document.getElementById('step-text').textContent")


def copied(page, button):
    button.click()
    page.wait_for_function("window.copied != null")
    text = page.evaluate("(() => { const text = window.copied; window.copied = null; return text; })()")
    return list(csv.reader(io.StringIO(text)))


def test_the_address_holds_the_view_and_the_back_button_undoes_it(page, path):
    assert hash_of(page) == ""
    first = shown(page)
    assert "step 4" in first
    page.select_option("#step", index=1)
    page.wait_for_function("location.hash.includes('step=')")
    second, step = shown(page), hash_of(page)
    assert second != first
    set_range(page, 100, 200)
    page.wait_for_function("location.hash.includes('x=100-200')")
    page.select_option("#layer", index=1)
    page.wait_for_function("location.hash.includes('layer=')")
    sent, layer = hash_of(page), page.input_value("#layer")
    for undone in ("!location.hash.includes('layer')", "!location.hash.includes('x=')", "location.hash == ''"):
        page.go_back()
        page.wait_for_function(undone)
        page.wait_for_timeout(200)
    assert shown(page) == first
    assert page.evaluate("document.getElementById('layer').selectedIndex") == 0
    page.go_forward()
    page.wait_for_function(f"location.hash == {step!r}")
    page.wait_for_timeout(200)
    assert shown(page) == second
    opened(page, path, sent)  # as a colleague would
    assert shown(page) == second
    assert (of(page, "kernels", "start"), of(page, "kernels", "end")) == (100, 200)
    assert page.input_value("#layer") == layer
    assert hash_of(page) == sent


def test_a_step_that_is_not_here_is_said_where_the_map_or_the_address_asks_for_it(page, path):
    there = set(page.evaluate("[...document.getElementById('step').options].map((option) => option.value)"))
    absent = next(step for step in range(STEPS) if str(step) not in there)
    page.mouse.click(*page.evaluate(PLACE, ["figure:excess", absent, 1]))
    line = page.locator("#absent")
    line.wait_for(state="visible")
    assert f"does not hold the details of step {absent}. Run jitter serve '" in line.inner_text()
    assert f"my lake' and open http://127.0.0.1:5006/#step={absent}&ranks=1" in line.inner_text()
    assert 0 <= line.bounding_box()["y"] < 720
    page.wait_for_timeout(600)  # else the next one makes a double click
    page.mouse.click(*page.evaluate(PLACE, ["figure:excess", 4, 2]))
    page.wait_for_function("document.getElementById('absent').hidden")
    opened(page, path, f"#step={absent}&ranks=1-2")
    assert f"details of step {absent}" in line.inner_text()
    assert f"#step={absent}&ranks=1-2" in line.inner_text()


def test_zooming_rescales_y_to_what_is_in_view_but_never_finer_than_a_hundredth_of_the_step(page):
    scale = of(page, "shown:view", "data.scale_ns[0]")
    assert of(page, "figure:gap", "y_range.end") > 6.6e6  # the pause of 9 ms is inside
    set_range(page, 100, 120)
    page.wait_for_function("Bokeh.documents[0].get_model_by_name('figure:gap').y_range.end < 2e5")
    size = of(page, "figure:gap", "y_range.end") - of(page, "figure:gap", "y_range.start")
    assert size == pytest.approx(1.12 * scale, rel=0.01)  # noise is far below
    set_range(page, 0, 20)
    page.wait_for_function("Bokeh.documents[0].get_model_by_name('figure:gap').y_range.end > 6e6")


def test_buttons_zoom(page):
    whole = of(page, "kernels", "end")
    page.locator("#zoom-in").click()
    zoomed = of(page, "kernels", "end")
    assert zoomed < whole
    page.locator("#zoom-out").click()
    assert of(page, "kernels", "end") > zoomed
    page.locator("#all").click()
    assert of(page, "kernels", "end") == whole


def test_tables_sort_filter_and_copy(page, path):
    page.locator("#steps summary").click()
    table = page.locator("#steps table")
    loss = table.locator("th", has_text="loss").first
    loss.click()
    loss.click()  # descending
    assert loss.get_attribute("aria-sort") == "descending"
    assert "step 4" in table.locator("tbody tr").first.inner_text()
    page.locator("#steps input[type=search]").fill("step 7")
    assert table.locator("tbody tr:visible").count() == 1
    rows = copied(page, page.locator("#steps button", has_text="copy as CSV"))
    assert rows[0][:4] == ["step", "step time (ns)", "loss (ns)", "of the step (%)"]
    assert len(rows) == 2
    assert rows[1][0] == "epoch 1, step 7"
    step = jitter.open(path.parent / "my lake").diagnose().steps[7]
    assert [int(rows[1][1]), int(rows[1][2])] == [step.step_time_ns, step.loss_ns]  # not what the page rounds them to
    assert float(rows[1][3]) == pytest.approx(100 * step.loss_fraction)


def test_figures_copy_as_csv(page):
    page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
    page.select_option("#series", "gap")
    rows = copied(page, page.locator("[data-csv=kernels]"))
    cells = page.evaluate("csvText([[`=cmd|'/c calc'!A1`, -1.5, '-1.5 µs', '\\n-2+cmd', 'a\\x1b]0;b']])")
    assert cells == "'=cmd|'/c calc'!A1,-1.5,-1.5 µs,'�-2+cmd,a�]0;b\n"  # not run by a spreadsheet or a terminal
    assert rows[0][:3] == ["kernel_index", "kernel_name", "rank_2_ns"]
    assert len(rows) == 1 + KERNELS
    assert float(rows[6][2]) == pytest.approx(6_678_000, rel=0.01)
    rows = copied(page, page.locator("[data-csv=map]"))
    assert rows[0] == ["rank", "step", "excess_ns", "own_excess_ns"]
    assert len(rows) == 1 + 4 * STEPS
    assert copied(page, page.locator("[data-csv=steps]").first)[1][0] == "epoch 1, step 0"


@pytest.mark.parametrize("page", [(390, 844), (1280, 720)], indirect=True, ids=["phone", "laptop"])
def test_nothing_is_clipped(page):
    width = page.viewport_size["width"]
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert of(page, "flags", "visible") is (width >= 640)
    frames = {name: page.evaluate(FRAME, f"figure:{name}") for name in ("excess", "self_excess", "gap", "waits")}
    if width < 640:  # one below the other, as wide as the screen
        assert min(frames.values()) > 0.55 * width, frames
        boxes = [page.locator(f"#figures-{name}").bounding_box() for name in ("run", "kernels")]
        assert boxes[0]["y"] + boxes[0]["height"] <= boxes[1]["y"]
    for title in ("self_excess", "gap", "duration", "waits"):
        assert len(of(page, f"title:{title}", "text")) * 6.2 < frames[title if title in frames else "gap"] + 74
    page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
    page.wait_for_timeout(500)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    table = "document.querySelector('#steps .scroll')"
    assert width < 1280 or page.evaluate(f"{table}.scrollWidth <= {table}.clientWidth")
    page.evaluate("document.querySelector('.key .others').parentElement.append(' long'.repeat(12))")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
