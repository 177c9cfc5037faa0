"""All answers of a lake, and what is wrong with those of a partial recording of a job."""

import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow.parquet as pq

import jitter
from jitter.api import Lake
from jitter.comparison.compare_documents import compare_documents, comparison_document, render_comparison_json
from jitter.comparison.document import Document
from jitter.comparison.runs import load_run
from jitter.query.diagnosis_rows import steps_table
from jitter.report.json_report import render_json, report_document
from jitter.report.markdown import render_markdown
from jitter.report.page import render_html
from jitter.report.text.step_table import format_steps
from jitter.report.views.run_overview import build_run_overview
from jitter.report.views.run_report import RunReport
from tests.torture.partial_recordings import KEEPS_ROWS, KEEPS_STEPS

STEP_TIME_TOLERANCE: Final = 0.03
"""Of a step's time: the median over ranks is of fewer ranks."""
CHANGE_TOLERANCE: Final = 0.03
"""A run is not slower or faster than itself by more than this part."""

Step = tuple[int | None, int]
Tables = dict[tuple[Step, int], tuple[str | None, list[int]]]
"""By step and rank the reference of the kernel index, and the durations of the kernels with an index."""


class Row(NamedTuple):
    """One GPU activity."""

    rank: int
    kernel_name: str
    start_ns: int
    end_ns: int
    kind: str


@dataclass(frozen=True)
class Whole:
    """What is known of a job, and of its whole recording."""

    rows: dict[Row, Step]
    step_times: dict[Step, list[int]]
    document: Document
    guilty: frozenset[int]
    """Ranks with a fault, and those that the whole recording names."""
    found: frozenset[int]
    """Ranks with a fault that the whole recording names above `low`."""
    tables: "Tables"
    recorded: frozenset[tuple[int, int]]
    """(rank, start) of every activity that the job ran, on the clock of the rows."""


@dataclass(frozen=True)
class Answers:
    """All answers of one lake."""

    rows: dict[Row, Step]
    """From the lake's files, without jitter."""
    kernels: int
    report: dict[str, Any]
    comparison: dict[str, Any] | None
    tables: "Tables"
    document: Document


def ask(root: Path, base: Document | None = None, *, with_page: bool = False) -> Answers:
    """Ask a lake for all answers in all forms; a page takes as long as the rest."""
    lake = jitter.open(root)
    results = lake.results()
    overview = build_run_overview(lake, lake.step_keys)
    render_json(results.diagnosis, overview)
    render_markdown(results.diagnosis, overview, lake.hosts)
    format_steps(steps_table(results.diagnosis.steps), 160)
    list(RunReport(lake).sections(lake.step_keys))
    lake.table(by="step")
    if with_page:
        render_html(lake)
    document = load_run(lake)
    comparison = None
    if base is not None:
        found = compare_documents([base], document)
        render_comparison_json(found)
        comparison = comparison_document(found)
    rows, kernels = read_rows(root)
    return Answers(rows, kernels, report_document(results.diagnosis, overview), comparison, _tables(lake), document)


def describe_crash(error: BaseException) -> str:
    """Return an exception with the place that raised it."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{error!r} at {last.filename}:{last.lineno}"


def _tables(lake: Lake) -> Tables:
    """Return the table of durations by rank; ask for all other tables too."""
    found: Tables = {}
    for key in lake.step_keys:
        for index in lake.kernel_indices(key):
            if index.members:
                for metric in ("gap", "ttke", "launch_latency"):
                    lake.table(metric, key, cohort=index.cohort, deviation=True)
                table = lake.table("duration", key, cohort=index.cohort)
                for member in index.members:
                    durations = table[f"rank_{member.rank}"].dropna().tolist()
                    found[tuple(key), member.rank] = index.reference, durations
    return found


def read_rows(root: Path) -> tuple[dict[Row, Step], int]:
    """Return the rows of a lake's parquet files with their steps, and the number of kernels, read without jitter."""
    found: dict[Row, Step] = {}
    kernels = 0
    for path in (root / "kernels").rglob("rank=*.parquet"):
        places = dict(part.split("=") for part in path.parent.relative_to(root / "kernels").parts)
        step = (int(places["epoch"]) if "epoch" in places else None, int(places["step"]))
        rows = [Row(**row) for row in pq.ParquetFile(path).read(Row._fields).to_pylist()]
        kernels += sum(row.kind != "memory" for row in rows)
        found |= dict.fromkeys(rows, step)
    return found, kernels


def step_times_of(whole: Answers) -> dict[Step, list[int]]:
    """Return possible times of each step of a whole recording: as answered, and by the rows on each rank.

    By the rows it lasts from the end of the rank's last collective in the step before to that in its own.
    """
    last: dict[tuple[int, Step], int] = {}
    for row, step in whole.rows.items():
        if row.kind == "collective":
            last[row.rank, step] = max(last.get((row.rank, step), 0), row.end_ns)
    found = {(one["epoch"], one["step"]): [one["step_time_ns"]] for one in whole.report["steps"] if one["step_time_ns"]}
    for (rank, (epoch, step)), end in last.items():
        if (rank, (epoch, step - 1)) in last:
            found.setdefault((epoch, step), []).append(end - last[rank, (epoch, step - 1)])
    return found


def find_wrong_answers(answers: Answers, whole: Whole, lost: dict[int, str]) -> Iterator[str]:
    """Yield what is wrong with the answers of a job of which `lost` says what ranks lost."""
    yield from _wrong_counts(answers, whole, lost)
    yield from _wrong_names(answers, whole, lost)
    yield from _wrong_times(answers, whole, lost)
    yield from _wrong_tables(answers, whole, lost)
    yield from _wrong_change(answers)


