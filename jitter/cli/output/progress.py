"""Progress on stderr, on a terminal only: a bar in bytes, and a line while derived data are made."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import click

_DELAY_S: Final = 1.0
"""Work that takes less shows no line."""


@contextmanager
def byte_progress(label: str, quiet: bool) -> Iterator[Callable[[int, int], None] | None]:
    """Yield a function of (bytes done, bytes in total); None without a terminal or if `quiet`."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def preparation_progress() -> "PreparationProgress | None":
    """Return a progress line for `Lake.prepare`; None unless stderr is a terminal."""
    return PreparationProgress() if sys.stderr.isatty() else None


class PreparationProgress:
    """A progress line on stderr while derived data of a large lake are made, shown after a second."""

    def __init__(self) -> None:
        self._began_s: float | None = None
        self._shown = ""

    def __call__(self, done: int, total: int) -> None:
        """Show `done` of `total`."""
        now_s = time.monotonic()
        self._began_s = now_s if self._began_s is None else self._began_s
        if done == total:
            if self._shown:
                click.echo(f"\r{' ' * len(self._shown)}\r", err=True, nl=False)
            self._began_s, self._shown = None, ""
        elif now_s - self._began_s >= _DELAY_S:
            self._shown = f"preparing the lake (only once): {done} of {total}"
            click.echo(f"\r{self._shown}", err=True, nl=False)
