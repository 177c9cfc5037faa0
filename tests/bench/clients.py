"""Many browsers at one live page at once: how long each waits for the first byte, against one alone.

python -m tests.bench.clients LAKE [--clients N]
"""

import argparse
import asyncio
import json
import re
import signal
import statistics
import subprocess
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from tornado.httpclient import HTTPRequest
from tornado.websocket import WebSocketClientConnection, websocket_connect

from tests.bench.answers import JITTER

_ALONE = 5
_PREPARED_WITHIN_S = 600
_BETWEEN_S = 0.2


class Page:
    """The live page at a port of this machine."""

    def __init__(self, port: int) -> None:
        self._address = f"127.0.0.1:{port}"

    async def load(self) -> tuple[float, str]:
        """Return the seconds until the first byte of the page, and the page."""
        began_s = time.perf_counter()
        reader, writer = await asyncio.open_connection(*self._address.split(":"))
        writer.write(f"GET / HTTP/1.1\r\nHost: {self._address}\r\nConnection: close\r\n\r\n".encode())
        first = await reader.read(1)
        seconds = time.perf_counter() - began_s
        page = first + await reader.read()
        writer.close()
        return seconds, page.decode()

    async def open(self) -> tuple[float, float, WebSocketClientConnection]:
        """Return the seconds until the first byte and until the page's content can be had, and its websocket."""
        began_s = time.perf_counter()
        first_s, page = await self.load()
        found = re.search(r'id="session">(.*?)</script>', page)
        assert found is not None
        request = HTTPRequest(f"ws://{self._address}/ws", headers={"Origin": f"http://{self._address}"})
        socket = await websocket_connect(request, subprotocols=["bokeh", json.loads(found[1])])
        await socket.read_message()
        return first_s, time.perf_counter() - began_s, socket


async def measure(page: Page, clients: int) -> None:
    """Print what one client waits, and what each of many waits."""
    alone = statistics.median([(await page.load())[0] for _ in range(_ALONE)])
    many = max(seconds for seconds, _ in await asyncio.gather(*(page.load() for _ in range(clients))))
    print(f"first byte: one client {alone:.3f} s, slowest of {clients} at once {many:.3f} s, {many / alone:.0f} ×")
    _, one, socket = await page.open()
    socket.close()
    opening = asyncio.gather(*(page.open() for _ in range(clients)))
    slowest, opened = await _slowest_while(page.load, opening)
    for _, _, socket in opened:
        socket.close()
    content = max(seconds for _, seconds, _ in opened)
    first = max(slowest, *(seconds for seconds, _, _ in opened))
    print(f"content: one client {one:.2f} s, slowest of {clients} at once {content:.2f} s, {content / one:.0f} ×")
    print(f"first byte meanwhile: slowest {first:.3f} s")


async def _slowest_while(
    load: Callable[[], Awaitable[tuple[float, str]]],
    opening: "asyncio.Future[list[tuple[float, float, WebSocketClientConnection]]]",
) -> tuple[float, list[tuple[float, float, WebSocketClientConnection]]]:
    slowest = 0.0
    while not opening.done():
        slowest = max(slowest, (await load())[0])
        await asyncio.sleep(_BETWEEN_S)
    return slowest, opening.result()


def main() -> None:
    """Start a server and print the figures."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("lake", type=Path)
    options.add_argument("--clients", type=int, default=50)
    chosen = options.parse_args()
    subprocess.run([*JITTER, "report", chosen.lake, "--json"], check=True, stdout=subprocess.DEVNULL)  # prepares it
    command = [*JITTER, "serve", str(chosen.lake), "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        port = next(int(found[1]) for line in server.stderr if (found := re.search(r"http://\S+?:(\d+)/", line)))
        try:
            asyncio.run(_prepared(Page(port), chosen.clients))
        finally:
            server.send_signal(signal.SIGINT)
            server.wait()


async def _prepared(page: Page, clients: int) -> None:
    """Measure once the content is drawn: a page of a run that is being prepared is had at once."""
    until_s = time.monotonic() + _PREPARED_WITHIN_S
    while time.monotonic() < until_s:
        _, _, socket = await page.open()
        socket.write_message(json.dumps({"msgid": "1", "msgtype": "PULL-DOC-REQ"}))
        socket.write_message("{}")
        socket.write_message("{}")
        reply = [await socket.read_message() for _ in range(5)]
        socket.close()
        if any("figures-" in str(part) for part in reply):
            break
        await asyncio.sleep(_BETWEEN_S)
    await measure(page, clients)


if __name__ == "__main__":
    main()
