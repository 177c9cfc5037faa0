"""Forms of the report that `jitter report` writes, and their destinations: stdout or files."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import click

from jitter.core.errors import UsageError
from jitter.core.files import check_overwrite, write_text
from jitter.report.forms import FORM_OF_SUFFIX, form_of

DEFAULT_PAGE: Final = Path("jitter-report.html")
"""Destination of the HTML page without `-o`: a page is never written to stdout."""


class ReportOutputs(NamedTuple):
    files: Mapping[str, Path]
    """File of each form: html, json, markdown."""
    stdout: str | None
    """Form that goes to stdout: json, markdown or terminal; None for none."""


def choose_outputs(
    forms: Sequence[str],
    outputs: Sequence[Path],
    signatures: Mapping[str, bytes],
    *,
    of_traces: bool,
    force: bool,
    page: Path = DEFAULT_PAGE,
) -> ReportOutputs:
    """Decide which form goes to which file, and which to stdout.

    `forms` are the forms named by flags, `outputs` the files named by `-o`. A single form takes a single file of any
    suffix; otherwise the suffix of each file picks its form. With neither, the report goes to the terminal; a report
    of traces (`of_traces`) then also writes the page. It prints the terminal form unless another form takes stdout.
    `page` is where the page goes without a name. Raises `UsageError` for a suffix that picks no form, two files of one
    form, two forms on stdout, and, unless `force`, a file that does not have the signature of its form.
    """
    if len(forms) == 1 and len(outputs) == 1:
        files = {forms[0]: outputs[0]}
    else:
        files = {}
        for path in outputs:
            form = form_of(path)
            if form in files:
                raise UsageError(f"{files[form]} and {path}: two files of one form", "name one")
            if forms and form not in forms:
                raise UsageError(f"{path}: its suffix picks {form}", f"add --{form}, or name another file")
            files[form] = path
    if "html" in forms or (of_traces and not forms and not outputs):
        files.setdefault("html", page)
    on_stdout = [form for form in forms if form not in files]
    if len(on_stdout) > 1:
        raise UsageError(
            f"--{' and --'.join(on_stdout)} would both go to stdout", "name a file for one of them with -o"
        )
    for form, path in files.items():
        check_overwrite(path, force, signatures[form])
    terminal = "terminal" if of_traces or not files else None
    return ReportOutputs(files, on_stdout[0] if on_stdout else terminal)


def write_outputs(chosen: ReportOutputs, render: Callable[[str], str], show: Callable[[], None]) -> None:
    """Write every chosen form; `show` prints that of the terminal.

    Print the names of files, on stderr if a document takes stdout.
    """
    # all of them before the first is written: a damaged file may show in any of them
    rendered = {form: render(form) for form in chosen.files}
    if chosen.stdout == "terminal":
        show()
    elif chosen.stdout is not None:
        click.echo(render(chosen.stdout), nl=False)
    for form, path in chosen.files.items():
        write_text(path, rendered[form])
        click.echo(path, err=chosen.stdout in ("json", "markdown"))


def take_outputs(
    paths: Sequence[Path], forms: Sequence[str], *, reads_json: bool
) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
    """Tell what is to be read from files to write that follow their form's flag, as in `--html page.html`.

    A file is one to write if its suffix picks one of `forms`, whose flags are given; with `reads_json` not if it is
    JSON and there already, as a trace is. Return the paths to read, and those to write.
    """
    written = [
        path
        for path in paths
        if FORM_OF_SUFFIX.get(path.suffix.lower()) in forms
        and not path.is_dir()
        and not (reads_json and path.suffix.lower() == ".json" and path.exists())
    ]
    return tuple(path for path in paths if path not in written), tuple(written)
