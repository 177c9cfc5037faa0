"""A Bokeh server over one lake; its page is the one that `jitter report --html` writes.

The browser chooses among existing steps and ranks; it cannot name a file or a query. All content, text included, goes
over the websocket, which only a page of this server may open; the page itself contains no data of the run. Requests
under another name than this machine's, or from pages of other sites, do not reach Bokeh (`request_guard`).
"""

import ctypes
import errno
import gc
import re
import secrets
import signal
import socket
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cached_property
from threading import Thread
from typing import Final

from bokeh.application import Application
from bokeh.application.application import SessionContext
from bokeh.application.handlers import FunctionHandler
from bokeh.document import Document
from bokeh.models import ColumnDataSource, LayoutDOM
from bokeh.server.server import BaseServer
from bokeh.server.tornado import BokehTornado
from tornado.httpserver import HTTPServer
from tornado.ioloop import IOLoop

from jitter.core.errors import JitterError, UsageError
from jitter.core.formatting import parse_numbers
from jitter.core.interrupts import Interrupted, note_signal
from jitter.core.step_key import StepKey
from jitter.report.figures import kernel_axis
from jitter.report.figures.kernel_axis import KernelAxis
from jitter.report.figures.rank_lines import draw_ranks, style_ranks
from jitter.report.live.loading import Loading
from jitter.report.live.request_guard import GuardedApplication, RequestPolicy, is_loopback
from jitter.report.live.server_log import log_in_lines
from jitter.report.live.timeline_download import TIMELINE_ROUTE, TimelineHandler, TimelineWriter
from jitter.report.page import (
    StepChoice,
    render_findings,
    render_page_body,
    render_step,
    step_choice,
    template_environment,
)
from jitter.report.page_figures import draw_page_figures
from jitter.report.views.run_report import RunReport, StepSection
from jitter.report.views.step_grid import StepGrid
from jitter.report.views.step_view import KernelNames

_MAX_MESSAGE_BYTES = 2**20
"""Most bytes of a message from the browser; a choice takes a few hundred."""
_MAX_RANKS_TEXT = 200
_TOKEN_BYTES = 24
_CHECK_SESSIONS_MS = 5_000
_RELEASE_AFTER_S = 1.0
_SESSION_LIFETIME_MS = 15_000
"""A page that lost its connection for longer than this starts anew; its session's memory is released."""
_PROGRESS_MS = 400
MAX_SESSIONS: Final = 40
"""Most pages at a time; each keeps the data of its figures in memory."""


class ServedRun:
    """The state that all sessions share: the run, and the step that was read last."""

    def __init__(self, page: RunReport, write_timeline: TimelineWriter | None = None) -> None:
        """Serve this run. Nothing is computed yet. `write_timeline` writes the timelines of findings."""
        self.page = page
        self.write_timeline = write_timeline
        self.loading = Loading()
        self.sessions = 0
        self.names = KernelNames()
        self._last: tuple[StepGrid, StepSection] | None = None
        self._first: StepKey | None = None

    @cached_property
    def keys(self) -> list[StepKey]:
        """The steps, in order."""
        return [step.key for step in self.page.diagnosis.steps]

    def prepare(self) -> None:
        """Compute the data that every page shows, in stages; once."""
        page, loading = self.page, self.loading
        if loading.ready:
            return
        if page.steps == page.lake.steps:  # derived data make later starts faster
            page.lake.prepare(loading.count, forms=["timings"])
            loading.enter("diagnosing the run")
            page.lake.prepare(forms=["answers"])
        page.diagnosis, page.facts  # noqa: B018
        loading.enter("reading the costliest step")
        self._first = self._costliest_whole()
        page.excess  # noqa: B018
        loading.enter("ready")

    def prepare_on_thread(self, failed: Callable[[], None]) -> Thread:
        """Run `prepare` on a thread and return it; on an error keep that in `loading.failure` and call `failed`."""

        def work() -> None:
            try:
                self.prepare()
            except Exception as error:  # raised again by the thread that serves
                self.loading.failure = error
                failed()

        thread = Thread(target=work, name="jitter-prepare", daemon=True)
        thread.start()
        return thread

    @property
    def first(self) -> StepKey | None:
        """The step that a page shows first: the costliest that a rank recorded completely; None if there is none."""
        return self._first

    def read(self, key: StepKey) -> tuple[StepGrid, StepSection]:
        """Read a step; the last one is cached. Raise `UsageError` if no rank recorded it completely."""
        if self._last is None or self._last[1].step.key != key:
            grid = self.page.grid(key)
            self._last = (grid, self.page.section(grid, self.names))
        return self._last

    def _costliest_whole(self) -> StepKey | None:
        by_cost = sorted(self.page.diagnosis.steps, key=lambda step: (step.loss_ns is None, -(step.loss_ns or 0)))
        for step in by_cost:
            try:
                self.read(step.key)
            except UsageError:
                continue
            return step.key
        return None


