"""Texts and cells of a page: code in prose, values beside their texts, nothing from a trace as HTML."""

import pytest

from jitter.report.html import render_html
from jitter.report.text.cells import Measure, Shortened, percent_cell, render_cell, render_prose, time_cell
from tests.support.page import Text
from tests.support.report_lakes import report_job


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


def test_no_backtick_is_shown_on_the_page(tmp_path):
    """Guide and evidence quote code as `this`, for terminals."""
    lake = report_job(tmp_path / "lake", ranks=3)
    assert "`" not in Text(render_html(lake)).all
