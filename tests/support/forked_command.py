"""Commands in forked processes: with streams and limits of their own, without the time that modules take to load."""

import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

from jitter.cli import main
from tests.support.killed_process import fork, wait_for


def run_forked(
    *words: object,
    stdout: int | None = None,
    closed: int | None = None,
    encoding: str = "utf-8",
    cwd: Path | None = None,
    temporary: Path | None = None,
    prepare: Callable[[], object] = bool,
) -> "CompletedProcess[str]":
    """Run `jitter` with these words in a forked process.

    `stdout` is the file descriptor that it writes to (default: it is read); the descriptor `closed`, 1 or 2, is closed.
    `temporary` is the folder of its temporary files. `prepare` runs before the command.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:

        def command() -> None:
            files = {"stdout": out.fileno() if stdout is None else stdout, "stderr": err.fileno()}
            for number, (name, file) in enumerate(files.items(), 1):
                os.dup2(file, number)
                stream = None if number == closed else open(number, "w", encoding=encoding, closefd=False)  # noqa: SIM115
                setattr(sys, name, stream)
                setattr(sys, f"__{name}__", stream)
            if closed is not None:
                os.close(closed)
            if cwd is not None:
                os.chdir(cwd)
            if temporary is not None:
                os.environ["TMPDIR"], tempfile.tempdir = str(temporary), None
            prepare()
            code = main([*map(str, words)])
            if sys.stderr is not None:
                sys.stderr.flush()
            os._exit(code)

        code = wait_for(fork(command))
        texts = [(file.seek(0), file.read().decode(errors="surrogateescape"))[1] for file in (out, err)]
    return CompletedProcess([*map(str, words)], code, *texts)