def serve(
    run: ServedRun, address: str, port: int, say: Callable[[str], None], allowed_hosts: Iterable[str] = ()
) -> None:
    """Serve until interrupted. `say` is called with the address once the page can be loaded.

    Port 0 takes a free port. `allowed_hosts` are further names under which browsers may reach this machine. Raises
    `UsageError` for an address or a port that is not available.
    """
    log_in_lines(say)
    server = start(run, address, port, allowed_hosts)
    host = f"[{address}]" if ":" in address else address
    say(f"http://{host}:{server.bound_port}{server.path} shows {run.page.lake.root}; Ctrl-C stops it")
    loop = server.io_loop
    received: list[int] = []

    def stop(number: int) -> None:
        note_signal(number)
        received.append(number)
        loop.stop()

    for number in (signal.SIGINT, signal.SIGTERM):
        # in the event loop: an exception in the middle of a callback might be caught there
        loop.asyncio_loop.add_signal_handler(number, stop, number)  # type: ignore[attr-defined]
    try:
        loop.start()
    finally:
        server.stop()
        server.unlisten()
    if run.loading.failure is not None:
        raise run.loading.failure
    if received:
        raise Interrupted


class LiveServer(BaseServer):
    """A Bokeh server on one address. Bokeh's own class would accept only localhost as the origin of a page."""

    def __init__(self, run: ServedRun, address: str, port: int, allowed_hosts: Iterable[str] = ()) -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        listening = socket.create_server((address, port), family=family)
        listening.setblocking(False)
        self.bound_port: int = listening.getsockname()[1]
        token = None if is_loopback(address) else secrets.token_urlsafe(_TOKEN_BYTES)
        self.path = "/" if token is None else f"/{token}/"
        """The path of the page; on an address that other machines reach, it contains a random token."""
        application = Application(FunctionHandler(lambda document: ReportSession(run, document).open()))
        tornado = BokehTornado(
            {"/": application},
            prefix=token,
            extra_websocket_origins=["*"],  # the guard compares the origin with the host, which is stricter
            extra_patterns=[]
            if run.write_timeline is None
            else [(TIMELINE_ROUTE, TimelineHandler, {"page": run.page, "write": run.write_timeline})],
            websocket_max_message_size_bytes=_MAX_MESSAGE_BYTES,
            check_unused_sessions_milliseconds=_CHECK_SESSIONS_MS,
            unused_session_lifetime_milliseconds=_SESSION_LIFETIME_MS,
        )
        policy = RequestPolicy(address, token, allowed_hosts)
        http = HTTPServer(GuardedApplication(tornado, policy), max_buffer_size=_MAX_MESSAGE_BYTES)
        http.add_socket(listening)
        super().__init__(IOLoop.current(), tornado, http)


def start(run: ServedRun, address: str, port: int, allowed_hosts: Iterable[str] = ()) -> LiveServer:
    """Start a server on the current event loop and return it; raises as `serve` does.

    The run is prepared on a thread; pages show the progress until it is ready.
    """
    try:
        server = LiveServer(run, address, port, allowed_hosts)
    except OSError as error:
        taken = error.errno == errno.EADDRINUSE
        what = "the port is in use" if taken else error.strerror or str(error)
        raise UsageError(f"{address}, port {port}: {what}", "choose with --address and --port") from None
    server.start()
    loop = server.io_loop
    run.prepare_on_thread(lambda: loop.add_callback(loop.stop))
    return server


def _release_memory(_context: SessionContext) -> None:
    """Give the memory of a closed session back to the system, once its document is unreferenced."""
    IOLoop.current().call_later(_RELEASE_AFTER_S, _collect)


def _collect() -> None:
    # a document is full of cycles, and collections are rare in this process; glibc keeps what was freed
    gc.collect()
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


