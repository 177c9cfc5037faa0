"""`jitter serve` in a browser and from the shell: any step, any ranks, and nothing else."""

import asyncio
import gzip
import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from contextlib import suppress

import pytest
from tornado.httpclient import AsyncHTTPClient

from jitter.cli import main
from jitter.core.errors import UsageError
from jitter.report.json_report import render_json
from jitter.report.live.served_run import STAGES, ServedRun, describe_metrics
from jitter.report.live.server import LiveServer
from jitter.report.views.run_overview import build_run_overview
from jitter.report.views.run_report import RunReport
from jitter.simulate import simulate
from tests.support.chromium import INK, PLACE, open_page
from tests.support.page import decode
from tests.support.report_lakes import report_lake, step_rows
from tests.support.simulated import ingest_run, small

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def lake(sample_lake):
    return sample_lake


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
def server(lake):
    """The port of a running server, and its first lines on stderr."""
    process, port, said = started(lake, "--allow-host", "Proxy.example")
    while not json.load(urllib.request.urlopen(f"http://127.0.0.1:{port}/progress", timeout=30))["ready"]:
        time.sleep(0.2)
    yield port, said
    assert ended(process) == (130, "", "interrupted")


@pytest.fixture(scope="module")
def port(server):
    return server[0]


def test_only_this_machine_is_listened_to(lake, server):
    port, said = server
    with socket.socket() as other:
        other.bind(("127.0.0.2", port))  # free: not all addresses are taken
    assert f"http://127.0.0.1:{port}/ shows {lake.root}; Ctrl-C stops it" in said
    assert "warning" not in said


def test_a_port_that_is_taken(lake, port, capsys):
    assert main(["serve", str(lake.root), "--port", str(port)]) == 2
    assert f"jitter: 127.0.0.1, port {port}: the port is in use" in capsys.readouterr().err


