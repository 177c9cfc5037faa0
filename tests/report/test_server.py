"""`jitter serve` in a browser and from the shell: any step, any ranks, and nothing else."""

import os
import re
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
from jitter.report.html import render_html
from jitter.report.server import ReportSession, ServedRun
from jitter.report.views.run_report import RunReport
from tests.support.chromium import INK, PLACE

pytestmark = pytest.mark.slow

SAMPLE = Path(__file__).parents[2] / "data" / "sample"


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
    assert f"http://127.0.0.1:{port}/ shows {lake.root}; Ctrl-C stops it" in said
    assert "warning" not in said
    assert (code, out, err) == (130, "", "interrupted")


def test_another_address_is_warned_of(lake):
    process, _, said = started(lake, "--address", "0.0.0.0")
    assert said.startswith("warning: every machine that can reach 0.0.0.0 can read this report")
    assert ended(process)[0] == 130


def test_a_port_that_is_taken(lake, port, capsys):
    assert main(["serve", str(lake.root), "--port", str(port)]) == 2
    assert f"jitter: 127.0.0.1, port {port}: the port is in use" in capsys.readouterr().err


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
def run(lake):
    run = ServedRun(RunReport(lake))
    run.prepare()
    return run


@pytest.fixture
def page(run):
    document = Document()
    ReportSession(run, document).open()
    return document


def settle(document):
    """Let the server do what it put off."""
    for callback in list(document.session_callbacks):
        document.remove_next_tick_callback(callback)
        callback.callback()


def ask(document, place, ranks="", number=1):
    """Ask as the browser does; the answer."""
    document.get_model_by_name("wanted").data = {"number": [number], "place": [place], "ranks": [ranks]}
    settle(document)
    return told(document)


def told(document):
    return {name: values[0] for name, values in document.get_model_by_name("told").data.items()}


def drawn_line(document, rank, metric):
    data = document.get_model_by_name(f"chosen:{metric}").data
    at = list(data["rank"]).index(rank) if rank in data["rank"] else None
    return None if at is None else list(data["ys"][at])


def test_the_page_is_the_written_one(page, lake):
    """Answers, tables and labels, word for word; what differs is that any step can be chosen."""
    body, written = told(page)["body"], render_html(lake)
    for part in ("<header>.*?</header>", "<h2>How to read this</h2>.*?</div>", "<section .*?</section>"):
        assert re.search(part, body, re.DOTALL)[0] == re.search(part, written, re.DOTALL)[0]
    labels = re.findall('aria-label="[^"]*"', written)
    assert len(labels) > 3
    assert set(labels) <= set(re.findall('aria-label="[^"]*"', body))
    assert len(re.findall("data-show=", body)) == len(lake.steps)
    assert re.search(r'<option value="(\d+)" selected>', body)[1] == str(
        lake.steps.index(lake.diagnose().costliest.key)
    )


def test_any_step_and_any_ranks(page, lake):
    for at, key in enumerate(lake.steps):
        answer = ask(page, str(at), "2-3", number=at)
        assert (answer["number"], answer["place"], answer["problem"]) == (at, at, "")
        assert f"In {key}, " in answer["section"]
        shown = page.get_model_by_name("shown:gap")
        for metric, deviation in (("gap", True), ("launch_latency", False)):
            table = lake.table(metric, key.step, deviation=deviation)
            for rank in (2, 3):
                expected = table[f"rank_{rank}"].astype(float).tolist()
                assert drawn_line(page, rank, metric) == pytest.approx(expected, nan_ok=True)
        most = lake.diagnose().steps[at].max_rank
        column = lake.table("gap", key.step, deviation=True)[f"rank_{most}"].astype(float)
        assert shown.tags[0] == most
        assert list(shown.data["max"]) == pytest.approx(column.tolist(), rel=1e-6, nan_ok=True)
        assert drawn_line(page, 4, "gap") is None
    assert ask(page, "0")["problem"] == ""
    assert drawn_line(page, 2, "gap") is None


