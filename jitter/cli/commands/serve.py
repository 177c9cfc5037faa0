"""`jitter serve`: the report in the browser, for any step and ranks."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from jitter.cli.options import lake_argument
from jitter.cli.output.stdio import say

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jitter.api import Lake
    from jitter.core.step_key import StepKey


@click.command
@lake_argument
@click.argument("second", type=click.Path(path_type=Path), required=False, metavar="[SECOND]")
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
def serve(lake: Path, second: Path | None, address: str, port: int, allowed_hosts: tuple[str, ...]) -> None:
    """Serve the report to a browser, for any step and any ranks, until Ctrl-C.

    With a SECOND lake, both are shown side by side. The path /metrics has loss, step time and findings for Prometheus.

    \b
    Examples:
        jitter serve
        jitter serve run17-lake --port 8080
        jitter serve good-lake new-lake
        ssh -L 5006:localhost:5006 cluster jitter serve run17-lake   # open http://localhost:5006/
    """
    from jitter.cli.lakes import open_lake

    lakes = [open_lake(path) for path in (lake, second) if path is not None]
    from jitter.export.perfetto import AlignedStep, write_perfetto
    from jitter.report.live.request_guard import is_loopback
    from jitter.report.live.served_run import ServedRun
    from jitter.report.live.server import serve as serve_pages
    from jitter.report.views.run_report import RunReport

    if not is_loopback(address):
        say(
            f"warning: every machine that can reach {address} can read this report with the link below, which contains "
            "a random token; the connection is not encrypted"
        )
    for opened_lake in lakes:
        say(f"analyzing {len(opened_lake.step_keys)} steps of {len(opened_lake.ranks)} ranks")

    def served(opened_lake: "Lake") -> ServedRun:
        def write_timeline(path: Path, step: "StepKey", ranks: "Sequence[int]") -> None:
            write_perfetto(path, AlignedStep(opened_lake, step, ranks))

        return ServedRun(RunReport(opened_lake), write_timeline)

    serve_pages([served(opened_lake) for opened_lake in lakes], address, port, say, allowed_hosts)
