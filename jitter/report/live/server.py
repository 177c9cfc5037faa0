"""A server of one or two lakes; their pages are those that `jitter report --html` writes, with every step.

Answers can be read by pages of this server only. Requests under another name than this machine's, or from pages of
other sites, are refused (`request_guard`).
"""

import errno
import json
import logging
import secrets
import signal
import socket
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final

from tornado.httpserver import HTTPServer
from tornado.ioloop import IOLoop
from tornado.web import Application, HTTPError, RequestHandler

from jitter.core.errors import JitterError, UsageError, reason_of
from jitter.core.formatting import escape_control
from jitter.core.interrupts import Interrupted, note_signal
from jitter.report.figures.models import library_file
from jitter.report.live.request_guard import RequestPolicy, is_loopback
from jitter.report.live.served_run import ServedRun, describe_metrics
from jitter.report.page import template_environment

_MAX_MESSAGE_BYTES = 2**16
_TOKEN_BYTES = 24
_LOGGERS: Final = ("bokeh", "tornado", "asyncio")
_MAX_LINE: Final = 300
_HEADERS: Final = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "SAMEORIGIN",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",  # on other addresses than loopback, the path contains the token
}
_BOKEH_HEADERS: Final = {"Content-Type": "text/javascript; charset=utf-8", "Cache-Control": "max-age=86400"}


def serve(
    runs: Sequence[ServedRun], address: str, port: int, say: Callable[[str], None], allowed_hosts: Iterable[str] = ()
) -> None:
    """Serve until interrupted. `say` is called with the address once the page can be loaded.

    Port 0 takes a free port. `allowed_hosts` are further names under which browsers may reach this machine. Raises
    `UsageError` for an address or a port that is not available.
    """
    _log_in_lines(say)
    server = LiveServer(runs, address, port, allowed_hosts)
    host = f"[{address}]" if ":" in address else address
    lakes = " and ".join(str(run.report.lake.root) for run in runs)
    say(f"http://{host}:{server.bound_port}{server.path} shows {lakes}; Ctrl-C stops it")
    loop = IOLoop.current()
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
    for run in runs:
        if run.failure is not None:
            raise run.failure
    if received:
        raise Interrupted


class LiveServer:
    """A server on one address, which listens from the start; its runs are prepared on threads.

    Pages show the progress until theirs is ready.
    """

    def __init__(self, runs: Sequence[ServedRun], address: str, port: int, allowed_hosts: Iterable[str] = ()) -> None:
        """Start on the current event loop; raises as `serve` does."""
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        try:
            listening = socket.create_server((address, port), family=family)
        except OSError as error:
            what = "the port is in use" if error.errno == errno.EADDRINUSE else reason_of(error)
            raise UsageError(f"{address}, port {port}: {what}", "choose with --address and --port") from None
        listening.setblocking(False)
        self.bound_port: int = listening.getsockname()[1]
        token = None if is_loopback(address) else secrets.token_urlsafe(_TOKEN_BYTES)
        self.path = "/" if token is None else f"/{token}/"
        """The path of the page; on an address that other machines reach, it contains a random token."""
        policy = RequestPolicy(address, token, allowed_hosts)
        routes = [(self.path + route, *handler) for route, *handler in _routes(runs)]
        application = _Application(routes, default_handler_class=_NothingHandler, policy=policy)
        self._http = HTTPServer(application, max_buffer_size=_MAX_MESSAGE_BYTES)
        self._http.add_socket(listening)
        loop = IOLoop.current()
        for run in runs:
            run.prepare_on_thread(lambda: loop.add_callback(loop.stop))

    def stop(self) -> None:
        self._http.stop()


def _routes(runs: Sequence[ServedRun]) -> list[tuple[Any, ...]]:
    """Return the routes: of one run at the root; of several each below its number, and a page with all at the root."""
    lakes = [str(run.report.lake.root) for run in runs]
    routes: list[tuple[Any, ...]] = [
        (
            "metrics",
            _ContentHandler,
            {"content": partial(describe_metrics, runs), "Content-Type": "text/plain; version=0.0.4; charset=utf-8"},
        ),
        (r"(?:\d/)?bokeh\.js", _ContentHandler, {"content": library_file().read_bytes, **_BOKEH_HEADERS}),
    ]
    loading = partial(_render, "loading.html.j2")  # shows the progress, then loads again
    for number, run in enumerate(runs, 1):
        place, args = "" if len(runs) == 1 else f"{number}/", {"run": run}
        routes += [
            (place, _ContentHandler, {"content": lambda run=run: run.page or loading()}),
            (rf"{place}progress", _ContentHandler, {"content": partial(getattr, run, "progress")}),
            (rf"{place}step/(\d{{1,9}})", _AnswerHandler, {**args, "answer": run.step, "options": ("ranks",)}),
            (rf"{place}tables/(\d{{1,9}})", _AnswerHandler, {**args, "answer": run.tables}),
            (rf"{place}kernel/(\d{{1,9}})/(\d{{1,9}})", _AnswerHandler, {**args, "answer": run.kernel}),
            (rf"{place}perfetto/finding-(\d{{1,4}})\.json\.gz", _TimelineHandler, args),
        ]
    side_by_side = partial(_render, "side_by_side.html.j2", lakes=lakes)
    return routes if len(runs) == 1 else [*routes, ("", _ContentHandler, {"content": side_by_side})]


