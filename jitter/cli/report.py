"""`jitter report`: the seven answers, in the terminal, as a page, as JSON or as markdown."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from jitter.cli.options import force_option, lake_argument
from jitter.report.signatures import HTML_SIGNATURE, JSON_SIGNATURE, MARKDOWN_SIGNATURE

if TYPE_CHECKING:
    from jitter.analysis.diagnosis.model import Diagnosis
    from jitter.api import Lake
    from jitter.core.step_key import StepKey
    from jitter.report.views.run_overview import RunOverview

_HTML = Path("jitter-report.html")
_SUFFIXES = {".html": "html", ".htm": "html", ".json": "json", ".md": "markdown", ".markdown": "markdown"}


@click.command()
@lake_argument
@click.option("--html", "form", flag_value="html", help=f"One self-contained page, into ./{_HTML} or -o.")
@click.option("--json", "form", flag_value="json", help="For scripts; its schema is versioned.")
@click.option("--markdown", "form", flag_value="markdown", help="For an issue or a chat.")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="Write here; .html, .json and .md pick the form too."
)
@click.option("--steps", "numbers", metavar="A-B", help="Only these steps: 2000-2049 leaves warm-up out.")
@click.option("--scheduler", metavar="ADDRESS", help="A Dask cluster does the work: tcp://host:8786.")
@force_option
def report(
    lake: Path, form: str | None, output: Path | None, numbers: str | None, scheduler: str | None, force: bool
) -> None:
    """Answer: what does jitter cost, which step, node and GPU, when within the step, where to look, CPU or GPU?

    \b
    Examples:
        jitter report
        jitter report --html
        jitter report run17-lake --steps 2005-2049 -o run17.html
        jitter report --json | jq '.culprits[0]'
        jitter report /shared/lake --html --scheduler tcp://head-node:8786
    """  # click wants the control character itself
    asked = _Asked(lake, numbers, scheduler, output, force)
    chosen = form or _form(output)
    if chosen == "html":
        _page(asked)
    elif chosen == "json":
        from jitter.report.json_report import render_json

        _text(asked, JSON_SIGNATURE, lambda opened, steps: render_json(*_answers(opened, steps)))
    elif chosen == "markdown":
        from jitter.report.markdown import render_markdown

        _text(asked, MARKDOWN_SIGNATURE, lambda opened, steps: render_markdown(*_answers(opened, steps), opened.hosts))
    else:
        from rich.console import Console

        from jitter.report.terminal import print_report

        found, steps = _opened(asked)
        print_report(*_answers(found, steps), found.hosts, Console(highlight=False))


class _Asked(NamedTuple):
    """What the user said, the form left out."""

    lake: Path
    numbers: str | None
    scheduler: str | None
    output: Path | None
    force: bool


def _page(asked: _Asked) -> None:
    from jitter.cli.output.files import check_overwrite, write_text

    target = asked.output or _HTML
    check_overwrite(target, asked.force, HTML_SIGNATURE)  # before the work, not after it
    lake, steps = _opened(asked)
    from jitter.report.html import render_html

    write_text(target, render_html(lake, steps))
    click.echo(target)


def _text(asked: _Asked, mark: bytes, make: "Callable[[Lake, list[StepKey]], str]") -> None:
    """Write a form that is text to stdout, or to a file."""
    from jitter.cli.output.files import check_overwrite, write_text

    if asked.output is not None:
        check_overwrite(asked.output, asked.force, mark)
    lake, steps = _opened(asked)
    text = make(lake, steps)
    if asked.output is None:
        click.echo(text, nl=False)
    else:
        write_text(asked.output, text)
        click.echo(asked.output)


def _answers(lake: "Lake", steps: "list[StepKey]") -> "tuple[Diagnosis, RunOverview]":
    from jitter.report.views.run_overview import build_run_overview

    return lake.diagnose(steps), build_run_overview(lake, steps)


def _form(output: Path | None) -> str | None:
    """Tell the form by the file's suffix; None for the terminal."""
    if output is None:
        return None
    if output.suffix.lower() not in _SUFFIXES:
        from jitter.core.errors import UsageError

        raise UsageError(
            f"{output}: its suffix picks no form of report", "add --html, --json or --markdown, or name it so"
        )
    return _SUFFIXES[output.suffix.lower()]


def _opened(asked: _Asked) -> "tuple[Lake, list[StepKey]]":
    """Open the lake and return it with the chosen steps, which are diagnosed here or on a cluster."""
    from jitter.cli.open_lake import open_lake, prepare_diagnosis
    from jitter.core.errors import UsageError
    from jitter.core.executors import DaskExecutor
    from jitter.core.formatting import parse_numbers

    lake = open_lake(asked.lake)
    steps = lake.steps
    if asked.numbers is not None:
        wanted = set(parse_numbers(asked.numbers, "--steps"))
        steps = [key for key in lake.steps if key.step in wanted]
        if not steps:
            raise UsageError(
                f"{asked.lake}: holds none of the steps {asked.numbers}",
                f"it holds {lake.steps[0]} to {lake.steps[-1]}",
            )
    prepare_diagnosis(lake, steps, None if asked.scheduler is None else DaskExecutor(asked.scheduler))
    return lake, steps