@pytest.mark.parametrize(
    ("place", "ranks", "why"),
    [
        ("3", "99", "not ranks of this run; it has 0 to 7"),
        ("3", "9", "no rank 9"),
        ("3", "0-99999999999", "not ranks of this run"),
        ("3", "<img src=x>", "<img src=x>"),  # shown as text: see the browser's test
        ("5", "", "there is no such step"),
        ("-1", "", "there is no such step"),
        ("../../etc/passwd", "", "there is no such step"),
        (None, "", "there is no such step"),
        (3, "", "there is no such step"),
        ({"a": 1}, ["x"], "there is no such step"),
    ],
)
def test_what_is_not_there_is_said(page, place, ranks, why):
    before = {source: page.get_model_by_name(source).data for source in ("shown:gap", "chosen:gap")}
    answer = ask(page, place, ranks)
    assert why in answer["problem"]
    assert "section" not in answer
    assert all(page.get_model_by_name(name).data == data for name, data in before.items())


@pytest.mark.parametrize("data", [{"place": []}, {}, {"number": [1, 2], "place": ["1", "2"], "ranks": ["x", "y"]}])
def test_what_asks_for_nothing_is_answered_so(page, data):
    page.get_model_by_name("wanted").data = data
    settle(page)
    assert "there is no such step" in told(page)["problem"]


def test_what_is_asked_for_together_is_answered_once(page):
    wanted = page.get_model_by_name("wanted")
    wanted.data = {"number": [1], "place": ["1"], "ranks": [""]}
    wanted.data = {"number": [2], "place": ["2"], "ranks": [""]}
    assert len(page.session_callbacks) == 1
    settle(page)
    assert told(page)["number"] == 2


@pytest.fixture(params=["light", "dark"])
def shown(request, browser, port):
    """The live page in a browser; in the end nothing went wrong, and nobody else was asked."""
    context = browser.new_context(color_scheme=request.param, viewport={"width": 1100, "height": 900})
    page = context.new_page()
    page.scheme, errors, asked = request.param, [], []
    page.on("console", lambda message: message.type in ("error", "warning") and errors.append(message.text))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(f"http://127.0.0.1:{port}/")
    page.wait_for_selector("html[data-drawn]", timeout=60_000)
    yield page
    assert errors == []
    assert all(url.startswith(f"http://127.0.0.1:{port}/") for url in asked)
    if folder := os.environ.get("JITTER_SCREENSHOTS"):
        page.screenshot(path=Path(folder) / f"serve-{request.param}.png", full_page=True)
    context.close()


def in_view(page, key):
    page.wait_for_function(f"document.querySelector('section[data-view]').innerText.includes('{key}, ')")
    page.wait_for_function("document.getElementById('status').textContent == ''")


def of(page, name, what):
    return page.evaluate(f"Bokeh.documents[0].get_model_by_name('{name}').{what}")


def test_every_figure_is_drawn_in_the_readers_colours(shown, lake):
    assert lake.diagnose().verdict in shown.locator(".answer").inner_text()
    assert shown.title() == f"jitter: {lake.root}"
    shown.wait_for_timeout(300)
    for name in ("excess", "step_ranks", "step_loss", "step_time", "ttke", "gap", "duration", "launch_latency"):
        assert shown.evaluate(INK, f"figure:{name}") > 8, name
    ink, ground = ("#d5dae1", "#14181d") if shown.scheme == "dark" else ("#1c2128", "#fefefe")
    assert of(shown, "title:gap", "text_color") == ink
    assert of(shown, "figure:gap", "background_fill_color") == ground


