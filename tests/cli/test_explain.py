"""`jitter explain`: topics in a list, as markdown in a pipe, formatted on a terminal."""

import sys

import pytest

from jitter import guide
from jitter.cli import main
from tests.support.printed import output_of


def test_without_a_topic_all_are_listed(capsys: pytest.CaptureFixture[str]):
    lines = output_of(capsys, "explain").splitlines()
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
def test_a_terminal_gets_it_formatted(topic: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    shown = output_of(capsys, "explain", topic)
    title = guide.text(topic).partition("\n")[0]
    assert "\x1b[" in shown
    assert title not in shown
    assert title.removeprefix("# ").split()[0] in shown
    assert "|---" not in shown
