"""`jitter ingest`: read traces into a lake."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from jitter.cli.options import (
    PATH,
    choose_executor,
    quiet_option,
    reading_options,
    same_job_option,
    scheduler_options,
)
from jitter.cli.output.stdio import byte_progress, say
from jitter.core.errors import ExitCode, JitterError, RejectedForAnotherError
from jitter.core.formatting import escape_control, format_count
from jitter.core.grouping import by_key
from jitter.lake import DEFAULT_LAKE

if TYPE_CHECKING:
    from jitter.ingestion.ingest import IngestReport, RejectedSource
    from jitter.lake.records import SourceRecord

_MAX_WARNINGS = 20
_MOST_ALIKE: Final = 3
"""Errors, or warnings, of files for one reason that are each printed."""
_NUMBER: Final = re.compile(r"\d[\d,.]*")
NO_TRACES_HINT: Final = "  which recordings jitter reads: jitter explain recording"


@click.command
@click.argument("paths", nargs=-1, required=True, type=PATH)
@click.option(
    "-o",
    "--output",
    "lake",
    type=PATH,
    default=DEFAULT_LAKE,
    show_default=True,
    help="Lake to write to; created if missing.",
)
@reading_options
@click.option("--label", metavar="NAME", help="Name of what the logs belong to. Default: the folder of each.")
@click.option(
    "--replace",
    is_flag=True,
    help="If two sources hold the same rank and step, keep the newer; replace another job; read damaged sources again.",
)
@same_job_option
@scheduler_options("Convert")
@click.option("--strict", is_flag=True, help="Exit 3 if any trace was left out.")
@quiet_option
def ingest(paths: tuple[Path, ...], lake: Path, strict: bool, **options: Any) -> ExitCode:
    """Read traces into a lake: one Parquet file per GPU and step.

    PATHS are files and directories of any supported formats; directories are searched recursively. A second run adds
    only new traces. A lake holds one job: traces of another job are left out. Logs of the job (NCCL, nccl-tests,
    nvidia-smi, …) go into the lake too.

    \b
    Examples:
        jitter ingest traces/
        jitter ingest node*/ -o /scratch/run17-lake
        jitter ingest odd.sqlite --rank 12
        jitter ingest traces/ --rank-map ranks.csv
        jitter ingest traces/ --step-pattern 'batch (?P<step>\\d+)'
        jitter ingest nccl-tests.log --label fabric-baseline
        jitter ingest traces/ --scheduler tcp://head-node:8786
    """
    return print_ingest_report(run_ingest(paths, lake, **options), paths, strict)


def run_ingest(
    paths: tuple[Path, ...],
    lake: Path,
    *,
    quiet: bool,
    jobs: int | None = None,
    scheduler: str | None = None,
    wait_s: float = 60,
    **options: Any,
) -> "IngestReport":
    """Ingest `paths` into `lake` with a progress bar; raises as `jitter.ingest` does."""
    from jitter.cli.lakes import check_lake_path

    check_lake_path(lake)
    executor = choose_executor(jobs, scheduler, wait_s)
    from jitter.ingestion import are_worth_workers, worker_modules

    if scheduler is None and (are_worth_workers(paths) if jobs is None else jobs > 1):
        from jitter.core.parallel.processes import server_context

        # the fork server imports on another core what this process imports too
        server_context(*worker_modules())
    from jitter.core.arrow import hide_pandas
    from jitter.ingestion.ingest import ingest as ingest_traces

    hide_pandas()

    with byte_progress("Reading", quiet) as progress:
        return ingest_traces(paths, lake, executor=executor, progress=progress, **options)


def print_ingest_report(report: "IngestReport", paths: Iterable[Path], strict: bool) -> ExitCode:
    """Print what was added and what was left out of `paths`; return the exit code."""
    for error, alike in _once_per_cause(report.rejected):
        # an inspect reads each file by itself, and knows nothing of the lake's job
        where = "" if isinstance(error, RejectedForAnotherError) else "; jitter inspect lists them"
        others = f" (and {format_count(alike - 1, 'more recording')} for the same reason{where})" if alike > 1 else ""
        say(f"left out: {error.message}{others}")
        if error.hint:
            say(f"  {error.hint}")
    for line in _warnings(report):
        say(f"note: {line}")
    _print_totals(report, paths)
    is_usable = report.added or report.unchanged or report.logs.added or report.logs.unchanged
    is_undecided = report.jobs is not None and report.jobs.taken is None
    if not is_usable or is_undecided or (strict and report.refused) or report.traces_left_out > report.traces_taken:
        return ExitCode.UNUSABLE_INPUT
    return ExitCode.DONE


def print_earlier_recordings(sources: "Iterable[SourceRecord]", report: "IngestReport") -> None:
    """Say which steps a report on the ingested traces covers besides theirs: `sources` are those of the whole lake."""
    from jitter.ingestion.ranks.jobs import describe_job

    given = {str(source.path.resolve()) for source in report.found.sources}
    if earlier := [record for record in sources if record.rank is not None and record.file not in given]:
        say(f"note: the report is about the whole lake, which also holds {describe_job(earlier)}")
        say("  for a report on these traces alone: another lake, `jitter report -L LAKE`, or --steps")


def _once_per_cause(rejected: "Sequence[RejectedSource]") -> list[tuple[JitterError, int]]:
    """Return the errors, of those with one cause the first alone, each with the number of errors it stands for.

    Up to three errors that differ in the file and in numbers are each returned.
    """
    of_cause: dict[str, dict[JitterError, None]] = {}
    for source in rejected:
        error = source.error
        if isinstance(error, RejectedForAnotherError):
            cause = error.cause
        else:
            cause = _NUMBER.sub("N", str(error).replace(str(source.path), ""))
        of_cause.setdefault(cause, {})[error] = None
    counted: list[tuple[JitterError, int]] = []
    for alike in map(list, of_cause.values()):
        is_printed_once = isinstance(alike[0], RejectedForAnotherError) or len(alike) > _MOST_ALIKE
        counted += [(alike[0], len(alike))] if is_printed_once else [(error, 1) for error in alike]
    return counted


def _warnings(report: "IngestReport") -> list[str]:
    """Return each warning once, with the number of sources it holds for.

    Of more than three that differ in numbers the first is returned.
    """
    # a warning about a recording begins with its path
    warnings = [("recording", *line.partition(": ")[::2]) for line in report.warnings]
    warnings += [("rank", record.file, problem) for record in report.added for problem in record.problems]
    of_kind = by_key(((what, _NUMBER.sub("N", text or file)), (text or file, file)) for what, file, text in warnings)
    lines = []
    for (what, _), alike in of_kind.items():
        files_of_text, likewise = by_key(alike), ""
        if len(files_of_text) > _MOST_ALIKE:
            files_of_text, likewise = {alike[0][0]: [file for _, file in alike]}, ", with other numbers"
        for text, files in files_of_text.items():
            more = f" (and {format_count(len(files) - 1, f'more {what}')}{likewise})" if len(files) > 1 else ""
            lines.append(f"{text if files[0] == text else f'{files[0]}: {text}'}{more}")
    lines += [f"{record.file}: {escape_control(text)}" for record in report.logs.added for text in record.problems]
    if len(lines) > _MAX_WARNINGS:
        rest_count = len(lines) - _MAX_WARNINGS
        lines = [*lines[:_MAX_WARNINGS], f"{rest_count} more notes; all are in {report.lake / 'sources'}"]
    return lines


def _print_totals(report: "IngestReport", paths: Iterable[Path]) -> None:
    logs, lake = report.logs, report.lake
    parts = []
    if report.added:
        ranks = {record.rank for record in report.added}
        steps = {step.key for record in report.added for step in record.steps}
        kernels = sum(step.kernels for record in report.added for step in record.steps)
        counted = ((len(ranks), "rank"), (len(steps), "step"), (kernels, "kernel"))
        parts.append(f"{', '.join(format_count(*count) for count in counted)} added to {lake}")
    if logs.added:
        parts.append(f"{format_count(len(logs.added), 'log')} added to {lake}")
    if logs.unchanged:
        parts.append(f"{format_count(logs.unchanged, 'log was', 'logs were')} in {lake} already")
    if report.unchanged:
        parts.append(f"{format_count(report.unchanged, 'source was', 'sources were')} in {lake} already")
    is_empty = not parts
    if report.refused:
        parts.append(f"{sum(error.files for error in report.refused)} left out")
    if is_empty:
        parts.append("nothing to read" if report.refused else f"no traces in {', '.join(map(str, paths))}")
    if report.other_files:
        parts.append(format_count(report.other_files, "other file"))
    say("; ".join(parts))
    if is_empty and not report.refused:
        say(NO_TRACES_HINT)
