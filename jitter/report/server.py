"""A Bokeh server over one lake; its page is the one that `jitter report --html` writes.

The browser chooses among existing steps and ranks; it cannot name a file or a query. All content, text included, goes
over the websocket, which only a page of this server may open; the page itself contains no data of the run.
"""

import errno
import re
import socket
from collections.abc import Callable

from bokeh.application import Application
from bokeh.application.handlers import FunctionHandler
from bokeh.document import Document
from bokeh.models import ColumnDataSource, LayoutDOM
from bokeh.server.server import BaseServer
from bokeh.server.tornado import BokehTornado
from tornado.httpserver import HTTPServer
from tornado.ioloop import IOLoop

from jitter.core.errors import JitterError, UsageError
from jitter.core.formatting import parse_numbers
from jitter.core.step_key import StepKey
from jitter.report.figures import kernel_axis
from jitter.report.figures.kernel_axis import KernelAxis
from jitter.report.figures.rank_lines import draw_ranks
from jitter.report.page import StepChoice, render_page_body, render_step, step_choice, template_environment
from jitter.report.page_figures import draw_page_figures
from jitter.report.views.run_report import RunReport, StepSection
from jitter.report.views.step_grid import StepGrid
from jitter.report.views.step_view import KernelNames

_MAX_MESSAGE_BYTES = 2**20
"""Most bytes of a message from the browser; a choice takes a few hundred."""
_MAX_RANKS_TEXT = 200


class ServedRun:
    """The state that all sessions share: the run, and the step that was read last."""

    def __init__(self, page: RunReport) -> None:
        """Serve this run. Nothing is computed yet."""
        self.page = page
        self.names = KernelNames()
        self.keys = [step.key for step in page.diagnosis.steps]
        self._last: tuple[StepGrid, StepSection] | None = None
        self._first: StepKey | None = None

    def prepare(self) -> None:
        """Compute the data that every page shows."""
        self._first = self._costliest_whole()
        self.page.excess, self.page.facts  # noqa: B018

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


def serve(run: ServedRun, address: str, port: int, say: Callable[[str], None]) -> None:
    """Serve until interrupted. `say` is called with the address once the page can be loaded.

    Port 0 takes a free port. Raises `UsageError` for an address or a port that is not available.
    """
    server = start(run, address, port)
    host = f"[{address}]" if ":" in address else address
    say(f"http://{host}:{server.bound_port}/ shows {run.page.lake.root}; Ctrl-C stops it")
    try:
        server.io_loop.start()
    finally:
        server.stop()
        server.unlisten()


class LiveServer(BaseServer):
    """A Bokeh server on one address. Bokeh's own class would accept only localhost as the origin of a page."""

    def __init__(self, run: ServedRun, address: str, port: int) -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        listening = socket.create_server((address, port), family=family)
        listening.setblocking(False)
        self.bound_port: int = listening.getsockname()[1]
        application = Application(FunctionHandler(lambda document: ReportSession(run, document).open()))
        tornado = BokehTornado(
            {"/": application},
            extra_websocket_origins=[f"{name}:{self.bound_port}" for name in _names(address)],
            websocket_max_message_size_bytes=_MAX_MESSAGE_BYTES,
        )
        http = HTTPServer(tornado, max_buffer_size=_MAX_MESSAGE_BYTES)
        http.add_socket(listening)
        super().__init__(IOLoop.current(), tornado, http)


def start(run: ServedRun, address: str, port: int) -> LiveServer:
    """Start a server on the current event loop and return it; raises as `serve` does."""
    run.prepare()  # once, before the first page is requested
    try:
        server = LiveServer(run, address, port)
    except OSError as error:
        taken = error.errno == errno.EADDRINUSE
        what = "the port is in use" if taken else error.strerror or str(error)
        raise UsageError(f"{address}, port {port}: {what}", "choose with --address and --port") from None
    server.start()
    return server


def is_loopback(address: str) -> bool:
    """Return whether an address is reachable only from this machine."""
    return address in ("localhost", "::1") or address.startswith("127.")


def _names(address: str) -> list[str]:
    """Return the host names under which a page may open the websocket."""
    if is_loopback(address):
        return sorted({"localhost", "127.0.0.1", "[::1]", f"[{address}]" if ":" in address else address})
    return sorted({"localhost", "127.0.0.1", address, socket.gethostname(), socket.getfqdn()})


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

    def open(self) -> None:
        """Build the page with its first step."""
        run, document = self._run, self._document
        sections: list[StepSection] = []
        choices, items = self._choices(), dict[str, LayoutDOM]()
        if run.first is not None:
            sections = [run.read(run.first)[1]]
            items, self._axis = draw_page_figures(run.page, sections, run.names.names, range(len(run.keys)))
            self._shown = run.first
        self._tell(body=render_page_body(run.page, sections, choices, items, live=True))
        document.title = f"jitter: {run.page.lake.root}"
        document.template = template_environment().get_template("live.html.j2")
        for name, item in items.items():
            item.name = name
            document.add_root(item)
        for source in (self._wanted, self._told):
            document.add_root(source)
        self._wanted.on_change("data", lambda _name, _old, _new: self._want())

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
            shown, words = render_step(section)
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
