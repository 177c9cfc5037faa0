"""The report in a terminal: one screen, the answer first, and no number that the JSON does not have."""

import io
import json
import re
from pathlib import Path

import pytest
from rich.console import Console

import jitter
from jitter.analysis.diagnosis.causes import CAUSES
from jitter.core.formatting import format_percent, format_time
from jitter.report.json_report import render_json
from jitter.report.terminal import MAX_LINES, print_report
from jitter.report.views.run_overview import build_run_overview
from jitter.simulate import Fault, Job, simulate
from tests.support.simulated import ingest_run, small

JOBS: dict[str, tuple[Job, list[str]]] = {
    "healthy": (small(ranks=8, steps=5), []),
    "pause": (small(ranks=8, steps=6), ["cpu_stall:rank=5,step=3,kernel=17,ms=3"]),
    "two slow GPUs": (small(ranks=8, steps=6), ["slow_gpu:rank=1+6,factor=1.4"]),
    "many findings": (
        small(ranks=16, steps=8),
        [f"slow_gpu:rank={rank},steps={rank}-{rank + 1},factor=2" for rank in range(6)] + ["late_end:rank=9,ms=4"],
    ),
    "slow collectives": (small(ranks=4, steps=8), ["slow_collective:steps=4-5,factor=20"]),
    "one step": (small(ranks=4, steps=1), ["slow_gpu:rank=1,factor=2"]),
    "one rank": (small(ranks=1, steps=7), ["cpu_stall:rank=0,step=4,kernel=9,ms=5"]),
}


NUMBER = re.compile(r"[\d.]+ (?:ns|µs|ms|s)\b|[<\d.]+%")


def screen(lake: "jitter.Lake", width: int, *, verbose: bool = False) -> list[str]:
    out = io.StringIO()
    console = Console(file=out, width=width)
    print_report(lake.diagnose(), build_run_overview(lake, lake.step_keys), lake.hosts, console, verbose=verbose)
    lines = out.getvalue().splitlines()
    assert lines == [line.rstrip() for line in lines]  # nothing pads a pipe
    return lines


@pytest.fixture(scope="module", params=JOBS)
def lake(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> "jitter.Lake":
    job, faults = JOBS[request.param]
    run = simulate(job, [Fault.parse(fault) for fault in faults])
    return ingest_run(run, tmp_path_factory.mktemp("terminal"), "nsys")


@pytest.mark.parametrize("width", [60, 160])
def test_the_report_fits_a_screen(lake: "jitter.Lake", width: int) -> None:
    lines = screen(lake, width)
    assert len(lines) <= MAX_LINES == 25
    assert max(map(len, lines)) <= width


def test_the_first_line_is_the_answer(lake: "jitter.Lake") -> None:
    first = screen(lake, 200)[0]
    diagnosis = lake.diagnose()
    above_noise = [one for one in diagnosis.culprits if one.confidence != "low"]
    costliest = max(above_noise or diagnosis.findings, key=lambda one: one.loss_ns, default=None)
    if costliest in diagnosis.culprits:
        assert any(str(rank) in first for rank in costliest.ranks) or costliest.scope == "job"
        assert f"{costliest.seen.steps} of {costliest.seen.of} step" in first or "the only step" in first
    elif costliest is not None:
        assert first.startswith(f"All ranks: {CAUSES[costliest.cause].words}")
        if not diagnosis.culprits:
            cost, _, program = diagnosis.verdict.partition(". All ranks ")
            assert f"jitter     {cost.removeprefix('Jitter costs ')}." in screen(lake, 1000)
            assert f"it costs {format_time(costliest.loss_ns)}" in program
    else:
        assert diagnosis.verdict.startswith(first)


def test_each_number_is_one_of_the_json(lake: "jitter.Lake") -> None:
    """Times and percentages of cost and steps are those of the JSON, written as everywhere."""
    lines = screen(lake, 250)
    found = json.loads(render_json(lake.diagnose(), build_run_overview(lake, lake.step_keys)))
    times, shares = {found["loss"]["ns"]}, {found["loss"]["fraction"]}
    for one in found["culprits"]:
        times |= {one["loss_ns"], one["gain_ns"]}
        shares.add(one["fraction"])
    for step in found["steps"]:
        times.add(step["step_time_ns"])
        shares.add(step["loss_fraction"])
    known = {format_time(ns) for ns in times} | {format_percent(share) for share in shares}
    known |= {number for one in found["culprits"] for line in one["evidence"] for number in NUMBER.findall(line)}
    start = next((n for n, line in enumerate(lines) if line.split()[:2] == ["step", "time"]), len(lines))
    end = next((n for n, line in enumerate(lines) if n > start and line.startswith("run ")), len(lines))
    checked = [line for line in lines if line.startswith(("cost ", "also "))] + lines[start + 1 : end]
    for line in checked:
        for number in NUMBER.findall(line):
            assert number in known, line
    assert checked or not found["culprits"]


def test_all_evidence_is_one_option_away(lake: "jitter.Lake") -> None:
    words = " ".join(" ".join(screen(lake, 200, verbose=True)).split())
    assert lake.diagnose().verdict in words
    assert "How much does jitter cost?" in words
    for one in lake.diagnose().culprits[:3]:
        assert all(line in words for line in one.evidence)


def test_a_pause_is_told_with_its_place_and_what_to_do(tmp_path: Path) -> None:
    job, faults = JOBS["pause"]
    lake = ingest_run(simulate(job, [Fault.parse(faults[0])]), tmp_path, "nsys")
    lines = screen(lake, 300)
    assert lines[0].startswith("Rank 5 (node0002): late kernel launches (CPU), kernel 17, 1 of 6 steps")
    heads = [line.split("  ")[0] for line in lines if not line.startswith(" ")]
    assert heads[1:7] == ["cost", "CPU", "where", "look", "do", "again"]
    assert any(re.match(r"look +\S*rank5\.sqlite  \d+\.\d{4} s to \d+\.\d{4} s$", line) for line in lines)
    [step] = [line for line in lines if "█" in line]
    assert re.search(r"\b3 .* 5  █{20}$", step)
