"""The forms of a report: their suffixes and signatures, and the report of a lake in each form that is text."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from jitter.core.errors import UsageError
from jitter.core.step_key import StepKey

if TYPE_CHECKING:
    from jitter.api import Lake

FORM_OF_SUFFIX: Final = {
    ".html": "html",
    ".htm": "html",
    ".json": "json",
    ".md": "markdown",
    ".markdown": "markdown",
}
_SCREEN_COLUMNS: Final = 110

SIGNATURES: Final = {
    "html": (b'<meta name="generator" content="jitter ',),  # near the top of `templates/page.html.j2`
    "json": (b'{\n "schema_version"',),
    "markdown": (b"\n# jitter report\n", b"\n# jitter compare\n", b"\n# jitter check\n"),
}
"""By form, texts at the beginning of a file: one that has any of them was written by jitter.

It is checked before anything is computed, and without Jinja2.
"""


def form_of(path: Path) -> str:
    """Return the form that the suffix of a file picks; raise `UsageError` if it picks none."""
    form = FORM_OF_SUFFIX.get(path.suffix.lower())
    if form is None:
        raise UsageError(
            f"{path}: its suffix picks no form of report",
            "end it in .html, .json or .md, or add --html, --json or --markdown",
        )
    return form


def render_report(lake: "Lake", steps: Sequence[StepKey], form: str) -> str:
    """Return the report of these steps as "html", "json", "markdown" or "screen" (HTML of the terminal's report)."""
    if form == "html":
        from jitter.report.page import render_html

        return render_html(lake, list(steps))
    from jitter.report.views.run_overview import build_run_overview

    diagnosis, overview = lake.results(steps).diagnosis, build_run_overview(lake, steps)
    if form == "json":
        from jitter.report.json_report import render_json

        return render_json(diagnosis, overview)
    if form == "markdown":
        from jitter.report.markdown import render_markdown

        return render_markdown(diagnosis, overview, lake.hosts)
    from rich.console import Console

    from jitter.report.terminal import print_report

    console = Console(record=True, width=_SCREEN_COLUMNS, file=io.StringIO(), highlight=False)
    print_report(diagnosis, overview, lake.hosts, console)
    return console.export_html(inline_styles=True, code_format="<pre style='line-height:1.3'>{code}</pre>")
