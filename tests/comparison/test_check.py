"""`jitter check`: the line, the exit codes, and what never is 0 or 1."""

import json
import os
import re
import shutil

import msgspec
import numpy as np
import pytest

import jitter
from jitter.cli import main
from jitter.comparison.compare_documents import compare_documents
from jitter.comparison.document import StepEntry, decode_document
from jitter.comparison.gates import (
    Result,
    check_findings,
    check_loss,
    check_regression,
    parse_causes,
    parse_limit,
    parse_losses,
)
from jitter.comparison.runs import build_document
from jitter.core.errors import UsageError
from jitter.core.formatting import format_percent
from jitter.simulate import Fault, Job, simulate
from tests.support.forked_command import run_forked
from tests.support.printed import output_of
from tests.support.simulated import ingest_run, ingest_traces, write_traces
from tests.support.version_1_baseline import written_by_version_1

pytestmark = pytest.mark.usefixtures("computed_once")

JOB = {"ranks": 4, "steps": 8, "kernels": 40}


@pytest.fixture(scope="module")
def lakes(tmp_path_factory):
    """A healthy run twice, a slower one, one with a culprit, as lakes; and the baseline of the first as a file."""
    folder = tmp_path_factory.mktemp("check")
    runs = {
        "base": (1, []),
        "again": (2, []),
        "slow": (3, ["slow_gpu:rank=0-3,factor=1.2"]),
        "culprit": (4, ["slow_gpu:rank=2,factor=1.5"]),
    }
    for name, (seed, faults) in runs.items():
        run = simulate(Job(**JOB, seed=seed), [Fault.parse(fault) for fault in faults])
        ingest_run(run, folder / name, "nsys")
    assert main(["export", str(folder / "base" / "lake"), "--baseline", str(folder / "base.json")]) == 0
    return folder


def check(capsys, lake, *arguments):
    code = main(["check", str(lake), *arguments])
    return code, capsys.readouterr().out


def regression(lakes, name, limit, *more):
    return (lakes / name / "lake", "--baseline", str(lakes / "base.json"), "--max-regression", limit, *more)


def test_what_the_loss_does_not_contain_is_named_beside_it(tmp_path, capsys):
    """All ranks are slow in a step: that is no jitter, and more than the limit."""
    run = simulate(Job(**JOB, seed=5), [Fault.parse("slow_gpu:rank=0-3,step=4,factor=4")])
    ingest_run(run, tmp_path, "nsys")
    lake = tmp_path / "lake"
    code, line = check(capsys, lake, "--max-loss", "5%")
    assert code == 0
    assert re.search(r"^PASS loss .* \(limit 5%; .*\); beside it ranks 0-3, slow GPU: \d", line)
    assert "beside it" not in check(capsys, lake, "--max-loss", "90%")[1]


def test_a_rung_of_the_waterfall_has_a_limit_of_its_own(tmp_path, capsys):
    """All hosts pause in most steps; the recording holds no benchmark of the network."""
    pause = Fault.parse("cpu_stall:rank=0-3,step=1+3+4+6+7+9+11,kernel=1,ms=1")
    run = simulate(Job(ranks=4, steps=12, kernels=40, seed=5), [pause])
    ingest_run(run, tmp_path, "nsys")
    recorded, *rungs = jitter.open(tmp_path / "lake").diagnose().waterfall
    (lost_ns,) = (time.loss_ns for time in rungs if time.rung == "steps")
    share = lost_ns / recorded.step_time_ns
    assert lost_ns == pytest.approx(1e6 * 7 / 11, rel=0.05)
    for factor, code, result in ((1.01, 0, "pass"), (0.99, 1, "fail")):
        limits = f"5%,steps={100 * share * factor:.4f}%"
        assert check(capsys, tmp_path / "lake", "--max-loss", limits)[0] == code
        gates = json.loads(check(capsys, tmp_path / "lake", "--max-loss", limits, "--json")[1])["gates"]
        assert [(gate["gate"], gate["rung"], gate["result"]) for gate in gates] == [
            ("max-loss", "ranks", "pass"),
            ("max-loss", "steps", result),
        ]
        assert gates[1]["value"] == pytest.approx(share)
    code, line = check(capsys, tmp_path / "lake", "--max-loss", "network=5%")
    assert (code, line) == (3, "UNKNOWN what a slow network cost is not known\n")


