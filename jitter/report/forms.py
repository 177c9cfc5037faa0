"""The report of a lake in each form that is text: page, JSON, Markdown, and the terminal's screen for a notebook."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from jitter.core.errors import UsageError
from jitter.core.files import check_overwrite
from jitter.core.step_key import StepKey
from jitter.report.signatures import REPORT_SIGNATURES

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


def form_of(path: Path) -> str:
    """Return the form that the suffix of a file picks; raise `UsageError` if it picks none."""
    form = FORM_OF_SUFFIX.get(path.suffix.lower())
    if form is None:
        raise UsageError(
            f"{path}: its suffix picks no form of report",
            "end it in .html, .json or .md, or add --html, --json or --markdown",
        )
    return form


def check_report_file(path: Path, form: str, force: bool) -> None:
    """Raise `UsageError` if writing a report to `path` would overwrite a file that is no report of that form."""
    check_overwrite(path, force, REPORT_SIGNATURES[form])


def render_report(lake: "Lake", steps: Sequence[StepKey], form: str) -> str:
    """Return the report of these steps as "html", "json", "markdown" or "screen" (HTML of the terminal's report)."""
    if form == "html":
        from jitter.report.html import render_html

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
