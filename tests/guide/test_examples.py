"""Every example of `--help`, README and guide that runs on one machine is run as it is written."""

import re
import shlex
import shutil
from pathlib import Path

import pytest

from jitter import guide
from jitter.cli import cli, main

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("computed_once")]

README = Path(__file__).parents[2] / "README.md"
ELSEWHERE = re.compile(r"--scheduler|jitter serve|\$|[<|…\[]|/scratch/|/shared/|--ranks 960")
"""A cluster, a server that runs until it is stopped, variables, placeholders, folders of other machines, an hour."""
FAILING = {"check": {0, 1, 3}, "inspect": {0, 3}}
"""Exit codes of a command that works, if 0 is not the only one."""


def help_examples(verb: str) -> list[str]:
    """Return the commands under Examples in the help of a command, continued lines joined, without comments."""
    text = cli.get_command(None, verb).help or ""  # type: ignore[arg-type, union-attr]
    examples = text.partition("Examples:\n")[2].partition("\n\n")[0].replace("\\\n", " ")
    return [line.strip() for line in examples.splitlines() if line.strip().startswith("jitter ")]


def written_commands() -> list[str]:
    """Return the examples of all helps, and those in README and guide, each once, without pipes."""
    found = [line for verb in cli.list_commands(None) for line in help_examples(verb)]  # type: ignore[arg-type]
    for text in [README.read_text(encoding="utf-8"), *map(guide.text, guide.TOPICS)]:
        blocks = re.findall(r"```bash\n(.*?)```", text, re.DOTALL)
        found += [line for block in blocks for line in block.splitlines() if line.startswith("jitter ")]
    alone = (re.sub(r"\s+(?:#|\\?\| (?:head|jq|sort)|> ).*", "", line.strip()) for line in found)
    return sorted({line for line in alone if not ELSEWHERE.search(line) and line.split()[1:]})


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files and lakes that the examples name."""
    root = tmp_path_factory.mktemp("examples")
    job = ["--ranks", "4", "--steps", "8", "--kernels", "24", "--first-step", "2000", "--quiet", "--evidence"]
    assert main(["sample", str(root / "traces"), *job]) == 0
    log = next((root / "traces").glob("nccl-tests*.log"))
    shutil.copy(log, root / "nccl-tests.log")
    for name in ("report3", "odd"):
        shutil.copy(root / "traces" / "rank3.sqlite", root / f"{name}.sqlite")
    (root / "ranks.csv").write_text("file,rank\nrank0.sqlite,0\n")
    assert main(["ingest", str(root / "traces"), "-o", str(root / "lake"), "--quiet"]) == 0
    for name in ["jitter", "run17", "run18", "before", "after", "run1", "run2", "run3", "new"]:
        (root / f"{name}-lake").symlink_to("lake")
    for branch in ("main", "branch"):
        (root / branch).mkdir()
        (root / branch / "jitter-lake").symlink_to("../lake")
    assert main(["export", str(root / "lake"), "--baseline", str(root / "base.json")]) == 0
    shutil.copytree(README.parent / "data", root / "data")
    return root


@pytest.mark.parametrize("command", written_commands())
def test_a_written_command_works(command: str, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    here = tmp_path / "here"
    shutil.copytree(place, here, symlinks=True)
    monkeypatch.chdir(here)
    monkeypatch.setenv("JITTER_HISTORY", str(tmp_path / "history.sqlite"))
    verb, *words = shlex.split(re.sub(r"--ranks (\S*\d{3}\S*|4,5,6)", "--ranks 1,2", command))[1:]  # of a larger job
    if verb in ("ingest", "sample") or "data/sample" in words:  # these begin a job
        for old in ("jitter-lake", "traces") if verb == "sample" else ("jitter-lake",):
            link = here / old
            link.unlink() if link.is_symlink() else shutil.rmtree(link)
    if "history" in command and words[:1] != ["add"]:
        assert main(["history", "add", "run17-lake", "--job", "gpt-13b"]) == 0
    assert main([verb, *words]) in FAILING.get(verb, {0}), capsys.readouterr().err