def test_what_most_ranks_lose_to_the_others_exceeds_the_limit(tmp_path, capsys):
    """The loss compares with the median rank, which is one of the slow ones."""
    run = simulate(Job(ranks=8, steps=8, kernels=40, seed=5), [Fault.parse("slow_gpu:rank=0-4,factor=1.3")])
    ingest_run(run, tmp_path, "nsys")
    code, line = check(capsys, tmp_path / "lake", "--max-loss", "10%")
    assert code == 1
    assert re.search(
        r"^FAIL loss .* \(limit 10%; .*\): most ranks are slow, .*; beside it ranks 0-4, slow GPU: [12]\d", line
    )
    assert check(capsys, tmp_path / "lake", "--max-loss", "90%")[0] == 0


def test_one_rank_of_a_job_tells_nothing_of_its_jitter(tmp_path, capsys):
    _, trace, *_ = write_traces(simulate(Job(**JOB, seed=5)), tmp_path / "traces")
    ingest_traces(tmp_path, trace)
    code, line = check(capsys, tmp_path / "lake", "--max-loss", "90%")
    assert (code, line.split()[0]) == (3, "UNKNOWN")
    assert "one rank of the job was recorded" in line


def test_an_equal_run_passes(lakes, capsys):
    code, line = check(capsys, *regression(lakes, "again", "5%"))
    assert code == 0
    assert line.startswith("PASS ")
    assert line.count("\n") == 1


def test_a_slower_run_fails_and_says_where(lakes, capsys):
    code, line = check(capsys, *regression(lakes, "slow", "3%"))
    assert code == 1
    assert line.startswith("FAIL slower than baseline by ")
    assert "(limit 3%): GPU time +" in line


def test_a_lake_is_a_baseline_too(lakes, capsys):
    direct = check(capsys, lakes / "slow/lake", "--baseline", str(lakes / "base" / "lake"), "--max-regression", "3%")
    assert direct == check(capsys, *regression(lakes, "slow", "3%"))


def test_an_interval_that_holds_the_limit_is_unknown(lakes, capsys):
    found = jitter.compare(lakes / "base.json", lakes / "slow" / "lake")
    limit = f"{100 * found.effect.fraction:.4f}%"
    code, line = check(capsys, *regression(lakes, "slow", limit))
    assert code == 3
    assert re.match(r"UNKNOWN median step [\d.]+% slower than baseline ", line)
    code, line = check(capsys, *regression(lakes, "slow", limit, "--accept-unknown"))
    assert code == 0
    assert line.startswith("UNKNOWN ")


def with_times(document, number, times_ns):
    """Return the document of another run whose steps take these times."""
    entries = (StepEntry(None, at, time and round(time), None) for at, time in enumerate([None, *times_ns]))
    return msgspec.structs.replace(document, digest=f"digest{number}", label=f"run{number}", steps=tuple(entries))


def steps_of(rng, count=12, paused=()):
    """Return times of steps around 10 ms, ns; those at `paused` take a third longer."""
    times = 1e7 * rng.normal(1, 0.002, count)
    times[list(paused)] *= 4 / 3
    return times.tolist()


