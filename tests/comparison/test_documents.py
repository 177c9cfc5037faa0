"""Documents: what they hold, and runs that cannot be compared."""

import shutil
from pathlib import Path

import msgspec
import numpy as np
import pytest

import jitter
from jitter.cli import main
from jitter.comparison.compare_documents import comparison_document
from jitter.comparison.document import (
    DOCUMENT_SIGNATURE,
    MAX_DOCUMENT_BYTES,
    LossRow,
    Place,
    StepEntry,
    TeamProgram,
    UsualMeeting,
    UsualStepEntry,
    decode_document,
    encode_document,
    select_steps,
)
from jitter.comparison.runs import build_document, shortest_ends
from jitter.comparison.significance import MIN_NOISE, measure_effect
from jitter.core.errors import JitterError, UsageError
from jitter.core.numeric.stats import middle_value
from jitter.core.numeric.student_t import student_quantile, student_tail
from jitter.simulate import Fault, Job, simulate
from tests.support.printed import json_of, output_of
from tests.support.simulated import ingest_run
from tests.support.version_1_baseline import written_by_version_1

pytestmark = pytest.mark.usefixtures("computed_once")


@pytest.fixture(scope="module")
def lakes(tmp_path_factory):
    job = {"ranks": 3, "steps": 8, "kernels": 30, "first_step": 100}
    base = ingest_run(simulate(Job(**job, seed=1)), tmp_path_factory.mktemp("base"), "nsys")
    slow = [Fault.parse("slow_gpu:rank=0-2,factor=1.3")]
    return base, ingest_run(simulate(Job(**job, seed=2), slow), tmp_path_factory.mktemp("new"), "nsys")


def test_hosts_that_a_profiler_does_not_record_are_no_difference(lakes, tmp_path):
    kineto = ingest_run(simulate(Job(ranks=3, steps=8, kernels=30, first_step=100, seed=1)), tmp_path, "kineto")
    found = jitter.compare(lakes[0].root, kineto.root)
    assert (found.base.hosts, found.new.hosts) == (1, 0)
    assert not any("host" in sentence for sentence in found.notes)
    assert found.environment["new"].profilers == ("Kineto schema 1",)


def test_a_file_is_its_document(lakes):
    document = build_document(lakes[0])
    content = encode_document(document)
    assert decode_document(content, "file") == document
    assert DOCUMENT_SIGNATURE in content[:200]
    assert len(content) < MAX_DOCUMENT_BYTES


def test_a_lake_and_its_document_compare_alike(lakes):
    base, new = lakes
    of_lakes = jitter.compare(base.root, new.root)
    direct = comparison_document(of_lakes)
    labels = of_lakes.base.label, of_lakes.new.label
    documents = [build_document(lake, label=label) for lake, label in zip(lakes, labels, strict=True)]
    filed = comparison_document(jitter.compare(*documents))
    assert direct == filed
    assert direct["verdict"] == "slower"


def test_a_part_of_a_document_is_that_part_of_the_lake(lakes):
    base, _ = lakes
    part = select_steps(build_document(base), {102, 103, 104, 105, 106})
    direct = build_document(base, [key for key in base.step_keys if 102 <= key.step <= 106])
    assert [step.step_time_ns for step in part.steps] == [step.step_time_ns for step in direct.steps]
    assert part.steps[0].step_time_ns is None
    assert part.teams[0].times_ns == direct.teams[0].times_ns
    with pytest.raises(UsageError, match="holds none of the steps 7"):
        select_steps(part, {7})


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is no baseline"),
        (b"{}", "is no baseline"),
        (b'{"schema_version": 1, "verdict": "same"}', "is no baseline"),
        (b'{"kind":"jitter baseline","schema_version":99}', "newer jitter"),
        (b'{"kind":"jitter baseline","schema_version":1}', "damaged"),
        (b"\xff\xfe\x00", "is no baseline"),
    ],
)
def test_another_file_is_refused(tmp_path, content, said, capsys):
    with pytest.raises(JitterError, match=said):
        decode_document(content, "some.json")
    path = tmp_path / "some.json"
    path.write_bytes(content)
    assert main(["compare", str(path), str(path)]) == 3
    assert str(path) in capsys.readouterr().err


