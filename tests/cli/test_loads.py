"""The packages that each command loads: a package that takes long to import, only where the command needs it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.simulated import sampled_lake

pytestmark = pytest.mark.slow

HEAVY = ("pandas", "bokeh", "sqlalchemy", "numba", "duckdb", "distributed", "jinja2", "rich", "pyarrow", "numpy")
HEAVY += ("markdown_it", "pyarrow.dataset", "jitter.analysis.detection")
ARROW = {"numpy", "pyarrow"}
DIAGNOSIS = {*ARROW, "jitter.analysis.detection"}
LOADS: dict[str, dict[str, set[str]]] = {
    "--help": {
        "--help": set(),
        "report --help": set(),
        "explain metrics": set(),
        "record nsys": set(),
        "sample new --ranks 2 --steps 1 --kernels 10 --quiet": {"numpy"},
    },
    "table --step 1": {
        "table --step 1": ARROW,
        "inspect traces --jobs 1": {*ARROW, "pyarrow.dataset"},
        "ingest traces -o new-lake --jobs 1 --quiet": {*ARROW, "pyarrow.dataset"},
        "table --by kernel": ARROW,
        "collectives": ARROW,
        "export --csv csv": {*ARROW, "pandas"},
        "verify": ARROW,
    },
    "report --json": {
        "report --json": DIAGNOSIS,
        "report": {*DIAGNOSIS, "rich"},
        "report --markdown": DIAGNOSIS,
        "report --html": {*DIAGNOSIS, "jinja2", "markdown_it"},
        "steps": DIAGNOSIS,
        "compare jitter-lake jitter-lake": {*DIAGNOSIS, "rich"},
        "check --max-loss 99%": DIAGNOSIS,
        "history add --job j --db history.sqlite": {*DIAGNOSIS, "sqlalchemy"},
        "export --perfetto step.json": DIAGNOSIS,
        "export --baseline base.json": DIAGNOSIS,
        "query --relations": {*DIAGNOSIS, "duckdb"},
    },
}
"""The heavy packages that each command has loaded at its end, by the command that loads no more than the others."""

SCRIPT = f"""
import json, os, sys
from jitter.cli import main
first, *others = json.loads(sys.argv[1])
def run(command):
    code = main(command.split())
    loaded = [name for name in {HEAVY!r} if name in sys.modules]
    with open("loaded", "a") as file:
        print(json.dumps([command, code, loaded]), file=file)
run(first)
for command in others:
    if not (child := os.fork()):
        try:
            run(command)
        finally:
            os._exit(0)
    os.waitpid(child, 0)
"""
"""A fresh process runs the first command, and processes that it forks run the others."""


@pytest.mark.parametrize("first", LOADS)
def test_a_command_loads_what_it_needs(first: str, tmp_path: Path) -> None:
    sampled_lake(tmp_path, "--ranks 3 --steps 5 --kernels 20").root.rename(tmp_path / "jitter-lake")
    commands = json.dumps(list(LOADS[first]))
    subprocess.run([sys.executable, "-c", SCRIPT, commands], cwd=tmp_path, capture_output=True, check=True, timeout=200)
    lines = map(json.loads, (tmp_path / "loaded").read_text().splitlines())
    found = {command: (code, set(loaded)) for command, code, loaded in lines}
    assert found == {command: (0, loaded) for command, loaded in LOADS[first].items()}
