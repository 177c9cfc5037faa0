"""What the page of a lake costs: time and memory to write it, its size, and how long a browser takes to draw it.

python -m tests.bench.page LAKE
"""

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

from tests.bench.measure import run

_OPENED = 5
_ARGUMENTS = ["--no-sandbox", "--disable-quic", "--no-first-run", "--disable-background-networking"]


def main(lake: Path) -> None:
    """Print it."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        sys.exit("no chromium is installed: apt-get install chromium")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        page = Path(folder) / "page.html"
        print(f"jitter report {lake} --html: {run([sys.executable, '-m', 'jitter', 'report', lake, '-o', page])}")
        print(f"size: {page.stat().st_size / 1e6:.2f} MB")
        browser = playwright.chromium.launch(executable_path=chromium, args=_ARGUMENTS)
        seconds = [_opened(browser, page) for _ in range(_OPENED)]
        browser.close()
        print(f"drawn in {statistics.median(seconds):.2f} s, median of {_OPENED}; slowest {max(seconds):.2f}")


def _opened(browser: Browser, page: Path) -> float:
    """Seconds until every figure is drawn, in a window without a network."""
    context = browser.new_context(offline=True)
    tab = context.new_page()
    started = time.perf_counter()
    tab.goto(page.as_uri())
    tab.wait_for_selector("html[data-drawn]", timeout=120_000)
    seconds = time.perf_counter() - started
    context.close()
    return seconds


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("lake", type=Path)
    main(parser.parse_args().lake)
