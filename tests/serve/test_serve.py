"""`jitter serve` in a browser and from the shell: any step, any ranks, and nothing else."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from bokeh.document import Document

import jitter
from jitter.cli import main
from jitter.serve import LivePage

SAMPLE = Path(__file__).parents[2] / "data" / "sample"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
ARGUMENTS = ["--no-sandbox", "--disable-quic", "--no-first-run", "--disable-background-networking"]
ARGUMENTS += ["--disable-component-update", "--disable-sync"]
COSTLIEST = json.loads((SAMPLE / "truth.json").read_text())["faults"][0]["steps"][0]
VIEW = """const walk = function*(view) { yield view; for (const child of view.children()) yield* walk(child); };
  let found = null;
  for (const root of Bokeh.index.roots) for (const view of walk(root)) if (view.model.name == name) found = view;"""
PLACE = f"""([name, x, y]) => {{ {VIEW}
  found.el.scrollIntoView({{block: "center"}});
  const box = found.el.getBoundingClientRect(), frame = found.frame;
  return [box.x + frame.x_scale.compute(x), box.y + frame.y_scale.compute(y)];
}}"""


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    root = tmp_path_factory.mktemp("serve") / "lake"
    assert main(["ingest", str(SAMPLE), "-o", str(root), "--quiet", "--jobs", "1"]) == 0
    return jitter.open(root)


def started(lake, *options):
    """A server of its own, and its address; its first lines on stderr."""
    command = [sys.executable, "-m", "jitter", "serve", str(lake.root), "--port", "0", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    lines = []
    for line in process.stderr:
        lines.append(line)
        if found := re.search(r"http://\S+:(\d+)/", line):
            return process, int(found[1]), "".join(lines)
    raise AssertionError("".join(lines))


def ended(process):
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    return process.returncode, out, err.strip().splitlines()[-1]


@pytest.fixture(scope="module")
def port(lake):
    process, port, _ = started(lake)
    yield port
    assert ended(process) == (130, "", "interrupted")


def test_only_this_machine_is_listened_to(lake):
    process, port, said = started(lake)
    with socket.socket() as other:
        other.bind(("127.0.0.2", port))  # free: not all addresses are taken
    code, out, err = ended(process)
    assert f"http://127.0.0.1:{port}/ shows {lake.root}; Ctrl-C ends it" in said
    assert "warning" not in said
    assert (code, out, err) == (130, "", "interrupted")


def test_another_address_is_warned_of(lake):
    process, _, said = started(lake, "--address", "0.0.0.0")
    assert said.startswith("warning: whoever can reach 0.0.0.0 can read this report")
    assert ended(process)[0] == 130


def test_a_port_that_is_taken(lake, port, capsys):
    assert main(["serve", str(lake.root), "--port", str(port)]) == 2
    assert f"jitter: 127.0.0.1, port {port}: something else listens there" in capsys.readouterr().err


def test_no_lake(tmp_path, capsys):
    assert main(["serve", str(tmp_path / "none")]) == 3
    assert capsys.readouterr().out == ""


def answered(port, *lines):
    """The status of the answer to a request of these lines."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as line:
        line.sendall("".join(f"{one}\r\n" for one in (*lines, "Host: 127.0.0.1", "")).encode())
        return int(line.recv(65536).split()[1])


def shake_hands(port, origin):
    """The status with which a websocket from a page of this origin is answered."""
    upgrade = ("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13")
    key = "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA=="
    return answered(port, "GET /ws HTTP/1.1", f"Origin: {origin}", *upgrade, key)


def test_the_websocket_is_for_our_own_pages(port):
    assert shake_hands(port, "http://evil.example") == 403
    assert shake_hands(port, f"http://evil.example:{port}") == 403
    assert shake_hands(port, f"http://127.0.0.1:{port}") != 403  # refused for want of a token only


@pytest.mark.parametrize("path", ["../../../etc/passwd", "static/../../../../etc/passwd", "lake", "catalog.sqlite"])
def test_no_file_can_be_asked_for(port, path):
    assert answered(port, f"GET /{path} HTTP/1.1") in (403, 404)


def test_the_page_itself_holds_nothing_of_the_run(port, lake):
    for path in ("", "autoload.js?bokeh-autoload-element=x", "metadata"):
        text = urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=30).read().decode()
        assert "node0001" not in text
        assert str(lake.root) not in text


@pytest.fixture(scope="module")
def figures(lake):
    return jitter.Figures(lake)


@pytest.fixture
def page(figures):
    document = Document()
    LivePage(figures, document).open()
    return document