def status(port, *lines):
    """The status of the answer to a request of these lines."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as line:
        line.sendall("".join(f"{one}\r\n" for one in (*lines, "")).encode())
        return int(line.recv(65536).split()[1])


def from_page(port, *origins, host=None, path="/step/0"):
    """The status with which a request of a page of these origins is answered."""
    head = f"GET {path} HTTP/1.1", f"Host: {host or f'127.0.0.1:{port}'}"
    return status(port, *head, *(f"Origin: {origin}" for origin in origins))


def test_answers_are_for_pages_of_this_server(port):
    own = f"http://127.0.0.1:{port}"
    assert from_page(port, own) == from_page(port) == 200
    for host in (f"localhost:{port}", "localhost:8080", f"[::1]:{port}"):  # another port: ssh -L 8080:localhost:5006
        assert from_page(port, f"http://{host}", host=host) == 200
        assert from_page(port, own, host=host) == 403
    for origins in (
        ["http://evil.example"],
        [f"http://evil.example:{port}"],
        [f"http://127.0.0.1.evil.example:{port}"],
        [f"http://127.0.0.1:{port}.evil.example"],
        [f"http://evil@127.0.0.1:{port}"],
        [f"file://127.0.0.1:{port}"],
        ["null"],
        [""],
        [own, own],
        [own, "http://evil.example"],
    ):
        assert from_page(port, *origins) == 403, origins


@pytest.mark.parametrize("path", ["", "step/0", "metrics", "progress", "bokeh.js", "nothing"])
def test_other_sites_can_neither_read_nor_frame_an_answer(port, path):
    request = urllib.request.Request(f"http://127.0.0.1:{port}/{path}")
    try:
        headers = urllib.request.urlopen(request, timeout=30).headers
    except urllib.error.HTTPError as refused:
        assert path == "nothing"
        headers = refused.headers
    assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["X-Frame-Options"] == "SAMEORIGIN"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert "Access-Control-Allow-Origin" not in headers
    assert "Tornado" not in headers.get("Server", "")


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:{port}", "127.0.0.1.evil.example", "10.1.2.3:{port}", "localhost@evil.example", "",
     "localhost:x", "127.0.0.1:{port}/x", "localhost, evil.example", "0.0.0.0:{port}"],
)  # fmt: skip
def test_another_name_of_this_machine_is_refused(port, host):
    """A page whose own name is made to lead here (DNS rebinding) sends that name, with an origin that fits."""
    name = host.format(port=port)
    assert status(port, "GET / HTTP/1.1", f"Host: {name}") in (400, 403)
    assert from_page(port, f"http://{name}", host=name) in (400, 403)


def test_a_request_without_host_or_with_two_is_refused(port):
    assert status(port, "GET / HTTP/1.0") in (400, 403)
    assert status(port, "GET / HTTP/1.1") in (400, 403)
    assert status(port, "GET / HTTP/1.1", "Host: localhost", "Host: evil.example") in (400, 403)


def test_only_reading_methods(port):
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "TRACE", "X" * 50):
        assert status(port, f"{method} / HTTP/1.1", f"Host: 127.0.0.1:{port}", "Content-Length: 0") == 405


def test_a_further_name_can_be_allowed(port):
    assert status(port, "GET / HTTP/1.1", "Host: proxy.example:8443") == 200
    assert from_page(port, "https://proxy.example:8443", host="proxy.example:8443", path="/") == 200
    assert status(port, "GET / HTTP/1.1", "Host: other.example") == 403


def test_garbage_is_logged_in_one_line_each(lake):
    process, port, _ = started(lake)
    own = f"Host: 127.0.0.1:{port}"
    garbage = [
        b"\x16\x03\x01\x02\0" * 20,
        b"GET / HTTP/1.1\r\nHost: \x1b[31m\r\n\r\n",
        b"\r\n\r\n\r\n",
        b"A" * 100_000,
        f"GET /step/0?ranks=%ff%00%1b HTTP/1.1\r\n{own}\r\n\r\n".encode(),
        f"GET /step/0 HTTP/1.1\r\n{own}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n".encode(),
    ]
    for one in garbage:
        with socket.create_connection(("127.0.0.1", port), timeout=20) as line, suppress(OSError):
            line.sendall(one)
            line.settimeout(0.5)
            line.recv(65536)
    assert status(port, "GET / HTTP/1.1", own) == 200
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    lines = err.splitlines()
    assert lines[-1] == "interrupted"
    assert all(line.startswith("server: ") and line.isprintable() for line in lines[:-1]), err
    assert len(lines) <= 2 * (len(garbage) + 1)


def asked_of(run, questions):
    """What a coroutine function returns that is given the address of a running server."""

    async def ask():
        server = LiveServer([run], "127.0.0.1", 0)
        try:
            return await questions(f"http://127.0.0.1:{server.bound_port}")
        finally:
            AsyncHTTPClient().close()
            server.stop()
            await server._http.close_all_connections()
            await asyncio.sleep(0.05)

    return asyncio.run(ask())


def test_a_step_that_is_read_keeps_no_page_waiting(run, monkeypatch):
    began, may_read, read = threading.Event(), threading.Event(), run.step

    def slow(*asked):
        began.set()
        assert may_read.wait(60)
        return read(*asked)

    monkeypatch.setattr(run, "step", slow)

    async def questions(address):
        client = AsyncHTTPClient(max_clients=50)
        reading = asyncio.ensure_future(client.fetch(f"{address}/step/1"))
        while not began.is_set():
            await asyncio.sleep(0.01)
        pages = await asyncio.gather(*(client.fetch(f"{address}/") for _ in range(30)))
        assert not reading.done()
        may_read.set()
        return {page.body.decode() for page in pages}, json.loads((await reading).body)

    pages, step = asked_of(run, questions)
    assert pages == {run.page}
    assert step["place"] == 1


def test_a_page_shows_progress_then_loads_again(lake):
    run = ServedRun(RunReport(lake))
    run.prepare_on_thread = lambda failed: None

    async def questions(address):
        client = AsyncHTTPClient()
        waiting = (await client.fetch(f"{address}/")).body.decode()
        run.stage = STAGES.index("reading the first step")
        told = json.loads((await client.fetch(f"{address}/progress")).body)
        early = await client.fetch(f"{address}/step/0", raise_error=False)
        metrics = (await client.fetch(f"{address}/metrics")).body.decode()
        run.prepare()
        ready = json.loads((await client.fetch(f"{address}/progress")).body)
        return waiting, told, early.code, metrics, ready, (await client.fetch(f"{address}/")).body.decode()

    waiting, told, early, metrics, ready, page = asked_of(run, questions)
    assert "Loading the run" in waiting
    assert "node0001" not in waiting
    assert told == {"words": "reading the first step", "fraction": 0.5, "ready": False}
    assert early == 503
    assert metrics.endswith("} 0\n")
    assert ready["ready"]
    assert "figures-kernels" in page


def test_an_error_while_preparing_is_kept_for_the_thread_that_serves(lake):
    run, stopped = ServedRun(RunReport(lake)), []
    run._render = lambda: 1 / 0
    run.prepare_on_thread(lambda: stopped.append(True)).join()
    assert isinstance(run.failure, ZeroDivisionError)
    assert stopped == [True]


def test_no_rank_recorded_a_step_whole(tmp_path):
    rows = {r: {(1, 0): [row for row in step_rows(r, 0) if row["kind"] != "collective"]} for r in range(2)}
    run = ServedRun(RunReport(report_lake(tmp_path / "lake", rows, cut=[(0, 0), (1, 0)])))
    run.prepare()
    assert "There is nothing to draw" in run.page
    with pytest.raises(UsageError, match="no rank recorded it whole"):
        run.step(0, "")


def test_metrics_are_those_of_the_document(port, lake):
    text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30).read().decode()
    said = json.loads(render_json(lake.diagnose(), build_run_overview(lake, lake.step_keys)))
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    found = {line.partition("{")[0]: float(line.rpartition(" ")[2]) for line in reversed(lines)}
    first = said["culprits"][0]
    assert found == {
        "jitter_ready": 1,
        "jitter_ranks": said["run"]["ranks"],
        "jitter_steps": said["run"]["steps"],
        "jitter_step_time_seconds": said["waterfall"][0]["step_time_ns"] / 1e9,
        "jitter_loss_seconds": said["loss"]["ns"] / 1e9,
        "jitter_loss_ratio": said["loss"]["fraction"],
        "jitter_findings": len(said["culprits"]),
        "jitter_finding_loss_seconds": first["loss_ns"] / 1e9,
    }
    assert f'rank="{first["rank"]}",host="{first["host"]}",cause="{first["cause"]}"' in text
    assert all(re.fullmatch(r'jitter_\w+\{(\w+="[^"\n]*",?)+\} \S+', line) for line in lines)


def test_a_finding_of_the_job_has_no_rank_as_label(tmp_path):
    run = ServedRun(RunReport(ingest_run(simulate(small(ranks=2, steps=6, cpu_bound=True), []), tmp_path)))
    run.prepare()
    of_job = [line for line in describe_metrics([run]).splitlines() if 'scope="job"' in line]
    assert of_job
    assert not [line for line in of_job if "rank=" in line]


def test_two_lakes_are_side_by_side(lake, browser):
    process, port, said = started(lake, str(lake.root))
    page = browser.new_page(viewport={"width": 1600, "height": 900})
    page.goto(f"http://127.0.0.1:{port}/")
    assert page.locator("iframe").count() == 2
    for frame in page.frames[1:]:
        frame.wait_for_selector("html[data-drawn]", timeout=60_000)
        assert "Rank 5" in frame.locator(".answer").inner_text()
    left, right = (page.locator("iframe").nth(at).bounding_box() for at in (0, 1))
    assert left["y"] == right["y"] < 900
    assert left["x"] + left["width"] <= right["x"] + 1
    page.close()
    assert "shows" in said
    assert ended(process)[0] == 130


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


@pytest.fixture(scope="module")
def run(lake):
    run = ServedRun(RunReport(lake))
    run.prepare()
    return run


def test_the_page_is_the_written_one(run, lake, sample_page):
    """Answers, tables and labels, word for word; what differs is that any step can be chosen."""
    body, written = (re.sub('<span class="copies">.*?</span>', "", page) for page in (run.page, sample_page))
    for part in ("<header>.*?</header>", '<table class="fixes">.*?</table>', '<details id="quality">.*?</details>'):
        assert re.search(part, body, re.DOTALL)[0] == re.search(part, written, re.DOTALL)[0]
    labels = re.findall('aria-label="[^"]*"', written)
    assert len(labels) > 3
    assert set(labels) <= set(re.findall('aria-label="[^"]*"', body))
    assert re.findall(r'<option value="(\d+)"', body) == [str(at) for at in range(len(lake.step_keys))]
    chosen = re.search(r'<option value="(\d+)" data-step="[^"]*" selected>', body)[1]
    assert chosen == str(lake.step_keys.index(lake.diagnose().costliest.key))


def test_any_step_and_any_ranks(run, lake):
    for at, key in enumerate(lake.step_keys):
        answer = json.loads(run.step(at, "2-3"))
        assert answer["place"] == at
        assert f"In {key}, " in answer["text"]
        assert "rank 2" in answer["key"]
        columns, chosen = decode(answer["columns"]), decode(answer["chosen"])
        assert list(chosen["gap"]["rank"]) == [2, 3]
        for metric, deviation in (("ttke", True), ("launch_latency", False)):
            table = lake.table(metric, key.step, deviation=deviation)
            for line, rank in enumerate((2, 3)):
                expected = table[f"rank_{rank}"].astype(float).tolist()
                assert list(chosen[metric]["ys"][line]) == pytest.approx(expected, nan_ok=True)
        most = lake.diagnose().steps[at].max_rank
        column = lake.table("ttke", key.step, deviation=True)[f"rank_{most}"].astype(float)
        assert columns["view"]["max_rank"] == [most]
        assert list(columns["ttke"]["max"]) == pytest.approx(column.tolist(), rel=1e-6, nan_ok=True)
    assert decode(json.loads(run.step(0, ""))["chosen"])["gap"]["rank"] == []


def test_any_kernel(run, lake):
    answer = json.loads(run.kernel(3, 17))
    took = decode(answer["duration_ns"])
    for at, key in enumerate(lake.step_keys):
        assert took[0, 5, at] == lake.table("duration", key)["rank_5"][17]
    with pytest.raises(UsageError, match="has no kernel 99"):
        run.kernel(3, 99)


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("step/3?ranks=99", "not ranks of this run; it has 0 to 7"),
        ("step/3?ranks=9", "no rank 9"),
        ("step/3?ranks=0-99999999999", "not ranks of this run"),
        ("step/3?ranks=%3Cimg%20src%3Dx%3E", "<img src=x>"),  # shown as text: see the browser's test
        ("step/5", "there is no such step"),
        ("tables/5", "there is no such step"),
        ("kernel/5/0", "there is no such step"),
        ("kernel/3/99", "has no kernel 99"),
    ],
)
def test_what_the_run_lacks_is_said(port, path, why):
    answer = json.load(urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=30))
    assert list(answer) == ["problem"]
    assert why in answer["problem"]


@pytest.mark.parametrize("path", ["step/-1", "step/", "step/../../etc/passwd", "perfetto/finding-x.json.gz"])
def test_there_is_nothing_else(port, path):
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=30)
    assert refused.value.code == 404
    assert "nothing here" in refused.value.read().decode()
    assert refused.value.headers["Content-Type"] == "text/plain; charset=utf-8"


@pytest.fixture
def shown(browser, port):
    """The live page in a browser; in the end nothing went wrong, and nothing else was requested."""
    context = browser.new_context(viewport={"width": 1100, "height": 900})
    page = open_page(context, f"http://127.0.0.1:{port}/")
    yield page
    assert page.errors == []
    assert all(url.startswith(f"http://127.0.0.1:{port}/") for url in page.requests)
    context.close()


def in_view(page, key):
    page.wait_for_function(f"document.getElementById('step-text').textContent.includes('{key}, ')")
    page.wait_for_function("document.getElementById('status').textContent == ''")


def of(page, name, what):
    return page.evaluate(f"Bokeh.documents[0].get_model_by_name('{name}').{what}")


def test_every_figure_is_drawn_in_the_readers_colours(shown, lake):
    assert "Rank 5 (node0001)" in shown.locator(".answer").inner_text()
    assert shown.title() == f"jitter: {lake.root}"
    shown.wait_for_timeout(300)
    for scheme, ink, ground in (("dark", "#d5dae1", "#14181d"), ("light", "#1c2128", "#fefefe")):
        shown.emulate_media(color_scheme=scheme)
        shown.wait_for_function(f"Bokeh.documents[0].get_model_by_name('title:gap').text_color == '{ink}'")
        assert of(shown, "figure:gap", "background_fill_color") == ground
    for name in ("excess", "step_time", "self_excess", "ranks", "gap", "duration", "waits"):
        assert shown.evaluate(INK, f"figure:{name}") > 8, name


def test_a_step_and_ranks_are_chosen(shown):
    shown.locator("#step").select_option(index=0)
    in_view(shown, "In epoch 1, step 2000")
    shown.locator("#ranks").fill("1,2")
    shown.locator("#ranks").press("Enter")
    for name in ("gap", "ttke"):  # figure after figure
        shown.wait_for_function(f"Bokeh.documents[0].get_model_by_name('chosen:{name}').data.rank.length == 2")
    assert shown.locator(".key", has_text="rank 1").count() == 1
    shown.locator("#steps summary").click()
    shown.locator("#steps a", has_text="step 2002").click()
    in_view(shown, "In epoch 1, step 2002")
    assert of(shown, "shown:step", "data.x[0]") == 2
    assert list(of(shown, "chosen:ttke", "data.rank")) == [1, 2]
    shown.mouse.move(*shown.evaluate(PLACE, ["figure:gap", 20, 0]), steps=3)
    tip = shown.locator(".bk-tooltip-content").filter(has_text="kernel")
    tip.first.wait_for(timeout=10_000)
    assert re.search(r"rank 1: \S+ .s, rank 2: \S+ .s", tip.first.inner_text())


def test_what_is_no_rank_is_said_as_text(shown):
    shown.locator("#ranks").fill("<img src=x onerror=window.pwned=1>")
    shown.locator("#ranks").press("Enter")
    shown.wait_for_function("document.getElementById('status').textContent.includes('<img src=x')")
    assert shown.evaluate("window.pwned") is None
    shown.locator("#ranks").fill("")
    shown.locator("#ranks").press("Enter")
    shown.wait_for_function("document.getElementById('status').textContent == ''")


def test_a_server_that_ends_is_missed(browser, lake):
    process, port, _ = started(lake)
    page = browser.new_page()
    page.goto(f"http://127.0.0.1:{port}/")
    page.wait_for_selector("html[data-drawn]", timeout=60_000)
    ended(process)
    page.locator("#step").select_option(index=0)
    page.wait_for_function("document.getElementById('status').textContent.includes('start it again')")
    page.close()


def test_another_address_is_warned_of_and_needs_a_token(lake, browser):
    process, port, said = started(lake, "--address", "0.0.0.0")
    assert said.startswith("warning: every machine that can reach 0.0.0.0 can read this report with the link below")
    (token,) = re.findall(rf"http://0\.0\.0\.0:{port}/([\w-]{{32}})/ shows", said)
    for path in ("", "step/0", "bokeh.js", "metrics", "x" * 32 + "/", f"{token[:-1]}/"):
        assert status(port, f"GET /{path} HTTP/1.1", f"Host: 127.0.0.1:{port}") == 404
    for host in (f"127.0.0.1:{port}", f"10.1.2.3:{port}", f"[::1]:{port}", f"{socket.gethostname()}:{port}"):
        assert status(port, f"GET /{token}/ HTTP/1.1", f"Host: {host}") == 200
    assert status(port, f"GET /{token}/ HTTP/1.1", "Host: evil.example") == 403
    page = browser.new_page()
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(f"http://127.0.0.1:{port}/{token}/")
    page.wait_for_selector("html[data-drawn]", timeout=60_000)
    assert all(url.startswith(f"http://127.0.0.1:{port}/{token}/") for url in asked)
    page.close()
    assert ended(process)[0] == 130


def test_a_rebound_name_gets_nothing(browser, port):
    """Chromium believes that evil.example is this machine; neither its page nor its requests are answered."""
    page = browser.new_page()
    assert page.goto(f"http://evil.example:{port}/").status == 403
    codes = page.evaluate("Promise.all(['step/0', 'metrics'].map((path) => fetch(path).then((one) => one.status)))")
    assert codes == [403, 403]
    read = """(url) => fetch(url).then((one) => one.text(), () => "refused")"""
    assert page.evaluate(read, f"http://127.0.0.1:{port}/step/0") == "refused"
    page.close()


def test_a_cell_of_the_map_shows_its_step_and_rank(shown):
    for _ in range(2):  # the same can be picked again
        shown.mouse.click(*shown.evaluate(PLACE, ["figure:excess", 1, 6]))
        in_view(shown, "In epoch 1, step 2001")
        shown.wait_for_function("Bokeh.documents[0].get_model_by_name('chosen:gap').data.rank[0] == 6")
        assert shown.locator("#ranks").input_value() == "6"
        shown.locator("#step").select_option(index=4)
        in_view(shown, "In epoch 1, step 2004")


def test_the_tables_and_any_kernel_are_read_when_they_are_looked_at(shown):
    shown.locator("#step").select_option(index=0)
    in_view(shown, "In epoch 1, step 2000")
    assert shown.locator("#step-tables table").count() == 0
    shown.locator("summary", has_text="This step").click()
    shown.wait_for_selector("#step-tables table")
    assert "Where the time of each rank goes" in shown.locator("#step-tables").inner_text()
    shown.mouse.click(*shown.evaluate(PLACE, ["figure:gap", 20, 0]))
    shown.wait_for_function("document.getElementById('strip-words').textContent.startsWith('kernel 20: ')")


def test_zoom_outlives_further_ranks_but_not_another_step(shown):
    shown.locator("#figures-kernels").focus()
    shown.keyboard.press("+")
    zoomed = of(shown, "kernels", "end")
    shown.locator("#ranks").fill("1")
    shown.locator("#ranks").press("Enter")
    shown.wait_for_function("Bokeh.documents[0].get_model_by_name('chosen:gap').data.rank.length == 1")
    shown.wait_for_function("document.getElementById('status').textContent == ''")
    assert of(shown, "kernels", "end") == zoomed
    shown.locator("#step").select_option(index=0)
    in_view(shown, "In epoch 1, step 2000")
    assert of(shown, "kernels", "end") > zoomed
