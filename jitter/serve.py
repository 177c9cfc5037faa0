"""The report, live: a Bokeh server over one lake.

The browser chooses among the steps and the ranks that are there; it names no file and no query. All that is shown
goes over the websocket, which only a page of this server may open: the page itself holds nothing of the run.
"""

import errno
import re
import socket
from collections.abc import Callable
from typing import Any

from bokeh.application import Application
from bokeh.application.handlers import FunctionHandler
from bokeh.document import Document
from bokeh.layouts import column, row
from bokeh.models import Column, LayoutDOM
from bokeh.models.widgets.inputs import Select, TextInput
from bokeh.models.widgets.markups import Div
from bokeh.server.server import BaseServer
from bokeh.server.tornado import BokehTornado
from markupsafe import Markup
from tornado.httpserver import HTTPServer
from tornado.ioloop import IOLoop

from jitter.errors import JitterError, UsageError
from jitter.figures import Figures
from jitter.numbers import parse_numbers
from jitter.report.seven import seven_answers
from jitter.steps import StepKey
from jitter.words import percent_words, rank_words, time_words

_MOST_FROM_BROWSER = 2**20
"""Bytes of a message: a choice is a few hundred."""
_MOST_LETTERS = 200
_READING = "reading…"
_CHOOSE = "Choose a step, or click one in the figures above; a click on the map adds its rank as a line."


def serve(figures: Figures, address: str, port: int, say: Callable[[str], None]) -> None:
    """Serve until interrupted; `say` is told the address once the first page can be had.

    Port 0 takes a free one. Raises `UsageError` for an address or a port that cannot be had.
    """
    server = start(figures, address, port)
    host = f"[{address}]" if ":" in address else address
    say(f"http://{host}:{server.bound_port}/ shows {figures.lake.root}; Ctrl-C ends it")
    try:
        server.io_loop.start()
    finally:
        server.stop()
        server.unlisten()


class LiveServer(BaseServer):
    """Bokeh's server on one address; its own class would name only localhost as a page's origin."""

    def __init__(self, figures: Figures, address: str, port: int) -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        listening = socket.create_server((address, port), family=family)
        listening.setblocking(False)
        self.bound_port: int = listening.getsockname()[1]
        application = Application(FunctionHandler(lambda document: LivePage(figures, document).open()))
        tornado = BokehTornado(
            {"/": application},
            extra_websocket_origins=[f"{name}:{self.bound_port}" for name in _names(address)],
            websocket_max_message_size_bytes=_MOST_FROM_BROWSER,
        )
        http = HTTPServer(tornado, max_buffer_size=_MOST_FROM_BROWSER)
        http.add_socket(listening)
        super().__init__(IOLoop.current(), tornado, http)


def start(figures: Figures, address: str, port: int) -> LiveServer:
    """Answer from now on, as far as the current event loop runs; raises as `serve` does."""
    figures.diagnosis  # noqa: B018  # once, and before anybody waits for a page
    try:
        server = LiveServer(figures, address, port)
    except OSError as error:
        taken = error.errno == errno.EADDRINUSE
        what = "something else listens there" if taken else error.strerror or str(error)
        raise UsageError(f"{address}, port {port}: {what}", "choose with --address and --port") from None
    server.start()
    return server


def is_loopback(address: str) -> bool:
    """Tell whether only this machine can reach an address."""
    return address in ("localhost", "::1") or address.startswith("127.")


def _names(address: str) -> list[str]:
    """What a browser may call this server: nobody else's page may talk to it."""
    if is_loopback(address):
        return sorted({"localhost", "127.0.0.1", "[::1]", f"[{address}]" if ":" in address else address})
    return sorted({"localhost", "127.0.0.1", address, socket.gethostname(), socket.getfqdn()})


