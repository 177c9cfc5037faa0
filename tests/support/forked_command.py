"""Commands in forked processes: with streams and limits of their own, without the time that modules take to load."""

import logging
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing import forkserver, process, util
from pathlib import Path
from subprocess import CompletedProcess

from jitter.cli import main
from tests.support.killed_process import fork

_WITHIN_S = 120


class ForkedCommand:
    """A running command `jitter` with these words.

    `stdout` is the file descriptor that it writes to (default: it is read); the descriptor `closed`, 1 or 2, is closed.
    `temporary` is the folder of its temporary files. `prepare` runs before the command.
    """

    def __init__(
        self,
        *words: object,
        stdout: int | None = None,
        closed: int | None = None,
        encoding: str = "utf-8",
        cwd: Path | None = None,
        temporary: Path | None = None,
        prepare: Callable[[], object] = bool,
    ) -> None:
        self._words = [*map(str, words)]
        self._files = [tempfile.TemporaryFile() for _ in range(2)]  # noqa: SIM115
        self._code: int | None = None

        def command() -> None:
            files = [self._files[0].fileno() if stdout is None else stdout, self._files[1].fileno()]
            for number, (name, file) in enumerate(zip(("stdout", "stderr"), files, strict=True), 1):
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
            logging.getLogger().handlers.clear()  # pytest's
            _forget_processes()
            prepare()
            code = main(self._words)
            util._exit_function()  # type: ignore[attr-defined]  # as at the command's end: it removes a folder
            if sys.stderr is not None:
                sys.stderr.flush()
            os._exit(code)

        self._child = fork(command)

    @property
    def is_running(self) -> bool:
        """Whether it has not ended yet."""
        if self._code is None:
            ended, status = os.waitpid(self._child, os.WNOHANG)
            self._code = os.waitstatus_to_exitcode(status) if ended else None
        return self._code is None

    def kill(self) -> None:
        """Kill it, unless it has ended."""
        if self.is_running:
            os.kill(self._child, signal.SIGKILL)

    def finish(self) -> "CompletedProcess[str]":
        """Wait for its end and return exit code and texts."""
        until = time.monotonic() + _WITHIN_S
        while self.is_running:
            if time.monotonic() > until:
                self.kill()
            time.sleep(0.002)
        texts = []
        for file in self._files:
            file.seek(0)
            texts.append(file.read().decode(errors="surrogateescape"))
            file.close()
        return CompletedProcess(self._words, self._code or 0, *texts)


def _forget_processes() -> None:
    """Forget the processes of the process that was forked, and its folder for them: a command starts its own."""
    forkserver._forkserver.__init__()  # type: ignore[misc]
    process._children.clear()  # type: ignore[attr-defined]
    util._finalizer_registry.clear()  # type: ignore[attr-defined]
    multiprocessing.current_process()._config.pop("tempdir", None)  # type: ignore[attr-defined]


def run_forked(*words: object, **options: object) -> "CompletedProcess[str]":
    """Run a command to its end; the options are those of `ForkedCommand`."""
    return ForkedCommand(*words, **options).finish()  # type: ignore[arg-type]
