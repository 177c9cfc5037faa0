"""The direction of imports is kept, and each contract catches what it is there for."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import jitter

ROOT = Path(jitter.__file__).parent.parent
PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"
CHECK = [
    sys.executable,
    "-c",
    "from importlinter.cli import lint_imports; raise SystemExit(lint_imports(cache_dir=None))",
]

VIOLATIONS = [
    ("One direction", "analysis/metrics/tables.py", "from jitter.readers import readers"),
    ("One direction", "ingestion/transform/kernel_rows.py", "from jitter.analysis.metrics.alignment import cohorts"),
    ("One direction", "readers/nsys/names.py", "import jitter.lake.folder"),
    ("One direction", "lake/layout.py", "import jitter.readers"),
    ("One direction", "query/parse.py", "from jitter.simulate import simulate"),
    ("One direction", "report/html.py", "from jitter.simulate import simulate"),
    ("From numbers to a verdict", "analysis/metrics/lcs.py", "import jitter.analysis.execution.program"),
    (
        "The simulator shares no code with what it tests",
        "simulate/clock.py",
        "from jitter.core.stats import lower_median",
    ),
    ("The simulator shares no code with what it tests", "simulate/clock.py", "import jitter.lake.records"),
    ("Bokeh under report alone", "analysis/metrics/tables.py", "from bokeh.plotting import figure"),
]


def _verdicts(folder: Path) -> dict[str, str]:
    done = subprocess.run(CHECK, cwd=folder, capture_output=True, text=True, check=False)
    found = dict(re.findall(r"^(.+?) (KEPT|BROKEN)\b", done.stdout, re.M))
    assert found, done.stdout + done.stderr
    assert (done.returncode == 0) == ("BROKEN" not in found.values())
    return found


def test_the_contracts_are_kept():
    assert set(_verdicts(PYPROJECT.parent).items()) == {(name, "KEPT") for name, _, _ in VIOLATIONS}


def test_each_contract_catches_its_violation(tmp_path: Path):
    clean = tmp_path / "clean"
    shutil.copytree(ROOT / "jitter", clean / "jitter", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(PYPROJECT, clean)
    for name, module, line in VIOLATIONS:
        path = clean / "jitter" / module
        before = path.read_text()
        path.write_text(f"{before}\n{line}\n")
        assert _verdicts(clean)[name] == "BROKEN", name
        path.write_text(before)
    assert set(_verdicts(clean).values()) == {"KEPT"}
