"""The text and tables of the page as HTML, for a written and a live page. Text from traces is escaped."""

import shlex
from collections.abc import Collection, Sequence
from functools import cache
from typing import Any, Final, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markdown_it import MarkdownIt
from markupsafe import Markup

from jitter import guide
from jitter._version import __version__
from jitter.analysis.diagnosis.loss.split import LOSS_CLASS_INFO, describe_ranks
from jitter.analysis.diagnosis.verdict import describe_seen, name_culprit
from jitter.core.formatting import (
    abbreviate,
    capitalize,
    format_count,
    format_numbers,
    format_percent,
    format_rank,
    format_time,
    format_timeline_span,
)
from jitter.core.names.kernels import short_name
from jitter.core.step_key import StepKey
from jitter.report.figures.rank_lines import RankLine
from jitter.report.text.cells import percent_cell, render_cell, render_prose, render_sentences, time_cell
from jitter.report.text.finding_cards import build_cards
from jitter.report.text.questions import answer_questions
from jitter.report.text.run_text import (
    describe_alignment,
    describe_coverage,
    describe_excluded,
    format_kernels_per_step,
)
from jitter.report.text.step_text import describe_cause
from jitter.report.views.run_report import RunReport, StepSection
from jitter.report.views.step_tables import PARTS

MAX_TABLE_ROWS = 200
"""Rows of the table of steps."""
_SCRIPTS: Final = ("colours.js", "narrow.js", "load_figures.js", "step_map.js", "kernel_keys.js", "page.js")
"""Scripts of the figures, in the order in which they are run."""


class StepChoice(NamedTuple):
    """A step that the page can show: its position in the run, its label, and its name in the page's address."""

    place: int
    label: str
    step: str
    """The step in the address of the page, such as `2017` or `1/2017`."""


@cache
def template_environment() -> Environment:
    """Return the Jinja2 environment with the templates and their filters."""
    environment = Environment(
        loader=PackageLoader("jitter.report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    environment.globals.update(version=__version__, parts=PARTS, scripts=_SCRIPTS)
    environment.filters.update(
        ranges=format_numbers,
        time=format_time,
        prose=render_prose,
        sentences=render_sentences,
        cell=render_cell,
        time_cell=time_cell,
        percent_cell=percent_cell,
        timeline=format_timeline_span,
        percent=format_percent,
        short=short_name,
        count=format_count,
        subject=name_culprit,
        brief=abbreviate,
        cause=describe_cause,
        ranks=describe_ranks,
        seen=describe_seen,
        sentence=capitalize,
        loss_class=lambda loss_class: LOSS_CLASS_INFO[loss_class].words,
    )
    return environment


def render_page_body(
    page: RunReport,
    sections: Sequence[StepSection],
    choices: Sequence[StepChoice],
    roots: Collection[str],
    *,
    live: bool,
) -> Markup:
    """Return the body of the page: findings, run, step in view, how to read it, with placeholders for the figures.

    `sections` are the steps with details (of a live page only the first), `choices` the steps that can be chosen,
    `roots` the names of the figures that exist.
    """
    run = page.run
    text = (
        template_environment()
        .get_template("body.html.j2")
        .render(
            **_findings(page, live=live),
            run=run,
            excess=page.excess,
            most=_describe_highest(page),
            serve=f"jitter serve {shlex.quote(str(page.lake.root))}",
            sections=sections,
            choices=choices,
            embedded={run.steps[choice.place].key: choice.place for choice in choices},
            lines=run.steps[:MAX_TABLE_ROWS],
            lines_left_out=max(0, len(run.steps) - MAX_TABLE_ROWS),
            roots=list(roots),
            excess_known=any(section.view.has_self_excess for section in sections),
            reading=how_to_read(),
        )
    )
    return Markup(text)


def render_findings(page: RunReport) -> Markup:
    """Return the first part of a live page, while the data of its figures are still read."""
    template = template_environment().get_template("answers.html.j2")
    return Markup(template.render(**_findings(page, live=True), sections=[], embedded={}))


def _findings(page: RunReport, *, live: bool) -> dict[str, Any]:
    """Return what the first part of the page shows."""
    facts, diagnosis = page.facts, page.diagnosis
    cards = build_cards(diagnosis, page.lake.cohorts, page.lake.root)
    return {
        "lake": str(page.lake.root),
        "facts": facts,
        "diagnosis": diagnosis,
        "cards": cards,
        "questions": answer_questions(diagnosis, page.lake.hosts, [(card.code, *card.evidence) for card in cards]),
        "alignment": describe_alignment(facts.alignment),
        "coverage": describe_coverage(facts),
        "remainder": describe_excluded(facts),
        "kernels_per_step": format_kernels_per_step(facts),
        "live": live,
    }


@cache
def how_to_read() -> Markup:
    """Return the guide's topic `reading` as HTML; raw HTML in it is escaped."""
    return Markup(MarkdownIt("commonmark", {"html": False}).render(guide.body("reading")))


def render_step(section: StepSection, lines: Sequence[RankLine] = ()) -> tuple[Markup, Markup]:
    """Return the legend and the text of a step: the parts that a live page replaces when another step is chosen.

    `lines` are the lines of chosen ranks.
    """
    environment = template_environment()
    given = {"section": section, "number": 0, "live_lines": lines}
    legend, text = (environment.get_template(name).render(given) for name in ("key.html.j2", "section.html.j2"))
    return Markup(legend), Markup(text)


def step_choice(page: RunReport, key: StepKey) -> StepChoice:
    """Return the entry of a step in the list of steps."""
    place = page.run.position(key)
    return StepChoice(place, f"{key} · loss {format_time(page.answer(key).loss_ns)}", page.run.labels[place])


def _describe_highest(page: RunReport) -> str:
    """Return a sentence on the highest value in the first layer of the map."""
    excess = page.excess
    if excess is None or excess.layers[0].most is None:
        return "No rank is above its peers."
    rank, at, ns = excess.layers[0].most
    where = f"{format_rank(rank, page.lake.hosts.get(rank))} in {page.run.steps[at].key}"
    return f"Highest: {where}, {format_time(ns)} ({excess.layers[0].title})."
