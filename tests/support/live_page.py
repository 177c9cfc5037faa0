"""A page of the live report without a browser."""

import asyncio
from inspect import isawaitable

from bokeh.document import Document

from jitter.report.live.served_run import ServedRun
from jitter.report.live.session import ReportSession


def open_page(run: ServedRun) -> Document:
    """Return the document of a new session, as the server makes it."""
    document = Document()
    ReportSession(run, document).open()
    return document


def settle(document: Document) -> None:
    """Let the server do what it put off."""
    for callback in list(document.session_callbacks):
        document.remove_next_tick_callback(callback)
        done = callback.callback()
        if isawaitable(done):
            asyncio.run(_wait(done))


async def _wait(done):
    await done
