"""Texts from traces in every form: escaped, and shortened with the whole text beside them."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

import jitter
from jitter.analysis.diagnosis.model import KernelLocation
from jitter.core.names.kernels import short_name
from jitter.report.markdown import render_markdown
from jitter.report.text.fix_list import answer_questions, describe_place, name_first_kernel
from jitter.report.text.tables import Measure, Shortened, percent_cell, render_cell, render_prose, time_cell
from jitter.report.views.run_overview import build_run_overview
from jitter.simulate import Fault, simulate
from tests.support.page import Text
from tests.support.report_lakes import report_lake, step_rows
from tests.support.simulated import ingest_run, small

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
    began = KernelLocation(5, f"ns::{COMMANDS}|*b*_`c`~~@octocat", 0)
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


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("launched by `aten::add_`, backward", "launched by <code>aten::add_</code>, backward"),
        ("`<b>` in <i>", "<code>&lt;b&gt;</code> in &lt;i&gt;"),
        ("one ` alone", "one ` alone"),
        ("excess > 10σ, 3 ms", "excess &gt;\u00a010σ, 3 ms"),
    ],
)
def test_prose(text: str, html: str):
    assert str(render_prose(text)) == html


@pytest.mark.parametrize(
    ("cell", "html"),
    [
        (time_cell(1_234_567), '<td data-raw="1234567" data-unit="ns">1.23 ms</td>'),
        (percent_cell(0.0123), '<td data-raw="1.23" data-unit="%">1.23%</td>'),
        (render_cell("<b>", is_text=True), '<td class="text" title="&lt;b&gt;">&lt;b&gt;</td>'),
        (
            render_cell(Shortened("gemm…", "gemm<float>"), is_text=True),
            '<td class="text" title="gemm&lt;float&gt;" data-text="gemm&lt;float&gt;">gemm…</td>',
        ),
        (render_cell(Measure("7.5 GB/s", 7.5, "GB/s")), '<td data-raw="7.5" data-unit="GB/s">7.5 GB/s</td>'),
    ],
)
def test_cells(cell: str, html: str):
    assert str(cell) == html


def test_an_unknown_value_has_an_empty_cell_in_a_copy():
    assert 'data-raw=""' in str(time_cell(None))


def test_no_backtick_is_shown_on_the_page(sample_page):
    """Guide and evidence quote code as `this`, for terminals."""
    assert "`" not in Text(sample_page).all


def lake_of(folder: Path, *faults: str, **job: object) -> "jitter.Lake":
    return ingest_run(simulate(small(**job), [Fault.parse(fault) for fault in faults]), folder)


@pytest.fixture(scope="module")
def late_node(tmp_path_factory: pytest.TempPathFactory) -> "jitter.Lake":
    return lake_of(tmp_path_factory.mktemp("late"), "late_start:ranks=4-7,ms=5", ranks=16, steps=5, gpus_per_node=4)


def test_the_kernel_named_is_that_of_the_range(late_node: "jitter.Lake"):
    found = late_node.diagnose()
    (culprit,) = found.culprits
    assert culprit.kernel_index is not None
    assert describe_place(culprit) == "kernel 0"
    name = next(s.divergence.kernel_name for s in found.steps if s.divergence and s.divergence.kernel_index == 0)
    assert name_first_kernel(culprit, found) == short_name(name)


def test_time_after_the_last_launch_begins_at_no_kernel(tmp_path: Path):
    found = lake_of(tmp_path, "late_end:rank=1,ms=4", ranks=4, steps=6).diagnose()
    (culprit,) = found.culprits
    assert describe_place(culprit) == "after the last launch of the step"
    assert not any("launched in" in line for line in culprit.evidence)


def test_steps_of_a_single_rank_have_the_cause_of_its_finding(tmp_path: Path):
    found = lake_of(tmp_path, "cpu_stall:rank=0,step=4,kernel=9,ms=5", ranks=1, steps=8).diagnose()
    (culprit,) = found.culprits
    assert {step.key.step: step.cause for step in found.steps if step.cause != "none"} == {
        key.step: culprit.cause for key in culprit.steps
    }


def test_several_findings_each_name_their_evidence(tmp_path: Path):
    faults = ("slow_gpu:rank=1,factor=1.5", "cpu_stall:rank=5,step=3,kernel=20,ms=8")
    lake = lake_of(tmp_path, *faults, ranks=8, steps=8)
    found = lake.diagnose()
    assert len(found.culprits) == 2
    evidence = next(one.evidence for one in answer_questions(found, lake.hosts) if one.question == "CPU or GPU?")
    assert all(line.startswith(("Rank 1", "Rank 5")) for line in evidence)


def test_a_node_without_a_name_is_still_the_answer(late_node: "jitter.Lake"):
    assert late_node.diagnose().culprits[0].scope == "host"
    node = next(one.answer for one in answer_questions(late_node.diagnose(), {}) if one.question == "Which node?")
    assert node == "The node of ranks 4-7: all its ranks are slow. The traces do not name the hosts."


def test_a_finding_begins_where_its_steps_first_diverge(tmp_path: Path):
    """A slow GPU loses a little in every kernel: finding, steps and figures name one kernel."""
    found = lake_of(tmp_path, "slow_gpu:rank=3,factor=1.2", ranks=8, steps=5).diagnose()
    (culprit,) = found.culprits
    late = [step for step in found.steps if step.key in culprit.steps and step.max_rank == culprit.rank]
    began = [step.divergence.kernel_index for step in late if step.divergence is not None]
    assert len(began) == len(late) > 1
    assert culprit.kernel_index is not None
    assert min(began) == culprit.kernel_index.first
    assert max(began) <= culprit.kernel_index.last
