"""`jitter serve` in a browser and from the shell: any step, any ranks, and nothing else."""

import asyncio
import gc
import gzip
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
import weakref
from contextlib import suppress
from pathlib import Path

import pytest
from tornado.httpclient import AsyncHTTPClient, HTTPRequest
from tornado.websocket import websocket_connect

import jitter
from jitter.cli import main
from jitter.report.html import render_html
from jitter.report.live.served_run import ServedRun
from jitter.report.live.server import start
from jitter.report.live.session import ReportSession
from jitter.report.views.run_report import RunReport
from tests.support.chromium import INK, PLACE
from tests.support.live_page import open_page, settle

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
        if found := re.search(r"http://\S+?:(\d+)/", line):
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
    process, port, said = started(lake, "--address", "0.0.0.0")
    assert said.startswith("warning: every machine that can reach 0.0.0.0 can read this report with the link below")
    (token,) = re.findall(rf"http://0\.0\.0\.0:{port}/([\w-]{{32}})/ shows", said)
    for path in ("", "ws", "static/js/bokeh.min.js", "x" * 32 + "/", f"{token[:-1]}/"):
        assert status(port, f"GET /{path} HTTP/1.1", f"Host: 127.0.0.1:{port}") == 404
    for host in (f"127.0.0.1:{port}", f"10.1.2.3:{port}", f"[::1]:{port}", f"{socket.gethostname()}:{port}"):
        assert status(port, f"GET /{token}/ HTTP/1.1", f"Host: {host}") == 200
    assert status(port, f"GET /{token}/ HTTP/1.1", "Host: evil.example") == 403
    assert shake_hands(port, f"http://127.0.0.1:{port}", path=f"/{token}/ws") == 101
    assert shake_hands(port, f"http://127.0.0.1:{port}") == 404
    assert ended(process)[0] == 130


def test_a_port_that_is_taken(lake, port, capsys):
    assert main(["serve", str(lake.root), "--port", str(port)]) == 2
    assert f"jitter: 127.0.0.1, port {port}: the port is in use" in capsys.readouterr().err


def test_no_lake(tmp_path, capsys):
    assert main(["serve", str(tmp_path / "none")]) == 3
    assert capsys.readouterr().out == ""


UPGRADE = ("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13",
           "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==", "Sec-WebSocket-Protocol: bokeh, token")  # fmt: skip


