"""The packages that each command loads: a package that takes long to import, only where the command needs it."""

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
LOADS: dict[str, set[str]] = {
    "--help": set(),
    "report --help": set(),
    "explain metrics": set(),
    "record nsys": set(),
    "sample new --ranks 2 --steps 1 --kernels 10 --quiet": {"numpy"},
    "inspect traces --jobs 1": {*ARROW, "pyarrow.dataset"},
    "ingest traces -o new-lake --jobs 1 --quiet": {*ARROW, "pyarrow.dataset"},
    "report": {*DIAGNOSIS, "rich"},
    "report --json": DIAGNOSIS,
    "report --markdown": DIAGNOSIS,
    "report --html": {*DIAGNOSIS, "bokeh", "jinja2", "markdown_it"},
    "steps": DIAGNOSIS,
    "table --step 1": ARROW,
    "table --by kernel": ARROW,
    "collectives": ARROW,
    "compare jitter-lake jitter-lake": {*DIAGNOSIS, "rich"},
    "check --max-loss 99%": DIAGNOSIS,
    "history add --job j --db history.sqlite": {*DIAGNOSIS, "sqlalchemy"},
    "export --csv csv": {*ARROW, "pandas"},
    "export --perfetto step.json": DIAGNOSIS,
    "export --baseline base.json": DIAGNOSIS,
    "query --relations": {*DIAGNOSIS, "duckdb"},
    "verify": ARROW,
}
"""The heavy packages that each command has loaded at its end."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("loads")
    sampled_lake(root, "--ranks 3 --steps 5 --kernels 20").root.rename(root / "jitter-lake")
    return root


@pytest.mark.parametrize("command", LOADS)
def test_a_command_loads_what_it_needs(command: str, place: Path) -> None:
    code = (
        f"import sys; from jitter.cli import main; code = main({command.split()!r}); "
        f"print(*(name for name in {HEAVY!r} if name in sys.modules), file=sys.stderr); sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=place, capture_output=True, text=True, check=False, timeout=200
    )
    assert done.returncode == 0, done.stderr
    assert set(done.stderr.splitlines()[-1].split()) == LOADS[command]
