"""Mutated traces of every reader and damaged logs: read or refused in one line each, soon, never with a bug.

The lakes of mutated traces answer.
"""

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
from dataclasses import dataclass
from pathlib import Path

import jitter
from jitter.ingestion.ingest import IngestReport
from tests.readers.kineto.fuzz import fuzz, own_trace, real_traces
from tests.readers.test_contract import SOURCES
from tests.readers.test_mutated_sources import mutate
from tests.torture.answer_checks import ask, describe_crash
from tests.torture.figures import Figures
from tests.torture.plain_counts import count_kernels, is_counted

SLOWEST_S = 60
LOGS = Path(__file__).parents[1] / "logs"


@dataclass(frozen=True)
class Original:
    """A source before its mutations."""

    name: str
    path: Path
    kernels: int
    """Kernels that jitter reads."""
    plain_kernels: int
    """Kernels that a plain reading finds; some of AMD's are fills of memory."""
    said: frozenset[str]
    """Problems of the whole source."""


def mutate_sources(cases: int, seed: int) -> Figures:
    """Ingest `cases` mutated sources, of each reader in turn; compare the kernels with a plain reading."""
    figures = Figures("mutated sources, against a plain reading")
    with tempfile.TemporaryDirectory() as folder:
        originals = [_original(name, Path(folder, "made", name)) for name in list(filter(is_counted, SOURCES))[:cases]]
        for case in range(cases):
            original = originals[case % len(originals)]
            chance = random.Random(f"{seed} {case}")
            outcome, failure = _ingest_mutated(original, Path(folder, "case"), chance)
            figures.count(f"{original.name}: {outcome}", None if failure is None else f"case {seed} {case}: {failure}")
            shutil.rmtree(Path(folder, "case"), ignore_errors=True)
    return figures


def _original(name: str, place: Path) -> Original:
    (place / "in").mkdir(parents=True)
    path = SOURCES[name][1](place / "in")
    report = jitter.ingest(place / "in", place / "lake", rank=0, executor=jitter.LocalExecutor())
    plain = count_kernels(name, path)
    if plain is None or report.refused:
        raise RuntimeError(f"{name}: {report.refused}")
    kernels = sum(record.kernels for record in report.added)
    said = frozenset(problem for record in report.added for problem in record.problems)
    return Original(name, path, kernels, plain, said)


def _ingest_mutated(original: Original, place: Path, chance: random.Random) -> tuple[str, str | None]:
    shutil.copytree(original.path.parent, place / "in")
    source = place / "in" / original.path.name
    files = sorted(path for path in (place / "in").rglob("*") if path.is_file())
    target = chance.choice(files) if source.is_dir() or chance.random() < 0.3 else source
    target.write_bytes(mutate(target.read_bytes(), chance))
    printed = io.StringIO()
    try:
        with time_limit(SLOWEST_S), contextlib.redirect_stderr(printed):
            report = jitter.ingest(place / "in", place / "lake", rank=0, executor=jitter.LocalExecutor())
    except Exception as error:
        return "crash", repr(error)
    bad = [str(error) for error in report.refused if "bug" in str(error) or "\n" in str(error)]
    if bad or printed.getvalue():
        return "bug", "; ".join(bad) or printed.getvalue()
    if not (report.added or report.refused or report.other_files or report.logs.added):
        return "nothing said", f"{target.name}"
    outcome, failure = _compare(original, source, report)
    if failure is None and any(record.steps for record in report.added):
        try:
            with time_limit(SLOWEST_S):
                ask(place / "lake")
        except Exception as error:
            return "no answers", describe_crash(error)
    return outcome, failure


def _compare(original: Original, source: Path, report: IngestReport) -> tuple[str, str | None]:
    """Compare the kernels read with a plain reading: fewer ones, and not a word about it, is a failure."""
    lost = original.kernels - sum(record.kernels for record in report.added)
    problems = {problem for record in report.added for problem in record.problems}
    says = bool(report.refused or report.warnings or problems - original.said)
    if not report.added and not says:
        # the command says that there is nothing to read, with the number of other files
        plain = count_kernels(original.name, source)
        return "not recognized", f"{source.name}: a plain reading finds {plain} kernels" if plain else None
    if not report.added:
        return "refused", None
    if lost <= 0:
        return "read whole", None
    if says:
        return "read in part, and said so", None
    plain = count_kernels(original.name, source)
    if plain is not None and original.plain_kernels - plain >= lost:
        return "lost kernels that a plain reading does not find either", None
    return "silently short", f"{lost} of {original.kernels} kernels lost, {plain} of {original.plain_kernels} there"


@contextlib.contextmanager
def time_limit(seconds: int) -> Iterator[None]:
    """Raise `TimeoutError` in the block when it lasts longer."""

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
