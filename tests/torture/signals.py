"""Signals to commands at random moments and at random imports: each ends in one line, and nothing is left behind."""

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import jitter
from jitter.lake.integrity.verify import verify_lake
from jitter.simulate import Job, simulate, write
from tests.support import signal_at_import
from tests.torture.figures import Figures
from tests.torture.kills import primary_content

SLOWEST_S = 120
LONGEST_WAIT_S = 2.0
MOST_IMPORTS = (10, 60, 300, 1000)
"""Imports are drawn from the first ones more often; a command makes about 400 to 1,500."""
HOOK = Path(signal_at_import.__path__[0])


def send_signals(cases: int, seed: int) -> Figures:
    """Send SIGINT, SIGTERM or SIGKILL to commands, after a random time or at a random import."""
    figures, chance = Figures("signals to commands"), random.Random(seed)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it, and so its children
    with tempfile.TemporaryDirectory() as folder:
        traces, lake, temporary = (Path(folder, name) for name in ("in", "lake", "tmp"))
        temporary.mkdir()
        write(simulate(Job(ranks=3, steps=2, kernels=16, seed=5)), traces, "nsys")
        jitter.ingest([traces], lake, executor=jitter.LocalExecutor())
        before = primary_content(lake)
        commands = [
            ["ingest", traces, "-o", Path(folder, "new"), "--jobs", "2"],
            ["report", lake, "--html", "-o", Path(folder, "page.html")],
            ["query", lake, "select count(*) from kernels"],
            ["serve", lake, "--port", "0"],
        ]
        for case in range(cases):
            number = chance.choice((signal.SIGINT, signal.SIGTERM, signal.SIGKILL))
            command = [str(word) for word in commands[case % len(commands)]]
            is_early, failure = _signalled(command, number, chance, temporary)
            moment = "before jitter starts, " if is_early else ""
            figures.count(f"{command[0]}: {moment}{number.name}", failure)
            if number != signal.SIGKILL and list(temporary.iterdir()):
                figures.failures.append(f"{command[0]}, {number.name}: {[p.name for p in temporary.iterdir()]} stay")
            shutil.rmtree(temporary)
            temporary.mkdir()
        jitter.ingest([traces], Path(folder, "new"), executor=jitter.LocalExecutor())
        for root in (lake, Path(folder, "new")):
            if primary_content(root) != before or verify_lake(root).problems:
                figures.failures.append(f"{root.name} differs")
    return figures


def _signalled(
    command: list[str], number: signal.Signals, chance: random.Random, temporary: Path
) -> tuple[bool, str | None]:
    """Run a command that gets a signal; return whether it came before jitter's first line, and what is wrong."""
    environment = os.environ | {"TMPDIR": str(temporary)}
    at_import = number != signal.SIGKILL and chance.random() < 0.5
    signals = 1  # so many are sent
    if at_import:
        environment["PYTHONPATH"] = os.pathsep.join([str(HOOK), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment["AT_IMPORT"] = f"{chance.randint(1, chance.choice(MOST_IMPORTS))} {number.value}"
    process = subprocess.Popen(
        [sys.executable, "-m", "jitter", *command],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True, env=environment,
    )  # fmt: skip
    if not at_import or command[0] == "serve":  # which ends by a signal only
        time.sleep(LONGEST_WAIT_S if at_import else chance.random() * LONGEST_WAIT_S)
        signals += at_import
        send = os.killpg if chance.random() < 0.5 else os.kill  # a terminal or a scheduler; a person
        send(process.pid, number)
    try:
        _, said = process.communicate(timeout=SLOWEST_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return False, "hangs"
    word = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}.get(number)
    if word is None:
        return False, None if process.returncode in (0, -number) else f"exit {process.returncode}: {said[-500:]}"
    # while Python itself starts, the signal has Python's effect, and SIGINT may be exit 1
    is_pythons = process.returncode == -number or (process.returncode == 1 and "KeyboardInterrupt" in said)
    is_early = is_pythons and "/jitter/" not in said
    # a second signal a while after the first ends the command at once
    is_ended = process.returncode == 128 + number and (said.splitlines()[-1:] == [word] or (signals == 2 and not said))
    if is_early or ("Traceback" not in said and (process.returncode == 0 or is_ended)):
        return is_early, None
    moment = f" at import {environment.get('AT_IMPORT')}" if at_import else ""
    return False, f"exit {process.returncode}{moment}: {said[-500:]}"
