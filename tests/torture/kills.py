"""Kills at every moment: afterwards the lake is as if nothing had happened, and a signal ends a command in one line."""

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from unittest.mock import patch

import jitter
import jitter.analysis.diagnosis.answer_cache
from jitter.core.errors import JitterError
from jitter.lake import derived
from jitter.lake.verify import verify_lake
from jitter.simulate import Job, simulate, write
from tests.support.lake_content import content
from tests.torture.figures import Figures

Action = Callable[[Path], object]


def kill_changes(rounds: int, seed: int) -> Figures:
    """Kill an ingest or the making of derived data before a random change of the lake, and finish it by another run."""
    figures, chance = Figures("kills at a change of the lake"), random.Random(seed)
    with (
        tempfile.TemporaryDirectory() as folder,
        patch.object(derived, "MANY_FILES", 0),
        patch.object(jitter.analysis.diagnosis.answer_cache, "MIN_ACTIVITIES", 0),
    ):
        traces, whole, lake = Path(folder, "in"), Path(folder, "whole"), Path(folder, "lake")
        write(simulate(Job(ranks=3, steps=2, kernels=16, seed=5)), traces, "nsys")

        def ingest(root: Path) -> object:
            return jitter.ingest([traces], root, executor=jitter.LocalExecutor())

        def prepare(root: Path) -> object:
            return jitter.open(root).prepare()

        ingest(whole)
        wanted, said = _primary(whole), jitter.open(whole).diagnose()
        for case in range(rounds):
            name, action = (("ingest", ingest), ("prepare", prepare))[case % 2]
            if name == "prepare":
                shutil.copytree(whole, lake)
            for _ in range(chance.randint(1, 3)):
                _run_killed(action, lake, chance.randrange(40))
                figures.count(f"{name} killed")
            ingest(lake)
            prepare(lake)
            problems = verify_lake(lake).problems
            if _primary(lake) != wanted or problems or jitter.open(lake).diagnose() != said:
                figures.failures.append(f"{name}, round {case}: the lake differs, {problems}")
            shutil.rmtree(lake)
    return figures


def _primary(lake: Path) -> dict[str, object]:
    """What a lake holds without derived data: these depend on the order of the work."""
    found = content(lake)
    return {name: value for name, value in found.items() if not name.startswith(("derived/", "catalog."))}


def _run_killed(action: Action, lake: Path, death: int) -> None:
    """Run an action in a forked process that dies before its change of the lake of this number."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads; the child is short-lived
        child = os.fork()
    if child == 0:
        changes = 0

        def watch(event: str, arguments: tuple[object, ...]) -> None:
            nonlocal changes
            if event in ("os.rename", "os.remove", "os.rmdir", "os.mkdir") and str(lake) in str(arguments[0]):
                if changes == death:
                    os._exit(9)
                changes += 1

        sys.addaudithook(watch)
        try:
            action(lake)
        finally:
            os._exit(0)
    os.waitpid(child, 0)


def send_signals(cases: int, seed: int) -> Figures:
    """Send SIGINT, SIGTERM or SIGKILL to commands after a random time."""
    figures, chance = Figures("signals to commands"), random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        traces, lake, temporary = (Path(folder, name) for name in ("in", "lake", "tmp"))
        temporary.mkdir()
        write(simulate(Job(ranks=3, steps=2, kernels=16, seed=5)), traces, "nsys")
        jitter.ingest([traces], lake, executor=jitter.LocalExecutor())
        before = _primary(lake)
        commands = [
            ["ingest", traces, "-o", Path(folder, "new"), "--jobs", "2"],
            ["report", lake, "--html", "-o", Path(folder, "page.html")],
            ["query", lake, "select count(*) from kernels"],
            ["serve", lake, "--port", "0"],
        ]
        for case in range(cases):
            number = chance.choice((signal.SIGINT, signal.SIGTERM, signal.SIGKILL))
            command = [str(word) for word in commands[case % len(commands)]]
            figures.count(f"{command[0]}: {number.name}", _signalled(command, number, chance, temporary))
            if number != signal.SIGKILL and list(temporary.iterdir()):
                figures.failures.append(f"{command[0]}, {number.name}: {[p.name for p in temporary.iterdir()]} stay")
            shutil.rmtree(temporary)
            temporary.mkdir()
        jitter.ingest([traces], Path(folder, "new"), executor=jitter.LocalExecutor())
        for root in (lake, Path(folder, "new")):
            if _primary(root) != before or verify_lake(root).problems:
                figures.failures.append(f"{root.name} differs")
    return figures


def _signalled(command: list[str], number: signal.Signals, chance: random.Random, temporary: Path) -> str | None:
    """Return what is wrong with the end of a command that gets a signal; None if nothing is."""
    process = subprocess.Popen(
        [sys.executable, "-m", "jitter", *command],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True,
        env=os.environ | {"TMPDIR": str(temporary)},
    )  # fmt: skip
    time.sleep(0.3 + chance.random() * 2)
    send = os.killpg if chance.random() < 0.5 else os.kill  # a terminal or a scheduler; a person
    send(process.pid, number)
    try:
        _, said = process.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return "hangs"
    word = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}.get(number)
    ends = {0, -number} if word is None else {0, 128 + number}
    # before Python runs the first line of jitter, the signal has its default effect
    is_early = process.returncode == -number and not said
    if "Traceback" in said or not (process.returncode in ends or is_early):
        return f"exit {process.returncode}: {said[-500:]}"
    if word and process.returncode == 128 + number and said.splitlines()[-1:] != [word]:
        return f"says {said[-500:]!r}"
    return None


def work_at_once(rounds: int, seed: int) -> Figures:
    """Run ingests, reports and the making of derived data on one lake at the same time."""
    figures, chance = Figures("simultaneous work"), random.Random(seed)
    with tempfile.TemporaryDirectory() as folder, patch.object(derived, "MANY_FILES", 0):
        traces, whole = Path(folder, "in"), Path(folder, "whole")
        paths = write(simulate(Job(ranks=4, steps=2, kernels=16, seed=5)), traces, "nsys")
        jitter.ingest([traces], whole, executor=jitter.LocalExecutor())
        wanted, said = _primary(whole), jitter.open(whole).diagnose()
        for case in range(rounds):
            lake = Path(folder, f"lake{case}")
            work = [[path for path in paths if chance.random() < 0.7] for _ in range(2)]
            children = [_fork(partial(_ingest_and_prepare, own or paths, lake)) for own in work]
            ends = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
            jitter.ingest([traces], lake, executor=jitter.LocalExecutor())
            problems = verify_lake(lake).problems
            same = _primary(lake) == wanted and jitter.open(lake).diagnose() == said
            figures.count("rounds", None if same and not problems and not any(ends) else f"{ends} {problems}")
            shutil.rmtree(lake)
    return figures


def _ingest_and_prepare(paths: list[Path], lake: Path) -> None:
    jitter.ingest(paths, lake, executor=jitter.LocalExecutor())
    try:
        jitter.open(lake).prepare()
        jitter.open(lake).diagnose()
    except JitterError as error:
        if "steps" not in error.message:  # of ranks that the other process has not yet published
            raise


def _fork(action: Callable[[], None]) -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        code = 1
        try:
            action()
            code = 0
        finally:
            os._exit(code)
    return child
