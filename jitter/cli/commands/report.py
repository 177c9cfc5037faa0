"""`jitter report`: the findings in the terminal, as an HTML page, as JSON or as Markdown."""

from collections.abc import Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

import click

from jitter.cli.options import (
    DEFAULT_PAGE,
    PATH,
    choose_executor,
    choose_outputs,
    force_option,
    form_options,
    quiet_option,
    reading_options,
    same_job_option,
    scheduler_options,
    steps_option,
    take_outputs,
    write_outputs,
)
from jitter.cli.output.stdio import say
from jitter.core.errors import ExitCode, LakeError, UsageError
from jitter.lake import DEFAULT_LAKE

if TYPE_CHECKING:
    from jitter.api import Lake
    from jitter.core.step_key import StepKey


@click.command
@click.argument("paths", nargs=-1, metavar="[LAKE | TRACES...]", type=PATH)
@click.option(
    "-L",
    "--lake",
    type=PATH,
    help=f"Lake that TRACES are ingested into; created if missing. Default: ./{DEFAULT_LAKE}.",
)
@form_options(DEFAULT_PAGE)
@click.option("--open", "open_page", is_flag=True, help="Open the page in the desktop's browser.")
@steps_option
@scheduler_options("Analyze")
@reading_options
@same_job_option
@force_option
@quiet_option
@click.option("-v", "--verbose", is_flag=True, help="Print the seven questions with all evidence.")
def report(
    paths: tuple[Path, ...],
    lake: Path | None,
    forms: list[str],
    outputs: tuple[Path, ...],
    open_page: bool,
    steps: list[int] | None,
    scheduler: str | None,
    wait_s: float,
    same_job: bool,
    force: bool,
    quiet: bool,
    verbose: bool,
    jobs: int | None,
    **reading: Any,
) -> ExitCode:
    """Report what jitter costs, which step, node and GPU cause it, where in the step it begins, and CPU or GPU.

    Given a LAKE (default: ./jitter-lake), print the findings. Given TRACES (files or directories), first ingest what
    is new into the lake, then print the findings and write the page. The options of `jitter ingest` apply to TRACES.

    \b
    Examples:
        jitter report traces/
        jitter report --html
        jitter report run17-lake --steps 2005-2049 --html run17.html
        jitter report --json | jq '.culprits[.headline]'
        jitter report --html --json -o run17.html -o run17.json
        jitter report /shared/lake --html --scheduler tcp://head-node:8786
    """
    from jitter.cli.commands.ingest import print_earlier_recordings, print_ingest_report, run_ingest
    from jitter.cli.lakes import open_lake, prepare_diagnosis
    from jitter.lake.folder import LakeFolder
    from jitter.report.forms import render_report

    lakes = [path for path in paths if LakeFolder(path).is_lake]
    with_page = [*forms, "html"] if open_page and "html" not in forms else forms
    given, files = take_outputs(paths, with_page, outputs, reads_json=not lakes)
    traces, root = _traces_and_lake(given, lakes, lake)
    if forms or files or not traces:  # else the page is written anyway, next to the findings in the terminal
        forms = with_page
    chosen = choose_outputs(forms, files, of_traces=bool(traces), force=force)
    done, ingested = ExitCode.DONE, None
    if traces:
        if not same_job:
            _refuse_other_logs(root, traces)
        ingested = run_ingest(tuple(traces), root, quiet=quiet, same_job=same_job, jobs=jobs, **reading)
        done = print_ingest_report(ingested, traces, strict=False)
    elif unused := [name for name, value in [*reading.items(), ("jobs", jobs)] if value is not None]:
        raise UsageError(f"--{unused[0].replace('_', '-')} is for traces, and {root} is a lake", "name the traces")
    if done == ExitCode.DONE or (ingested is not None and ingested.traces_taken):
        opened = open_lake(root)
        if "html" in chosen.files:
            # while this thread waits for files, or runs code without the interpreter lock
            Thread(target=import_module, args=("jitter.report.page",), daemon=True).start()
        keys = opened.steps_numbered(steps)
        prepare_diagnosis(opened, keys, choose_executor(None, scheduler, wait_s))
        if ingested is not None:
            print_earlier_recordings(opened.sources, ingested)
        write_outputs(chosen, partial(render_report, opened, keys), lambda: _print(opened, keys, verbose=verbose))
        if open_page:
            _open_in_browser(chosen.files["html"])
    return done


def _traces_and_lake(paths: Sequence[Path], lakes: Sequence[Path], lake: Path | None) -> tuple[list[Path], Path]:
    """Tell traces from a lake; `lakes` are those of `paths` that are one, `lake` is the one that traces go to.

    Raises `UsageError` for more than one lake and for a lake among traces, `LakeError` for a path that is not there.
    """
    from jitter.cli.lakes import check_lake_path

    if lakes:
        if len(paths) > 1 or (lake is not None and lake != lakes[0]):
            hint = "give one lake, or traces and a lake with -L"
            if len(lakes) == len(paths) == 2:  # a pair
                hint = f"one report is of one lake; to compare them: jitter compare {lakes[0]} {lakes[1]}"
            raise UsageError(f"{lakes[0]}: is a lake", hint)
        return [], lakes[0]
    if len(paths) == 1 and not paths[0].exists():
        check_lake_path(paths[0])
        raise LakeError(f"{paths[0]}: no such file or folder", "give a lake, or the job's traces")
    return list(paths), lake or DEFAULT_LAKE


def _refuse_other_logs(root: Path, paths: Sequence[Path]) -> None:
    """Raise `LakeError` if a lake holds logs alone, none of them of `paths`: they may be of another job."""
    from shlex import join

    from jitter.lake.folder import LakeFolder

    folder = LakeFolder(root)
    if not folder.is_lake or folder.intact_records()[0]:
        return
    from jitter.lake.log_records import intact_log_records  # after that: it loads numpy, see `run_ingest`

    given = [path.resolve() for path in paths]
    files = [Path(record.file) for record in intact_log_records(root)[0]]
    others = sorted({file.parent for file in files})
    if others and not any(file.is_relative_to(path) for file in files for path in given):
        more = f" and {len(others) - 1} more" if len(others) > 1 else ""
        both = join(["jitter", "report", *map(str, [*others, *paths])])
        raise LakeError(
            f"{root} holds logs of {others[0]}{more}, and a lake holds one job: nothing was read",
            f"another job: report it into another lake (`report -L LAKE`); the same job: `{both}`, or give --same-job",
        )


def _print(lake: "Lake", steps: "list[StepKey]", *, verbose: bool) -> None:
    from rich.console import Console

    from jitter.report.terminal import print_report
    from jitter.report.views.run_overview import build_run_overview

    console, overview = Console(highlight=False), build_run_overview(lake, steps)
    print_report(lake.results(steps).diagnosis, overview, lake.hosts, console, verbose=verbose)


def _open_in_browser(page: Path) -> None:
    """Open the page in the desktop's browser; on a machine without a display say so on stderr."""
    import os
    import sys
    import webbrowser

    # without a display, webbrowser would start a browser inside the terminal
    has_display = sys.platform != "linux" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
    if not has_display or not webbrowser.open(page.resolve().as_uri()):
        say(f"no browser to open {page} with")
