"""Ranks that recorded different steps: one clear sentence, no warning of numpy, no rank cleared."""

import shutil
from pathlib import Path

import jitter
from jitter.cli import main
from jitter.simulate import Job, simulate, write

SENTENCE = "The ranks recorded no step in common, so they cannot be compared, and no rank can be cleared"


def test_ranks_without_a_common_step(tmp_path: Path, capsys):
    (tmp_path / "in").mkdir()
    for rank, first in ((0, 0), (1, 10)):
        run = simulate(Job(ranks=2, steps=2, kernels=16, first_step=first))
        write(run, tmp_path / f"{rank}", "nsys")
        shutil.move(tmp_path / f"{rank}" / f"rank{rank}.sqlite", tmp_path / "in")
    jitter.ingest([tmp_path / "in"], tmp_path / "lake", executor=jitter.LocalExecutor())
    diagnosis = jitter.open(tmp_path / "lake").diagnose()  # a warning is an error here
    assert diagnosis.verdict.startswith(SENTENCE)
    assert diagnosis.culprits == ()
    assert diagnosis.conclusion.status == "unknown"
    assert any(doubt.startswith(SENTENCE) for doubt in diagnosis.conclusion.doubts)
    assert main(["report", str(tmp_path / "lake")]) == 0
    assert SENTENCE in " ".join(capsys.readouterr().out.split())
