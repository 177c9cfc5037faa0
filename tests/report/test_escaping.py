"""Names from a trace stay names: no form of the report obeys them."""

import re
from dataclasses import replace

import pytest
from markdown_it import MarkdownIt

from jitter.analysis.diagnosis.model import Divergence
from jitter.report.markdown import render_markdown
from jitter.report.views.run_overview import build_run_overview
from tests.support.report_lakes import report_lake, step_rows

COMMANDS = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e"
MARKUP = "@octocat/#1 https://evil.example www.evil.example **b** `c` [l](http://x) ![i](http://x) <b>h</b> | ~~s~~ $m$"
HOST = f"node-{COMMANDS}{MARKUP}"


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    """The late rank's kernels and hosts have names full of commands."""
    ranks = {
        r: {
            (1, s): step_rows(
                r, s, late={5: 400_000} if (r, s) == (2, 1) else None, name=lambda k: f"{COMMANDS}@octocat_{k}_#1_*b*"
            )
            for s in range(3)
        }
        for r in range(4)
    }
    refused = [f"cannot be read: {COMMANDS}{MARKUP}"]
    return report_lake(tmp_path_factory.mktemp("escapes") / "lake", ranks, host=lambda _: HOST, refused=refused)


def obeyed(text):
    """Return the characters that a terminal acts on, or that hide text in it."""
    return [char for char in text if not char.isprintable() and char != "\n"]


def test_markdown_stays_text(lake):
    found = lake.diagnose()
    began = Divergence(5, f"ns::{COMMANDS}|*b*_`c`~~@octocat", 0)
    found = replace(found, steps=tuple(replace(step, divergence=began) for step in found.steps))
    text = render_markdown(found, build_run_overview(lake, lake.step_keys), lake.hosts)
    assert "octocat" in text
    assert [char for char in obeyed(text) if char != "\u2060"] == []
    parser = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
    tokens = [inner for token in parser.parse(text) for inner in (token.children or [token])]
    kinds = {token.type for token in tokens}
    assert kinds.isdisjoint({"link_open", "image", "html_inline", "html_block", "code_inline", "s_open", "em_open"})
    words = "".join(token.content for token in tokens if token.type == "text")
    assert "<b>h</b>" in words
    # what is made of text after markdown was read: mentions, references to issues, links
    assert re.search(r"@\w|#\d|https?://|www\.", words) is None
    cells = [len(re.findall(r"(?<!\\)\|", line)) for line in text.splitlines() if line.startswith("|")]
    assert set(cells) <= {5, 10, 14}
