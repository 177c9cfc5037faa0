"""The report as one HTML file that needs no network: figures, their data and the library that draws them inside."""

from collections.abc import Sequence
from dataclasses import dataclass

from bokeh.core.json_encoder import serialize_json
from bokeh.embed import json_item
from bokeh.models import LayoutDOM
from bokeh.resources import Resources
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from jitter._version import __version__
from jitter.analysis import Lake
from jitter.kernels import short_name
from jitter.numbers import format_numbers
from jitter.report.answer import Answer, answer, run_sentence
from jitter.report.figures import per_step, profile
from jitter.report.figures.step_axis import places
from jitter.report.run_facts import run_facts
from jitter.report.run_words import alignment_words, coverage_words, kernels_per_step_words, remainder_words
from jitter.report.step_view import KernelNames, StepView, step_view
from jitter.words import count_words, percent_words, time_words
from jitter.run import RunSummary, StepOfRun
from jitter.steps import StepKey
from jitter.summary import StepSummary

MOST_STEPS = 6
"""Steps whose details are embedded: the costliest."""
MOST_COHORTS = 12
"""Cohorts of which at least the costliest step is embedded."""
MOST_LINES = 200
"""Lines of the table of steps."""


@dataclass(frozen=True)
class Section:
    """One embedded step: what it answers and what is drawn of it."""

    answer: Answer
    view: StepView
    place: int
    """Where it stands in the figures of the run."""
    max_rank: str
    min_rank: str


def html_report(lake: Lake, steps: Sequence[StepKey] | None = None) -> str:
    """Write the page for these steps of the lake (all)."""
    chosen = lake.steps if steps is None else list(steps)
    run = lake.run(chosen)
    names = KernelNames()
    sections = [_section(lake, run, of_run, summary, names) for of_run, summary in worst(run)]
    facts = run_facts(lake, run, chosen)
    items = {}
    if sections:
        views = [section.view for section in sections]
        items["profile"] = _item(profile.build(views, names.names))
        of_run = per_step.build(run, views[0].summary.step, lake.ranks)
        if of_run is not None:
            items["run"] = _item(of_run)
    environment = Environment(
        loader=PackageLoader("jitter.report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    environment.filters.update(
        ranges=format_numbers, time=time_words, percent=percent_words, short=short_name, count=count_words
    )
    lines = _lines(run)
    return environment.get_template("page.html.j2").render(
        version=__version__,
        lake=str(lake.root),
        facts=facts,
        run=run,
        run_sentence=run_sentence(run),
        alignment=alignment_words(facts.alignment),
        coverage=coverage_words(facts),
        remainder=remainder_words(facts),
        kernels_per_step=kernels_per_step_words(facts),
        sections=sections,
        embedded=_embedded_words(sections, sum(len(step.cohorts) for step in run.steps)),
        lines=lines[:MOST_LINES],
        lines_left_out=max(0, len(lines) - MOST_LINES),
        items=items,
        library=Markup("\n".join(_library())),
    )


def worst(run: RunSummary) -> list[tuple[StepOfRun, StepSummary]]:
    """Choose the steps to embed: the costliest of all, then the costliest of each cohort that is not yet in."""
    pairs = [(step, summary) for step in run.steps for summary in step.cohorts if summary.ranks]
    pairs.sort(key=lambda pair: (pair[1].loss_ns is None, -(pair[1].loss_ns or 0)))
    found = pairs[:MOST_STEPS]
    cohorts = {summary.cohort for _, summary in found}
    for pair in pairs[MOST_STEPS:]:
        if pair[1].cohort not in cohorts and len(cohorts) < MOST_COHORTS:
            cohorts.add(pair[1].cohort)
            found.append(pair)
    return found


def _section(lake: Lake, run: RunSummary, of_run: StepOfRun, summary: StepSummary, names: KernelNames) -> Section:
    view = step_view(lake, summary, names)
    told = answer(of_run, summary, lake.hosts, len(set(lake.cohorts.values())))
    return Section(
        told,
        view,
        places(run)[of_run.step],
        _key(view.max_rank, lake, "" if view.values else "max "),
        _key(view.min_rank, lake, "min "),
    )


def _key(rank: int | None, lake: Lake, word: str) -> str:
    if rank is None:
        return ""
    host = lake.hosts.get(rank)
    return f"{word}rank {rank}" + (f" on {host}" if host else "")


def _lines(run: RunSummary) -> list[tuple[StepOfRun, StepSummary]]:
    return [(step, summary) for step in run.steps for summary in step.cohorts]


def _embedded_words(sections: Sequence[Section], every: int) -> str:
    if len(sections) == every:
        return ""
    return f"The {len(sections)} costliest of {count_words(every, 'step')} are in this page in detail."


def _item(layout: LayoutDOM) -> Markup:
    """Write a layout as JSON that can stand inside a script element, whatever strings are in it."""
    text = serialize_json(json_item(layout))
    for char in "<>&\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return Markup(text)


def _library() -> list[str]:
    """Read the one part of BokehJS that the figures need."""
    scripts: list[str] = Resources(mode="inline", components=["bokeh"], minified=True).js_raw
    return [text.replace("</script", "<\\/script") for text in scripts]