@pytest.mark.parametrize(
    ("count", "paused", "verdict", "result", "statistic"),
    [
        (12, (), "same", Result.PASS, "median"),
        (12, (3, 7, 10), "slower", Result.UNKNOWN, "mean"),  # other twelve steps may hold fewer pauses
        (40, range(2, 40, 4), "slower", Result.FAIL, "mean"),
        (12, range(1, 12, 2), "slower", Result.FAIL, "mean"),  # the median is of either kind
        (12, (5,), "same", Result.PASS, "median"),  # 2.8% on average
    ],
)
def test_pauses_in_few_steps_do_not_pass(lakes, count, paused, verdict, result, statistic):
    document = decode_document((lakes / "base.json").read_bytes(), "base")
    rng = np.random.default_rng(1)
    base, new = (with_times(document, number, steps_of(rng, count, at)) for number, at in enumerate([(), paused]))
    comparison = compare_documents([base], new)
    assert comparison.verdict == verdict
    gate = check_regression(comparison, 0.03)
    assert (gate.result, gate.statistic) == (result, statistic)
    if statistic == "mean":
        assert gate.value == pytest.approx(len(paused) / count / 3, abs=0.003)
        assert gate.text.startswith(
            f"mean step {format_percent(gate.value)} slower than baseline (limit 3%; 95% interval "
        )
        assert comparison.sentence.startswith(f"The mean step is {format_percent(gate.value)} slower (")
    else:
        assert gate.text.startswith("median step ")
        assert ", mean step " in gate.text


@pytest.mark.parametrize("bad", [1.12, 0.9])
@pytest.mark.parametrize(("factor", "result"), [(1.0, Result.PASS), (1.06, Result.FAIL)])
def test_one_bad_run_of_many_does_not_blind_the_check(lakes, bad, factor, result):
    """The other runs of the baseline are equal: they tell what equal runs differ by."""
    document = decode_document((lakes / "base.json").read_bytes(), "base")
    rng = np.random.default_rng(2)
    factors = [*([1.0] * 8), bad]
    bases = [with_times(document, at, [one * time for time in steps_of(rng)]) for at, one in enumerate(factors)]
    comparison = compare_documents(bases, with_times(document, 9, [factor * time for time in steps_of(rng)]))
    gate = check_regression(comparison, 0.03)
    assert gate.result == result
    assert "without run8, unlike the other bases" in gate.text
    assert (comparison.base.runs, comparison.base.left_out) == (8, ("run8",))
    what = "slower" if bad > 1 else "faster"
    assert comparison.notes[0].startswith("run8 is left out: it is 1")
    assert f"% {what} than the 8 other bases" in comparison.notes[0]


NOISY = {
    "a third of the runs are slower": [1.0, 1.12, 1.0, 1.0, 1.12, 1.0, 1.12, 1.0, 1.0],
    "all differ": [0.97, 1.05, 1.0, 1.08, 0.94, 1.02, 0.98, 1.04, 0.91],
    "one of three is slower": [1.0, 1.0, 1.12],
}


@pytest.mark.parametrize("factors", NOISY.values(), ids=NOISY)
def test_a_noisy_history_stays_unknown(lakes, factors):
    document = decode_document((lakes / "base.json").read_bytes(), "base")
    rng = np.random.default_rng(3)
    bases = [with_times(document, at, [one * time for time in steps_of(rng)]) for at, one in enumerate(factors)]
    comparison = compare_documents(bases, with_times(document, 9, [1.05 * time for time in steps_of(rng)]))
    assert comparison.base.runs == len(factors)
    assert check_regression(comparison, 0.03).result == Result.UNKNOWN


def test_loss(lakes, capsys):
    loss = jitter.open(lakes / "culprit" / "lake").diagnose().loss.fraction
    below, above = (f"{100 * loss * factor:.4f}%" for factor in (0.5, 1.5))
    assert check(capsys, lakes / "culprit/lake", "--max-loss", below)[0] == 1
    assert check(capsys, lakes / "culprit/lake", "--max-loss", above)[0] == 0


@pytest.mark.parametrize("has_unrecorded_ranks", [True, False])
def test_what_unrecorded_ranks_cost_is_not_in_the_loss(lakes, has_unrecorded_ranks):
    document = decode_document((lakes / "base.json").read_bytes(), "base")
    gate = check_loss(msgspec.structs.replace(document, has_unrecorded_ranks=has_unrecorded_ranks), 0.5)
    assert (gate.result, "of the recorded ranks alone" in gate.text) == (Result.PASS, has_unrecorded_ranks)


