"""The page's text and tables as HTML; the same whether it is written or live. Text from traces is escaped."""

from collections.abc import Collection, Sequence
from functools import cache
from typing import NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markdown_it import MarkdownIt
from markupsafe import Markup

from jitter import guide
from jitter._version import __version__
from jitter.analysis.diagnosis.verdict import subject
from jitter.core.formatting import abbreviate, format_count, format_numbers, format_percent, format_rank, format_time
from jitter.core.kernels import short_name
from jitter.core.step_key import StepKey
from jitter.report.questions import seven_answers
from jitter.report.run_text import alignment_words, coverage_words, kernels_per_step_words, remainder_words
from jitter.report.views.run_report import RunPage, Section

MOST_LINES = 200
"""Lines of the table of steps."""


class Choice(NamedTuple):
    """A step that the page can show."""

    place: int
    words: str


def templates() -> Environment:
    """The page's templates."""
    environment = Environment(
        loader=PackageLoader("jitter.report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    environment.globals.update(version=__version__)
    environment.filters.update(
        ranges=format_numbers,
        time=format_time,
        percent=format_percent,
        short=short_name,
        count=format_count,
        subject=subject,
        brief=abbreviate,
    )
    return environment


def page_body(
    page: RunPage, sections: Sequence[Section], choices: Sequence[Choice], roots: Collection[str], *, live: bool
) -> Markup:
    """Write all but what surrounds it: answers, the run, the step in view, how to read it, with room for the figures.

    `sections` are the steps written out (of a live page only the first; the others follow as they are chosen),
    `choices` those that can be chosen, `roots` the figures that there are.
    """
    run, facts, diagnosis, hosts = page.run, page.facts, page.diagnosis, page.lake.hosts
    text = (
        templates()
        .get_template("body.html.j2")
        .render(
            lake=str(page.lake.root),
            facts=facts,
            run=run,
            excess=page.excess,
            most=_most_words(page),
            diagnosis=diagnosis,
            questions=seven_answers(diagnosis, hosts),
            alignment=alignment_words(facts.alignment),
            coverage=coverage_words(facts),
            remainder=remainder_words(facts),
            kernels_per_step=kernels_per_step_words(facts),
            sections=sections,
            choices=choices,
            embedded={run.steps[choice.place].key: choice.place for choice in choices},
            lines=run.steps[:MOST_LINES],
            lines_left_out=max(0, len(run.steps) - MOST_LINES),
            roots=list(roots),
            live=live,
            reading=how_to_read(),
        )
    )
    return Markup(text)


@cache
def how_to_read() -> Markup:
    """Return the guide's topic `reading` as HTML; raw HTML in it is escaped."""
    return Markup(MarkdownIt("commonmark", {"html": False}).render(guide.body("reading")))


def step_body(section: Section) -> tuple[Markup, Markup]:
    """One step's key to the lines, and what is told of it: what a live page exchanges when another is chosen."""
    environment = templates()
    given = {"section": section, "number": 0}
    key, told = (environment.get_template(name).render(given) for name in ("key.html.j2", "section.html.j2"))
    return Markup(key), Markup(told)


def choice(page: RunPage, key: StepKey) -> Choice:
    """One step as the page offers it."""
    return Choice(page.run.position(key), f"{key} · loss {format_time(page.answer(key).loss_ns)}")


def _most_words(page: RunPage) -> str:
    """Say where the map's first layer is highest."""
    excess = page.excess
    if excess is None or excess.layers[0].most is None:
        return "Nothing is above the others."
    rank, at, ns = excess.layers[0].most
    where = f"{format_rank(rank, page.lake.hosts.get(rank))} in {page.run.steps[at].key}"
    return f"Highest: {where}, {format_time(ns)} ({excess.layers[0].title})."
