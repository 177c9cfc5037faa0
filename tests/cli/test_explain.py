"""`jitter explain`: topics in a list, as markdown in a pipe, formatted on a terminal."""

import os
import pty
import subprocess
import sys

import pytest

from jitter import guide
from jitter.cli import main

JITTER = [sys.executable, "-m", "jitter"]


def test_without_a_topic_all_are_listed(capsys: pytest.CaptureFixture[str]):
    assert main(["explain"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(maxsplit=1) for line in lines] == [[one.name, one.summary] for one in guide.topics()]


@pytest.mark.parametrize("topic", guide.TOPICS)
def test_a_pipe_gets_the_markdown(topic: str, capsys: pytest.CaptureFixture[str]):
    assert main(["explain", topic]) == 0
    out, err = capsys.readouterr()
    assert out == guide.text(topic)
    assert err == ""


def test_an_unknown_topic_is_wrong_usage(capsys: pytest.CaptureFixture[str]):
    assert main(["explain", "metric"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == ["jitter: no topic 'metric'", "  did you mean metrics? All topics: jitter explain"]


@pytest.mark.parametrize("topic", guide.TOPICS)
def test_a_terminal_gets_it_formatted(topic: str):
    shown = on_a_terminal([*JITTER, "explain", topic])
    title = guide.text(topic).partition("\n")[0]
    assert "\x1b[" in shown
    assert title not in shown
    assert title.removeprefix("# ").split()[0] in shown
    assert "|---" not in shown


def on_a_terminal(command: list[str]) -> str:
    """The output of a command on a terminal of 100 columns."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "COLUMNS": "100", "TERM": "xterm-256color"}
    environment.pop("NO_COLOR", None)
    with subprocess.Popen(command, stdout=theirs, stderr=theirs, stdin=theirs, env=environment) as process:
        os.close(theirs)
        shown = b""
        try:
            while part := os.read(ours, 65536):
                shown += part
        except OSError:  # so Linux says that nobody writes any more
            pass
        os.close(ours)
        assert process.wait() == 0
    return shown.decode()


def test_neither_list_nor_pipe_loads_what_formats():
    code = (
        "import sys\nfrom jitter.cli import main\nassert main(['explain', 'metrics']) == 0\n"
        "heavy = {'pandas', 'pyarrow', 'bokeh', 'duckdb', 'numpy', 'rich', 'markdown_it'} & set(sys.modules)\n"
        "sys.exit(repr(heavy) if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
