"""Hosts of a pipeline that wait for the last stage's tokens: no call of theirs shows it."""

import json
from pathlib import Path

import pytest

import jitter
from jitter.analysis.detection.run_analysis import HOSTS
from tests.support.serving import PipelinedServing, write_pipelined_serving
from tests.support.simulated import ingest_traces, sampled_lake


def ingested(folder: Path, job: PipelinedServing) -> jitter.Lake:
    return ingest_traces(folder, *write_pipelined_serving(folder / "traces", job).glob("*.json"))


def last_end_ns(folder: Path, job: PipelinedServing) -> float:
    rows = json.loads((write_pipelined_serving(folder, job) / "rank7.json").read_text())["traceEvents"]
    return 1e3 * max(row["ts"] + row["dur"] for row in rows)


@pytest.mark.parametrize(("in_flight", "names_groups"), [(1, False), (2, True), (3, False), (4, True)])
def test_a_job_without_a_fault_has_no_finding_and_states_what_is_not_known(
    tmp_path: Path, in_flight: int, names_groups: bool
):
    found = ingested(tmp_path, PipelinedServing(in_flight, names_groups=names_groups)).diagnose()
    assert [(culprit.ranks, culprit.cause) for culprit in found.culprits if culprit.rung != "overlap"] == []
    assert any("go on after ends of other ranks' steps" in note for note in found.notes)


@pytest.mark.parametrize("in_flight", [1, 4])
def test_what_a_slow_rank_delays_through_hosts_is_a_range_or_unknown(tmp_path: Path, in_flight: int):
    healthy, slow = (PipelinedServing(in_flight, slow_rank=rank) for rank in (None, 2))
    true_ns = last_end_ns(tmp_path / "slow", slow) - last_end_ns(tmp_path / "healthy", healthy)
    found = ingested(tmp_path, slow).diagnose()
    (one,) = (culprit for culprit in found.culprits if culprit.cause == "gpu_compute")
    assert one.ranks == (2,)
    if one.gain_range_ns is None:
        assert (one.confidence, one.unpriced_because) == ("low", HOSTS)
    else:
        least_ns, most_ns = one.gain_range_ns
        assert least_ns < true_ns < most_ns


def test_late_starts_of_every_third_training_step_are_found(tmp_path: Path):
    """All that ended three steps before is as far from each start: that is no wait."""
    pipeline = "--shape pipeline --stages 4 --steps 24 --kernels 120 --format kineto --syncs loss+before"
    found = sampled_lake(tmp_path, f"{pipeline} --fault late_start:ranks=0-7,every=3,ms=30").diagnose()
    assert [(culprit.ranks, culprit.cause) for culprit in found.culprits] == [(tuple(range(8)), "late_start")]
