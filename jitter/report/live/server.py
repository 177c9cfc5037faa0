"""A Bokeh server over one lake; its page is the one that `jitter report --html` writes.

All content, text included, goes over the websocket, which only a page of this server may open; the page itself contains
no data of the run, and is the same for every browser. Its content is drawn when the websocket opens. Requests under
another name than this machine's, or from pages of other sites, do not reach Bokeh (`request_guard`).
"""

import errno
import secrets
import signal
import socket
from collections.abc import Callable, Iterable

from bokeh.application import Application
from bokeh.application.application import SessionContext
from bokeh.document import Document
from bokeh.server.server import BaseServer
from bokeh.server.tornado import BokehTornado
from bokeh.util.token import generate_jwt_token, generate_session_id
from tornado.httpserver import HTTPServer
from tornado.ioloop import IOLoop
from tornado.web import HTTPError, RequestHandler

from jitter.core.errors import UsageError, reason_of
from jitter.core.interrupts import Interrupted, note_signal
from jitter.report.live.request_guard import GuardedApplication, RequestPolicy, is_loopback
from jitter.report.live.served_run import ServedRun
from jitter.report.live.server_log import log_in_lines
from jitter.report.live.session import ReportSession
from jitter.report.live.timeline_download import TIMELINE_ROUTE, TimelineHandler
from jitter.report.page import template_environment

_MAX_MESSAGE_BYTES = 2**20
"""Most bytes of a message from the browser; a choice takes a few hundred."""
_TOKEN_BYTES = 24
_TOKEN_LIFETIME_S = 300
"""A page opens its websocket within this time, or is loaded again."""
_CHECK_SESSIONS_MS = 5_000
_SESSION_LIFETIME_MS = 15_000
"""A page that lost its connection for longer than this starts anew; its session's memory is released."""


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
        application = _LiveApplication(run)
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
        # before Bokeh's own handlers, which build a session for each request
        tornado.add_handlers(
            ".*", [(f"{self.path}?", _PageHandler), (f"{self.path}(?:autoload\\.js|metadata)", _NothingHandler)]
        )
        policy = RequestPolicy(address, token, allowed_hosts)
        http = HTTPServer(GuardedApplication(tornado, policy), max_buffer_size=_MAX_MESSAGE_BYTES)
        http.add_socket(listening)
        super().__init__(IOLoop.current(), tornado, http)


class _LiveApplication(Application):
    """Builds the page of each session on a thread, when its websocket opens."""

    def __init__(self, run: ServedRun) -> None:
        super().__init__()
        self._run = run

    async def on_session_created(self, session_context: SessionContext) -> None:
        """Build the page: no other thread knows the session's document yet."""

        async def build(document: Document) -> None:
            await self._run.on_thread(ReportSession(self._run, document).open)

        await session_context.with_locked_document(build)

    def initialize_document(self, doc: Document) -> None:
        """Do nothing: the document is built. Bokeh would check all its models in the event loop."""


class _PageHandler(RequestHandler):
    """Sends the page, which opens a websocket."""

    def get(self) -> None:
        """Answer a request: with a token that names a new session."""
        token = generate_jwt_token(generate_session_id(), expiration=_TOKEN_LIFETIME_S)
        self.set_header("Cache-Control", "no-store")
        self.finish(template_environment().get_template("live.html.j2").render(token=token))


class _NothingHandler(RequestHandler):
    """Refuses what Bokeh offers to pages of other sites."""

    def get(self) -> None:
        """Answer that there is nothing."""
        raise HTTPError(404)


def start(run: ServedRun, address: str, port: int, allowed_hosts: Iterable[str] = ()) -> LiveServer:
    """Start a server on the current event loop and return it; raises as `serve` does.

    The run is prepared on a thread; pages show the progress until it is ready.
    """
    try:
        server = LiveServer(run, address, port, allowed_hosts)
    except OSError as error:
        taken = error.errno == errno.EADDRINUSE
        what = "the port is in use" if taken else reason_of(error)
        raise UsageError(f"{address}, port {port}: {what}", "choose with --address and --port") from None
    server.start()
    loop = server.io_loop
    run.prepare_on_thread(lambda: loop.add_callback(loop.stop))
    return server
