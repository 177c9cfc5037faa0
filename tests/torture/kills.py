"""Kills before random changes: afterwards, and after another run, the lake and the reports are as without them."""

import io
import json
import random
import shutil
import tempfile
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path
from unittest.mock import patch

import jitter
import jitter.analysis.diagnosis.answer_cache
from jitter.cli import main
from jitter.lake.integrity.verify import verify_lake
from jitter.report.live.served_run import ServedRun
from jitter.report.views.run_report import RunReport
from jitter.simulate import Job, simulate, write
from tests.support.killed_process import KILLED, count_changes, run_killed
from tests.support.lake_content import content
from tests.torture.figures import Figures

MOST_IN_A_ROW = 3
ORDER = ("ingest", "prepare", "serve", "ingest", "prepare", "serve", "report")
"""A report takes ten times the time of the others: it draws the page."""


def kill_changes(rounds: int, seed: int) -> Figures:
    """Kill ingest, prepare, report or serve before a random change it makes, and finish the work by another run."""
    figures, chance = Figures("kills before a change"), random.Random(seed)
    with (
        tempfile.TemporaryDirectory() as folder,
        patch.object(jitter.analysis.diagnosis.answer_cache, "MIN_ACTIVITIES", 0),
    ):
        place, ingested = Path(folder, "place"), Path(folder, "ingested")
        traces = Path(folder, "in")
        write(simulate(Job(ranks=3, steps=2, kernels=16, seed=5)), traces, "nsys")
        actions: dict[str, Callable[[], object]] = {
            "ingest": partial(_ingest, traces, place / "lake"),
            "prepare": partial(_prepare, place / "lake"),
            "report": partial(_report, place),
            "serve": partial(_serve, place / "lake"),
        }
        _ingest(traces, ingested)
        wanted, changes = {}, {}
        for name in dict.fromkeys(ORDER[:rounds]):
            _begin(name, ingested, place)
            changes[name] = count_changes(actions[name], place)
            _begin(name, ingested, place)
            actions[name]()
            wanted[name] = state(place)
        for case in range(rounds):
            name = ORDER[case % len(ORDER)]
            _begin(name, ingested, place)
            for _ in range(chance.randint(1, MOST_IN_A_ROW)):
                code = run_killed(actions[name], place, chance.randrange(changes[name]))
                done = "killed" if code == KILLED else "ended before the kill"
                figures.count(f"{name} {done}", None if code in (0, KILLED) else f"exit {code}")
                if half := [page.name for page in place.glob("report.*") if not _is_whole(page)]:
                    figures.failures.append(f"{name}, round {case}: {half} incomplete after a kill")
            _ingest(traces, place / "lake")  # removes what dead processes left
            actions[name]()
            if state(place) != wanted[name] or (problems := verify_lake(place / "lake").problems):
                figures.failures.append(f"{name}, round {case}: the result differs, {problems}")
    return figures


def primary_content(lake: Path) -> dict[str, object]:
    """Return the content of a lake without derived data, which depend on the order of the work."""
    found = content(lake)
    return {name: value for name, value in found.items() if not name.startswith(("derived/", "catalog."))}


def state(place: Path) -> object:
    """Return the state that does not depend on kills: traces in the lake, its diagnosis, the report."""
    report = place / "report.json"
    said = json.loads(report.read_bytes()) if report.exists() else None
    return primary_content(place / "lake"), jitter.open(place / "lake").diagnose(), said


def _begin(name: str, ingested: Path, place: Path) -> None:
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    if name != "ingest":
        shutil.copytree(ingested, place / "lake")


def _ingest(traces: Path, lake: Path) -> None:
    jitter.ingest([traces], lake, executor=jitter.LocalExecutor())


def _prepare(lake: Path) -> None:
    jitter.open(lake).prepare()


def _report(place: Path) -> None:
    outputs = [word for name in ("report.json", "report.html") for word in ("-o", str(place / name))]
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        code = main(["report", str(place / "lake"), *outputs])
    if code:
        raise RuntimeError(f"report ended with {code}")


def _serve(lake: Path) -> None:
    """Prepare a run as `jitter serve` does, without the network."""
    ServedRun(RunReport(jitter.open(lake))).prepare()


def _is_whole(page: Path) -> bool:
    text = page.read_text().rstrip()
    return text.endswith("</html>" if page.suffix == ".html" else "}")
