"""The report as one HTML file that needs no network: figures, their data and the library that draws them inside."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bokeh.core.json_encoder import serialize_json
from bokeh.document import Document
from bokeh.models import LayoutDOM
from bokeh.resources import Resources
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from jitter._version import __version__
from jitter.analysis import Lake
from jitter.diagnosis import Cause, Diagnosis, StepAnswer
from jitter.kernels import short_name
from jitter.numbers import format_numbers
from jitter.replay import CPU, GPU, START
from jitter.report.answer import Answer, answer
from jitter.report.excess import PATH, TRANSFERS, ExcessMap, excess_map, own_layer
from jitter.report.figures import collective_sizes, per_step, profile, step_split
from jitter.report.figures.frame import stack
from jitter.report.figures.kernel_axis import kernel_axis
from jitter.report.figures.step_axis import step_axis
from jitter.report.run_facts import run_facts
from jitter.report.run_view import RunView, run_view
from jitter.report.run_words import alignment_words, coverage_words, kernels_per_step_words, remainder_words
from jitter.report.seven import seven_answers
from jitter.report.step_view import KernelNames, StepView, step_view
from jitter.steps import StepKey
from jitter.verdict import subject
from jitter.words import brief, count_words, percent_words, rank_words, time_words

MOST_STEPS = 6
"""Steps whose details are embedded: the costliest, and one of each of the first culprits."""
MOST_CULPRITS = 3
"""Culprits that have one of their steps embedded in any case."""
MOST_LINES = 200
"""Lines of the table of steps."""
_PART_OF: Mapping[Cause, int] = {
    "late_start": START,
    "cpu_launch": CPU,
    "gpu_compute": GPU,
    "workload_imbalance": GPU,
}


@dataclass(frozen=True)
class Section:
    """One embedded step: what it answers and what is drawn of it."""

    step: StepAnswer
    answer: Answer
    view: StepView
    place: int
    """Where it stands in the figures of the run."""
    max_rank: str
    min_rank: str


def html_report(lake: Lake, steps: Sequence[StepKey] | None = None) -> str:
    """Write the page for these steps of the lake (all)."""
    chosen = lake.steps if steps is None else list(steps)
    diagnosis, examined = lake.diagnosis(chosen), lake.examination(chosen)
    run = run_view(diagnosis, examined.paths, sorted(examined.run.team_of))
    excess = excess_map(lake, examined, first_layer(diagnosis))
    facts = run_facts(lake, examined, chosen)
    names = KernelNames()
    paths = {path.key: path for path in examined.paths}
    sections = []
    for step in embedded_steps(diagnosis):
        view = step_view(lake, examined, step, paths[step.key], names)
        if view is not None:
            sections.append(_section(lake, run, step, view))
    items = _items(run, excess, diagnosis, sections, names.names)
    environment = Environment(
        loader=PackageLoader("jitter.report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    environment.filters.update(
        ranges=format_numbers,
        time=time_words,
        percent=percent_words,
        short=short_name,
        count=count_words,
        subject=subject,
        brief=brief,
    )
    return environment.get_template("page.html.j2").render(
        version=__version__,
        lake=str(lake.root),
        facts=facts,
        run=run,
        excess=excess,
        most=_most_words(excess, run, lake.hosts),
        diagnosis=diagnosis,
        questions=seven_answers(diagnosis, lake.hosts),
        alignment=alignment_words(facts.alignment),
        coverage=coverage_words(facts),
        remainder=remainder_words(facts),
        kernels_per_step=kernels_per_step_words(facts),
        sections=sections,
        embedded={section.step.key: number for number, section in enumerate(sections)},
        lines=run.steps[:MOST_LINES],
        lines_left_out=max(0, len(run.steps) - MOST_LINES),
        roots=list(items),
        figures=figures_json(items),
        library=Markup("\n".join(_library())),
    )


def embedded_steps(diagnosis: Diagnosis) -> list[StepAnswer]:
    """Choose the steps to embed: one of each of the first culprits, and the costliest; these first."""
    by_cost = sorted(diagnosis.steps, key=lambda step: (step.loss_ns is None, -(step.loss_ns or 0)))
    chosen: set[StepKey] = set()
    for culprit in diagnosis.culprits[:MOST_CULPRITS]:
        own = [step.key for step in by_cost if step.key in culprit.steps]
        named = [step.key for step in by_cost if step.key in culprit.steps and step.max_rank in culprit.ranks]
        chosen.update((named or own)[:1])
    for step in by_cost:
        if len(chosen) < MOST_STEPS:
            chosen.add(step.key)
    return [step for step in by_cost if step.key in chosen]


def first_layer(diagnosis: Diagnosis) -> str:
    """Choose the map that shows the first culprit whole.

    The path passes only the latest of ranks that are late together, and transfers are no rank's own.
    """
    if not diagnosis.culprits:
        return PATH
    first = diagnosis.culprits[0]
    if first.cause == "communication":
        return TRANSFERS
    return PATH if first.scope == "rank" or first.cause not in _PART_OF else own_layer(_PART_OF[first.cause])


def _section(lake: Lake, run: RunView, step: StepAnswer, view: StepView) -> Section:
    parts = run.parts_ns[run.position(step.key)]
    return Section(
        step,
        answer(step, view, lake.hosts, len(set(lake.cohorts.values())), None if parts is None else parts[-1]),
        view,
        run.position(step.key),
        _key(view.max_rank, lake, "" if view.values else "max "),
        _key(view.min_rank, lake, "min "),
    )


def _key(rank: int | None, lake: Lake, word: str) -> str:
    return "" if rank is None else word + rank_words(rank, lake.hosts.get(rank))


def _most_words(excess: ExcessMap | None, run: RunView, hosts: Mapping[int, str | None]) -> str:
    """Say where the map's first layer is highest."""
    if excess is None or excess.layers[0].most is None:
        return "Nothing is above the others."
    rank, at, ns = excess.layers[0].most
    where = f"{rank_words(rank, hosts.get(rank))} in {run.steps[at].key}"
    return f"Highest: {where}, {time_words(ns)} ({excess.layers[0].title})."


