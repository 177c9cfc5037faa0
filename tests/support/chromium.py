"""Chromium, where it is installed, and what tests ask of a page with figures of Bokeh's in it."""

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
ARGUMENTS = ["--no-sandbox", "--disable-quic", "--no-first-run", "--disable-gpu", "--disable-background-networking"]
ARGUMENTS += ["--disable-component-update", "--disable-sync", "--host-resolver-rules=MAP evil.example 127.0.0.1"]

VIEW = """const walk = function*(view) { yield view; for (const child of view.children()) yield* walk(child); };
  let found = null;
  for (const root of Bokeh.index.roots) for (const view of walk(root)) if (view.model.name == name) found = view;"""
INK = f"""(name) => {{ {VIEW}
  const canvas = found.canvas_view.primary.canvas, inside = found.frame.bbox, ratio = canvas.width / canvas.clientWidth;
  const [x, y, w, h] = [inside.left, inside.top, inside.width, inside.height].map((v) => Math.round(v * ratio));
  const pixels = canvas.getContext("2d").getImageData(x, y, w, h).data, colours = new Set();
  for (let i = 0; i < pixels.length; i += 4) colours.add((pixels[i] << 16) | (pixels[i + 1] << 8) | pixels[i + 2]);
  return colours.size;
}}"""
"""Of a figure: how many colours its frame shows."""
PLACE = f"""([name, x, y]) => {{ {VIEW}
  found.el.scrollIntoView({{block: "center"}});
  const box = found.el.getBoundingClientRect(), frame = found.frame;
  return [box.x + frame.x_scale.compute(x), box.y + (y == null ? frame.bbox.y_center : frame.y_scale.compute(y))];
}}"""
"""Of a figure: where on the page this x and y are; y null: half way up."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("no chromium is installed (apt-get install chromium)")
    playwright = pytest.importorskip("playwright.sync_api", reason="the browser test needs playwright")
    with playwright.sync_playwright() as running:
        started = running.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield started
        started.close()


def open_page(context: Any, address: str) -> Any:
    """Open a page and wait until its figures are drawn; collect its `errors` and the addresses that it `requests`."""
    page = context.new_page()
    page.errors, page.requests = [], []
    page.on("console", lambda message: message.type in ("error", "warning") and page.errors.append(message.text))
    page.on("pageerror", lambda error: page.errors.append(str(error)))
    page.on("request", lambda asked: page.requests.append(asked.url))
    page.goto(address)
    page.wait_for_selector("html[data-drawn]", timeout=60_000)
    return page