def choose(document, name, **changed):
    """Change a model as the browser does, and let the server do what it put off."""
    document.get_model_by_name(name).update(**changed)
    for callback in list(document.session_callbacks):
        document.remove_next_tick_callback(callback)
        callback.callback()


def words(document, name):
    return document.get_model_by_name(name).text


def drawn_line(document, rank, metric):
    source = document.get_model_by_name(f"rank_{rank}:{metric}")
    return None if source is None else list(source.data["ns"])


def test_the_costliest_step_comes_first(page):
    assert words(page, "words").startswith(f"<b>epoch 1, step {COSTLIEST}</b>")
    assert "max rank 5 (node0001)" in words(page, "words")


def test_any_step_and_any_ranks(page, lake):
    choose(page, "ranks", value="2-3")
    for at, key in enumerate(lake.steps):
        choose(page, "step", value=str(at))
        assert words(page, "words").startswith(f"<b>{key}</b>")
        assert page.get_model_by_name("shown:step").data == {"x": [at]}
        for metric, deviation in (("gap", True), ("launch_latency", False)):
            table = lake.table(metric, key.step, deviation=deviation)
            for rank in (2, 3):
                told = table[f"rank_{rank}"].astype(float).tolist()
                assert drawn_line(page, rank, metric) == pytest.approx(told, nan_ok=True)
        assert drawn_line(page, 4, "gap") is None


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("ranks", "99", "these are not ranks of this run; it has 0 to 7"),
        ("ranks", "9", "no rank 9"),
        ("ranks", "0-99999999999", "these are not ranks of this run"),
        ("ranks", "<img src=x>", "&lt;img src=x&gt;"),
        ("step", "5", "there is no such step"),
        ("step", "-1", "there is no such step"),
        ("step", "../../etc/passwd", "there is no such step"),
    ],
)
def test_what_is_not_there_is_said(page, name, value, told):
    before = words(page, "words")
    choose(page, name, value=value)
    assert told in words(page, "status").replace("</b>", "")
    assert words(page, "words") == before


@pytest.mark.parametrize(
    "data", [{"step": [9], "rank": [0]}, {"step": ["x"], "rank": [0]}, {"step": [], "rank": []}, {}]
)
def test_a_pick_of_nothing_changes_nothing(page, data):
    before = words(page, "words")
    choose(page, "picked", data=data)
    assert words(page, "words") == before
    assert page.get_model_by_name("ranks").value == ""


def test_a_pick_shows_the_step_and_the_rank(page):
    choose(page, "picked", data={"step": [0], "rank": [float("nan")]})
    assert words(page, "words").startswith("<b>epoch 1, step 2000</b>")
    assert page.get_model_by_name("ranks").value == ""
    for rank, known in ((6, "6"), (1.0, "6,1"), (6, "6,1"), (99, "6,1")):
        choose(page, "picked", data={"step": [1], "rank": [rank]})
        assert words(page, "words").startswith("<b>epoch 1, step 2001</b>")
        assert page.get_model_by_name("ranks").value == known
    assert drawn_line(page, 1, "ttke") is not None


def test_what_changes_together_is_drawn_once(page):
    page.get_model_by_name("ranks").value = "1"
    page.get_model_by_name("step").value = "0"
    assert len(page.session_callbacks) == 1


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium is installed (apt-get install chromium)")
def test_in_a_browser(port, lake):
    playwright = pytest.importorskip("playwright.sync_api", reason="the browser test needs playwright")
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        page = browser.new_page(viewport={"width": 1100, "height": 900})
        errors, asked = [], []
        page.on("console", lambda message: message.type == "error" and errors.append(message.text))
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(f"http://127.0.0.1:{port}/")
        page.get_by_text(lake.diagnosis().verdict).first.wait_for(timeout=60_000)
        page.get_by_label("Step").select_option(index=0)
        page.get_by_text("epoch 1, step 2000: loss").wait_for()
        # a cell of the map: its step, and its rank as a line
        page.mouse.click(*page.evaluate(PLACE, ["figure:excess", 1, 6]))
        page.get_by_text("epoch 1, step 2001: loss").wait_for()
        page.wait_for_function("Bokeh.documents[0].get_model_by_name('rank_6:gap') != null")
        assert page.get_by_label("Further ranks").input_value() == "6"
        assert errors == []
        assert all(url.startswith(f"http://127.0.0.1:{port}/") for url in asked)
        if folder := os.environ.get("JITTER_SCREENSHOTS"):
            page.screenshot(path=Path(folder) / "serve.png", full_page=True)
        browser.close()
