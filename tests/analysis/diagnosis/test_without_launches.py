"""Traces without launches: an idle GPU waits for its host, and is not said to execute its kernels slowly."""

import shutil
from pathlib import Path

import pytest

import jitter
from jitter.simulate import Fault, simulate, write
from tests.support.databases import open_database, run_sql
from tests.support.simulated import ingest_traces, small

SAMPLE = Path(__file__).parents[3] / "data" / "sample"


def without_launches(folder: Path, exports: str = "traces") -> "jitter.Lake":
    """Return the lake of the Nsight exports in a folder, whose host calls are removed."""
    for export in (folder / exports).glob("*.sqlite"):
        run_sql(export, "DELETE FROM CUPTI_ACTIVITY_KIND_RUNTIME")
    return ingest_traces(folder, folder / exports)


def test_late_launches_of_the_sample(tmp_path: Path):
    shutil.copytree(SAMPLE, tmp_path / "sample", ignore=lambda _, names: [n for n in names if ".sqlite" not in n])
    found = without_launches(tmp_path, "sample").diagnose()
    (culprit,) = found.culprits
    assert (culprit.ranks, culprit.cause) == ((5,), "cpu_launch")
    assert culprit.gain_ns == pytest.approx(1_159_365, rel=0.05)
    assert "no launches were recorded: an idle GPU is taken to wait for its host" in culprit.evidence
    assert any(note.startswith("Launches were not recorded") for note in found.notes)
    shares = {share.loss_class: share.ns for share in found.split}
    assert shares["launch"] > 5 * shares["gpu"]


@pytest.mark.parametrize(
    ("fault", "causes"),
    [
        ("slow_gpu:rank=2,factor=1.5", {"gpu_compute"}),
        ("slow_cpu:rank=2,factor=4", {"cpu_launch"}),
        # kernels count for the step in which they start: the last of a step may be the first of the next one
        ("late_start:rank=2,ms=4", {"late_start", "cpu_launch"}),
    ],
)
def test_causes_are_told_apart(tmp_path: Path, fault: str, causes: set[str]):
    write(simulate(small(ranks=6, steps=6), [Fault.parse(fault)]), tmp_path / "traces", "nsys")
    found = without_launches(tmp_path).diagnose()
    assert [culprit.ranks for culprit in found.culprits] == [(2,)]
    assert {culprit.cause for culprit in found.culprits} <= causes
    # an idle GPU is taken to wait for its host, which is no recorded fact; the time of a kernel is one
    of_host = [one for one in found.culprits if one.cause != "gpu_compute"]
    assert "high" not in {one.confidence for one in of_host}


@pytest.mark.parametrize("has_kernels_before", [False, True])
def test_steps_of_a_gpu_that_runs_behind_its_host(tmp_path: Path, has_kernels_before: bool):
    """The host's markers, of 1 ms each, are over before the GPU's first step is."""
    write(simulate(small(ranks=4, steps=6), [Fault.parse("slow_gpu:rank=2,factor=1.3")]), tmp_path / "traces", "nsys")
    for export in (tmp_path / "traces").glob("*.sqlite"):
        with open_database(export) as database:
            steps = "FROM NVTX_EVENTS WHERE text LIKE '%step%'"
            (begin,) = database.execute(f"SELECT min(start) {steps}").fetchone()
            texts = [text for (text,) in database.execute(f"SELECT text {steps} ORDER BY start")]
            for number, text in enumerate(texts):
                start = begin + 100_000 * number
                database.execute(
                    "UPDATE NVTX_EVENTS SET start = ?, end = ? WHERE text = ?", (start, start + 90_000, text)
                )
            if not has_kernels_before:
                launched = "SELECT correlationId FROM CUPTI_ACTIVITY_KIND_RUNTIME WHERE start < ?"
                kernels = f"CUPTI_ACTIVITY_KIND_KERNEL WHERE correlationId IN ({launched})"
                assert database.execute(f"DELETE FROM {kernels}", (begin,)).rowcount > 0
    lake = without_launches(tmp_path)
    for source in lake.sources:
        assert len({step.kernels for step in source.steps}) == 1
        assert any("the GPU runs behind the step markers" in problem for problem in source.problems)
    (culprit,) = lake.diagnose().culprits
    assert (culprit.ranks, culprit.cause, culprit.recurs) == ((2,), "gpu_compute", "yes")


@pytest.mark.parametrize("marker", ["profiler", "none"])
@pytest.mark.parametrize(
    ("shape", "fault"), [("sharded", "slow_gpu:rank=2,factor=1.4"), ("tensor_data", "slow_gpu:rank=5,factor=1.4")]
)
def test_the_order_between_streams_varies(tmp_path: Path, shape: str, fault: str, marker: str):
    """Without launches only the order on each stream is known: it is the same in all steps, and no kernel is moved."""
    slow = Fault.parse(fault)
    run = simulate(small(shape, ranks=8, steps=6, kernels=120, marker=marker, side_stream=13), [slow])
    write(run, tmp_path / "traces", "nsys")
    lake = without_launches(tmp_path)
    model = lake.analyze().run
    assert set(model.team_of.values()) == {0}
    of_signatures = [len(places) for places in model.programs[0].places.values()]
    assert len(of_signatures) > 1
    assert len(model.programs[0].operations) == max(of_signatures)
    (culprit,) = lake.diagnose().culprits
    assert (culprit.ranks, culprit.cause) == (tuple(slow.ranks), "gpu_compute")
    times, repaired = run.step_times(), run.without(slow).step_times()
    gain_ns = [times[step] - repaired[step] for step in times if times[step] is not None]
    assert culprit.gain_ns == pytest.approx(sum(gain_ns) * (len(model.keys) - 1) / len(gain_ns), rel=0.05)
