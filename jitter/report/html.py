"""The report as one HTML file that contains the figures, their data and BokehJS, and needs no network."""

from collections.abc import Mapping, Sequence

from bokeh.core.json_encoder import serialize_json
from bokeh.document import Document
from bokeh.models import LayoutDOM
from bokeh.resources import Resources
from markupsafe import Markup

from jitter.analysis.diagnosis.diagnosis import Diagnosis
from jitter.analysis.diagnosis.model import StepAnswer
from jitter.api import Lake
from jitter.core.step_key import StepKey
from jitter.report.page import StepChoice, render_findings, render_page_body, template_environment
from jitter.report.page_figures import draw_page_figures
from jitter.report.views.run_report import RunReport, StepSection
from jitter.report.views.step_view import KernelNames

MAX_EMBEDDED_STEPS = 6
"""Steps with embedded details: the costliest, and one of each of the first findings."""
MAX_EMBEDDED_CULPRITS = 3
"""Findings of which one step is always embedded."""


def render_html(lake: Lake, steps: Sequence[StepKey] | None = None) -> str:
    """Return the page for these steps of the lake; all by default."""
    page, names = RunReport(lake, steps), KernelNames()
    if not page.steps:
        return render_document(str(lake.root), render_findings(page), {})
    sections = list(page.sections([step.key for step in choose_embedded_steps(page.diagnosis)], names))
    items: dict[str, LayoutDOM] = {}
    if sections:
        items, _ = draw_page_figures(page, sections, names.names, {section.place for section in sections})
    body = render_page_body(page, sections, [_choice(page, section) for section in sections], items, live=False)
    return render_document(str(lake.root), body, items)


def render_document(title: str, body: Markup, items: Mapping[str, LayoutDOM]) -> str:
    """Return a page that needs no network: `body` has an element `figures-<name>` for each figure."""
    return (
        template_environment()
        .get_template("page.html.j2")
        .render(
            lake=title,
            body=body,
            drawn=bool(items),
            figures=serialize_figures(items),
            library=Markup("\n".join(_library())),
        )
    )


def choose_embedded_steps(diagnosis: Diagnosis) -> list[StepAnswer]:
    """Return the steps to embed, costliest first: one of each of the first findings, and the costliest."""
    by_cost = sorted(diagnosis.steps, key=lambda step: (step.loss_ns is None, -(step.loss_ns or 0)))
    chosen: set[StepKey] = set()
    for culprit in diagnosis.culprits[:MAX_EMBEDDED_CULPRITS]:
        own = [step.key for step in by_cost if step.key in culprit.steps]
        named = [step.key for step in by_cost if step.key in culprit.steps and step.max_rank in culprit.ranks]
        chosen.update((named or own)[:1])
    for step in by_cost:
        if len(chosen) < MAX_EMBEDDED_STEPS:
            chosen.add(step.key)
    return [step for step in by_cost if step.key in chosen]


def _choice(page: RunReport, section: StepSection) -> StepChoice:
    return StepChoice(section.place, f"{section.text.title} · loss {section.text.loss}", page.run.labels[section.place])


def serialize_figures(items: Mapping[str, LayoutDOM]) -> Markup:
    """Return all figures as one JSON document, so that they share axes and data; safe inside a script element."""
    document = Document()
    with document.models.freeze():  # else all models are looked for with each root
        for item in items.values():
            document.add_root(item)
    roots = {item.id: f"figures-{name}" for name, item in items.items()}
    text = serialize_json({"document": document.to_json(deferred=False), "roots": roots})
    for char in "<>&\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return Markup(text)


def _library() -> list[str]:
    """Return the scripts of BokehJS that the figures need."""
    scripts: list[str] = Resources(mode="inline", components=["bokeh"], minified=True).js_raw
    return [text.replace("</script", "<\\/script") for text in scripts]