def status(port, *lines):
    """The status of the answer to a request of these lines."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as line:
        line.sendall("".join(f"{one}\r\n" for one in (*lines, "")).encode())
        return int(line.recv(65536).split()[1])


def shake_hands(port, *origins, host=None, path="/ws"):
    """The status with which a websocket from pages of these origins is answered."""
    head = f"GET {path} HTTP/1.1", f"Host: {host or f'127.0.0.1:{port}'}"
    return status(port, *head, *(f"Origin: {origin}" for origin in origins), *UPGRADE)


def test_the_websocket_is_for_pages_of_this_server(port):
    own = f"http://127.0.0.1:{port}"
    assert shake_hands(port, own) == 101
    for host in (f"localhost:{port}", "localhost:8080", f"[::1]:{port}"):  # another port: ssh -L 8080:localhost:5006
        assert shake_hands(port, f"http://{host}", host=host) == 101
        assert shake_hands(port, own, host=host) == 403
    for origins in (
        ["http://evil.example"],
        [f"http://evil.example:{port}"],
        [f"http://127.0.0.1.evil.example:{port}"],
        [f"http://127.0.0.1:{port}.evil.example"],
        [f"http://evil@127.0.0.1:{port}"],
        [f"file://127.0.0.1:{port}"],
        ["null"],
        [""],
        [],
        [own, own],
        [own, "http://evil.example"],
    ):
        assert shake_hands(port, *origins) == 403, origins


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:{port}", "127.0.0.1.evil.example", "10.1.2.3:{port}", "localhost@evil.example", "",
     "localhost:x", "127.0.0.1:{port}/x", "localhost, evil.example", "0.0.0.0:{port}"],
)  # fmt: skip
def test_another_name_of_this_machine_is_refused(port, host):
    """A page whose own name is made to lead here (DNS rebinding) sends that name, with an origin that fits."""
    name = host.format(port=port)
    assert status(port, "GET / HTTP/1.1", f"Host: {name}") in (400, 403)
    assert shake_hands(port, f"http://{name}", host=name) in (400, 403)


def test_a_request_without_host_or_with_two_is_refused(port):
    assert status(port, "GET / HTTP/1.0") in (400, 403)
    assert status(port, "GET / HTTP/1.1") in (400, 403)
    assert status(port, "GET / HTTP/1.1", "Host: localhost", "Host: evil.example") in (400, 403)


def test_only_reading_methods(port):
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "TRACE", "X" * 50):
        assert status(port, f"{method} / HTTP/1.1", f"Host: 127.0.0.1:{port}", "Content-Length: 0") == 405


def test_a_further_name_can_be_allowed(lake):
    process, port, _ = started(lake, "--allow-host", "Proxy.example")
    assert status(port, "GET / HTTP/1.1", "Host: proxy.example:8443") == 200
    assert shake_hands(port, "https://proxy.example:8443", host="proxy.example:8443") == 101
    assert status(port, "GET / HTTP/1.1", "Host: other.example") == 403
    assert ended(process)[0] == 130


def test_garbage_is_logged_in_one_line_each(lake):
    process, port, _ = started(lake)
    own = f"http://127.0.0.1:{port}"
    head = ["GET /ws HTTP/1.1", f"Host: 127.0.0.1:{port}", f"Origin: {own}", *UPGRADE, ""]
    frames = [b"\xff" * 50, b"\x81\xff" + b"\xff" * 40, b"\x82\x84\0\0\0\0\x1b[31", b"\x81\x85abcdefghi", b"\0" * 9]
    for frame in [b"", *frames]:
        with socket.create_connection(("127.0.0.1", port), timeout=20) as line:
            line.sendall("".join(f"{one}\r\n" for one in head).encode() + frame)
            line.settimeout(0.5)
            with suppress(OSError):
                while line.recv(65536):
                    pass
    for garbage in (
        b"\x16\x03\x01\x02\0" * 20,
        b"GET / HTTP/1.1\r\nHost: \x1b[31m\r\n\r\n",
        b"\r\n\r\n\r\n",
        b"A" * 100_000,
    ):
        with socket.create_connection(("127.0.0.1", port), timeout=20) as line, suppress(OSError):
            line.sendall(garbage)
            line.settimeout(0.5)
            line.recv(65536)
    assert status(port, "GET / HTTP/1.1", f"Host: 127.0.0.1:{port}") == 200
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    lines = err.splitlines()
    assert lines[-1] == "interrupted"
    assert all(line.startswith("server: ") and line.isprintable() for line in lines[:-1]), err
    assert len(lines) <= 2 * (len(frames) + 5)


def test_a_closed_session_is_released(run):
    """No document or model of a session outlives it."""
    server = start(run, "127.0.0.1", 0)

    async def session():
        (context,) = server._tornado._applications.values()
        await context.create_session_if_needed("session")
        alive = weakref.ref(context.get_session("session").document)
        assert alive().roots
        next(iter(context.sessions)).request_expiration()
        await context._cleanup_sessions(0)
        assert not list(context.sessions)
        for _ in range(50):
            if alive() is None:
                break
            await asyncio.sleep(0.1)
            gc.collect()
        return alive

    try:
        assert server.io_loop.run_sync(session)() is None
    finally:
        server.stop()
        server.unlisten()


def asked_of(run, questions):
    """What a coroutine function returns that is given a running server and its address."""
    server = start(run, "127.0.0.1", 0)
    try:
        return server.io_loop.run_sync(lambda: questions(server, f"127.0.0.1:{server.bound_port}"), timeout=60)
    finally:
        server.stop()
        server.unlisten()


def token_of(page):
    return json.loads(re.search(r'id="session">(.*?)</script>', page)[1])


def test_pages_are_sent_at_once_and_while_others_are_drawn(run, monkeypatch):
    """No session is made for a page, and one that is drawn keeps no page waiting."""
    may_draw = threading.Event()
    draw = ReportSession.open
    monkeypatch.setattr(ReportSession, "open", lambda session: may_draw.wait(60) and draw(session))

    async def questions(server, address):
        async def page():
            return (await AsyncHTTPClient(max_clients=50).fetch(f"http://{address}/")).body.decode()

        (context,) = server._tornado._applications.values()
        first = await page()
        request = HTTPRequest(f"ws://{address}/ws", headers={"Origin": f"http://{address}"})
        socket = await websocket_connect(request, subprotocols=["bokeh", token_of(first)])
        pages = await asyncio.gather(*(page() for _ in range(50)))
        assert not list(context.sessions)
        may_draw.set()
        acknowledged = await socket.read_message()  # a message's header comes first
        assert json.loads(acknowledged)["msgtype"] == "ACK"
        (session,) = context.sessions
        assert session.document.get_model_by_name("told").data["body"]
        socket.close()
        return [first, *pages]

    pages = asked_of(run, questions)
    assert len({token_of(page) for page in pages}) == 51
    assert len({page.replace(token_of(page), "") for page in pages}) == 1


def test_a_step_that_is_read_keeps_no_page_waiting(run, monkeypatch):
    document, began, may_read = open_page(run), threading.Event(), threading.Event()
    read = run.read

    def slow(key):
        began.set()
        assert may_read.wait(60)
        return read(key)

    monkeypatch.setattr(run, "read", slow)
    document.get_model_by_name("wanted").data = {"number": [1], "place": ["1"], "ranks": [""]}
    (callback,) = document.session_callbacks

    async def answer():
        answering = asyncio.create_task(callback.callback())
        while not began.is_set():
            await asyncio.sleep(0.01)  # the event loop goes on
        assert "number" not in told(document)
        may_read.set()
        await answering

    asyncio.run(answer())
    assert told(document)["number"] == 1


def test_the_timeline_of_a_finding_is_for_perfetto(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/perfetto/finding-1.json.gz", timeout=60) as answer:
        events = json.loads(gzip.decompress(answer.read()))["traceEvents"]
        assert answer.headers["Content-Disposition"] == 'attachment; filename="finding-1.json.gz"'
    names = {event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert any(name.startswith("rank 5") for name in names)
    assert len(names) == 2
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/perfetto/finding-7.json.gz", timeout=60)
    assert status(port, "GET /perfetto/finding-1.json.gz HTTP/1.1", "Host: evil.example") in (400, 403)


@pytest.mark.parametrize("path", ["../../../etc/passwd", "static/../../../../etc/passwd", "lake", "catalog.sqlite"])
def test_no_file_can_be_asked_for(port, path):
    assert status(port, f"GET /{path} HTTP/1.1", f"Host: 127.0.0.1:{port}") in (403, 404)


def test_the_page_itself_holds_nothing_of_the_run(port, lake):
    text = urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=30).read().decode()
    assert "node0001" not in text
    assert str(lake.root) not in text
    for path in ("autoload.js?bokeh-autoload-element=x", "metadata"):
        assert status(port, f"GET /{path} HTTP/1.1", f"Host: 127.0.0.1:{port}") == 404


@pytest.fixture(scope="module")
def run(lake):
    run = ServedRun(RunReport(lake))
    run.prepare()
    return run


@pytest.fixture
def page(run):
    return open_page(run)


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
    body = re.sub('<a href="perfetto/[^<]*</a>', "", told(page)["body"])
    written = re.sub("Perfetto: <code>[^<]*</code>", "", render_html(lake))
    for part in ("<header>.*?</header>", "<h2 id=.reading.>How to read this</h2>.*?</div>", "<section .*?</section>"):
        assert re.search(part, body, re.DOTALL)[0] == re.search(part, written, re.DOTALL)[0]
    # a live page gets the sections of other steps later
    labels = re.findall('aria-label="[^"]*"', re.sub("<section .*?</section>", "", written, flags=re.DOTALL))
    assert len(labels) > 3
    assert set(labels) <= set(re.findall('aria-label="[^"]*"', body))
    assert len(re.findall("data-show=", body)) == len(lake.step_keys) + len(lake.diagnose().culprits[:3])
    assert re.search(r'<option value="(\d+)" data-step="[^"]*" selected>', body)[1] == str(
        lake.step_keys.index(lake.diagnose().costliest.key)
    )


def test_any_step_and_any_ranks(page, lake):
    for at, key in enumerate(lake.step_keys):
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


def test_a_page_with_a_token_in_its_address(browser, lake):
    process, port, said = started(lake, "--address", "0.0.0.0")
    (path,) = re.findall(r"http://0\.0\.0\.0:\d+(/\S+/) shows", said)
    page = browser.new_page()
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(f"http://127.0.0.1:{port}{path}")
    page.wait_for_selector("html[data-drawn]", timeout=60_000)
    assert all(url.startswith(f"http://127.0.0.1:{port}{path}") for url in asked)
    page.close()
    assert ended(process)[0] == 130


def test_a_rebound_name_gets_nothing(browser, port):
    """Chromium believes that evil.example is this machine; neither its page nor its websocket is answered."""
    page = browser.new_page()
    assert page.goto(f"http://evil.example:{port}/").status == 403
    ended_with = page.evaluate(
        """(url) => new Promise((done) => {
          const socket = new WebSocket(url, ["bokeh", "token"]);
          socket.onopen = () => done("open"); socket.onerror = () => done("refused"); })""",
        f"ws://evil.example:{port}/ws",
    )
    assert ended_with == "refused"
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
