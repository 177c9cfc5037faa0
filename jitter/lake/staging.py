"""Staging folders for unfinished files: one per run, under `LAKE/.staging`, named so that dead runs can be detected.

The lake may lie on a file system that many machines and containers share and write to at once.
"""

import hashlib
import logging
import os
import re
import shutil
import socket
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Final

from jitter.core.errors import LakeError
from jitter.core.formatting import escape_control

_log = logging.getLogger(__name__)
NAME = ".staging"
NOTE = "places.json"
"""A run's journal. An ingest has one from its start; the folder of a reader, which writes derived data, has none."""
_IDLE_S = 600
"""A run on another machine without a change for so long may be dead."""
_THIS_PROCESS = uuid.uuid4().hex[:8]
_FORGOTTEN_S = 14 * 86_400
"""A run on another machine counts as dead if its folder has not changed for this time."""
_TRIES = 100
_LOCK = "numbering"
_RUN: Final = re.compile(
    r"(?P<here>(?P<machine>(?P<host>[^/\0]{1,64})-(?:[0-9a-f]{12})?)[0-9a-f]{12})-(?P<pid>[0-9]{1,9})-[0-9a-f]{16}"
)
_MACHINE_ID: Final = re.compile(r"[0-9a-f]{32}")
_FIRST_PIDS: Final = "pid:[4026531836]"
"""The namespace of process ids outside of all containers, on every Linux machine."""
_LONGEST_NAME: Final = 128
_LOOKS_EVERY_S = 0.1
_TOLD_AFTER_S = 2.0
_PATIENCE_S = 600


def new_run_folder(root: Path) -> Path:
    """Return a new path for the staging folder of one run of this process."""
    return root / NAME / f"{_here()}-{os.getpid()}-{_THIS_PROCESS}{uuid.uuid4().hex[:8]}"


def create_folder(run: Path) -> Path:
    """Make a run's folder, even if other runs remove the empty parent folder at the same time."""
    for _ in range(_TRIES - 1):
        with suppress(FileNotFoundError):
            run.mkdir(parents=True, exist_ok=True)
            return run
    run.mkdir(parents=True, exist_ok=True)  # where no folder can be made, its own error says so
    return run


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
    try:
        return [run for run in sorted((root / NAME).iterdir()) if is_run_name(run.name) and _is_dead(run)]
    except FileNotFoundError:
        return []


def running_ingests(root: Path) -> list[str]:
    """Return a phrase for each ingest that is adding to a lake: "an ingest on node7 (process 4711) is adding to".

    Whether one on another machine is alive is unknown: the phrase says how long nothing has changed.
    """
    phrases = []
    with suppress(OSError):
        for run in sorted((root / NAME).iterdir()):
            name = _RUN.fullmatch(run.name)
            if name is None or not (run / NOTE).exists() or _is_dead(run):
                continue
            idle_s = time.time() - _last_change(run)
            phrase = f"an ingest on {name['host']} (process {name['pid']}) is adding to"
            if name["here"] != _here() and idle_s > _IDLE_S:
                phrase = f"an ingest on {name['host']} was killed, or idle for {idle_s / 60:.0f} minutes, in"
            phrases.append(phrase)
    return phrases


def is_run_name(name: str) -> bool:
    """Return whether a staging folder of this name is that of a run of jitter."""
    return _RUN.fullmatch(name) is not None


def remove_if_empty(root: Path) -> None:
    """Remove the folder of all staging folders if it is empty."""
    try:
        (root / NAME).rmdir()
    except OSError:  # not empty, or removed already
        return


@cache
def _here() -> str:
    """Return a name for the machine, its boot, and the container whose process ids this process shares.

    Host names may repeat, and in containers also the machine's id: there the name is of the boot alone.
    """
    host = socket.gethostname()
    machine, boot = "", host
    with suppress(OSError):  # not Linux: the host name alone
        processes = str(Path("/proc/self/ns/pid").readlink())
        boot = host + Path("/proc/sys/kernel/random/boot_id").read_text() + processes
        machine_id = Path("/etc/machine-id").read_text().strip()
        if processes == _FIRST_PIDS and _MACHINE_ID.fullmatch(machine_id):
            machine = _digest(host + machine_id)
    return f"{host}-{machine}{_digest(boot)}"


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


@cache
def _booted_s() -> float:
    """Return when this machine was booted, in s since 1970; of long ago if it is unknown."""
    with suppress(OSError):
        for line in Path("/proc/stat").read_text().splitlines():
            if line.startswith("btime "):
                return float(line.split()[1])
    return 0.0


@contextmanager
def exclusive_lock(run: Path) -> Iterator[None]:
    """Hold the lake's lock while the block lasts; wait for another run that holds it.

    After 2 s the log tells which run holds it. Raises `LakeError` if a run holds it for 10 minutes, as after the crash
    of its machine.
    """
    lock = run.parent / _LOCK
    mine = create_folder(run) / _LOCK
    mine.write_text(run.name)
    began_s = time.monotonic()
    is_told = False
    while not _take(lock, mine):
        waited_s = time.monotonic() - began_s
        if waited_s > _PATIENCE_S:
            raise LakeError(
                f"{run.parents[1]}: {_owner(lock)} has been numbering the lake's steps for {_PATIENCE_S // 60} minutes",
                f"wait for it, or if it is dead remove {lock}, and run this again",
            )
        if waited_s > _TOLD_AFTER_S and not is_told:
            is_told = True
            _log.warning(
                "%s",
                escape_control(
                    f"{run.parents[1]}: waiting for {_owner(lock)}, which is numbering the lake's steps, up to "
                    f"{_PATIENCE_S // 60} minutes; if it is dead, remove {lock}"
                ),
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
            owner = _owner_name(lock)
            # a run's folder exists as long as the run
            if not is_run_name(owner) or not lock.with_name(owner).exists() or _is_dead(lock.with_name(owner)):
                lock.unlink()
        return False
    return True


def _owner(lock: Path) -> str:
    """Return the run that holds a lock in words."""
    try:
        run = _RUN.fullmatch(_owner_name(lock))
    except FileNotFoundError:  # another run has removed it
        run = None
    return "another run" if run is None else f"the run with process id {run['pid']} on {run['host']}"


def _owner_name(lock: Path) -> str:
    """Return the name in a lock file, which may hold anything; raise `LakeError` if it is no file."""
    try:
        # a lake is data of anybody: a pipe must not be waited for, nor a link be followed
        with open(os.open(lock, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW), errors="replace") as file:  # noqa: PTH123
            return file.read(_LONGEST_NAME)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise LakeError(f"{lock} is no lock of jitter ({error.strerror})", "remove it, and run this again") from None


def _is_dead(run: Path) -> bool:
    name = _RUN.fullmatch(run.name)
    if name is None or name["here"] != _here():
        machine = _here()[: -len(_digest(""))]
        is_of_machine = name is not None and name["machine"] == machine and not machine.endswith("-")
        try:  # a run of this machine is dead if it has not changed anything since the machine was booted
            return _last_change(run) < max(time.time() - _FORGOTTEN_S, _booted_s() if is_of_machine else 0)
        except OSError:  # another run removes it, or works in it
            return False
    if int(name["pid"]) == os.getpid():
        # containers number processes from 1: a dead run may have had the id of this process
        return not run.name.rpartition("-")[2].startswith(_THIS_PROCESS)
    return not _alive(int(name["pid"]))


def _last_change(run: Path) -> float:
    return max(path.stat().st_mtime for path in (run, *run.iterdir()))


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError as error:
        return isinstance(error, PermissionError)
    return True
