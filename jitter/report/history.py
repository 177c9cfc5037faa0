"""The history of a job as rows, sentences, JSON, and a page in which each run opens its comparison."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final

from jitter.analysis.diagnosis.loss.waterfall import RUNG_WORDS
from jitter.analysis.diagnosis.model import RUNGS
from jitter.comparison.compare_documents import compare_documents
from jitter.comparison.document import Document
from jitter.comparison.significance import MIN_RUNS
from jitter.core.formatting import format_count, format_pace, format_percent, format_time
from jitter.history.change_points import ChangePoint, find_outside
from jitter.history.runs import HistoryRun, format_date, format_labels
from jitter.report.comparison import build_tables
from jitter.report.text.tables import Column, Table, build_table, measure_percent, measure_time

HISTORY_SCHEMA_VERSION: Final = 1
_BASES: Final = 5
"""Runs before a run that it is compared with."""
_MOST_COMPARED: Final = 60
"""Runs, the last ones, that have a comparison in the page."""
_MOST_ROWS: Final = 10
_UNITS: Final = ("rank", "gpu", "node")
"""What a label counts that is called so, in the plural."""


def tabulate_runs(runs: Sequence[HistoryRun]) -> Table:
    """Return one row a run, of all jobs."""
    columns = (
        Column("job", "job"),
        Column("run", "name", is_text=True),
        Column("added", "added_ns", format_date),
        Column("ranks", "ranks"),
        Column("steps", "steps"),
        Column("step time", "step_time_ns", measure_time),
        Column("loss", "loss_fraction", measure_percent),
        Column("change", "change", format_change),
        Column("labels", format_labels, is_text=True),
    )
    return build_table("", columns, runs)


def tabulate_job(runs: Sequence[HistoryRun], documents: Sequence[Document]) -> Table:
    """Return one row a run of one job, with its findings and its waterfall; what fits a terminal comes first."""
    document_of = {run.digest: document for run, document in zip(runs, documents, strict=True)}

    def part_of(part: str, words: str) -> Column:
        return Column(words, lambda run: waterfall_parts(document_of[run.digest])[part], measure_time)

    columns = (
        Column("run", "title"),
        Column("step time", "step_time_ns", measure_time),
        Column("loss", "loss_fraction", measure_percent),
        Column("change", "change", format_change),
        Column("findings", lambda run: describe_findings(document_of[run.digest]), is_text=True),
        *(part_of(rung, RUNG_WORDS[rung]) for rung in RUNGS[1:]),
        part_of("best", "at best"),
    )
    return build_table("", columns, runs)


def describe_history(runs: Sequence[HistoryRun], documents: Sequence[Document]) -> list[str]:
    """Return sentences on the change points of one job, and on its scaling."""
    sentences = [
        f"Changed with {run.title} ({format_date(run.added_ns)}): {describe_change(run.change)}."
        for run in runs
        if run.change is not None
    ]
    times_ns = [run.step_time_ns for run in runs]
    if (last := find_outside(times_ns)) is not None:
        sentences.append(
            f"The last run, {runs[last.run].title}, is outside the spread of the runs before: {describe_change(last)}. "
            "The next run tells whether the step time changed."
        )
    if (timed := len(runs) - times_ns.count(None)) <= MIN_RUNS:
        few = format_count(timed, "run")
        sentences = [f"{few} cannot tell a change from the spread between runs: add {MIN_RUNS + 1 - timed} more."]
    sentences = sentences or ["No change of the step time beyond the spread between runs."]
    return [*sentences, *describe_scaling(runs, documents)]


def describe_scaling(runs: Sequence[HistoryRun], documents: Sequence[Document]) -> list[str]:
    """Return how the throughput that logs state grows with the ranks, and its efficiency against the fewest.

    Where neither traces nor logs state the ranks of a run, its label `ranks`, `gpus` or `nodes` does. Of several runs
    of one size the last one counts.
    """
    rates: dict[str, dict[int, float]] = defaultdict(dict)
    for run, document in zip(runs, documents, strict=True):
        labels = {unit: int(run.labels[f"{unit}s"]) for unit in _UNITS if run.labels.get(f"{unit}s", "").isdecimal()}
        for entry in document.throughput:
            ranks = entry.ranks or run.ranks
            sizes = {"rank": ranks} if ranks else labels
            if entry.samples_per_s and sizes:
                unit, size = next(iter(sizes.items()))
                rates[unit][size] = entry.samples_per_s
    return [_describe_rates(unit, of_unit) for unit, of_unit in rates.items() if len(of_unit) > 1 and min(of_unit) > 0]


def _describe_rates(unit: str, rates: Mapping[int, float]) -> str:
    fewest = min(rates)
    rate_texts = [
        f"{rate:,.0f} samples/s on {format_count(size, unit)}"
        + (f" ({format_percent(rate / size / (rates[fewest] / fewest))} per {unit})" if size != fewest else "")
        for size, rate in sorted(rates.items())
    ]
    return f"Scaling, by the logs: {', '.join(rate_texts)}."


def waterfall_parts(document: Document) -> dict[str, int | None]:
    """Return what a step loses on each rung, and what it takes at best, ns; None where it is not judged.

    A baseline of an earlier version has none.
    """
    lost: dict[str, int | None] = {entry.rung: entry.loss_ns for entry in document.waterfall}
    judged = [entry.step_time_ns for entry in document.waterfall if entry.step_time_ns is not None]
    return {**{rung: lost.get(rung) for rung in RUNGS[1:]}, "best": judged[-1] if judged else None}


def describe_change(change: ChangePoint) -> str:
    return f"{format_pace(change.fraction)}, {format_time(change.before_ns)} to {format_time(change.after_ns)} a step"


def describe_findings(document: Document) -> str:
    """Return the findings of a run in a few words."""
    phrases = [f"{finding.name}: {finding.cause_in_words}" for finding in document.culprits[:2]]
    return "; ".join([*phrases, "…"] if len(document.culprits) > 2 else phrases) or "none"


def format_change(change: ChangePoint | None) -> str:
    """Return the mark of a change point; empty for none."""
    if change is None:
        return ""
    return f"{'▲' if change.fraction > 0 else '▼'} {format_percent(abs(change.fraction))}"


def history_document(runs: Sequence[HistoryRun]) -> dict[str, Any]:
    """Return the list of runs as plain data; times in ns."""
    return {
        "schema_version": HISTORY_SCHEMA_VERSION,
        "runs": [
            {
                "job": run.job,
                "run": run.name,
                **{name: getattr(run, name) for name in ("digest", "added_ns", "ranks", "steps", "step_time_ns")},
                "loss_fraction": run.loss_fraction,
                "labels": dict(run.labels),
                "change": run.change
                and {
                    "before_ns": round(run.change.before_ns),
                    "after_ns": round(run.change.after_ns),
                    "fraction": run.change.fraction,
                },
            }
            for run in runs
        ],
    }


def render_history_html(job: str, runs: Sequence[HistoryRun], documents: Sequence[Document]) -> str:
    """Return the page: the runs' step time, loss and split, the change points, the comparison of each run."""
    from jitter.report.figures.runs import draw_history
    from jitter.report.page import render_plain_page

    sections = []
    for at in range(max(0, len(runs) - _MOST_COMPARED), len(runs)):
        sentence, tables = "The first run of the job.", list[Table]()
        if bases := documents[max(0, at - _BASES) : at]:
            comparison = compare_documents(bases, documents[at])
            sentence, tables = comparison.sentence, build_tables(comparison, _MOST_ROWS)
        title = f"{runs[at].name}, {format_date(runs[at].added_ns)} {format_change(runs[at].change)}".strip()
        section = {"run": runs[at], "title": title, "labels": format_labels(runs[at])}
        sections.append(section | {"sentence": sentence, "tables": tables})
    return render_plain_page(
        "history.html.j2",
        f"history of {job}",
        {"history": draw_history(runs, documents)},
        sentences=describe_history(runs, documents),
        runs=tabulate_job(runs, documents),
        sections=sections,
    )
