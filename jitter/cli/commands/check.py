"""`jitter check`: fail a job whose run exceeds a limit."""

from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from jitter.cli.options import json_option, lake_argument, steps_option
from jitter.core.errors import ExitCode, JitterError, UsageError

if TYPE_CHECKING:
    from jitter.comparison.compare_documents import Comparison
    from jitter.comparison.document import Document
    from jitter.comparison.gates import Gate, GateName

CHECK_SCHEMA_VERSION = 1
HISTORY_PREFIX = "history:"
DEFAULT_LAST = 10
"""Runs of the history that a run is checked against."""
Limits = dict["GateName", Any]
"""By gate that the command line asks for its limit: a fraction, of `max-loss` by rung; for `fail-on` the causes."""


@click.command
@lake_argument
@click.option(
    "--max-loss",
    metavar="LIMIT",
    help="Largest loss to jitter, as a part of the run's time: 5%. 5%,steps=10% limits a rung of the waterfall, too.",
)
@click.option(
    "--baseline",
    metavar="BASE",
    help="A lake, a file of `jitter export --baseline`, or history:JOB (`jitter history`).",
)
@click.option(
    "--max-regression",
    metavar="LIMIT",
    help="Largest increase of the median step, and of the mean step, against the baseline: 3%.",
)
@click.option("--last", type=click.IntRange(min=1), help="Of history:JOB: compare with the last N runs. Default: 10.")
@click.option("--fail-on", metavar="CAUSES", help="Causes that fail the run if a finding of high confidence has one.")
@steps_option
@click.option("--accept-unknown", is_flag=True, help="Exit with 0 if a limit cannot be measured.")
@json_option
@click.option("--markdown", "as_markdown", is_flag=True, help="Print Markdown, for the summary of a job.")
def check(
    lake: Path,
    max_loss: str | None,
    baseline: str | None,
    max_regression: str | None,
    last: int | None,
    fail_on: str | None,
    steps: list[int] | None,
    accept_unknown: bool,
    as_json: bool,
    as_markdown: bool,
) -> ExitCode:
    """Check a run against limits and print one line: PASS (exit 0), FAIL (exit 1) or UNKNOWN (exit 3).

    Of several limits the worst result counts. `jitter explain exit-codes` lists what the shell sees.

    \b
    Examples:
        jitter check --max-loss 5%
        jitter check --max-loss 5%,steps=10%,overlap=20%
        jitter check run17-lake --baseline base.json --max-regression 3%
        jitter check run17-lake --fail-on gpu_compute,communication
        jitter check run17-lake --baseline history:gpt-13b --last 10 --max-regression 3% --markdown
    """
    from jitter.cli.output.stdio import print_text
    from jitter.comparison.gates import Result, parse_causes, parse_limit, parse_losses, worst

    limits: Limits = {}
    if max_loss is not None:
        limits["max-loss"] = parse_losses(max_loss)
    if max_regression is not None:
        limits["max-regression"] = parse_limit(max_regression, "--max-regression")
    if fail_on is not None:
        limits["fail-on"] = parse_causes(fail_on)
    if not limits:
        raise UsageError("nothing to check", "give --max-loss, --baseline with --max-regression, or --fail-on")
    if (baseline is None) != (max_regression is None):
        raise UsageError("--baseline and --max-regression belong together", "give both")
    past = baseline.removeprefix(HISTORY_PREFIX) if baseline and baseline.startswith(HISTORY_PREFIX) else None
    if last is not None and past is None:
        raise UsageError("--last is for a baseline from the history", "write --baseline history:JOB")
    if as_json and as_markdown:
        raise UsageError("--json and --markdown are two forms", "give one of them")
    failure: JitterError | None = None
    try:
        run, comparison, gates = _measure(lake, baseline, past, last or DEFAULT_LAST, steps, limits)
    except UsageError:
        raise
    except JitterError as error:
        failure, run, comparison, gates = error, None, None, _unknown(limits, error.message)
    print_text(_render(gates, run, comparison, as_json=as_json, as_markdown=as_markdown))
    if failure is not None:
        # neither damage nor a full disk is a measurement: no option turns it into success
        raise failure
    result = worst(gates)
    if result == Result.FAIL:
        return ExitCode.GATE_EXCEEDED
    return ExitCode.DONE if result == Result.PASS or accept_unknown else ExitCode.UNUSABLE_INPUT


