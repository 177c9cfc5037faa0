"""The page of a report, for a written and a live page: text, tables and figures. Text from traces is escaped."""

import base64
import gzip
import json
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markdown_it import MarkdownIt
from markupsafe import Markup

from jitter import guide
from jitter._version import __version__
from jitter.analysis.diagnosis.loss.split import LOSS_CLASS_INFO, describe_ranks, list_classes
from jitter.analysis.diagnosis.loss.waterfall import RUNG_WORDS, list_costs
from jitter.analysis.diagnosis.model import StepAnswer
from jitter.analysis.diagnosis.verdict import write_jitter_verdict
from jitter.analysis.metrics.communication import SHARES
from jitter.api import Lake
from jitter.core.formatting import (
    abbreviate,
    capitalize,
    format_count,
    format_numbers,
    format_time,
)
from jitter.core.names.kernels import short_name
from jitter.core.step_key import StepKey
from jitter.report.figures.frame import read_script, stack_figures
from jitter.report.figures.kernels import (
    build_kernel_axis,
    draw_collective_sizes,
    draw_divergence,
    draw_kernel_map,
    draw_kernel_strip,
    draw_other_series,
    map_ceiling,
    map_columns,
    rank_columns,
    style_ranks,
    view_columns,
)
from jitter.report.figures.models import Model, library_file, serialize_document
from jitter.report.figures.steps import build_step_axis, draw_loss_by_class, draw_run
from jitter.report.markdown import render_markdown
from jitter.report.text.fix_list import (
    answer_questions,
    costliest_step,
    describe_finding,
    describe_rest,
    list_fixes,
    name_rows,
    write_headline,
)
from jitter.report.text.run_text import describe_alignment, describe_coverage, describe_excluded, describe_run
from jitter.report.text.step_text import describe_cause
from jitter.report.text.tables import percent_cell, render_cell, render_prose, render_sentences, time_cell
from jitter.report.views.run_report import RunReport, StepSection, StepTables
from jitter.report.views.step_view import KernelDurations, StepGrid

MAX_TABLE_ROWS: Final = 200
"""Rows of the table of steps."""
MAX_FIXES: Final = 6
"""Items of the fix list on the first screen; the others are folded."""

_MOST_OF_A_PATH: Final = 40
"""Characters of the lake's path above the headline."""
MAX_EMBEDDED_STEPS: Final = 6
"""Steps with embedded details."""
MAX_EMBEDDED_CULPRITS: Final = 3
"""Findings of which one step is always embedded."""


class Headline(NamedTuple):
    """The first lines of the page: what costs most, and rows of what it costs and what to do."""

    text: str
    rows: tuple[tuple[str, str], ...]
    is_calm: bool


def _shorten(path: Path) -> str:
    """Return a path that leaves room beside it: of a long one the last two parts."""
    return str(path) if len(str(path)) <= _MOST_OF_A_PATH else f"…/{'/'.join(path.parts[-2:])}"


