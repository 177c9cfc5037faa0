"""Hosts of Kineto traces: from the name that PyTorch's own handler gives a trace, if its process is the trace's."""

from pathlib import Path

import pytest

import jitter
from jitter.core.errors import UnreadableTraceError
from jitter.readers.kineto import KinetoReader
from jitter.readers.kineto.metadata import host_in_file_name
from jitter.simulate import Job, simulate
from jitter.simulate import write as write_run
from tests.support.kineto_traces import small, write


@pytest.mark.parametrize(
    ("file_name", "host"),
    [
        ("gpu-7_4242.1700000000000000000.pt.trace.json.gz", "gpu-7"),
        ("gpu-7.cluster.local_4242.1700000000000.pt.trace.json", "gpu-7"),
        ("node_a_4242.1700000000000.pt.trace.json", "node_a"),
        ("gpu-7_4243.1700000000000000000.pt.trace.json", None),
        ("rank3_4242.1700000000000000000.pt.trace.json", None),
        ("localhost_4242.1700000000000000000.pt.trace.json", None),
        ("gpu-7_4242.Apr_03_18_51_38.pt.trace.json", None),
        ("gpu-7_4242.1700000000000000000.json", None),
        ("rank-34.Jul_15_10_52_41.1074.pt.trace.json.gz", None),
    ],
)
def test_names_of_pytorchs_handler(file_name: str, host: str | None):
    assert host_in_file_name(file_name, 4242) == host


def test_an_unknown_process_proves_no_host():
    assert host_in_file_name("gpu-7_4242.1700000000000000000.pt.trace.json", None) is None


def test_hosts_reach_the_lake(tmp_path: Path):
    run = simulate(Job(ranks=4, gpus_per_node=2, steps=2, kernels=12, seed=3))
    paths = write_run(run, tmp_path / "traces", "kineto", names="host")
    for path in paths[3:]:  # another process than the one inside
        path.rename(path.with_name(path.name.replace("_", "_9", 1)))
    jitter.ingest([tmp_path / "traces"], tmp_path / "lake", executor=jitter.LocalExecutor())
    truth = {one.rank: one.host for one in run.ranks()}
    assert jitter.open(tmp_path / "lake").hosts == truth | {3: None}


def test_a_merged_file_of_several_ranks_is_refused(tmp_path: Path):
    events = [event | {"pid": f"[TP0{rank}] {event['pid']}"} for rank in range(2) for event in small()]
    path = write(tmp_path / "merged-1.trace.json", events)
    with pytest.raises(UnreadableTraceError, match=r"several ranks merged into one file .*\[TP00\]"):
        KinetoReader().open(path)
