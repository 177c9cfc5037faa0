"""The command line: one verb, one file. stdout carries data, stderr everything else."""

import atexit
import os
import sys
import threading
from contextlib import suppress
from importlib import import_module
from typing import Any, NoReturn

import click

from jitter._version import __version__
from jitter.cli.output import stdio
from jitter.core.errors import ExitCode, JitterError

_VERBS = (
    "inspect",
    "ingest",
    "report",
    "table",
    "steps",
    "collectives",
    "query",
    "export",
    "serve",
    "sample",
    "explain",
)


class _Verbs(click.Group):
    """Loads a verb's file only when that verb is run, or asked for its help."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Name the verbs in the order in which one uses them."""
        return list(_VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the verb's file."""
        if cmd_name not in _VERBS:
            return None
        command: click.Command = getattr(import_module(f"jitter.cli.{cmd_name}"), cmd_name)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Run the verb. click takes any pipe that breaks for our output, and ends in peace."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            if stdio.is_reader_closed():
                raise
            raise ConnectionError("a process that worked for this one is gone") from error


@click.group(cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="jitter")
def cli() -> None:
    """Find out why a training job on many GPUs runs slower than its GPUs could.

    \b
    Two commands from traces to answers:
        jitter ingest traces/
        jitter report --html
    """


def main(arguments: list[str] | None = None) -> int:
    """Run the command and return its exit code; errors are said in one line, bugs with their trace."""
    stdio.prepare_streams()
    try:
        return _run(arguments)
    except JitterError as error:
        _say(error)
        return error.exit_code
    except click.ClickException as error:
        error.show()
        return ExitCode.USAGE
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        return ExitCode.INTERRUPTED
    except Exception:
        import traceback

        traceback.print_exc()
        click.echo("jitter: this is a bug of ours; please report it with the lines above", err=True)
        return ExitCode.BUG


def run() -> NoReturn:
    """Be the process `jitter`: run the command, and end at once if all went well.

    To take apart what a large lake leaves in memory would take a tenth of a second and more, and the system frees it
    anyway. Who measures or embeds the command calls `main`, which comes back.
    """
    code = main()
    if code != ExitCode.DONE:
        sys.exit(code)
    threading._shutdown()  # type: ignore[attr-defined]  # in the order of the interpreter's own end: threads and pools,
    atexit._run_exitfuncs()  # then processes and temporary folders
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _run(arguments: list[str] | None) -> int:
    try:
        result: Any = cli.main(arguments, prog_name="jitter", standalone_mode=False)
        stdio.flush_stdout()
    except (SystemExit, BrokenPipeError):  # the reader of our output has left, which is nobody's failure
        stdio.discard_stdout()
        return ExitCode.DONE
    except OSError as error:
        refused = stdio.stdout_error(error)
        if refused is not None:
            stdio.discard_stdout()
            raise refused from None
        if error.filename is None:
            raise
        # the disk is full, or a folder may not be written: nobody's bug
        raise JitterError(f"{error.filename}: {error.strerror}", "check the disk, and who may write there") from None
    return int(result) if isinstance(result, int) else ExitCode.DONE


def _say(error: JitterError) -> None:
    click.echo(f"jitter: {error.message}", err=True)
    if error.hint:
        click.echo(f"  {error.hint}", err=True)
