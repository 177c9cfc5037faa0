"""`python -m jitter`, and the script `jitter`."""

import atexit
import os
import sys
from contextlib import suppress
from typing import NoReturn

from jitter.core.interrupts import handle_signals, received_signal, signal_exit_code, signal_line


def run() -> NoReturn:
    """Run the command and exit; a signal during the imports ends it in one line, too."""
    handle_signals()
    try:
        from jitter.cli import run as run_command

        run_command()
    except BaseException:
        number = received_signal()
        if number is None:
            raise
        # temporary folders are removed at exit; not sys.exit: half-imported modules may fail there
        with suppress(BaseException):
            atexit._run_exitfuncs()
        if not isinstance(sys.exc_info()[1], SystemExit):
            os.write(2, f"{signal_line(number)}\n".encode())
        os._exit(signal_exit_code(number))


if __name__ == "__main__":
    run()
