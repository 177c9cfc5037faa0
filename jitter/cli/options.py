"""Options that several verbs share, each declared once; the forms of a report and their destinations."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial, reduce
from pathlib import Path
from typing import Any, Final, NamedTuple

import click

from jitter.core.errors import UsageError
from jitter.core.files import check_overwrite, write_text
from jitter.core.formatting import parse_numbers
from jitter.core.parallel.executors import DaskExecutor, Executor, PoolExecutor
from jitter.lake import DEFAULT_LAKE
from jitter.report.forms import FORM_OF_SUFFIX, SIGNATURES, form_of

Command = Callable[..., Any]


PATH: Final = click.Path(path_type=Path)


numbers_option = partial(
    click.option,
    callback=lambda _context, option, text: None if text is None else parse_numbers(text, option.opts[0]),
)
"""An option of numbers of steps or ranks such as `0-7,180`, as a list in ascending order."""
lake_argument = click.argument("lake", default=DEFAULT_LAKE, type=PATH)
quiet_option = click.option("--quiet", is_flag=True, help="Show no progress bar.")
force_option = click.option("--force", is_flag=True, help="Overwrite a file that jitter did not write.")
same_job_option = click.option(
    "--same-job", is_flag=True, help="Take traces and logs that seem to be of another job than the lake's."
)
steps_option = numbers_option("--steps", metavar="A-B", help="Use only these steps: 2000-2049 leaves warm-up out.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON with a versioned schema. Default: text.")
table_output_option = click.option("-o", "--output", type=PATH, help="Write to this file. Default: stdout.")


def parse_pairs(texts: Iterable[str], option: str, form: str, hint: str) -> dict[str, str]:
    """Return names and values of texts such as `name=value`; raise `UsageError` for another text."""
    values = {}
    for text in texts:
        name, equals, value = text.strip().partition("=")
        if not equals or not name.strip():
            raise UsageError(f"{option} {text!r} is not {form}", hint)
        values[name.strip()] = value.strip()
    return values


def require_step_of_epoch(step: object, epoch: int | None) -> None:
    """Raise `UsageError` for an epoch without a step, where one step is asked for."""
    if epoch is not None and step is None:
        raise UsageError("--epoch tells steps of one number apart", "give the number with --step")


def format_option(*forms: str, default: str) -> Callable[[Command], Command]:
    """Return a decorator that adds `--format`; `default` says what the form is without it."""
    return click.option("--format", "form", type=click.Choice(forms), help=f"Default: {default}.")


def _together(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Return a decorator that adds options to a verb, in this order."""
    return lambda command: reduce(lambda done, option: option(done), reversed(options), command)


reading_options = _together(
    click.option(
        "--step-pattern",
        metavar="RE",
        help="Regular expression of a step marker, with the group step (optional: epoch, rank).",
    ),
    click.option(
        "--collective",
        metavar="RE",
        help="Regular expression of names of kernels that communicate, besides those of known libraries.",
    ),
    click.option(
        "--rank-pattern",
        metavar="RE",
        help="Regular expression of a path that states the rank: the group rank, or the first group.",
    ),
    click.option("--rank", type=click.IntRange(min=0), help="Rank of the trace; for a single file."),
    click.option("--rank-map", type=PATH, metavar="CSV", help="CSV file with lines file,rank or file,device,rank."),
    click.option(
        "--hosts",
        metavar="HOST,…",
        callback=lambda _context, _parameter, text: None if text is None else text.split(","),
        help="Hosts in the order of their nodes, where traces state host and GPU and no rank.",
    ),
    click.option(
        "--nsys",
        type=PATH,
        metavar="PATH",
        help="The nsys program that exports .nsys-rep files. Default: nsys on PATH, if there is one.",
    ),
    click.option(
        "--jobs",
        type=click.IntRange(min=1),
        metavar="N",
        help="Worker processes. Default: one per CPU; none for small traces.",
    ),
)
"""How traces are read, as `jitter.ingest` takes it, and `jobs`."""


def scheduler_options(what: str) -> Callable[[Command], Command]:
    """Return a decorator that adds the options of a Dask cluster, on which the verb does `what`."""
    return _together(
        click.option("--scheduler", metavar="ADDRESS", help=f"{what} on a Dask cluster, such as tcp://host:8786."),
        click.option(
            "--wait",
            "wait_s",
            type=click.FloatRange(min=0),
            default=60,
            show_default=True,
            metavar="SECONDS",
            help="With --scheduler: give up after this time without a worker.",
        ),
    )


def choose_executor(jobs: int | None, scheduler: str | None = None, wait_s: float = 60) -> Executor | None:
    """Return the executor for `--jobs` and `--scheduler`, None if neither is given; raise `UsageError` for both."""
    if jobs is not None and scheduler is not None:
        raise UsageError("--jobs is for workers on this machine, --scheduler for a cluster's", "give one of them")
    if scheduler is not None:
        return DaskExecutor(scheduler, wait_s)
    return None if jobs is None else PoolExecutor(jobs)


_FORMS: Final = {
    "html": "Write one self-contained page; its name may follow. Default: ./{page}.",
    "json": "Print JSON with a versioned schema, for scripts, or write it to the file that follows.",
    "markdown": "Print Markdown, for an issue or a chat, or write it to the file that follows.",
}


def _add_form(context: click.Context, option: click.Parameter, is_given: bool) -> None:
    """Collect the forms whose flags are given, as the verb's parameter `forms`."""
    context.params.setdefault("forms", []).extend(option.opts[0].removeprefix("--") for _ in range(is_given))


def form_options(default_page: Path) -> Callable[[Command], Command]:
    """Return a decorator that adds the options which choose the `forms` of a report; `default_page` names the page."""
    return _together(
        *(
            click.option(
                f"--{form}", is_flag=True, expose_value=False, callback=_add_form, help=text.format(page=default_page)
            )
            for form, text in _FORMS.items()
        ),
        click.option(
            "-o",
            "--output",
            "outputs",
            multiple=True,
            type=PATH,
            help="Write to this file; .html, .json and .md pick the form. Repeatable, one file per form.",
        ),
    )


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
    form, two forms on stdout, and, unless `force`, a file that jitter did not write.
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
    on_stdout = [form for form in _FORMS if form in forms and form not in files]
    if len(on_stdout) > 1:
        raise UsageError(
            f"--{' and --'.join(on_stdout)} would both go to stdout", "name a file for one of them with -o"
        )
    for form, path in files.items():
        check_overwrite(path, force, *SIGNATURES[form])
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
    paths: Sequence[Path], forms: Sequence[str], outputs: Sequence[Path], *, reads_json: bool
) -> tuple[list[Path], list[Path]]:
    """Tell what is to be read from files to write that follow their form's flag, as in `--html page.html`.

    A file is one to write if its suffix picks one of `forms`, whose flags are given; with `reads_json` not if it is
    JSON and there already, as a trace is. `-` is where a form goes that no file follows. Return the paths to read, and
    those to write after the `outputs` of `-o`.
    """
    written = [
        path
        for path in paths
        if FORM_OF_SUFFIX.get(path.suffix.lower()) in forms
        and not path.is_dir()
        and not (reads_json and path.suffix.lower() == ".json" and path.exists())
    ]
    others = {*written, *([Path("-")] if forms else [])}
    return [path for path in paths if path not in others], [*outputs, *written]
