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

VIOLATIONS = {
    "One direction": ("metrics.py", "from jitter.summary import summarise"),
    "Readers know their format and nothing else": ("readers/nsys_names.py", "import jitter.lake"),
    "The analysis knows the lake, not how it was filled": ("tables.py", "from jitter.readers import readers"),
    "What fills the lake knows no analysis": ("rows.py", "from jitter.align import cohorts"),
    "Bokeh under report, figures and serve alone": ("clock.py", "from bokeh.plotting import figure"),
    "The simulator shares no code with the analysis": ("simulate/clock.py", "from jitter.kernels import is_collective"),
    "Only the command imports the simulator": ("lcs.py", "from jitter.simulate import simulate"),
}


def _verdicts(folder: Path) -> dict[str, str]:
    done = subprocess.run(CHECK, cwd=folder, capture_output=True, text=True, check=False)
    found = dict(re.findall(r"^(.+?) (KEPT|BROKEN)\b", done.stdout, re.M))
    assert found, done.stdout + done.stderr
    assert (done.returncode == 0) == ("BROKEN" not in found.values())
    return found


def test_the_contracts_are_kept():
    assert set(_verdicts(PYPROJECT.parent).items()) == {(name, "KEPT") for name in VIOLATIONS}


def test_each_contract_catches_its_violation(tmp_path: Path):
    clean = tmp_path / "clean"
    shutil.copytree(ROOT / "jitter", clean / "jitter", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(PYPROJECT, clean)
    for name, (module, line) in VIOLATIONS.items():
        path = clean / "jitter" / module
        before = path.read_text()
        path.write_text(f"{before}\n{line}\n")
        assert _verdicts(clean)[name] == "BROKEN", name
        path.write_text(before)
    assert set(_verdicts(clean).values()) == {"KEPT"}
