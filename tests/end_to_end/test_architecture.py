"""The direction of imports is kept, and each contract catches what it is there for."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import jitter

ROOT = Path(jitter.__file__).parent.parent
PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"
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


def broken(folder: Path) -> dict[str, str]:
    """Return what import-linter tells of each contract of a project, by name; "" of one that is kept."""
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports; lint_imports(cache_dir=None)"]
    out = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout
    _, *parts = re.split(r"^(.+)\n-+\n", out.partition("Broken contracts\n")[2], flags=re.M)
    told = dict(zip(parts[::2], parts[1::2], strict=True))
    verdicts = dict(re.findall(r"^(.+?) (KEPT|BROKEN)\b", out, re.M))
    assert {name for name, verdict in verdicts.items() if verdict == "BROKEN"} == set(told), out
    return {name: told.get(name, "") for name in verdicts}


def test_the_contracts_are_kept():
    assert broken(PYPROJECT.parent) == dict.fromkeys((name for name, _, _ in VIOLATIONS), "")


def test_each_contract_catches_its_violation(tmp_path: Path):
    shutil.copytree(ROOT / "jitter", tmp_path / "jitter", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(PYPROJECT, tmp_path)
    for _, package, line in VIOLATIONS:
        with (tmp_path / "jitter" / package / "__init__.py").open("a") as file:
            file.write(f"\n{line}\n")
    found = broken(tmp_path)
    for name, package, line in VIOLATIONS:
        module = line.split()[1].removesuffix(".plotting")
        assert f"jitter.{package.replace('/', '.')} -> {module} " in found[name], (name, package, line)
