"""Forms of a comparison: terminal, Markdown and page; text from traces is escaped in each."""

from io import StringIO

import msgspec
import pytest
from bokeh.models import Plot
from markupsafe import escape
from rich.console import Console

from jitter.cli import main
from jitter.comparison.compare_documents import compare_documents
from jitter.comparison.document import CulpritEntry
from jitter.report.comparison import print_comparison, render_comparison_html, render_comparison_markdown
from jitter.report.figures.models import as_bokeh
from jitter.report.figures.runs import draw_comparison
from tests.comparison.test_kernel_changes import USUAL, document, usual_step
from tests.support.chromium import open_page
from tests.support.page import sources, titles

EVIL = "evil<img src=x onerror=window.pwned=1>[red]"


@pytest.fixture(scope="module")
def pair():
    kernels = [(EVIL if name == "gelu" else name, time) for name, time in USUAL]
    slower = [(name, 2 * time if name == EVIL else time) for name, time in kernels]
    return [
        document(own, seed, label=EVIL, step_ns=step_ns, usual=usual_step(own))
        for seed, (own, step_ns) in enumerate(((kernels, 1_000_000), (slower, 1_190_000)))
    ]


def test_terminal(pair):
    console = Console(width=120, record=True, file=StringIO())
    print_comparison(compare_documents(pair[:1], pair[1]), console)
    text = console.export_text()
    assert "19.0% slower" in text
    assert "GPU time +180 µs" in text
    assert "[red]" in text


def test_a_narrow_terminal_cuts_no_word_of_a_head(pair):
    culprit = CulpritEntry("rank", 5, (5,), "node0003", 5, "cpu_launch", "high", 9, 9, 3, of_steps=9, recurs="yes")
    console = Console(width=80, record=True, file=StringIO())
    new = msgspec.structs.replace(pair[1], culprits=(culprit,))
    print_comparison(compare_documents(pair[:1], new), console)
    words = set(console.export_text().split())
    assert {"finding", "cause", "confidence", "seen", "recurs", "saved", "step"} <= words
    assert {"late", "launches"} <= words  # the cause in prose


def test_markdown(pair):
    text = render_comparison_markdown(compare_documents(pair[:1], pair[1]))
    assert text.startswith("# jitter compare\n")
    assert "| GPU time | +180 µs | 0 ns | +180 µs | 94.7% |" in text
    assert "| unexplained | +10.0 µs | 0 ns | +10.0 µs | 5.26% |" in text
    assert "<img" not in text.replace("\\<img", "")


def test_page(pair):
    page = render_comparison_html(pair[:1], pair[1], compare_documents(pair[:1], pair[1]))
    assert "<img" not in page.split("<script")[0]
    assert any("Step time of both runs" in title for title in titles(page))
    found = sources(page, "comparison")
    assert found["comparison:split"]["time"] == [180_000, 0, 10_000, 0]
    assert len(found["comparison:kernels"]["time"]) == len(USUAL)
    assert {"comparison:steps:0", "comparison:steps:1"} <= found.keys()


def test_an_incomparable_pair_has_a_page_too(pair):
    few = msgspec.structs.replace(pair[1], steps=pair[1].steps[:2])
    comparison = compare_documents(pair[:1], few)
    page = render_comparison_html(pair[:1], few, comparison)
    assert "Not comparable" in page
    assert "Where the difference comes from" not in page.split("<script")[0]


@pytest.mark.slow
def test_the_page_draws_without_a_network(pair, tmp_path, browser):
    path = tmp_path / "page.html"
    path.write_text(render_comparison_html(pair[:1], pair[1], compare_documents(pair[:1], pair[1])))
    context = browser.new_context(offline=True, viewport={"width": 1100, "height": 800})
    shown = open_page(context, path.as_uri())
    assert shown.errors == []
    assert shown.requests == [path.as_uri()]
    assert shown.evaluate("window.pwned") is None
    context.close()


def test_files_of_others_are_not_overwritten(tmp_path, capsys):
    notes = tmp_path / "notes.md"
    notes.write_text("mine")
    assert main(["compare", str(tmp_path), str(tmp_path), "-o", str(notes)]) == 2
    assert notes.read_text() == "mine"


def test_notes_name_their_runs_and_are_not_repeated(pair):
    """Notes of several runs that differ in numbers only are one."""
    notes = [("transfers take 2.9% of a step",), ("transfers take 3.1% of a step", "a rank is missing")]
    base, new = (
        msgspec.structs.replace(one, label=label, notes=own)
        for one, label, own in zip(pair, ("base", "new"), notes, strict=True)
    )
    found = [note for note in compare_documents([base], new).notes if "transfers" in note or "missing" in note]
    assert found == ["new (and 1 other run): transfers take 3.1% of a step", "new: a rank is missing"]


def test_legends_do_not_cover_what_figures_show(pair):
    drawn = as_bokeh(draw_comparison(pair[:1], pair[1], compare_documents(pair[:1], pair[1])))
    plots = [plot for plot in drawn.select({"type": Plot}) if plot.legend]
    assert plots
    for plot in plots:
        assert all(legend in plot.above for legend in plot.legend)


def test_kernels_keep_their_whole_names_in_copies(pair):
    page = render_comparison_html(pair[:1], pair[1], compare_documents(pair[:1], pair[1]))
    assert f'data-text="{escape(EVIL)}"' in page
