"""The cost of a lake's page: time and memory to write it, its size, and how long a browser takes to draw it.

And the live page: how long until it can be had, until its first screen is drawn, and until another step is.

python -m tests.bench.page LAKE
"""

import argparse
import re
import shutil
import signal
import statistics
import subprocess
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
        print(f"drawn in {statistics.median(seconds):.2f} s, median of {_OPENED}; slowest {max(seconds):.2f}")
        _live(browser, lake)
        browser.close()


def _live(browser: Browser, lake: Path) -> None:
    """Print how long the live page takes: to be had, to be drawn, to show other steps."""
    started = time.perf_counter()
    command = [sys.executable, "-m", "jitter", "serve", str(lake), "--port", "0"]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert server.stderr is not None
    address = next(found[0] for line in server.stderr if (found := re.search(r"http://\S+", line)))
    print(f"jitter serve {lake}: ready after {time.perf_counter() - started:.1f} s")
    tab = browser.new_page()
    started = time.perf_counter()
    tab.goto(address)
    tab.wait_for_selector("html[data-drawn]", timeout=120_000)
    print(f"first screen drawn in {time.perf_counter() - started:.2f} s")
    seconds = []
    for step in range(min(_OPENED + 1, tab.locator("#step option").count())):
        started = time.perf_counter()
        tab.select_option("#step", index=step)
        tab.wait_for_function("document.getElementById('status').textContent == ''")
        seconds.append(time.perf_counter() - started)
    print(f"another step in {statistics.median(seconds):.2f} s, median of {len(seconds)}; slowest {max(seconds):.2f}")
    server.send_signal(signal.SIGINT)
    server.wait()


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