def _measure(
    lake: Path, baseline: str | None, past: str | None, last: int, steps: list[int] | None, limits: Limits
) -> "tuple[Document | None, Comparison | None, list[Gate]]":
    from jitter.cli.lakes import damaged_files, open_prepared
    from jitter.comparison.compare_documents import compare_documents
    from jitter.comparison.gates import check_findings, check_regression, check_rung
    from jitter.comparison.runs import load_run

    damaged_files().forbid()
    needed = {"lake": lake} if baseline is None or past is not None else {"lake": lake, "baseline": Path(baseline)}
    for what, path in needed.items():
        if not path.exists():  # a first run has no baseline yet
            return None, None, _unknown(limits, f"there is no {what} {path}")
    bases, missing = [load_run(needed["baseline"], open_lake=open_prepared)] if "baseline" in needed else [], ""
    run = load_run(lake, steps, beside=bases, open_lake=open_prepared)
    if past is not None:
        bases, missing = _load_past_runs(past, last, run)
    gates, comparison = [], None
    for gate, limit in limits.items():
        if gate == "max-loss":
            gates += [check_rung(run, rung, at_most) for rung, at_most in limit.items()]
        elif gate == "fail-on":
            gates.append(check_findings(run, limit))
        elif bases:
            comparison = compare_documents(bases, run)
            gates.append(check_regression(comparison, limit))
        else:
            gates += _unknown({gate: limit}, missing)
    return run, comparison, gates


def _load_past_runs(job: str, last: int, run: "Document") -> "tuple[list[Document], str]":
    """Return the documents of the last runs of a job in the history, without `run` itself, and why there is none."""
    from jitter.history.database import Database, history_location
    from jitter.history.runs import list_runs, read_documents

    if not job:
        raise UsageError("--baseline history: names no job", "write --baseline history:JOB")
    with closing(Database(history_location(None))) as database:
        try:
            runs = [past_run for past_run in list_runs(database, job) if past_run.digest != run.digest]
        except UsageError as error:
            return [], f"{error.message} ({error.hint})"
        return read_documents(database, runs[-last:]), f"the baseline {HISTORY_PREFIX}{job} has no other run"


def _unknown(limits: Limits, why: str) -> "list[Gate]":
    """Return each gate as not measured."""
    from jitter.comparison.gates import unknown_gate

    gates = []
    for gate, limit in limits.items():
        by_rung = limit if gate == "max-loss" else {None: None if gate == "fail-on" else limit}
        gates += [unknown_gate(gate, at_most, why, rung) for rung, at_most in by_rung.items()]
    return gates


def _render(
    gates: "list[Gate]", run: "Document | None", comparison: "Comparison | None", *, as_json: bool, as_markdown: bool
) -> str:
    from jitter.comparison.gates import worst, write_line

    if as_markdown:
        from jitter.report.comparison import render_check_markdown

        return render_check_markdown(gates, comparison)
    if not as_json:
        return write_line(gates) + "\n"
    import msgspec

    from jitter.core.formatting import format_json

    document: dict[str, Any] = {
        "schema_version": CHECK_SCHEMA_VERSION,
        "result": worst(gates).name.lower(),
        "line": write_line(gates),
        "gates": [asdict(gate) | {"result": gate.result.name.lower()} for gate in gates],
        "verdict": None if comparison is None else comparison.verdict,
        "culprits": [] if run is None else [msgspec.to_builtins(finding) for finding in run.culprits],
    }
    return format_json(document)
