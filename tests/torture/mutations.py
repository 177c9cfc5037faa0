"""Mutated traces of every reader and damaged logs: read or refused in one line each, soon, never with a bug."""

import contextlib
import io
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import jitter
from tests.readers.kineto.fuzz import fuzz, own_trace, real_traces
from tests.readers.test_contract import SOURCES
from tests.readers.test_mutated_sources import mutate
from tests.torture.figures import Figures

SLOWEST_S = 60
LOGS = Path(__file__).parents[1] / "logs"


def mutate_sources(cases: int, seed: int) -> Figures:
    """Ingest `cases` mutated sources, of each reader in turn."""
    figures = Figures("mutated sources")
    with tempfile.TemporaryDirectory() as folder:
        made = {}
        for name, (_, make) in SOURCES.items():
            Path(folder, "made", name).mkdir(parents=True)
            made[name] = make(Path(folder, "made", name))
        for case in range(cases):
            name = list(made)[case % len(made)]
            figures.count(*_ingest_mutated(name, made[name], Path(folder, "case"), random.Random(f"{seed} {case}")))
            shutil.rmtree(Path(folder, "case"), ignore_errors=True)
    return figures


def _ingest_mutated(name: str, source: Path, place: Path, pick: random.Random) -> tuple[str, str | None]:
    shutil.copytree(source.parent, place / "in")
    files = sorted(path for path in (place / "in").rglob("*") if path.is_file())
    target = pick.choice(files) if source.is_dir() or pick.random() < 0.3 else place / "in" / source.name
    target.write_bytes(mutate(target.read_bytes(), pick))
    printed = io.StringIO()
    try:
        with _time_limit(SLOWEST_S), contextlib.redirect_stderr(printed):
            report = jitter.ingest(place / "in", place / "lake", rank=0, executor=jitter.LocalExecutor())
    except Exception as error:
        return f"{name}: crash", repr(error)
    bad = [str(error) for error in report.refused if "bug" in str(error) or "\n" in str(error)]
    if bad or printed.getvalue():
        return f"{name}: bug", "; ".join(bad) or printed.getvalue()
    if not (report.added or report.refused or report.other_files or report.logs.added):
        return f"{name}: nothing said", f"{target.name}"
    return f"{name}: {'read' if report.added else 'refused'}", None


@contextlib.contextmanager
def _time_limit(seconds: int) -> Iterator[None]:
    def stop(*_: object) -> None:
        raise TimeoutError(f"took longer than {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def damage_kineto(cases: int, seed: int) -> Figures:
    """Read damaged PyTorch traces and compare the rows with a plain reading of the whole ones."""
    folder = os.environ.get("JITTER_TRACES")
    found = fuzz(real_traces(Path(folder)) if folder else [own_trace()], cases, seed)
    return Figures("damaged PyTorch traces, against a plain reading", found.outcomes, found.failures)


def damage_logs(cases: int, seed: int) -> Figures:
    """Parse damaged logs and compare the rows with those of the undamaged lines."""
    figures = Figures("damaged logs, against the undamaged lines")
    command = [sys.executable, str(LOGS / "damage.py"), str(cases), str(seed)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, cwd=LOGS.parents[1],
                           env=os.environ | {"PYTHONPATH": f"{LOGS.parents[1]}:{LOGS}"})  # fmt: skip
    *different, _ = ended.stdout.splitlines() or [""]
    figures.failures += different if ended.returncode == 0 else [ended.stderr]
    figures.outcomes["lose only the damaged lines"] = cases - len(different)
    return figures