def _items(
    run: RunView, excess: ExcessMap | None, diagnosis: Diagnosis, sections: Sequence[Section], names: list[str]
) -> dict[str, LayoutDOM]:
    """Build the figures, by where they go in the page; only those of which anything is known."""
    if not sections:
        return {}
    views = [section.view for section in sections]
    along_steps = step_axis(run, sections[0].place, {section.place for section in sections})
    along_kernels = kernel_axis(views[0], names)
    named = {rank for culprit in diagnosis.culprits for rank in culprit.ranks}
    items: dict[str, LayoutDOM | None] = {
        "run": per_step.build(along_steps, run, excess, named),
        "profile": profile.build(along_kernels, views[1:]),
        "split": stack([step_split.build(along_steps)]) if any(run.parts_ns) else None,
        "collectives": stack([collective_sizes.build(along_kernels)])
        if any(view.collectives.sized for view in views)
        else None,
    }
    return {name: item for name, item in items.items() if item is not None}


def figures_json(items: Mapping[str, LayoutDOM]) -> Markup:
    """Write all figures as one document, so that they share axes and data; safe inside a script element."""
    document = Document()
    for item in items.values():
        document.add_root(item)
    roots = {item.id: f"figures-{name}" for name, item in items.items()}
    text = serialize_json({"document": document.to_json(deferred=False), "roots": roots})
    for char in "<>&\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return Markup(text)


def _library() -> list[str]:
    """Read the one part of BokehJS that the figures need."""
    scripts: list[str] = Resources(mode="inline", components=["bokeh"], minified=True).js_raw
    return [text.replace("</script", "<\\/script") for text in scripts]