def test_a_baseline_of_version_1_is_read(tmp_path, capsys):
    slow = [Fault.parse("slow_gpu:rank=2,factor=1.3")]
    lake = ingest_run(simulate(Job(ranks=6, steps=8, kernels=30), slow), tmp_path, "nsys")
    document = build_document(lake)
    old = tmp_path / "old.json"
    old.write_bytes(written_by_version_1(document))
    (read,) = decode_document(old.read_bytes(), "old.json").culprits
    (now,) = document.culprits
    assert (read.cause, read.ranks, read.gain_ns, read.steps) == (now.cause, now.ranks, now.gain_ns, now.steps)
    assert (read.recurs, read.of_steps, read.loss_ns, read.loss_class) == (None, None, None, None)
    assert (now.recurs, now.steps, now.of_steps, now.loss_class) == ("yes", 8, 8, "gpu")
    assert len(jitter.compare(old, lake.root).culprits.stayed) == 1
    assert main(["compare", str(lake.root), str(old), "--markdown"]) == 0
    told = capsys.readouterr()
    assert "| 8 steps | - |" in told.out
    assert "damaged" not in told.err
    assert "| 8 of 8 steps | yes |" in output_of(capsys, "compare", old, lake.root, "--markdown")
    assert main(["check", str(lake.root), "--baseline", str(old), "--max-regression", "50%"]) == 0


