"""`jitter report`: the seven answers, in the terminal, as a page, as JSON or as markdown."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from jitter.cli.options import force_option, lake_argument

if TYPE_CHECKING:
    from jitter.analysis import Lake
    from jitter.diagnosis import Diagnosis
    from jitter.report.run_facts import RunFacts
    from jitter.steps import StepKey

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
@force_option
def report(lake: Path, form: str | None, output: Path | None, numbers: str | None, force: bool) -> None:
    """Answer: what does jitter cost, which step, node and GPU, when within the step, where to look, CPU or GPU?

    \b
    Examples:
        jitter report
        jitter report --html
        jitter report run17-lake --steps 2005-2049 -o run17.html
        jitter report --json | jq '.culprits[0]'
    """  # click wants the control character itself
    chosen = form or _form(output)
    if chosen == "html":
        _page(lake, numbers, output or _HTML, force)
    elif chosen == "json":
        from jitter.report.as_json import MARK, json_report

        _text(lake, numbers, output, force, MARK, lambda opened, steps: json_report(*_answers(opened, steps)))
    elif chosen == "markdown":
        from jitter.report.markdown import MARK, markdown_report

        _text(
            lake,
            numbers,
            output,
            force,
            MARK,
            lambda opened, steps: markdown_report(*_answers(opened, steps), opened.hosts),
        )
    else:
        from rich.console import Console

        from jitter.report.terminal import print_report

        opened, steps = _open(lake, numbers)
        print_report(*_answers(opened, steps), opened.hosts, Console(highlight=False))


def _page(lake: Path, numbers: str | None, target: Path, force: bool) -> None:
    from jitter.cli.output import check_target, write_whole
    from jitter.report.page_mark import MARK

    check_target(target, force, MARK)  # before the work, not after it
    opened, steps = _open(lake, numbers)
    from jitter.report.html import html_report

    write_whole(target, html_report(opened, steps))
    click.echo(target)


def _text(
    lake: Path,
    numbers: str | None,
    output: Path | None,
    force: bool,
    mark: bytes,
    make: "Callable[[Lake, list[StepKey]], str]",
) -> None:
    """Write a form that is text to stdout, or to a file."""
    from jitter.cli.output import check_target, write_whole

    if output is not None:
        check_target(output, force, mark)
    text = make(*_open(lake, numbers))
    if output is None:
        click.echo(text, nl=False)
    else:
        write_whole(output, text)
        click.echo(output)


def _answers(lake: "Lake", steps: "list[StepKey]") -> "tuple[Diagnosis, RunFacts]":
    from jitter.report.run_facts import run_facts

    answers = lake.answers(steps)
    return answers.diagnosis, run_facts(lake, answers, steps)


def _form(output: Path | None) -> str | None:
    """Tell the form by the file's suffix; None for the terminal."""
    if output is None:
        return None
    if output.suffix.lower() not in _SUFFIXES:
        from jitter.errors import UsageError

        raise UsageError(
            f"{output}: its suffix picks no form of report", "add --html, --json or --markdown, or name it so"
        )
    return _SUFFIXES[output.suffix.lower()]


def _open(lake: Path, numbers: str | None) -> "tuple[Lake, list[StepKey]]":
    from jitter.cli.lakes import open_lake
    from jitter.errors import UsageError
    from jitter.numbers import parse_numbers

    opened = open_lake(lake)
    if numbers is None:
        return opened, opened.steps
    wanted = set(parse_numbers(numbers, "--steps"))
    steps = [key for key in opened.steps if key.step in wanted]
    if not steps:
        raise UsageError(
            f"{lake}: holds none of the steps {numbers}", f"it holds {opened.steps[0]} to {opened.steps[-1]}"
        )
    return opened, steps
