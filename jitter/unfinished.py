"""Where unfinished work lies: a folder a run under `LAKE/.staging`, named so that others can tell if it still runs."""

import os
import socket
import uuid
from pathlib import Path

NAME = ".staging"
_THIS_PROCESS = uuid.uuid4().hex[:8]


def new_run(root: Path) -> Path:
    """A folder for one run of this process, not made yet."""
    name = f"{socket.gethostname()}-{os.getpid()}-{_THIS_PROCESS}{uuid.uuid4().hex[:8]}"
    return root / NAME / name


def dead_runs(root: Path) -> list[Path]:
    """Folders of runs that died on this machine; those of other machines cannot be told from living ones."""
    staging = root / NAME
    return [run for run in sorted(staging.iterdir()) if _is_dead(run.name)] if staging.is_dir() else []


def drop_if_empty(root: Path) -> None:
    """Remove the staging folder when no run uses it."""
    try:
        (root / NAME).rmdir()
    except OSError:  # another run's folder is in it, or it is gone
        return


def _is_dead(name: str) -> bool:
    host, _, rest = name.rpartition("-")[0].rpartition("-")
    token = name.rpartition("-")[2]
    if host != socket.gethostname() or not rest.isdecimal():
        return False
    if int(rest) == os.getpid():
        # containers begin counting anew: a dead run may have had our number
        return not token.startswith(_THIS_PROCESS)
    return not _alive(int(rest))


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