class LivePage:
    """One browser's page."""

    def __init__(self, figures: Figures, document: Document) -> None:
        self._figures, self._document = figures, document
        self._keys = [step.key for step in figures.diagnosis.steps]
        at = self._keys.index(figures.costliest)
        self._axis = figures.step_axis(self._keys[at])
        options: list[str | tuple[Any, str]] = [(str(n), self._option(key)) for n, key in enumerate(self._keys)]
        self._step = Select(title="Step", value=str(at), options=options, name="step", width=320)
        self._ranks = TextInput(title="Further ranks, like 0-7,180", value="", name="ranks", width=240)
        self._status = Div(name="status", disable_math=True)
        self._words = Div(name="words", disable_math=True, sizing_mode="stretch_width")
        self._drawn: Column = column([], sizing_mode="stretch_width", name="drawn")

    def open(self) -> None:
        """Put the page together; the step's figures follow."""
        along = [self._figures.run_along(self._axis), self._figures.split_along(self._axis)]
        chosen = row([self._step, self._ranks], sizing_mode="stretch_width")
        parts: list[LayoutDOM] = [self._answers(), *(one for one in along if one is not None)]
        self._document.title = "jitter"
        self._document.add_root(
            column(
                [*parts, chosen, self._status, self._words, self._drawn],
                sizing_mode="stretch_width",
                max_width=1200,
                styles={"margin": "0 auto"},
            )
        )
        self._step.on_change("value", lambda _name, _old, _new: self._show())
        self._ranks.on_change("value", lambda _name, _old, _new: self._show())
        self._axis.picked.on_change("data", lambda _name, _old, _new: self._pick())
        self._draw()

    def _option(self, key: StepKey) -> str:
        return f"{key} · loss {time_words(self._figures.answer(key).loss_ns)}"

    def _answers(self) -> Div:
        diagnosis, lake = self._figures.diagnosis, self._figures.lake
        rows = [
            Markup("<dt><b>{}</b></dt><dd>{}</dd>").format(one.question, one.answer)
            for one in seven_answers(diagnosis, lake.hosts)
        ]
        text = Markup("<h1>jitter · {}</h1><p>{}</p><dl>{}</dl>").format(
            lake.root, diagnosis.verdict, Markup("").join(rows)
        )
        return Div(text=str(text), name="answers", disable_math=True, sizing_mode="stretch_width")

    def _pick(self) -> None:
        """Take what was clicked in the figures of the run: a step, or a rank in a step."""
        steps, ranks = (list(self._axis.picked.data.get(name, ())) for name in ("step", "rank"))
        if len(steps) != 1 or self._place(steps[0]) is None:
            return
        rank = ranks[0] if len(ranks) == 1 else None
        if isinstance(rank, int | float) and rank in self._figures.lake.ranks:
            given = self._ranks.value.strip()
            known = str(int(rank)) in [part.strip() for part in given.split(",")]
            self._ranks.value = given if known else f"{given},{int(rank)}".strip(",")
        self._step.value = str(self._place(steps[0]))

    def _place(self, given: object) -> int | None:
        """The position in the run that the browser means; None for what is none."""
        if isinstance(given, str | int | float) and re.fullmatch(r"\d{1,9}(\.0)?", str(given)):
            at = int(float(given))
            return at if at < len(self._keys) else None
        return None

    def _show(self) -> None:
        """Say what takes a while, then do it: once for all that changed meanwhile."""
        if self._status.text != _READING:
            self._status.text = _READING
            self._document.add_next_tick_callback(self._draw)

    def _draw(self) -> None:
        try:
            at = self._place(self._step.value)
            if at is None:
                raise UsageError("there is no such step", "choose one of the list")
            view, axis = self._figures.along_kernels(self._keys[at])
            drawn = [self._figures.profile(view, axis, self._chosen()), self._figures.sizes(view, axis)]
        except JitterError as error:
            self._status.text = str(Markup("<b>{}</b>; {}").format(error.message, error.hint))
            return
        self._axis.shown.data = {"x": [at]}
        self._words.text = str(self._sentence(self._keys[at], view.max_rank, view.min_rank))
        self._drawn.children = [one for one in drawn if one is not None]
        self._status.text = _CHOOSE

    def _chosen(self) -> list[int]:
        """The ranks to draw; raises `UsageError` for what are none."""
        text = self._ranks.value.strip()
        if not text:
            return []
        known = self._figures.lake.ranks
        longest = max((len(digits) for digits in re.findall(r"\d+", text)), default=0)
        if len(text) > _MOST_LETTERS or longest > len(str(known[-1])):  # a range may be endless
            raise UsageError("these are not ranks of this run", f"it has {known[0]} to {known[-1]}")
        return parse_numbers(text, "ranks")

    def _sentence(self, key: StepKey, max_rank: int | None, min_rank: int | None) -> Markup:
        step, hosts = self._figures.answer(key), self._figures.lake.hosts
        told = [
            Markup("<b>{}</b>: loss {} ({})").format(key, time_words(step.loss_ns), percent_words(step.loss_fraction))
        ]
        for words, rank in (("max", max_rank), ("min", min_rank)):
            if rank is not None:
                told.append(Markup("{} {}").format(words, rank_words(rank, hosts.get(rank))))
        told.append(Markup("cause: {}").format(step.cause.replace("_", " ")))
        return Markup("; ").join(told)
