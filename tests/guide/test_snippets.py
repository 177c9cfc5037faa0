"""Shell snippets of README and guide, and what `jitter record` prints, run as written; launchers are stand-ins."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from jitter import guide
from jitter.cli import main
from tests.support.printed import output_of

pytestmark = pytest.mark.slow

README = Path(__file__).parents[2] / "README.md"
STAND_INS = {
    "srun": ("--nodes --ntasks-per-node", "SLURM_PROCID"),
    "mpirun": ("-np", "OMPI_COMM_WORLD_RANK"),
    "torchrun": ("--nnodes --nproc-per-node --rdzv-backend --rdzv-endpoint", "RANK"),
    "nsys": ("profile -t -o", ""),
    "rocprofv3": ("-d -o --output-format", ""),
}
"""Options with a value of each program, and the variable by which it tells the rank."""
STAND_IN = """#!{python}
import os, re, sys
name, valued, variable = {name!r}, {valued!r}.split(), {variable!r}
words, given = sys.argv[1:], {{}}
if words[:1] == ["export"]:
    sys.exit(print("exported"))
while words and (words[0].startswith("-") or words[0] in valued):
    word = words.pop(0)
    if word in valued and word != "profile":
        given[word] = words.pop(0)
if variable:
    os.environ[variable] = "0"
if "-o" in given:  # a profiler: its recording is named as it would name it
    path = re.sub(r"%(?:q|env)\\{{(\\w+)\\}}%?", lambda found: os.environ[found[1]], given["-o"])
    folder = given.get("-d", os.path.dirname(path) or ".")
    assert os.path.isdir(folder) or "-d" in given, folder
    print(name, os.path.join(folder, os.path.basename(path)))
if name == "torchrun" and not {{"--no-python"}} & set(sys.argv):
    words = ["python", *words]
os.execvp(words[0], words)
"""
SCALE = re.compile(r"dask |jitter-picture|gh run|\$TRACES|jitter serve|jupyter|pip install|/local/|make |--scheduler")
"""A cluster, a package index, a browser, variables of a batch job."""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, (valued, variable) in STAND_INS.items():
        path = programs / name
        path.write_text(STAND_IN.format(python=sys.executable, name=name, valued=valued, variable=variable))
        path.chmod(0o755)
    for name in ("python", "jitter"):
        path = programs / name
        path.write_text(f'#!/bin/sh\nexec {sys.executable} {"-m jitter " if name == "jitter" else ""}"$@"\n')
        path.chmod(0o755)
    here = tmp_path / "here"
    here.mkdir()
    (here / "train.py").write_text("import sys; print('trained', *sys.argv[1:])\n")
    return here


def run(text: str, here: Path) -> subprocess.CompletedProcess[str]:
    paths = f"{here.parent / 'bin'}:{os.environ['PATH']}"
    environment = os.environ | {"PATH": paths, "PYTHONPATH": str(README.parent)}
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", text],
        cwd=here,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


@pytest.mark.parametrize("launcher", ["torchrun", "srun", "mpirun"])
@pytest.mark.parametrize("profiler", ["nsys", "rocprofv3", "torch"])
def test_the_recorder_s_lines(profiler: str, launcher: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = output_of(capsys, "record", profiler, "--launcher", launcher, "train.py", "--config", "big.yaml")
    before, check, after = text.partition("# 3. check")
    done = run(before, place)
    assert done.returncode == 0, done.stderr
    assert "trained --config big.yaml" in done.stdout
    if profiler != "torch":
        assert f"{profiler} traces/rank-0" in done.stdout
    python = "\n".join(re.findall(r"^#    (.*)$", before, re.MULTILINE))
    compile(python, profiler, "exec")  # the lines for the training loop
    if (profiler, launcher) == ("nsys", "srun"):  # the last lines are the same for all
        job = ["--ranks", "8", "--steps", "10", "--kernels", "20", "--quiet", "--force"]
        assert main(["sample", str(place / "traces"), *job]) == 0
        done = run(check + after, place)
        assert done.returncode == 0, done.stderr
        assert (place / "jitter-report.html").is_file()


def shell_snippets() -> list[str]:
    """Return the shell snippets that need a program of a cluster, a profiler or several lines of a shell."""
    texts = [README.read_text("utf-8"), *map(guide.text, guide.TOPICS)]
    blocks = [block for text in texts for block in re.findall(r"```(?:bash|sh)\n(.*?)```", text, re.DOTALL)]
    return [block for block in blocks if not SCALE.search(block) and re.search("|".join(STAND_INS), block)]


@pytest.mark.parametrize("text", shell_snippets())
def test_a_snippet_with_launchers(text: str, place: Path) -> None:
    (place / "traces").mkdir()
    done = run(text, place)
    assert done.returncode == 0, done.stderr
    assert re.search("trained|exported", done.stdout)
    shutil.rmtree(place / "traces")


def test_snippets_are_there() -> None:
    assert len(shell_snippets()) >= 2


@pytest.mark.parametrize("topic", ["README", *guide.TOPICS])
def test_every_shell_snippet_is_a_script(topic: str) -> None:
    text = README.read_text("utf-8") if topic == "README" else guide.text(topic)
    for block in re.findall(r"```(?:bash|sh)\n(.*?)```", text, re.DOTALL):
        done = subprocess.run(["bash", "-n", "-c", block], capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, (block, done.stderr)