def test_a_truncated_file_is_refused(lakes):
    content = encode_document(build_document(lakes[0]))
    for size in (20, len(content) // 2, len(content) - 3):
        with pytest.raises(JitterError):
            decode_document(content[:size], "some.json")


def test_the_largest_document_stays_below_its_limit(lakes):
    """50 steps of 903 kernels with long names on 960 ranks: the talk's job; and 5,000 steps."""
    document = build_document(lakes[0])
    team = document.teams[0]
    steps = tuple(StepEntry(None, n, 10**9 + n, 10**6) for n in range(5000))
    names = tuple(f"{'x' * 300}{n}" for n in range(903))
    times = np.random.default_rng(1).integers(10**5, 10**6, (903, 117)).tolist()
    program = TeamProgram(
        names=tuple(range(903)),
        kinds=(0,) * 903,
        streams=(0,) * 903,
        threads=(0,) * 903,
        self_times=tuple(tuple(row) for row in np.random.default_rng(2).integers(10**4, 10**6, (5, 903)).tolist()),
        waits=tuple((n, n - 1, 0, False) for n in range(1, 903)),
        host_lead_ns=(),
        launch_ns=1234.5,
        stream_ns=678.9,
        queue=1024,
        interference=0.123456789,
        has_launches=True,
    )
    classes = ("start", "launch", "after", "gpu", "overlap", "carried")
    every = [(rank, name, None) for rank in range(960) for name in classes]
    of_kernels = [(n % 960, "overlap", n % 903) for n in range(3000)]
    rows = tuple(LossRow(rank, 0, name, place, -123_456) for rank, name, place in (*every, *of_kernels))
    large = msgspec.structs.replace(
        document,
        steps=steps,
        names=names,
        ranks=960,
        rank_entries=document.rank_entries * 320,
        usual=UsualStepEntry((program,), (0,), tuple(UsualMeeting(1_234_567, ((0, n),)) for n in range(100))),
        jitter=rows,
        slow_steps=rows[-3000:],
        teams=(
            msgspec.structs.replace(
                team,
                ranks=tuple(range(960)),
                places=tuple(Place(n, False, (1, 1, 1, 1, 1, 1)) for n in range(903)),
                steps=tuple(range(117)),
                times_ns=tuple(map(tuple, times)),
            ),
        ),
    )
    assert len(encode_document(large)) < MAX_DOCUMENT_BYTES


def test_usage(lakes, capsys):
    base, _ = lakes
    assert main(["compare", str(base.root)]) == 2
    assert "needs two runs" in capsys.readouterr().err
    assert main(["compare", str(base.root), str(base.root), "--steps", "1-2"]) == 2
    assert main(["compare", str(base.root), "/nonexistent"]) == 3
    assert json_of(capsys, "compare", base.root, base.root, "--json")["verdict"] == "same"


def test_a_comparison_changes_nothing_but_derived_files(lakes):
    def content(lake):
        return {
            path: path.read_bytes()
            for path in lake.root.rglob("*")
            if path.is_file() and "derived" not in path.parts and path.name != "catalog.sqlite"
        }

    before = [content(lake) for lake in lakes]
    assert main(["compare", str(lakes[0].root), str(lakes[1].root), "--json"]) == 0
    assert [content(lake) for lake in lakes] == before


@pytest.mark.parametrize(
    ("paths", "ends"),
    [
        (["/a/lake", "/a/other"], ["lake", "other"]),
        (["/a/lake", "/b/lake"], ["a/lake", "b/lake"]),
        (["/x/a/lake", "/y/a/lake", "/y/b/lake"], ["x/a/lake", "y/a/lake", "b/lake"]),
        (["/lake", "/a/lake"], ["/lake", "a/lake"]),
        (["/a/lake", "/a/lake"], ["lake", "lake"]),
    ],
)
def test_shortest_ends(paths: list[str], ends: list[str]):
    assert shortest_ends([Path(path) for path in paths]) == ends


def test_lakes_of_one_name(small_lake: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    lakes = [Path(shutil.copytree(small_lake, tmp_path / name / "jitter-lake")) for name in ("before", "after")]
    assert main(["compare", *map(str, lakes)]) in (0, 1, 3)
    out = capsys.readouterr().out
    assert "before/jitter-lake" in out
    assert "after/jitter-lake" in out
    found = jitter.compare(*(jitter.open(lake) for lake in lakes))
    assert (found.base.label, found.new.label) == ("before/jitter-lake", "after/jitter-lake")


def test_names_that_are_given(small_lake: Path, capsys: pytest.CaptureFixture[str]):
    given = ["compare", str(small_lake), str(small_lake)]
    out = output_of(capsys, *given, "--names", "main, branch", "--markdown")
    assert "base: main (" in out
    assert "new: branch (" in out
    assert main([*given, "--names", "main"]) == 2
    assert "1 name for 2 runs" in capsys.readouterr().err


def test_a_run_beside_itself_is_told(lakes):
    itself = "It is compared with itself: the base holds the same recordings and steps."
    assert any(itself in note for note in jitter.compare(lakes[0].root, lakes[0].root).notes)
    parts = jitter.compare(lakes[0], lakes[0], steps=range(104, 108), base_steps=range(100, 104))
    for found in (parts, jitter.compare(*lakes)):
        assert not any(itself in note for note in found.notes)


@pytest.fixture(scope="module")
def document(tmp_path_factory):
    run = simulate(Job(ranks=2, steps=8, kernels=30, seed=1))
    return build_document(ingest_run(run, tmp_path_factory.mktemp("base"), "nsys"))


def refused(base, new, reason):
    found = comparison_document(jitter.compare(base, new))
    assert found["verdict"] == "incomparable"
    assert len(found["reasons"]) == 1
    assert reason in found["reasons"][0]
    assert reason in found["sentence"]
    assert found["step_time"] is None
    assert found["split"] == found["kernels"] == []


def test_too_few_steps(document):
    few = select_steps(document, range(2))
    refused(document, few, "has 2 steps, fewer than 3")
    refused(few, document, "has 2 steps, fewer than 3")
    assert comparison_document(jitter.compare(document, select_steps(document, range(3))))["verdict"] == "same"


def test_no_kernels(document):
    refused(document, msgspec.structs.replace(document, teams=()), "has no kernels")


def test_other_sequences(document):
    other = msgspec.structs.replace(document, names=tuple(f"other_{name}" for name in document.names))
    steps = [msgspec.structs.replace(step, step_time_ns=20_000_000) for step in other.steps]
    slower = msgspec.structs.replace(other, steps=tuple(steps))
    refused(document, slower, "in the base, 20.0 ms in the new run, and may do other work")
    refused(document, msgspec.structs.replace(other, marker=None), "share less than half")


def test_other_kernels_in_steps_of_one_marker(document):
    """The job on other GPUs or compiled: most kernels have other names, and its step times are compared."""
    kept = next(name for name in document.names if name.startswith("nccl"))
    names = tuple(name if name == kept else f"other_{name}" for name in document.names)
    other = msgspec.structs.replace(document, names=names)
    found = jitter.compare(document, other)
    assert found.verdict == "same"
    assert found.kernels is not None
    assert {kernel.kind for kernel in found.kernels.changes} == {"replaced"}
    refused(document, msgspec.structs.replace(other, marker=None), "share less than half")


def test_unequal_periods_without_a_common_marker(document):
    team = document.teams[0]
    places = len(team.places)
    longer = msgspec.structs.replace(
        team, places=team.places + team.places[: places // 2], times_ns=team.times_ns + team.times_ns[: places // 2]
    )
    other = msgspec.structs.replace(document, teams=(longer,), marker=None)
    refused(document, other, "no common step marker")
    marked = msgspec.structs.replace(other, marker=document.marker)
    assert comparison_document(jitter.compare(document, marked))["verdict"] == "same"


def test_one_of_several_bases_without_steps(document):
    found = jitter.compare(document, select_steps(document, range(2)), document)
    assert found.verdict == "incomparable"


@pytest.mark.parametrize("statistic", ["median", "mean"])
@pytest.mark.parametrize("steps", [2, 4, 7, 14, 40])
def test_the_interval_holds_the_truth(steps, statistic):
    """At least 93 of 100 intervals of 95% hold a true difference of 3%."""
    rng = np.random.default_rng(steps)
    held = 0
    for _ in range(200):
        base, new = rng.normal(1e7, 2e5, steps), rng.normal(1.03e7, 2e5, steps)
        found = measure_effect([base], new, statistic)
        held += found.low_ns <= 3e5 <= found.high_ns
        assert found.low_ns <= found.difference_ns <= found.high_ns
    assert held >= 186


@pytest.mark.parametrize("statistic", ["median", "mean"])
def test_what_comes_at_the_same_steps_of_both_runs_does_not_hide_a_difference(statistic):
    """Of 15 steps three are evaluations, three follow one, and two write a checkpoint: 2% is told anyway."""
    rng = np.random.default_rng(5)
    kinds = np.array([1, 1, 1, 1, 0.92, 0.95] * 2 + [1, 1, 0.92]) + np.isin(np.arange(15), [7, 12]) * 0.2
    is_hidden, is_found, held = [], [], []
    for _ in range(100):
        base, new = 1e7 * kinds + rng.normal(0, 3e4, 15), 1.02e7 * kinds + rng.normal(0, 3e4, 15)
        found = measure_effect([base], new, statistic, are_same_steps=True)
        truth_ns = 2e5 * (kinds.mean() if statistic == "mean" else 1.0)
        is_hidden.append(not measure_effect([base], new, statistic).is_real)
        is_found.append(found.is_real)
        held.append(found.low_ns <= truth_ns <= found.high_ns)
    assert all(is_hidden)
    assert all(is_found)
    assert sum(held) >= 93


@pytest.mark.parametrize("statistic", ["median", "mean"])
def test_equal_runs_of_the_same_steps_are_seldom_told_apart(statistic):
    rng = np.random.default_rng(3)
    runs = rng.normal(1e7, 4e5, (300, 2, 14))
    found = [measure_effect([base], new, statistic, are_same_steps=True) for base, new in runs]
    assert sum(effect.low_ns > 0 or effect.high_ns < 0 for effect in found) <= 24


@pytest.mark.parametrize("steps", [2, 4, 7])
def test_equal_runs_of_few_steps_are_seldom_told_apart(steps):
    rng = np.random.default_rng(steps)
    runs = rng.normal(1e7, 2e5, (200, 2, steps))
    assert sum(measure_effect([base], new).is_real for base, new in runs) <= 10


def test_slow_single_steps_do_not_move_it():
    base = np.full(15, 1e7)
    new = base.copy()
    new[[3, 9]] = 5e7
    found = measure_effect([base], new)
    assert found.difference_ns == 0
    assert not found.is_real


def test_less_than_1_percent_is_noise():
    base, new = np.full(30, 1e7), np.full(30, 1.009e7)
    found = measure_effect([base], new)
    assert found.low_ns > 0
    assert found.noise_fraction == MIN_NOISE
    assert not found.is_real
    assert measure_effect([base], np.full(30, 1.011e7)).is_real


def test_halves_of_the_base_that_differ_are_noise():
    base = np.concatenate([np.full(10, 1e7), np.full(10, 1.1e7)])
    found = measure_effect([base], np.full(20, 1.15e7))
    assert found.noise_fraction == pytest.approx(0.1)


def test_what_several_bases_differ_by_is_noise():
    rng = np.random.default_rng(1)
    bases = [rng.normal(centre, 1e4, 20) for centre in (1e7, 1.04e7, 0.97e7, 1.02e7)]
    new = rng.normal(1.04e7, 1e4, 20)
    assert measure_effect(bases[:1], new).is_real
    found = measure_effect(bases, new)
    assert not found.is_real
    assert found.noise_fraction > 0.02
    assert found.base_ns == middle_value(np.array([middle_value(times) for times in bases]))


@pytest.mark.parametrize(
    ("t", "degrees", "p"), [(2.776, 4, 0.05), (2.228, 10, 0.05), (3.169, 10, 0.01), (1.96, 1e6, 0.05)]
)
def test_students_t(t, degrees, p):
    """Values of printed tables."""
    assert 2 * float(student_tail(t, degrees)) == pytest.approx(p, rel=0.01)
    assert student_quantile(1 - p / 2, degrees) == pytest.approx(t, rel=0.02)