class ReportSession:
    """The page of one browser: requests come in the source `wanted`, replies go to the source `told`."""

    def __init__(self, run: ServedRun, document: Document) -> None:
        """Show the run in a document."""
        self._run, self._document = run, document
        self._wanted = ColumnDataSource({"number": [], "place": [], "ranks": []}, name="wanted")
        self._told = ColumnDataSource({}, name="told")
        self._axis: KernelAxis | None = None
        self._shown: StepKey | None = None
        self._waiting = False
        self._findings_shown = False

    def open(self) -> None:
        """Build the page with its first step; while the run is being prepared, a page that shows the progress."""
        run, document = self._run, self._document
        document.title = f"jitter: {run.page.lake.root}"
        document.template = template_environment().get_template("live.html.j2")
        run.sessions += 1
        document.on_session_destroyed(lambda _context: self._close())
        document.on_session_destroyed(_release_memory)
        if run.sessions > MAX_SESSIONS or not run.loading.ready:
            self._wait()
            return
        sections: list[StepSection] = []
        choices, items = self._choices(), dict[str, LayoutDOM]()
        if run.first is not None:
            sections = [run.read(run.first)[1]]
            items, self._axis = draw_page_figures(run.page, sections, run.names.names, range(len(run.keys)))
            self._shown = run.first
        self._tell(body=render_page_body(run.page, sections, choices, items, live=True))
        for name, item in items.items():
            item.name = name
            document.add_root(item)
        for source in (self._wanted, self._told):
            document.add_root(source)
        self._wanted.on_change("data", lambda _name, _old, _new: self._want())

    def _close(self) -> None:
        self._run.sessions -= 1

    def _wait(self) -> None:
        """Show the progress of the preparation, and the findings once they are known; the page then loads again."""
        self._document.add_root(self._told)
        if self._run.sessions > MAX_SESSIONS:
            self._tell(body=f"<p class='warning'>{MAX_SESSIONS} pages are open, which is the limit: close one.</p>")
            return
        self._tell(body="", loading=self._run.loading.words, fraction=0.0, ready=False)
        self._document.add_periodic_callback(self._report_progress, _PROGRESS_MS)
        self._report_progress()

    def _report_progress(self) -> None:
        loading = self._run.loading
        body = str(render_findings(self._run.page)) if loading.has_findings and not self._findings_shown else ""
        self._findings_shown = self._findings_shown or loading.has_findings
        self._tell(body=body, loading=loading.words, fraction=loading.fraction, ready=loading.ready)

    def _choices(self) -> list[StepChoice]:
        return [step_choice(self._run.page, key) for key in self._run.keys]

    def _want(self) -> None:
        """Schedule a reply to the latest request."""
        if not self._waiting:
            self._waiting = True
            self._document.add_next_tick_callback(self._answer)

    def _answer(self) -> None:
        self._waiting = False
        number, place, ranks = (self._asked(name) for name in ("number", "place", "ranks"))
        try:
            at = self._place(place)
            if at is None or self._axis is None:
                raise UsageError("there is no such step", "choose a step of the list")
            chosen, key = self._chosen(str(ranks or "")), self._run.keys[at]
            grid, section = self._run.read(key)
            # lines first: an error changes nothing
            draw_ranks(self._axis, grid, chosen)
            if key != self._shown:
                kernel_axis.show_view(self._axis, section.view, self._run.names.names)
                self._shown = key
            shown, words = render_step(section, style_ranks(chosen))
            self._tell(number=number, place=at, key=shown, section=words, problem="")
        except JitterError as error:
            self._tell(number=number, problem=f"{error.message}; {error.hint}")

    def _tell(self, **told: object) -> None:
        self._told.data = {name: [str(value) if isinstance(value, str) else value] for name, value in told.items()}

    def _asked(self, name: str) -> object:
        """Return one value of the browser's message, which may be anything."""
        values = self._wanted.data.get(name)
        return values[0] if isinstance(values, list) and len(values) == 1 else None

    def _place(self, given: object) -> int | None:
        """Return the step position that the browser sent; None for anything else."""
        if isinstance(given, str) and re.fullmatch(r"[0-9]{1,9}", given):
            return int(given) if int(given) < len(self._run.keys) else None
        return None

    def _chosen(self, text: str) -> list[int]:
        """Return the ranks to draw; raise `UsageError` for anything else."""
        if not text.strip():
            return []
        known = self._run.page.lake.ranks
        longest = max((len(digits) for digits in re.findall(r"\d+", text)), default=0)
        if len(text) > _MAX_RANKS_TEXT or longest > len(str(known[-1])):  # parse_numbers would expand an endless range
            raise UsageError("not ranks of this run", f"it has {known[0]} to {known[-1]}")
        return parse_numbers(text.strip(), "ranks")