def test_a_step_and_ranks_are_chosen(shown):
    shown.locator("#step").select_option(index=0)
    in_view(shown, "In epoch 1, step 2000")
    shown.get_by_label("More ranks").fill("1,2")
    shown.get_by_label("More ranks").press("Enter")
    for name in ("gap", "ttke"):  # figure after figure
        shown.wait_for_function(f"Bokeh.documents[0].get_model_by_name('chosen:{name}').data.rank.length == 2")
    shown.wait_for_function("Bokeh.documents[0].get_model_by_name('labels:ttke').data.text.length == 2")
    assert sorted(of(shown, "labels:ttke", "data.text")) == ["rank 1", "rank 2"]
    shown.get_by_role("button", name="show epoch 1, step 2002").click()
    in_view(shown, "In epoch 1, step 2002")
    assert of(shown, "shown:step", "data.x[0]") == 2
    assert list(of(shown, "chosen:ttke", "data.rank")) == [1, 2]
    shown.mouse.move(*shown.evaluate(PLACE, ["figure:gap", 20, 0]), steps=3)
    tip = shown.locator(".bk-tooltip-content").filter(has_text="kernel")
    tip.first.wait_for(timeout=10_000)
    assert re.search(r"rank 1: \S+ .s, rank 2: \S+ .s", tip.first.inner_text())


def test_what_is_no_rank_is_said_as_text(shown):
    shown.get_by_label("More ranks").fill("<img src=x onerror=window.pwned=1>")
    shown.get_by_label("More ranks").press("Enter")
    shown.wait_for_function("document.getElementById('status').textContent.includes('<img src=x')")
    assert shown.evaluate("window.pwned") is None
    shown.get_by_label("More ranks").fill("")
    shown.get_by_label("More ranks").press("Enter")
    shown.wait_for_function("document.getElementById('status').textContent == ''")


def test_a_server_that_ends_is_missed(browser, lake):
    process, port, _ = started(lake)
    page = browser.new_page()
    page.goto(f"http://127.0.0.1:{port}/")
    page.wait_for_selector("html[data-drawn]", timeout=60_000)
    ended(process)
    page.wait_for_function("document.getElementById('status').textContent.includes('start it again')")
    page.close()


def test_a_cell_of_the_map_shows_its_step_and_rank(shown):
    for _ in range(2):  # the same can be picked again
        shown.mouse.click(*shown.evaluate(PLACE, ["figure:excess", 1, 6]))
        in_view(shown, "In epoch 1, step 2001")
        shown.wait_for_function("Bokeh.documents[0].get_model_by_name('chosen:gap').data.rank[0] == 6")
        assert shown.get_by_label("More ranks").input_value() == "6"
        shown.locator("#step").select_option(index=4)
        in_view(shown, "In epoch 1, step 2004")


def test_by_keyboard(shown):
    shown.locator("#figures-run").focus()
    for key in ("ArrowRight", "ArrowRight", "ArrowDown", "Enter"):
        shown.keyboard.press(key)
    in_view(shown, "In epoch 1, step 2001")
    shown.locator("#figures-profile").focus()
    for _ in range(6):
        shown.keyboard.press("ArrowRight")
    assert "kernel 5 " in shown.locator("#kernel").inner_text()


def test_another_map_can_be_chosen(shown):
    shown.select_option("#layer", value="own:1")
    assert "CPU: own time above the peers' median" in of(shown, "title:excess", "text")


def test_zoom_outlives_further_ranks_but_not_another_step(shown):
    shown.locator("#figures-profile").focus()
    shown.keyboard.press("+")
    zoomed = of(shown, "kernels", "end")
    shown.get_by_label("More ranks").fill("1")
    shown.get_by_label("More ranks").press("Enter")
    shown.wait_for_function("Bokeh.documents[0].get_model_by_name('chosen:gap').data.rank.length == 1")
    shown.wait_for_function("document.getElementById('status').textContent == ''")
    assert of(shown, "kernels", "end") == zoomed
    shown.locator("#step").select_option(index=0)
    in_view(shown, "In epoch 1, step 2000")
    assert of(shown, "kernels", "end") > zoomed