def _wrong_counts(answers: Answers, whole: Whole, lost: dict[int, str]) -> Iterator[str]:
    run = answers.report["run"]
    ranks = {row.rank for row in answers.rows}
    steps = set(answers.rows.values())
    if run["ranks"] != len(ranks) or run["kernels"] != answers.kernels or run["steps"] != len(steps):
        yield f"counts {run} of {len(ranks)} ranks, {answers.kernels} kernels, {len(steps)} steps"
    invented = [
        row
        for row in answers.rows
        if (row.rank, row.start_ns) not in whole.recorded and lost.get(row.rank, "") in {"", *KEEPS_ROWS}
    ]
    if invented:
        yield f"{len(invented)} rows that the job has not, such as {invented[0]}"
    moved = [
        (row, step)
        for row, step in answers.rows.items()
        if whole.rows.get(row, step) != step and lost.get(row.rank, "") in {"", *KEEPS_STEPS}
    ]
    if moved:
        yield f"{len(moved)} rows in another step, such as {moved[0]}"
    missed = [row for row in whole.rows if row.rank not in lost and row not in answers.rows]
    if missed and ranks - set(lost):
        yield f"{len(missed)} rows missed of ranks that lost nothing, such as {missed[0]}"


def _wrong_names(answers: Answers, whole: Whole, lost: dict[int, str]) -> Iterator[str]:
    report = answers.report
    ranks = {row.rank for row in answers.rows}
    steps = set(answers.rows.values())
    for step in report["steps"]:
        if (step["epoch"], step["step"]) not in steps:
            yield f"a step that is not in the lake: {step}"
        ran = {row.rank for row, its in answers.rows.items() if its == (step["epoch"], step["step"])}
        for which in ("min_rank", "max_rank"):
            if step[which] is not None and step[which] not in ran:
                yield f"{which} {step[which]} did not record the step: {step}"
    for share in report["split"]:
        if strange := {one["rank"] for one in share["ranks"]} - ranks:
            yield f"a share of ranks that are not in the lake: {strange}"
    damaged = {rank for rank, kind in lost.items() if kind != "ends early"}
    for culprit in report["culprits"]:
        named = set(culprit["ranks"])
        told = f"{culprit['scope']} {sorted(named)} {culprit['cause']} {culprit['confidence']} {culprit['steps']}"
        if culprit["seen"]["steps"] > culprit["seen"]["of"]:
            yield f"seen in more steps than there are: {told}, {culprit['seen']}"
        if culprit["scope"] == "unrecorded":
            if not set(lost) and named <= ranks:
                yield f"unrecorded ranks that are recorded: {told}"
            continue
        if named - ranks:
            yield f"a culprit that is not in the lake: {told}"
        if culprit["confidence"] == "low" or culprit["scope"] == "job":
            continue
        if innocent := named - whole.guilty - damaged:
            yield f"innocent rank {sorted(innocent)} named: {told}; {culprit['evidence'][:2]}"
    unexamined = (whole.found - ranks) | (whole.found - lost.keys())
    if unexamined and "rank" in report["conclusion"]["cleared"]:
        yield f"rank {sorted(unexamined)} cleared: {report['verdict']}"


def _wrong_times(answers: Answers, whole: Whole, lost: dict[int, str]) -> Iterator[str]:
    """Compare the times of steps of which most ranks show each row's step: without its launch a row may be moved."""
    sound = {(row.rank, step) for row, step in answers.rows.items() if lost.get(row.rank, "") in {"", *KEEPS_STEPS}}
    ranks_of = Counter(step for _, step in {(row.rank, step) for row, step in answers.rows.items()})
    sound_of = Counter(step for _, step in sound)
    for step in answers.report["steps"]:
        key = step["epoch"], step["step"]
        time, loss = step["step_time_ns"], step["loss_ns"]
        true = whole.step_times.get(key, []) if 2 * sound_of[key] > ranks_of[key] else []
        low, high = (1 - STEP_TIME_TOLERANCE) * min(true, default=0), (1 + STEP_TIME_TOLERANCE) * max(true, default=0)
        if time is not None and true and not low <= time <= high:
            yield f"step {step['step']} takes {time} ns, not {min(true)} to {max(true)}"
        if loss is not None and time is not None and loss > time:
            yield f"step {step['step']} loses {loss} of {time} ns"
    fraction = answers.report["loss"]["fraction"]
    if fraction is not None and not -STEP_TIME_TOLERANCE <= fraction <= 1:
        yield f"loss {answers.report['loss']}"


def _wrong_tables(answers: Answers, whole: Whole, lost: dict[int, str]) -> Iterator[str]:
    """Compare durations of ranks that lost nothing, where a cut of the others must not change the kernel index."""
    if not set(lost.values()) <= KEEPS_STEPS:
        return
    for (step, rank), (reference, durations) in answers.tables.items():
        as_whole, true = whole.tables.get((step, rank), (None, []))
        if rank not in lost and reference == as_whole and durations != true:
            yield f"table of step {step}, rank {rank}: {len(durations)} kernels of {len(true)}, or other times"


def _wrong_change(answers: Answers) -> Iterator[str]:
    found = answers.comparison
    if found is None or found["step_time"] is None or found["verdict"] == "same":
        return
    if abs(found["step_time"]["fraction"]) > CHANGE_TOLERANCE:
        yield f"compared with its whole recording: {found['sentence']}"