def _render(template: str, **values: object) -> str:
    return template_environment().get_template(template).render(values)


class _Handler(RequestHandler):
    is_refused = False

    def set_default_headers(self) -> None:
        self.clear_header("Server")
        for name, value in _HEADERS.items():
            self.set_header(name, value)

    def write_error(self, status_code: int, **_: Any) -> None:
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        self.finish(f"{status_code}: there is nothing here (jitter serve)\n")

    def prepare(self) -> None:
        status = self.settings["policy"].refusal(self.request)
        if status is not None:
            self.is_refused = True
            self.set_status(status, "Refused")
            self.set_header("Content-Type", "text/plain")
            self.set_header("Connection", "close")
            self.finish(f"{status}: this request is not answered (jitter serve)\n")


class _Application(Application):
    def log_request(self, handler: RequestHandler) -> None:
        """Log as Tornado does, but no refused request: these come from anywhere, as often as they like."""
        if not (isinstance(handler, _Handler) and handler.is_refused):
            super().log_request(handler)


class _ContentHandler(_Handler):
    def initialize(self, content: Callable[[], str | bytes | dict[str, object]], **headers: str) -> None:
        self._content, self._of_content = content, headers

    def get(self) -> None:
        for name, value in self._of_content.items():
            self.set_header(name, value)
        self.finish(self._content())


class _AnswerHandler(_Handler):
    def initialize(self, run: ServedRun, answer: Callable[..., bytes], options: Sequence[str] = ()) -> None:
        self.run, self._answer, self._options = run, answer, options

    async def get(self, *numbers: str) -> None:
        """Send JSON that is made on the thread of the run; with `problem` where that is not possible."""
        if not self.run.is_ready:
            raise HTTPError(503)
        options = [self.get_query_argument(name, "") for name in self._options]
        try:
            content = await self.run.on_thread(self._answer, *map(int, numbers), *options)
        except JitterError as error:  # what the reader typed: no error of the page
            content = json.dumps({"problem": f"{error.message}; {error.hint}"}).encode()
        self.set_header("Content-Type", "application/json")
        self.finish(content)


class _TimelineHandler(_Handler):
    def initialize(self, run: ServedRun) -> None:
        self.run = run

    async def get(self, number: str) -> None:
        """Send the timeline of a finding; it is written on another thread."""
        if not self.run.is_ready:
            raise HTTPError(503)
        try:
            content = await IOLoop.current().run_in_executor(None, self.run.timeline, int(number))
        except JitterError as error:
            self.set_status(422)
            self.set_header("Content-Type", "text/plain; charset=utf-8")
            self.finish(f"{error.message}; {error.hint}\n")
            return
        if content is None:
            raise HTTPError(404)
        self.set_header("Content-Type", "application/gzip")
        self.set_header("Content-Disposition", f'attachment; filename="finding-{int(number)}.json.gz"')
        self.finish(content)


class _NothingHandler(_Handler):
    def get(self) -> None:
        raise HTTPError(404)


class _OneLineHandler(logging.Handler):
    """Passes each record on as one line of printable text."""

    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._say = say

    def emit(self, record: logging.LogRecord) -> None:
        """Pass on one record; the same line as before is not repeated."""
        try:
            text = record.getMessage()
        except Exception:  # a message that its arguments do not fit
            text = str(record.msg)
        error = record.exc_info[1] if record.exc_info else None
        first = next(iter(text.splitlines()), "")
        line = first if error is None or str(error) in first else f"{first} ({type(error).__name__}: {error})"
        self._say(f"server: {escape_control(' '.join(line.split()))[:_MAX_LINE]}")


def _log_in_lines(say: Callable[[str], None]) -> None:
    """Make Bokeh, Tornado and asyncio log through `say`, one line a warning or error."""
    handler = _OneLineHandler(say)
    for name in _LOGGERS:
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.propagate = False
        logger.setLevel(logging.WARNING)