def test_a_loss_whose_interval_holds_the_limit_is_unknown(lakes, capsys):
    lake = lakes / "culprit/lake"
    loss = jitter.open(lake).diagnose().loss.fraction
    code, text = check(capsys, lake, "--max-loss", f"{100 * loss:.4f}%", "--json")
    found = json.loads(text)
    (gate,) = found["gates"]
    low, high = gate["interval"]
    assert (code, found["result"]) == (3, "unknown")
    assert 0 < low <= gate["value"] == loss <= high < 3 * loss
    assert check(capsys, lake, "--max-loss", f"{100 * loss:.4f}%", "--accept-unknown")[0] == 0


def test_one_slow_step_of_few_does_not_tell_what_a_longer_run_loses(tmp_path, capsys):
    run = simulate(Job(**JOB, seed=5), [Fault.parse("cpu_stall:rank=1,step=4,kernel=9,ms=3")])
    ingest_run(run, tmp_path / "stall", "nsys")
    code, line = check(capsys, tmp_path / "stall/lake", "--max-loss", "1%")
    assert (code, line.startswith("UNKNOWN loss ")) == (3, True)
    assert "95% interval 0.00% to " in line  # no run gains by jitter
    lake = tmp_path / "stall/lake"
    for gate in (("--max-loss", "1%"), ("--baseline", str(lake), "--max-regression", "3%")):
        code, line = check(capsys, lake, *gate, "--steps", "0-3")
        assert (code, "too few" in line) == (3, True)


def test_findings(lakes, capsys):
    culprits = jitter.open(lakes / "culprit" / "lake").diagnose().culprits
    causes = {one.cause for one in culprits if one.confidence == "high"}
    assert causes == {"gpu_compute"}
    code, line = check(capsys, lakes / "culprit/lake", "--fail-on", "gpu_compute,communication")
    assert (code, line.startswith("FAIL rank 2")) == (1, True)
    assert check(capsys, lakes / "culprit/lake", "--fail-on", "communication")[0] == 0
    assert check(capsys, lakes / "base/lake", "--fail-on", "gpu_compute")[0] == 0


def test_a_pause_that_may_not_recur_fails_no_run(tmp_path, capsys):
    """It is certain whose it is, and it could have hit any run."""
    run = simulate(Job(**{**JOB, "ranks": 8}, seed=5), [Fault.parse("cpu_stall:rank=1,step=4,kernel=9,ms=3")])
    lake = ingest_run(run, tmp_path, "nsys")
    (one,) = lake.diagnose().culprits
    assert (one.cause, one.confidence, one.recurs) == ("cpu_launch", "high", "unknown")
    code, line = check(capsys, lake.root, "--fail-on", "cpu_launch")
    assert (code, line) == (0, "PASS 1 finding of high confidence with cause cpu_launch, which may not recur\n")
    old = decode_document(written_by_version_1(build_document(lake)), "old.json")
    assert check_findings(old, ["cpu_launch"]).result == Result.FAIL  # version 1 decided it by the confidence


def test_of_several_gates_the_worst_counts(lakes, capsys):
    code, text = check(capsys, *regression(lakes, "slow", "3%", "--max-loss", "90%", "--json"))
    found = json.loads(text)
    assert code == 1
    assert found["schema_version"] == 1
    assert found["result"] == "fail"
    assert [(gate["gate"], gate["result"]) for gate in found["gates"]] == [
        ("max-loss", "pass"),
        ("max-regression", "fail"),
    ]
    gate = found["gates"][1]
    assert gate["limit"] == 0.03 < gate["interval"][0] <= gate["value"] <= gate["interval"][1]
    assert found["verdict"] == "slower"


def test_markdown(lakes, capsys):
    code, text = check(capsys, *regression(lakes, "slow", "3%", "--markdown"))
    assert code == 1
    assert text.startswith("# jitter check\n\n**FAIL slower than baseline")
    assert "## Where the difference comes from" in text


@pytest.mark.parametrize(
    ("text", "fraction"), [("3%", 0.03), ("0.03", 0.03), (" 2.5 % ", 0.025), ("0%", 0.0), ("150%", 1.5)]
)
def test_limits(text, fraction):
    assert parse_limit(text, "--max-loss") == pytest.approx(fraction)


