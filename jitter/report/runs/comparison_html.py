"""A comparison as one HTML file that contains its figures and needs no network."""

from collections.abc import Sequence
from typing import Final

from markupsafe import Markup

from jitter.comparison.document import Document
from jitter.comparison.model import Comparison
from jitter.report.figures.comparison_figures import draw_comparison
from jitter.report.page import render_document, template_environment
from jitter.report.views.comparison_tables import build_tables, describe_sides

_MOST_ROWS: Final = 200


def render_comparison_html(bases: Sequence[Document], new: Document, comparison: Comparison) -> str:
    """Return the page: verdict, both runs on the same axes, tables. Text from traces is escaped."""
    drawn = draw_comparison(bases, new, comparison)
    title = f"{comparison.base.label} and {comparison.new.label}"
    body = (
        template_environment()
        .get_template("comparison.html.j2")
        .render(
            title=title,
            comparison=comparison,
            sides=describe_sides(comparison),
            tables=build_tables(comparison, _MOST_ROWS),
            roots=drawn is not None,
        )
    )
    return render_document(title, Markup(body), {} if drawn is None else {"comparison": drawn})
