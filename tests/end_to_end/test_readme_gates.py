"""The README's step for GitHub Actions and its end of an sbatch script do what the README says."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from jitter.simulate import Fault, Job, simulate, write

yaml = pytest.importorskip("yaml")
pytestmark = pytest.mark.slow
README = (Path(__file__).parents[2] / "README.md").read_text()


def block(language: str, word: str) -> str:
    """The code block in this language that holds a word."""
    found = [text for text in re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL) if word in text]
    assert len(found) == 1
    return found[0]


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    """The traces of a run, of an equal one, and of one that is slower."""
    folder = tmp_path_factory.mktemp("gates")
    slow = [Fault.parse("slow_gpu:rank=0,factor=1.3")]
    for seed, (name, faults) in enumerate({"first": [], "again": [], "slow": slow}.items()):
        write(simulate(Job(ranks=1, steps=8, kernels=30, seed=seed), faults), folder / name, "nsys")
    return folder


@pytest.fixture
def shell(tmp_path):
    """Run a script as a runner does: bash -e, `jitter` and stubs of other commands on the path."""
    stubs = tmp_path / "bin"
    stubs.mkdir()
    environment = {
        **os.environ,
        "PATH": f"{stubs}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md"),
        "GITHUB_WORKFLOW": "gpu",
        "JITTER_HISTORY": str(tmp_path / "history.sqlite"),
        "SLURM_JOB_ID": "4711",
        "SLURMD_NODENAME": "node0001",
    }
    # as an installed package puts it there
    (stubs / "jitter").write_text(f'#!/bin/sh\nexec {sys.executable} -m jitter "$@"\n')

    def run(script: str, *options: str, **more: str) -> subprocess.CompletedProcess[str]:
        command = ["bash", *options, "-c", script]
        for stub in stubs.iterdir():
            stub.chmod(0o755)
        return subprocess.run(
            command, env=environment | more, cwd=tmp_path, capture_output=True, text=True, check=False
        )

    run.stubs = stubs
    return run


def test_the_step_of_github_actions(traces, tmp_path, shell):
    steps = {
        step.get("name", step.get("uses")): step for step in yaml.safe_load(block("yaml", "jitter check"))["steps"]
    }
    baseline, check, keep = (
        steps[name]["run"] for name in ("Baseline of the main branch", "Check the step time", "The next baseline")
    )
    kept = tmp_path / "artifact.json"
    # the last run's artifact, if there is one
    (shell.stubs / "gh").write_text(f'#!/bin/sh\n[ "$2" = list ] && echo 12 && exit\ncp {kept} base.json\n')
    outcomes = []
    for name in ("first", "again", "slow"):
        for left in ("traces", "new-lake"):
            shutil.rmtree(tmp_path / left, ignore_errors=True)
        shutil.copytree(traces / name, tmp_path / "traces")
        (tmp_path / "summary.md").unlink(missing_ok=True)
        assert shell(baseline, "-e").returncode == 0
        done = shell(check, "-e")
        outcomes.append((done.returncode, (tmp_path / "summary.md").read_text().splitlines()[2].split()[0]))
        if done.returncode == 0:
            assert shell(keep, "-e").returncode == 0
            shutil.copy(tmp_path / "base.json", kept)
    assert outcomes == [(0, "**UNKNOWN"), (0, "**PASS"), (1, "**FAIL")]


def test_the_end_of_an_sbatch_script(traces, tmp_path, shell):
    script = block("bash", "SLURM_JOB_ID,node")
    said = []
    for name in ("first", "slow"):
        done = shell(script, TRACES=str(traces / name), LAKE=str(tmp_path / f"{name}-lake"))
        said.append((done.returncode, done.stdout.split()[0]))
    assert said == [(0, "UNKNOWN"), (1, "FAIL")]
    listed = shell("jitter history list --job gpt-13b").stdout
    assert [line.split()[1] for line in listed.splitlines()[1:]] == ["first-lake", "slow-lake"]
    assert "job=4711,node=node0001" in listed