@cache
def template_environment() -> Environment:
    """Return the Jinja2 environment with the templates and their filters."""
    environment = Environment(
        loader=PackageLoader("jitter.report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    environment.globals.update(version=__version__, parts=SHARES, rung_words=RUNG_WORDS, figure_words=read_script())
    environment.filters.update(
        ranges=format_numbers,
        time=format_time,
        prose=render_prose,
        sentences=render_sentences,
        cell=render_cell,
        time_cell=time_cell,
        percent_cell=percent_cell,
        short=short_name,
        count=format_count,
        brief=abbreviate,
        cause=describe_cause,
        ranks=describe_ranks,
        sentence=capitalize,
        loss_class=lambda loss_class: LOSS_CLASS_INFO[loss_class].words,
    )
    return environment


def render_html(lake: Lake, steps: Sequence[StepKey] | None = None) -> str:
    """Return the page for these steps of the lake; all by default."""
    report = RunReport(lake, steps)
    wanted = [step.key for step in choose_embedded_steps(report)] if report.steps else []
    return render_page(report, report.sections(wanted), live=False)


def choose_embedded_steps(report: RunReport) -> list[StepAnswer]:
    """Return the steps to embed: the headline's, then the costliest first, one of each of the first findings."""
    by_cost = [report.answer(key) for key in report.by_cost]
    findings = report.diagnosis.culprits[:MAX_EMBEDDED_CULPRITS]
    worst = [costliest_step(one, report.diagnosis) for one in findings]
    chosen: set[StepKey] = {by_cost[0].key, *(step.key for step in worst if step is not None)}
    for step in by_cost:
        if len(chosen) < MAX_EMBEDDED_STEPS:
            chosen.add(step.key)
    return [step for step in by_cost if step.key in chosen]


def render_page(
    report: RunReport, read: Iterable[tuple[StepGrid, StepSection, StepTables | None]], *, live: bool
) -> str:
    """Return the page with the details of the steps that are read, the first of them in view; none for no such step.

    A written page holds these steps, a live page fetches any other one.
    """
    title = str(report.lake.root)
    sections: list[StepSection] = []
    payloads: list[dict[str, Any]] = []
    durations = first_tables = None
    for grid, section, tables in read:
        if durations is None:
            durations, first_tables = report.durations(grid), tables
        sections.append(section)
        payloads.append(step_payload(report, grid, section, tables))
        del grid  # else it stays in memory while the next one is read
    if durations is None:
        return render_document(title, render_body(report, [], None, [], live=live), {}, live=live)
    places = range(len(report.run.steps)) if live else {section.place for section in sections}
    items = draw_figures(report, sections, durations, places)
    body = render_body(report, sections, first_tables, list(items), live=live)
    return render_document(title, body, items, page_data(report, payloads, durations, live=live), live=live)


def render_body(
    report: RunReport, sections: Sequence[StepSection], tables: StepTables | None, roots: Collection[str], *, live: bool
) -> Markup:
    """Return the body of the page, with placeholders for the figures.

    `sections` are the steps with details (of a live page only the first), `tables` those of the first, `roots` the
    names of the figures that exist.
    """
    lake, run, diagnosis, facts = report.lake, report.run, report.diagnosis, report.facts
    fixes = list_fixes(diagnosis, lake.cohorts, lake.root)
    waterfall = diagnosis.waterfall
    places = range(len(run.steps)) if live else [section.place for section in sections]
    content = {
        "lake": str(lake.root),
        "lake_in_short": _shorten(lake.root),
        "summary": describe_run(facts),
        "facts": facts,
        "diagnosis": diagnosis,
        "headline": find_first_lines(report),
        "verdict": diagnosis.verdict if diagnosis.hang is None else write_jitter_verdict(diagnosis),
        "fixes": fixes,
        "perfetto": next(((at, fix.export) for at, fix in enumerate(fixes, 1) if fix.is_jitter and fix.export), None),
        "most_fixes": MAX_FIXES,
        "waterfall": waterfall,
        "judged": list_costs(waterfall),
        "best_ns": next(
            (rung_time.step_time_ns for rung_time in reversed(waterfall) if rung_time.step_time_ns is not None), None
        ),
        "questions": answer_questions(diagnosis, lake.hosts, evidence=False),
        "alignment": describe_alignment(facts),
        "coverage": describe_coverage(facts),
        "remainder": describe_excluded(facts),
        "run": run,
        "excess": report.excess if roots else None,
        "serve": f"jitter serve {shlex.quote(str(lake.root))}",
        "sections": sections,
        "tables": tables,
        "choices": [(at, run.labels[at], run.steps[at]) for at in places],
        "lines": run.steps[:MAX_TABLE_ROWS],
        "classes": list_classes(run.steps),
        "roots": list(roots),
        "reading": how_to_read(),
        "live": live,
    }
    return Markup(template_environment().get_template("report.html.j2").render(content))


def find_first_lines(report: RunReport) -> Headline:
    """Return the headline with its rows: that of the diagnosis; of a run without findings, the verdict."""
    diagnosis = report.diagnosis
    first = diagnosis.headline
    if diagnosis.hang is not None:
        seen = name_rows("seen", diagnosis.hang.evidence)
        return Headline(diagnosis.hang.headline, (*seen, ("do", capitalize(diagnosis.hang.advice))), is_calm=False)
    if first is None:
        return Headline(diagnosis.verdict, (), is_calm=True)
    warm_up = (diagnosis.warm_up if diagnosis.culprits else None) or ""  # else the verdict says it
    beside = ("jitter", describe_rest(diagnosis)), ("warm-up", warm_up)
    # the recording is folded, and so is all further evidence
    rows = [row for row in describe_finding(first, diagnosis, 2) if row[0] != "look"]
    rows += [row for row in beside if row[1]]
    # where no rank is late, what all ranks lose alike is no alarm
    return Headline(write_headline(first), tuple(rows), is_calm=not diagnosis.culprits)


@cache
def how_to_read() -> Markup:
    """Return the guide's topic `reading` as HTML; raw HTML in it is escaped."""
    return Markup(MarkdownIt("commonmark", {"html": False}).render(guide.body("reading")))


def draw_figures(
    report: RunReport, sections: Sequence[StepSection], durations: KernelDurations, embedded: Collection[int]
) -> dict[str, Model]:
    """Draw the figures that have data by placeholder, with the first section in view.

    `embedded` are the positions of the steps that a click can show.
    """
    views = [section.view for section in sections]
    steps, kernels = build_step_axis(report.run, sections[0].place, embedded), build_kernel_axis(views[0])
    groups = {
        "run": draw_run(steps, report.excess, report.named),
        "kernels": draw_divergence(kernels, views),
        "split": [draw_loss_by_class(steps)] if any(step.by_class for step in report.run.steps) else [],
        "series": draw_other_series(kernels, views),
        "map": [] if views[0].map is None else [draw_kernel_map(kernels, views[0].map)],
        "strip": [draw_kernel_strip(durations, choose_kernel(report, durations))] if durations.kernel_index else [],
        "sizes": [draw_collective_sizes(kernels)] if any(view.collectives.sized for view in views) else [],
    }
    items: dict[str, Model] = {name: stack_figures(drawn, has_toolbar=False) for name, drawn in groups.items() if drawn}
    # sources without a renderer
    items["kernels"].update(tags=[*kernels.sources.values(), *kernels.chosen.values()])
    return items


def choose_kernel(report: RunReport, durations: KernelDurations) -> int:
    """Return the kernel to show first: where the first culprit or the costliest step begins to diverge."""
    first = report.diagnosis.headline
    began = report.diagnosis.costliest.divergence
    wanted = [
        *([] if began is None else [began.kernel_index]),
        *([] if first is None or first.kernel_index is None else [first.kernel_index.first]),
    ]
    return next((kernel for kernel in wanted if kernel in durations.kernel_index), durations.kernel_index[0])


def render_plain_page(template: str, title: str, items: Mapping[str, Model], **values: Any) -> str:
    """Return a page that is no report: its body is this template with these values, and the title."""
    body = template_environment().get_template(template).render(title=title, is_drawn=bool(items), **values)
    return render_document(title, Markup(body), items)


def render_document(
    title: str, body: Markup, items: Mapping[str, Model], data: Markup | None = None, *, live: bool = False
) -> str:
    """Return a page that needs no network, unless `live`: `body` has an element `figures-<name>` for each figure.

    `data` is what the script of a report reads; None for a page of another kind.
    """
    return (
        template_environment()
        .get_template("page.html.j2")
        .render(
            title=title,
            body=body,
            is_drawn=bool(items),
            figures=serialize_figures(items),
            data=data,
            library="" if live else _library(),
            live=live,
        )
    )


@cache
def _library() -> str:
    """Return BokehJS, compressed to a quarter, as base64."""
    return base64.b64encode(gzip.compress(library_file().read_bytes(), mtime=0)).decode()


def serialize_figures(items: Mapping[str, Model]) -> Markup:
    """Return all figures as one JSON document, so that they share axes and data; safe inside a script element."""
    return script_json(serialize_document({f"figures-{name}": item for name, item in items.items()}))


def script_json(text: str) -> Markup:
    """Return JSON that is safe inside a script element."""
    for char in "<>&\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return Markup(text)


def render_step(section: StepSection, ranks: Sequence[int] = ()) -> tuple[Markup, Markup]:
    """Return the legend and the text of a step; `ranks` have lines of their own."""
    environment = template_environment()
    given = {"section": section, "lines": style_ranks(ranks)}
    return tuple(Markup(environment.get_template(f"{name}.html.j2").render(given)) for name in ("key", "step"))  # type: ignore[return-value]


def render_tables(tables: StepTables) -> Markup:
    return Markup(template_environment().get_template("step_tables.html.j2").render(tables=tables))


def step_payload(
    report: RunReport, grid: StepGrid, section: StepSection, tables: StepTables | None = None, ranks: Sequence[int] = ()
) -> dict[str, Any]:
    """Return what the page needs to show a step, as plain data: columns of the figures by source, and HTML.

    Raises `UsageError` for ranks that the step lacks.
    """
    view = section.view
    columns = view_columns(view) | ({} if view.map is None else map_columns(view.map))
    key, text = render_step(section, ranks)
    return {
        "place": section.place,
        "label": report.run.labels[section.place],
        "columns": encode(columns),
        "chosen": encode(rank_columns(grid, ranks)),
        "ceiling": None if view.map is None else map_ceiling(view.map, view.scale_ns),
        "key": key,
        "text": text,
        "tables": None if tables is None else render_tables(tables),
    }


def durations_payload(durations: KernelDurations) -> dict[str, Any]:
    """Return durations of kernels as plain data."""
    return {
        "kernels": list(durations.kernel_index),
        "names": [short_name(name) for name in durations.names],
        "ranks": list(durations.ranks),
        "steps": [str(key.step) for key in durations.steps],
        "duration_ns": encode(durations.duration_ns),
    }


def page_data(
    report: RunReport, steps: Sequence[Mapping[str, Any]], durations: KernelDurations, *, live: bool
) -> Markup:
    """Return what the page's script reads, as JSON."""
    markdown = render_markdown(report.diagnosis, report.facts, report.lake.hosts)
    payload = {"live": live, "steps": list(steps), "durations": durations_payload(durations), "markdown": markdown}
    return script_json(json.dumps(payload, allow_nan=False, separators=(",", ":")))


def encode(value: Any) -> Any:
    """Return plain data with arrays as base64 of their bytes, little-endian; `page.js` reads them."""
    if isinstance(value, Mapping):
        return {key: encode(element) for key, element in value.items()}
    if isinstance(value, np.ndarray):
        small = value.astype({"int64": np.int32, "bool": np.int8}.get(value.dtype.name, value.dtype))
        text = base64.b64encode(np.ascontiguousarray(small).tobytes()).decode()
        return {"b64": text, "dtype": small.dtype.name, "shape": list(small.shape)}
    return [encode(element) for element in value] if isinstance(value, (list, tuple)) else value
