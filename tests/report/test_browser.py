"""The page in a browser without a network: it draws, tells on hover, changes steps, and asks for nothing."""

import shutil

import pytest
from report_lakes import job, lake_of, step_rows

from jitter.report.html import html_report

playwright = pytest.importorskip("playwright.sync_api", reason="the browser test needs playwright")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium is installed (apt-get install chromium)")

ARGUMENTS = ["--no-sandbox", "--disable-quic", "--no-first-run", "--disable-background-networking"]
ARGUMENTS += ["--disable-component-update", "--disable-sync"]
FIGURES = ("ttke", "gap", "duration", "launch_latency", "step_loss", "step_ranks", "step_time")
EVIL = "evil<img src=x onerror=window.pwned=1>"
VIEW = """const walk = function*(view) { yield view; for (const child of view.children()) yield* walk(child); };
  let found = null;
  for (const root of Bokeh.index.roots) for (const view of walk(root)) if (view.model.name == name) found = view;"""
PLACE = f"""([name, x]) => {{ {VIEW}
  found.el.scrollIntoView({{block: "center"}});
  const box = found.el.getBoundingClientRect(), frame = found.frame;
  return [box.x + frame.x_scale.compute(x), box.y + frame.bbox.y_center];
}}"""
INK = f"""(name) => {{ {VIEW}
  const canvas = found.canvas_view.primary.canvas, inside = found.frame.bbox, ratio = canvas.width / canvas.clientWidth;
  const [x, y, w, h] = [inside.left, inside.top, inside.width, inside.height].map((v) => Math.round(v * ratio));
  const pixels = canvas.getContext("2d").getImageData(x, y, w, h).data, colours = new Set();
  for (let i = 0; i < pixels.length; i += 4) colours.add((pixels[i] << 16) | (pixels[i + 1] << 8) | pixels[i + 2]);
  return colours.size;
}}"""


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
    return lake_of(folder / "lake", ranks)


@pytest.fixture(scope="module")
def path(lake):
    path = lake.root.parent / "page.html"
    path.write_text(html_report(lake), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as running:
        started = running.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield started
        started.close()


@pytest.fixture(params=["light", "dark"])
def page(request, browser, path):
    context = browser.new_context(color_scheme=request.param, offline=True, viewport={"width": 1100, "height": 800})
    page = context.new_page()
    page.errors, page.requests = [], []
    page.on("console", lambda message: message.type in ("error", "warning") and page.errors.append(message.text))
    page.on("pageerror", lambda error: page.errors.append(str(error)))
    page.on("request", lambda asked: page.requests.append(asked.url))
    page.goto(path.as_uri())
    page.wait_for_selector("html[data-drawn]", timeout=60_000)
    yield page
    assert page.errors == []
    assert page.requests == [path.as_uri()]
    assert page.evaluate("window.pwned") is None
    context.close()


def hover(page, name, x):
    across, down = page.evaluate(PLACE, [name, x])
    page.mouse.move(across - 30, down)
    page.mouse.move(across, down, steps=3)
    tip = page.locator(".bk-tooltip-content").filter(has_text="step" if "step" in name else "kernel")
    tip.first.wait_for(timeout=10_000)
    return tip.first.inner_text()


def of_rank(lake, step, kernel, rank):
    """The gap's deviation as the tooltip writes it, from the table."""
    ns = float(lake.table("gap", step=step, deviation=True)[f"rank_{rank}"][kernel])
    assert 1000 <= abs(ns) < 999_999
    return f"rank {rank}: {'−' if ns < 0 else '+'}{round(abs(ns) / 1000, 3):g} µs"


def test_every_figure_is_drawn(page):
    page.wait_for_timeout(300)
    for name in FIGURES:
        assert page.evaluate(INK, f"figure:{name}") > 8, name


def test_hover_tells_kernel_index_and_values(page, lake):
    told = hover(page, "figure:gap", 5)
    assert "kernel 5" in told
    assert f"max {of_rank(lake, 1, 5, 2)}" in told
    assert f"min {of_rank(lake, 1, 5, 0)}" in told
    assert "others:" in told
    assert f"{EVIL}_5" in told
    assert page.locator("img").count() == 0


def test_hover_tells_a_step(page):
    told = hover(page, "figure:step_loss", 1)
    assert "epoch 1, step 1" in told
    assert "loss: 399" in told or "loss: 400" in told
    assert "max rank 2" in told


def test_another_step_can_be_chosen(page, lake):
    assert page.locator("section:visible").count() == 1
    page.select_option("#step", index=1)
    assert "rank 0 (node0)" in page.locator("section:visible").inner_text()
    assert "max rank 0" in page.locator(".key:visible").first.inner_text()
    told = hover(page, "figure:gap", 8)
    assert "kernel 8" in told
    assert f"max {of_rank(lake, 2, 8, 0)}" in told
    page.select_option("#step", index=0)
    assert f"max {of_rank(lake, 1, 5, 2)}" in hover(page, "figure:gap", 5)


def test_the_table_leads_to_its_step(page):
    page.get_by_role("button", name="show").nth(2).click()
    assert page.evaluate("document.getElementById('step').selectedIndex") == 1
    assert "rank 0 (node0)" in page.locator("section:visible").inner_text()


def test_figures_follow_the_colour_scheme(page):
    for scheme, ink in (("dark", "#d5dae1"), ("light", "#1c2128"), ("dark", "#d5dae1")):
        page.emulate_media(color_scheme=scheme)
        page.wait_for_function(f"Bokeh.documents[0].get_model_by_name('title:gap').text_color == '{ink}'", timeout=5000)


def test_a_run_that_tells_nothing_draws_what_there_is(browser, tmp_path):
    path = tmp_path / "one.html"
    path.write_text(html_report(job(tmp_path / "lake", ranks=1, steps=1, late=(0, 0, 3, 10_000))), encoding="utf-8")
    page, said = browser.new_page(), []
    page.on("console", lambda message: message.type in ("error", "warning") and said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto(path.as_uri())
    page.wait_for_selector("html[data-drawn]", timeout=60_000)
    assert "rank 0: 20.087 µs" in hover(page, "figure:duration", 3)
    assert "max rank" not in page.locator("main .key:visible").inner_text()
    assert said == []
    page.close()
