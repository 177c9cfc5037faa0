"""`python -m jitter`, and the script `jitter`. Importing this module installs the signal handlers."""

from jitter.core.interrupts import handle_signals, received_signal, signal_exit_code, signal_line

handle_signals()  # before all other imports, each of which takes milliseconds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn


def run() -> "NoReturn":
    """Run the command and exit; a signal during the imports ends it in one line, too."""
    try:
        from jitter.cli import run as run_command

        run_command()
    except BaseException as error:
        number = received_signal()
        if number is None:
            raise
        _end(number, say=not isinstance(error, SystemExit))


def _end(number: int, *, say: bool) -> "NoReturn":
    """Exit after a signal; not by `sys.exit`: half-imported modules may fail there."""
    import atexit
    import os
    from contextlib import suppress

    with suppress(BaseException):
        atexit._run_exitfuncs()  # temporary folders are removed
    if say:
        os.write(2, f"{signal_line(number)}\n".encode())
    os._exit(signal_exit_code(number))


if __name__ == "__main__":
    run()
