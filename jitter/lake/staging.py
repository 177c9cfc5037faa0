"""Where unfinished work lies: a folder a run under `LAKE/.staging`, named so that others can tell if it still runs.

The lake may lie on a file system that many machines and containers share, and all of them may be at it at once.
"""

import hashlib
import os
import shutil
import socket
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from jitter.core.errors import LakeError

NAME = ".staging"
_THIS_PROCESS = uuid.uuid4().hex[:8]
_FORGOTTEN_S = 14 * 86_400
"""A run of which nothing has changed for so long is dead, wherever it ran."""
_TRIES = 100
_LOCK = "numbering"
_LOOKS_EVERY_S = 0.1
_PATIENCE_S = 600


def new_run_folder(root: Path) -> Path:
    """A folder for one run of this process, not made yet."""
    return root / NAME / f"{_here()}-{os.getpid()}-{_THIS_PROCESS}{uuid.uuid4().hex[:8]}"


def create_folder(run: Path) -> Path:
    """Make a run's folder, whoever removes the empty folder around it meanwhile."""
    for _ in range(_TRIES):
        try:
            run.mkdir(parents=True, exist_ok=True)
        except FileNotFoundError:
            continue
        return run
    raise FileNotFoundError(2, "is removed again and again", str(run))


@contextmanager
def temporary_folder(root: Path) -> Iterator[Path]:
    """A folder for what is written aside and then put in its place, not made yet; nothing of it stays."""
    run = new_run_folder(root)
    try:
        yield run
    finally:
        shutil.rmtree(run, ignore_errors=True)
        remove_if_empty(root)


def dead_runs(root: Path) -> list[Path]:
    """Folders of runs that died here, or so long ago that it does not matter where.

    Of other machines' and containers' younger ones it cannot be told whether they live.
    """
    staging = root / NAME
    try:
        return [run for run in sorted(staging.iterdir()) if run.name != _LOCK and _is_dead(run)]
    except FileNotFoundError:
        return []


def remove_if_empty(root: Path) -> None:
    """Remove the staging folder when no run uses it."""
    try:
        (root / NAME).rmdir()
    except OSError:  # another run's folder is in it, or it is gone
        return


@cache
def _here() -> str:
    """What shares this process's numbering of processes: the host's name alone may be many hosts' (localhost)."""
    host = socket.gethostname()
    machine = host
    with suppress(OSError):  # no Linux: the host's name must do
        machine += Path("/proc/sys/kernel/random/boot_id").read_text()
        machine += str(Path("/proc/self/ns/pid").readlink())
    return f"{host}-{hashlib.blake2b(machine.encode(), digest_size=6).hexdigest()}"


@contextmanager
def exclusive_lock(run: Path) -> Iterator[None]:
    """Wait until no other run of the lake is in such a block, and hold the others up for the length of this one.

    Raises `LakeError` when one does not come out of it, as after its machine's death.
    """
    lock = run.parent / _LOCK
    mine = create_folder(run) / _LOCK
    mine.write_text(run.name)
    until = time.monotonic() + _PATIENCE_S
    while not _take(lock, mine):
        if time.monotonic() > until:
            raise LakeError(
                f"{run.parents[1]}: another run has been numbering its steps for {_PATIENCE_S // 60} minutes",
                f"wait for it, or if it is dead remove {lock}, and run this again",
            )
        time.sleep(_LOOKS_EVERY_S)
    try:
        yield
    finally:
        lock.unlink(missing_ok=True)


def _take(lock: Path, mine: Path) -> bool:
    try:
        lock.hardlink_to(mine)  # whole or not at all, on shared file systems too
    except FileExistsError:
        with suppress(FileNotFoundError):
            owner = lock.with_name(lock.read_text())
            if not owner.exists() or _is_dead(owner):  # it is there as long as the run
                lock.unlink()
        return False
    return True


def _is_dead(run: Path) -> bool:
    place, _, token = run.name.rpartition("-")
    place, _, pid = place.rpartition("-")
    if place != _here() or not pid.isdecimal():
        return _is_forgotten(run)
    if int(pid) == os.getpid():
        # containers begin counting anew: a dead run may have had our number
        return not token.startswith(_THIS_PROCESS)
    return not _alive(int(pid))


def _is_forgotten(run: Path) -> bool:
    try:
        changed = max(path.stat().st_mtime for path in (run, *run.iterdir()))
    except OSError:  # somebody is clearing it away, or is at work in it
        return False
    return changed < time.time() - _FORGOTTEN_S


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
