"""`jitter report` and `jitter steps` by the command line: the same answers in every form, for jobs of all sorts."""

import json
import re
from itertools import pairwise
from pathlib import Path

import pytest

import jitter
from jitter.cli import main
from jitter.core.errors import ExitCode
from jitter.simulate import Fault, Job, Run, simulate
from tests.support.json_report import assert_fits_schema, differing
from tests.support.simulated import ingest_run, small, true_gain_ns

pytestmark = pytest.mark.usefixtures("computed_once")

SLOW = Fault.parse("slow_gpu:rank=2,factor=1.6")


def said(root: Path, capsys: pytest.CaptureFixture[str], *more: str) -> str:
    capsys.readouterr()
    assert main(["report", str(root), *more]) == ExitCode.DONE
    out, err = capsys.readouterr()
    assert err == ""
    return out


def never(word: str) -> float:
    raise AssertionError(f"{word} is no JSON")


def document(root: Path, capsys: pytest.CaptureFixture[str], *more: str):
    found = json.loads(said(root, capsys, "--json", *more), parse_constant=never)
    assert_fits_schema(found)
    return found


@pytest.fixture(scope="module")
def run() -> Run:
    return simulate(small(steps=6, first_step=10), [SLOW])


@pytest.fixture(scope="module")
def root(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One culprit: rank 2, whose GPU is slow all along."""
    return ingest_run(run, tmp_path_factory.mktemp("slow"), "nsys").root


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ingest_run(simulate(small(steps=5)), tmp_path_factory.mktemp("healthy"), "nsys").root


def test_the_document_of_a_run_with_one_culprit(root: Path, run: Run, capsys: pytest.CaptureFixture[str]):
    found = document(root, capsys)
    assert [(one["scope"], one["ranks"], one["cause"]) for one in differing(found)] == [("rank", [2], "gpu_compute")]
    (one,) = differing(found)
    assert one["gain_ns"] == pytest.approx(true_gain_ns(run), rel=0.01)
    assert found["what_if"]["culprits_repaired_ns"] == one["gain_ns"]
    assert one["steps"] == list(range(10, 16))
    assert one["step_pattern"] == "every step"
    assert one["host"] == "node0001"
    # of the device 0 of that node: rank 2 is the first there
    assert one["device"] == 0
    assert [step["step_time_ns"] for step in found["steps"]] == list(run.step_times().values())
    assert [step["max_rank"] for step in found["steps"][1:]] == [2] * 5
    assert {step["cause"] for step in found["steps"][1:]} == {"gpu_compute"}
    assert found["steps"][0]["loss_ns"] is None
    assert found["run"]["ranks"] == 4
    assert found["run"]["hosts"] == 2
    assert found["run"]["kernels"] == 4 * 6 * 60
    assert found["run"]["kernels_per_step"] == 60
    assert {step["divergence"]["kernel_index"] for step in found["steps"][1:]} <= {0, 1, 2}
    assert found["run"]["alignment"]["method"] == "collective"
    assert "Rank 2 (node0001) executes the same kernels more slowly" in found["verdict"]


@pytest.mark.parametrize("fault", ["slow_cpu:rank=1,factor=4", "slow_gpu:rank=1,factor=3,kernels=30-59"])
def test_where_it_began(tmp_path: Path, fault: str, capsys: pytest.CaptureFixture[str]):
    """A host that is slow throughout leaves the others at once; a GPU that is slow from kernel 30 on does so there."""
    found = document(ingest_run(simulate(small(steps=5), [Fault.parse(fault)]), tmp_path, "nsys").root, capsys)
    first = 30 if "kernels" in fault else 0
    began = [step["divergence"]["kernel_index"] for step in found["steps"][1:]]
    assert all(first <= index <= first + 4 for index in began), began
    assert {step["max_rank"] for step in found["steps"][1:]} == {1}


def test_look_at_lies_in_the_step_of_the_recording(root: Path, capsys: pytest.CaptureFixture[str]):
    where = document(root, capsys)["culprits"][0]["look_at"]
    assert Path(where["file"]).exists()
    (record,) = [record for record in jitter.open(root).sources if record.file == where["file"]]
    assert record.rank == 2
    begun = [step.start_ns for step in record.steps]
    inside = [begin <= where["start_ns"] for begin in begun]
    assert any(inside)
    assert where["end_ns"] - where["start_ns"] < max(b - a for a, b in pairwise(begun)) * 2


def test_a_form_in_the_standard_output_may_be_followed_by_a_dash(root: Path, capsys: pytest.CaptureFixture[str]):
    assert document(root, capsys, "-") == document(root, capsys)


def test_a_healthy_run_names_nobody(healthy: Path, capsys: pytest.CaptureFixture[str]):
    found = document(healthy, capsys)
    assert differing(found) == []
    assert {step["cause"] for step in found["steps"]} == {"none"}
    assert {json.dumps(step["divergence"]) for step in found["steps"]} == {"null"}
    assert found["what_if"]["culprits_repaired_ns"] == 0
    assert "stands out above the run's noise" in found["verdict"]
    text = said(healthy, capsys, "-v")
    assert "No rank stands out above the run's noise" in " ".join(text.split())


QUESTIONS = [
    "How much does jitter cost?",
    "Which step?",
    "Which node?",
    "Which GPU?",
    "When in the step does it begin?",
    "Where to look?",
    "CPU or GPU?",
]


def test_the_terminal_answers_each_question_with_its_evidence(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("COLUMNS", "100")
    lines = said(root, capsys, "-v").splitlines()
    assert max(map(len, lines)) <= 100
    at = [next(n for n, line in enumerate(lines) if line.startswith(question)) for question in QUESTIONS]
    assert at == sorted(at)
    words = " ".join(" ".join(lines).split())
    assert "Rank 2 (node0001)" in words
    assert "The GPU (slow GPU)." in words
    assert "ranks in the lake recorded all" in words


def test_markdown_answers_the_same(root: Path, capsys: pytest.CaptureFixture[str]):
    text = said(root, capsys, "--markdown")
    assert text.startswith("# jitter report\n")
    at = [text.index(f"{number}. **{question}**") for number, question in enumerate(QUESTIONS, 1)]
    assert at == sorted(at)
    assert re.search(r"\| Rank 2 \(node0001\) \| slow GPU \| .* \| high \|", text)
    for line in text.splitlines():
        if line.startswith("|"):
            assert len(re.findall(r"(?<!\\)\|", line)) in (5, 10, 13)


def test_steps_leave_the_others_out(root: Path, capsys: pytest.CaptureFixture[str]):
    found = document(root, capsys, "--steps", "12-14")
    assert [step["step"] for step in found["steps"]] == [12, 13, 14]
    assert found["steps"][0]["step_time_ns"] is None
    assert found["run"]["kernels"] == 4 * 3 * 60
    assert any("3 steps left out by --steps" in warning for warning in found["run"]["warnings"])
    assert main(["report", str(root), "--json", "--steps", "1-3"]) == ExitCode.USAGE
    assert "none of the steps 1-3" in capsys.readouterr().err
    assert main(["report", str(root), "--steps", "x"]) == ExitCode.USAGE
    assert "3 steps left out by --steps" in " ".join(said(root, capsys, "-v", "--steps", "12-14").split())


SORTS: dict[str, tuple[Job, list[str]]] = {
    "one rank, slow once": (small(ranks=1, steps=7), ["cpu_stall:rank=0,step=4,kernel=9,ms=5"]),
    "one step": (small(steps=1), ["slow_gpu:rank=1,factor=2"]),
    "one rank and one step": (small(ranks=1, steps=1), []),
    "epochs": (small(marker="talk", epoch=3), ["slow_gpu:rank=1,factor=1.5"]),
    "a slow host": (small(ranks=8, gpus_per_node=4), ["slow_cpu:ranks=4-7,factor=5"]),
    "slow collectives": (small(steps=8), ["slow_collective:steps=4-5,factor=20"]),
    "two faults": (small(steps=6), ["slow_gpu:rank=0,factor=1.6", "late_start:rank=3,step=4,ms=9"]),
}
CULPRITS: dict[str, list[tuple[str, list[int], str]]] = {
    "one rank and one step": [],
    "epochs": [("rank", [1], "gpu_compute")],
    "a slow host": [("host", [4, 5, 6, 7], "cpu_launch")],
    "slow collectives": [("job", [0, 1, 2, 3], "communication")],
    "two faults": [("rank", [0], "gpu_compute"), ("rank", [3], "late_start")],
}


@pytest.mark.parametrize("sort", SORTS)
def test_every_sort_of_run_is_told(tmp_path: Path, sort: str, capsys: pytest.CaptureFixture[str]):
    job, faults = SORTS[sort]
    root = ingest_run(simulate(job, [Fault.parse(fault) for fault in faults]), tmp_path, "nsys").root
    found = document(root, capsys)
    if sort in CULPRITS:
        told = [(one["scope"], one["ranks"], one["cause"]) for one in differing(found)]
        assert sorted(told) == sorted(CULPRITS[sort])
    for one in differing(found):
        assert ("epochs" in one) == (job.epoch is not None)
    if sort == "slow collectives":
        slow = [step["step"] for step in found["steps"] if step["cause"] == "communication"]
        assert slow == [4, 5]
    if job.ranks == 1:
        assert {step["max_rank"] for step in found["steps"]} == {None}
        assert {one["confidence"] for one in differing(found)} <= {"low"}
        assert any("Only one rank" in warning for warning in found["run"]["warnings"])
    if job.steps == 1:
        assert found["steps"][0]["step_time_ns"] > 0  # its span
        assert any("Only one step" in warning for warning in found["run"]["warnings"])
    assert len(said(root, capsys).splitlines()) >= 4 + len(differing(found))
    assert said(root, capsys, "--markdown")
    assert main(["steps", str(root)]) == ExitCode.DONE


def test_a_steps_cause_is_its_max_ranks(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    job, faults = SORTS["two faults"]
    root = ingest_run(simulate(job, [Fault.parse(fault) for fault in faults]), tmp_path).root
    steps = document(root, capsys)["steps"][1:]
    wanted = {step["step"]: (3, "late_start") if step["step"] == 4 else (0, "gpu_compute") for step in steps}
    assert {step["step"]: (step["max_rank"], step["cause"]) for step in steps} == wanted


def test_where_all_are_alike_nobody_is_last(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    root = ingest_run(simulate(small(noise=0.0, cpu_noise=0.0)), tmp_path).root
    found = document(root, capsys)
    assert {step["loss_ns"] for step in found["steps"][1:]} == {0}
    assert [step["max_rank"] for step in found["steps"][1:]] == [None] * 3
    assert {ns or 0 for step in found["steps"][1:] for ns in (step["split"] or {}).values()} <= {0}
