"""Ingests and reports of one lake at the same time: afterwards it holds the ranks of both, undamaged."""

import random
import shutil
import tempfile
from functools import partial
from pathlib import Path

import jitter
from jitter.core.errors import JitterError
from jitter.lake.integrity.verify import verify_lake
from jitter.simulate import Job, simulate, write
from tests.support.killed_process import fork, wait_for
from tests.torture.figures import Figures
from tests.torture.kills import primary_content


def work_at_once(rounds: int, seed: int) -> Figures:
    """Run ingests, reports and the making of derived data on one lake at the same time."""
    figures, chance = Figures("simultaneous work"), random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        traces, whole = Path(folder, "in"), Path(folder, "whole")
        paths = write(simulate(Job(ranks=4, steps=2, kernels=16, seed=5)), traces, "nsys")
        jitter.ingest([traces], whole, executor=jitter.LocalExecutor())
        wanted, said = primary_content(whole), jitter.open(whole).diagnose()
        for case in range(rounds):
            lake = Path(folder, f"lake{case}")
            work = [[path for path in paths if chance.random() < 0.7] for _ in range(2)]
            children = [fork(partial(_ingest_and_prepare, own or paths, lake)) for own in work]
            ends = [wait_for(child) for child in children]
            jitter.ingest([traces], lake, executor=jitter.LocalExecutor())
            problems = verify_lake(lake).problems
            same = primary_content(lake) == wanted and jitter.open(lake).diagnose() == said
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