@pytest.mark.parametrize("text", ["3", "", "%", "-1%", "nan", "inf%", "3%%", "three", "1e3%"])
def test_unreadable_limits(text):
    with pytest.raises(UsageError, match="no limit"):
        parse_limit(text, "--max-loss")


@pytest.mark.parametrize(
    ("text", "limits"),
    [("5%", {"ranks": 0.05}), ("5%, steps=0.1", {"ranks": 0.05, "steps": 0.1}), ("sync=2%", {"sync": 0.02})],
)
def test_limits_of_rungs(text, limits):
    assert parse_losses(text) == pytest.approx(limits)


@pytest.mark.parametrize("text", ["5%,", "=5%", "5%,6%", "recorded=5%", "jitter=5%", "steps=", "steps=1%,steps=2%"])
def test_unreadable_limits_of_rungs(text):
    with pytest.raises(UsageError, match="--max-loss"):
        parse_losses(text)


@pytest.mark.parametrize("text", ["", ",", "gpu", "none", "gpu_compute,nothing"])
def test_unknown_causes(text):
    with pytest.raises(UsageError, match="--fail-on"):
        parse_causes(text)


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--max-loss", "lots"],
        ["--max-regression", "3%"],
        ["--baseline", "base.json"],
        ["--max-loss", "3%", "--last", "3"],
        ["--max-loss", "3%", "--json", "--markdown"],
        ["--max-loss", "3%", "--steps", "900"],
        ["--fail-on", "bad luck"],
    ],
)
def test_wrong_usage(lakes, arguments, capsys):
    assert output_of(capsys, "check", lakes / "base" / "lake", *arguments, exit_code=2) == ""


def test_what_is_missing_is_unknown(lakes, capsys):
    assert check(capsys, lakes / "none", "--max-loss", "3%") == (3, f"UNKNOWN there is no lake {lakes / 'none'}\n")
    assert check(capsys, lakes / "none", "--max-loss", "3%", "--accept-unknown")[0] == 0
    missing = ("--baseline", str(lakes / "none.json"), "--max-regression", "3%")
    assert check(capsys, lakes / "base/lake", *missing)[0] == 3
    assert check(capsys, lakes / "base/lake", *missing, "--accept-unknown")[0] == 0


def test_what_is_damaged_is_never_a_result(lakes, tmp_path, capsys):
    """A damaged input is an error with every option: success must not hide it."""
    limits = ("--max-loss", "99%", "--accept-unknown")
    truncated = shutil.copytree(lakes / "base" / "lake", tmp_path / "truncated")
    for path in truncated.rglob("*.parquet"):
        path.write_bytes(path.read_bytes()[:200])
    empty = tmp_path / "empty"
    empty.mkdir()
    older = shutil.copytree(lakes / "base" / "lake", tmp_path / "older")
    (older / "jitter.json").write_text('{"layout_version": 99}')
    for lake in (truncated, empty, older):
        code, line = check(capsys, lake, *limits)
        assert code == 3, lake
        assert line.startswith("UNKNOWN "), lake
    half = tmp_path / "half.json"
    half.write_bytes((lakes / "base.json").read_bytes()[:500])
    arguments = ("--baseline", str(half), "--max-regression", "3%", "--accept-unknown")
    assert check(capsys, lakes / "base/lake", *arguments)[0] == 3


def test_a_full_disk_is_never_a_result(lakes):
    with open("/dev/full", "w") as full:  # noqa: PTH123
        found = run_forked("check", lakes / "base" / "lake", "--max-loss", "99%", stdout=full.fileno())
    assert found.returncode == 3


def test_a_reader_that_leaves_does_not_change_the_result(lakes):
    words = ("--baseline", lakes / "base.json", "--max-regression", "3%")
    read, write = os.pipe()
    os.close(read)
    assert run_forked("check", lakes / "slow" / "lake", *words, stdout=write).returncode == 1
    os.close(write)
