"""The command `jitter`: one module per verb. stdout carries data, stderr everything else."""

import atexit
import difflib
import os
import sys
import threading
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, Final, NoReturn

import click

from jitter._version import __version__
from jitter.cli.lakes import damaged_files_left_out
from jitter.cli.output import stdio
from jitter.cli.output.stdio import say
from jitter.core.errors import DamagedFileError, ExitCode, JitterError
from jitter.core.interrupts import received_signal, signal_exit_code, signal_line
from jitter.core.memory import reduce_gc

_VERBS: Final = {
    "inspect": "Show what an ingest would read; write nothing.",
    "ingest": "Read traces into a lake: one file per GPU and step.",
    "report": "Say what jitter costs, which GPU causes it, and where.",
    "table": "Print a metric of a step: kernels by ranks.",
    "steps": "List the steps: time, loss, ranks, cause.",
    "collectives": "Show calls, sizes, bandwidth and waiting of collectives.",
    "compare": "Compare a run with an earlier one.",
    "check": "Check a run against limits: PASS, FAIL or UNKNOWN.",
    "history": "Keep the runs of a job; show where step times change.",
    "query": "Run SQL over the lake.",
    "export": "Write CSV files, a timeline for Perfetto or a baseline.",
    "serve": "Serve the report to a browser: any step, any ranks.",
    "verify": "Check the files of a lake against their checksums.",
    "record": "Print the commands that record a job.",
    "sample": "Write simulated traces with known faults.",
    "explain": "Print a topic of the guide.",
}
"""Each verb with its line in the help, in the order of a typical session."""


class _Verbs(click.Group):
    """The group of verbs. A verb's module is imported only when the verb runs or prints its help."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_VERBS)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the verbs with their lines: importing all of their modules takes longer than the rest of the help."""
        with formatter.section("Commands"):
            formatter.write_dl(list(_VERBS.items()))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _VERBS:
            return None
        command: click.Command = getattr(import_module(f"jitter.cli.commands.{cmd_name}"), cmd_name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the verb; for an unknown one raise `click.UsageError` with the closest verb as a suggestion."""
        given = args[0]
        if given not in _VERBS and not given.startswith("-"):
            close = difflib.get_close_matches(given, _VERBS, n=1)
            hint = f" Did you mean '{close[0]}'?" if close else ""
            if not close and Path(given).exists():
                hint = f" To analyze traces or a lake: jitter report {given}"
            ctx.fail(f"No such command '{given}'.{hint}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the verb.

        click takes every `BrokenPipeError` for a closed stdout. A broken pipe to a worker process is raised as
        `ConnectionError` instead. For `KeyboardInterrupt`, click prints an empty line; for `click.Abort` none.
        """
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise click.Abort from None
        except BrokenPipeError as error:
            if stdio.is_reader_closed():
                raise
            raise ConnectionError("the connection to a worker process broke") from error


@click.group(cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="jitter")
def cli() -> None:
    """Find out why a multi-GPU training job is slower than its GPUs allow.

    \b
    From traces to findings in one command:
        jitter report traces/
    or in two:
        jitter ingest traces/
        jitter report --html
    """


def main(arguments: list[str] | None = None) -> int:
    """Run the command and return its exit code. Errors print one line, internal errors a traceback."""
    stdio.prepare_streams()
    try:
        return _run(arguments)
    except (Exception, KeyboardInterrupt) as error:
        number = received_signal()
        if number is not None or isinstance(error, (click.Abort, KeyboardInterrupt)):
            # whatever is raised after a signal is a consequence of it
            say(signal_line(number))
            return signal_exit_code(number)
        return _report_error(error)


def _report_error(error: BaseException) -> int:
    if isinstance(error, JitterError):
        say(f"jitter: {error.message}")
        if error.hint:
            say(f"  {error.hint}")
        return error.exit_code
    if isinstance(error, click.ClickException):
        error.show()
        return ExitCode.USAGE
    import traceback

    traceback.print_exception(error)
    say("jitter: internal error; please report it with the lines above")
    return ExitCode.BUG


def run() -> NoReturn:
    """Run the command as the process `jitter` and exit.

    After success the process ends with `os._exit`: freeing the objects of a large lake takes 0.1 s or more. Tests and
    programs that embed the command call `main`, which returns.
    """
    reduce_gc()
    # numpy would start threads for linear algebra, which spin and are never used
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    code = main()
    if code != ExitCode.DONE:
        sys.exit(code)
    # the interpreter's own order at exit: threads and pools first, then processes and temporary folders
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _run(arguments: list[str] | None) -> int:
    try:
        result = _run_verb(arguments)
        stdio.flush_stdout()
    except (SystemExit, BrokenPipeError):  # the reader of stdout closed it: not an error
        stdio.discard_stdout()
        return ExitCode.DONE
    except OSError as error:
        if error.filename == stdio.STDOUT:
            stdio.discard_stdout()
        refused = stdio.disk_error(error)
        if refused is not None:
            raise refused from None
        if error.filename is None:
            raise
        raise JitterError(f"{error.filename}: {error.strerror}", "check free disk space and write permission") from None
    return int(result) if isinstance(result, int) else ExitCode.DONE


def _run_verb(arguments: list[str] | None) -> Any:
    """Run the verb; where a lake's file is damaged, again without its recording."""
    with damaged_files_left_out() as damaged:
        while True:
            try:
                return cli.main(arguments, prog_name="jitter", standalone_mode=False)
            except DamagedFileError as error:
                if not damaged.leave_out(error):
                    raise
