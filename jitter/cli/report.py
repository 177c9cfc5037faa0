"""`jitter report`: the answers, in the terminal or as one HTML page."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from jitter.cli.options import force_option, lake_argument

if TYPE_CHECKING:
    from jitter.analysis import Lake
    from jitter.steps import StepKey

_HTML = Path("jitter-report.html")
_SUFFIXES = {".html": "html", ".htm": "html"}


@click.command()
@lake_argument
@click.option("--html", "html", is_flag=True, help=f"One self-contained page, into ./{_HTML} or -o.")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="Write here; the suffix .html picks the form too."
)
@click.option("--steps", "numbers", metavar="A-B", help="Only these steps: 2000-2049 leaves warm-up out.")
@force_option
def report(lake: Path, html: bool, output: Path | None, numbers: str | None, force: bool) -> None:
    """Tell what jitter costs, in which step, who is behind it, and from which kernel on.

    \b
    Examples:
        jitter report
        jitter report --html
        jitter report run17-lake --steps 2005-2049 -o run17.html
    """  # click wants the control character itself
    form = "html" if html else _form(output)
    if form == "html":
        from jitter.cli.output import check_target, write_whole
        from jitter.report.page_mark import MARK

        target = output or _HTML
        check_target(target, force, MARK)  # before the work, not after it
        opened, steps = _open(lake, numbers)
        from jitter.report.html import html_report

        write_whole(target, html_report(opened, steps))
        click.echo(target)
        return
    from rich.console import Console

    from jitter.report.terminal import print_report

    opened, steps = _open(lake, numbers)
    print_report(opened, steps, Console(highlight=False))


def _form(output: Path | None) -> str | None:
    """Tell the form by the file's suffix; None for the terminal."""
    if output is None:
        return None
    if output.suffix.lower() not in _SUFFIXES:
        from jitter.errors import UsageError

        raise UsageError(f"{output}: its suffix picks no form of report", "add --html, or name it with .html")
    return _SUFFIXES[output.suffix.lower()]


def _open(lake: Path, numbers: str | None) -> "tuple[Lake, list[StepKey]]":
    from jitter.analysis import open_lake
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
