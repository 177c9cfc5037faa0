"""`jitter serve`: the report in the browser, for any step and ranks."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from jitter.cli.options import lake_argument
from jitter.cli.output.stdio import say

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jitter.core.step_key import StepKey


@click.command
@lake_argument
@click.option(
    "--address",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on. The default is reachable from this machine only.",
)
@click.option(
    "--port",
    default=5006,
    show_default=True,
    type=click.IntRange(0, 65535),
    help="Port to listen on; 0 takes a free one.",
)
@click.option(
    "--allow-host",
    "allowed_hosts",
    metavar="NAME",
    multiple=True,
    help="Another name under which browsers reach this machine, such as a proxy's; may be repeated.",
)
def serve(lake: Path, address: str, port: int, allowed_hosts: tuple[str, ...]) -> None:
    """Serve the report to a browser, for any step and any ranks, until Ctrl-C.

    \b
    Examples:
        jitter serve
        jitter serve run17-lake --port 8080
        ssh -L 5006:localhost:5006 cluster jitter serve run17-lake   # open http://localhost:5006/
    """
    from jitter.cli.lakes import open_lake

    opened = open_lake(lake)
    from jitter.export.aligned_step import AlignedStep
    from jitter.export.perfetto import write_perfetto
    from jitter.report.live.request_guard import is_loopback
    from jitter.report.live.served_run import ServedRun
    from jitter.report.live.server import serve as serve_page
    from jitter.report.views.run_report import RunReport

    if not is_loopback(address):
        say(
            f"warning: every machine that can reach {address} can read this report with the link below, which contains "
            "a random token; the connection is not encrypted"
        )
    say(f"analyzing {len(opened.step_keys)} steps of {len(opened.ranks)} ranks")

    def write_timeline(path: Path, step: "StepKey", ranks: "Sequence[int]") -> None:
        write_perfetto(path, AlignedStep(opened, step, ranks))

    serve_page(ServedRun(RunReport(opened), write_timeline), address, port, say, allowed_hosts)
