"""Staging folders for unfinished files: one per run, under `LAKE/.staging`, named so that dead runs can be detected.

The lake may lie on a file system that many machines and containers share and write to at once.
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
"""A run on another machine counts as dead if its folder has not changed for this time."""
_TRIES = 100
_LOCK = "numbering"
_LOOKS_EVERY_S = 0.1
_PATIENCE_S = 600


def new_run_folder(root: Path) -> Path:
    """Return a new path for the staging folder of one run of this process."""
    return root / NAME / f"{_here()}-{os.getpid()}-{_THIS_PROCESS}{uuid.uuid4().hex[:8]}"


def create_folder(run: Path) -> Path:
    """Make a run's folder, even if other runs remove the empty parent folder at the same time."""
    for _ in range(_TRIES):
        try:
            run.mkdir(parents=True, exist_ok=True)
        except FileNotFoundError:
            continue
        return run
    raise FileNotFoundError(2, "is removed again and again", str(run))


@contextmanager
def temporary_folder(root: Path) -> Iterator[Path]:
    """Yield a new path for a staging folder, and remove the folder afterwards."""
    run = new_run_folder(root)
    try:
        yield run
    finally:
        shutil.rmtree(run, ignore_errors=True)
        remove_if_empty(root)


def dead_runs(root: Path) -> list[Path]:
    """Return the folders of runs that died on this machine, or long ago on any.

    Whether a recent run of another machine or container is alive is unknown: its folder is not returned.
    """
    staging = root / NAME
    try:
        return [run for run in sorted(staging.iterdir()) if run.name != _LOCK and _is_dead(run)]
    except FileNotFoundError:
        return []


def remove_if_empty(root: Path) -> None:
    """Remove the folder of all staging folders if it is empty."""
    try:
        (root / NAME).rmdir()
    except OSError:  # not empty, or removed already
        return


@cache
def _here() -> str:
    """Return a name for the machine and container whose process ids this process shares; host names may repeat."""
    host = socket.gethostname()
    machine = host
    with suppress(OSError):  # not Linux: the host name alone
        machine += Path("/proc/sys/kernel/random/boot_id").read_text()
        machine += str(Path("/proc/self/ns/pid").readlink())
    return f"{host}-{hashlib.blake2b(machine.encode(), digest_size=6).hexdigest()}"


@contextmanager
def exclusive_lock(run: Path) -> Iterator[None]:
    """Hold the lake's lock while the block lasts; wait for another run that holds it.

    Raises `LakeError` if another run holds it for 10 minutes, as after the crash of its machine.
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
        lock.hardlink_to(mine)  # atomic, on shared file systems too
    except FileExistsError:
        with suppress(FileNotFoundError):
            owner = lock.with_name(lock.read_text())
            if not owner.exists() or _is_dead(owner):  # a run's folder exists as long as the run
                lock.unlink()
        return False
    return True


def _is_dead(run: Path) -> bool:
    place, _, token = run.name.rpartition("-")
    place, _, pid = place.rpartition("-")
    if place != _here() or not pid.isdecimal():
        return _is_forgotten(run)
    if int(pid) == os.getpid():
        # containers number processes from 1: a dead run may have had the id of this process
        return not token.startswith(_THIS_PROCESS)
    return not _alive(int(pid))


def _is_forgotten(run: Path) -> bool:
    try:
        changed = max(path.stat().st_mtime for path in (run, *run.iterdir()))
    except OSError:  # another run removes it, or works in it
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
