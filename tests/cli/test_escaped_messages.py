"""Names and paths full of terminal commands: every message of every verb stays plain text on its line."""

from pathlib import Path

import pytest

from jitter.cli import main
from jitter.simulate import Job, simulate, write

COMMANDS = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e\nerror: none\r"


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Traces in a folder with such a name, one of them damaged."""
    folder = tmp_path_factory.mktemp("escaped") / f"job {COMMANDS}"
    folder.mkdir()
    write(simulate(Job(ranks=3, steps=2, kernels=16)), folder, "nsys")
    (folder / "rank2.sqlite").write_bytes((folder / "rank2.sqlite").read_bytes()[:3000])
    (folder / f"notes{COMMANDS}.etl").write_text("nothing")
    return folder


def obeyed(text: str) -> list[str]:
    return [char for char in text if not char.isprintable() and char != "\n"]


def test_no_message_commands_the_terminal(
    traces: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    lake = str(tmp_path / f"lake{COMMANDS}")
    for words in (
        ["inspect", str(traces)],
        ["ingest", str(traces), "-o", lake],
        ["ingest", str(traces), "-o", lake],
        ["ingest", str(traces / f"none{COMMANDS}"), "-o", lake],
        ["report", lake],
        ["steps", lake],
        ["table", lake, "--step", "77"],
        ["collectives", lake],
        ["query", lake, f"select '{COMMANDS}' as x", "--format", "text"],
        ["query", lake, f'select * from "{COMMANDS}"'],
        ["verify", lake, "--sources"],
        ["verify", str(traces)],
        ["report", str(traces)],
    ):
        main(words)
        out, err = capsys.readouterr()
        assert obeyed(out) == [], words
        assert obeyed(err) == [], words
        assert not any(line.startswith("error: none") for line in (out + err).splitlines()), words
