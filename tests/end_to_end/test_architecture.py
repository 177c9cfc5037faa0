"""The direction of imports is kept, and each contract catches what it is there for."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import jitter

ROOT = Path(jitter.__file__).parent.parent
PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"
LINT_EACH = """
import json, sys
from pathlib import Path
from importlinter.cli import lint_imports

for path, line in json.loads(sys.argv[1]):
    before = Path(path).read_text() if path else ""
    if path:
        Path(path).write_text(f"{before}\\n{line}\\n")
    code = lint_imports(cache_dir=None)
    if path:
        Path(path).write_text(before)
    print(f"\\nEXIT {code}", flush=True)
"""
"""Lints the package in the working directory with each line added to its file, in one process."""

VIOLATIONS = [
    ("One direction", "analysis/metrics", "import jitter.ingestion.ingest"),
    ("Only ingestion knows the readers", "analysis/metrics", "from jitter.readers import readers"),
    ("One direction", "ingestion/transform", "import jitter.analysis.alignment.sequences"),
    ("One direction", "readers/nsys", "import jitter.lake.folder"),
    ("One direction", "lake", "import jitter.readers"),
    ("One direction", "query", "from jitter.simulate import simulate"),
    ("One direction", "report", "from jitter.simulate import simulate"),
    ("From numbers to a verdict", "analysis/metrics", "import jitter.analysis.execution.self_times"),
    ("Logs know the core only", "logs", "import jitter.lake.layout"),
    ("The simulator shares no code with what it tests", "simulate", "import jitter.core.numeric.stats"),
    ("The simulator shares no code with what it tests", "simulate", "import jitter.lake.records"),
    ("Bokeh under report alone", "analysis/metrics", "from bokeh.plotting import figure"),
]


def _verdicts(folder: Path, *additions: tuple[str, str]) -> list[dict[str, str]]:
    """Return contract -> "KEPT" or "BROKEN" for each (file, line) added to the package; ("", "") adds nothing."""
    command = [sys.executable, "-c", LINT_EACH, json.dumps(additions)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    parts = re.split(r"^EXIT (\d+)$", done.stdout, flags=re.M)
    every = []
    for said, code in zip(parts[:-1:2], parts[1::2], strict=True):
        found = dict(re.findall(r"^(.+?) (KEPT|BROKEN)\b", said, re.M))
        assert found, said
        assert (code == "0") == ("BROKEN" not in found.values())
        every.append(found)
    assert len(every) == len(additions)
    return every


def test_the_contracts_are_kept():
    (found,) = _verdicts(PYPROJECT.parent, ("", ""))
    assert set(found.items()) == {(name, "KEPT") for name, _, _ in VIOLATIONS}


def test_each_contract_catches_its_violation(tmp_path: Path):
    clean = tmp_path / "clean"
    shutil.copytree(ROOT / "jitter", clean / "jitter", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(PYPROJECT, clean)
    *found, last = _verdicts(
        clean, *((f"jitter/{package}/__init__.py", line) for _, package, line in VIOLATIONS), ("", "")
    )
    for (name, package, line), verdicts in zip(VIOLATIONS, found, strict=True):
        assert verdicts[name] == "BROKEN", (name, package, line)
    assert set(last.values()) == {"KEPT"}
