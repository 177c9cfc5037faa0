"""Hosts of ranks from NCCL's log, where the traces name none."""

import json
from pathlib import Path
from typing import Any

import pytest

from jitter.cli import main
from jitter.lake.rank_hosts import host_of_file, hosts_in_logs


def row(rank: int, host: str, ranks: int = 4) -> dict[str, Any]:
    return {"rank": rank, "ranks": ranks, "host": host}


def test_communicators_of_the_whole_job_name_hosts() -> None:
    whole = [row(rank, f"node{rank // 2}") for rank in range(4)]
    halves = [row(rank % 2, "other", ranks=2) for rank in range(4)]
    assert hosts_in_logs([*whole, *halves], range(4)) == {0: "node0", 1: "node0", 2: "node1", 3: "node1"}
    assert hosts_in_logs([*whole, row(3, "node2")], range(4)) == {}  # two hosts: of another job
    assert hosts_in_logs(whole[:3], range(4)) == {}
    assert hosts_in_logs(whole, range(5)) == {}  # the job has more ranks than the log
    assert hosts_in_logs(halves, range(4)) == {}
    assert hosts_in_logs([], []) == {}


def test_a_slow_node_is_named_by_the_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    traces, lake = str(tmp_path / "traces"), str(tmp_path / "lake")
    job = ["--ranks", "8", "--gpus-per-node", "4", "--steps", "6", "--kernels", "60", "--format", "kineto"]
    fault = ["--fault", "slow_gpu:rank=4-7,factor=1.3"]
    assert main(["sample", traces, *job, *fault, "--evidence", "--quiet"]) == 0
    assert main(["ingest", traces, "-o", lake, "--quiet"]) == 0
    capsys.readouterr()
    assert main(["report", lake, "--json"]) == 0
    [culprit] = json.loads(capsys.readouterr().out)["culprits"]
    assert (culprit["scope"], culprit["host"], culprit["ranks"]) == ("host", "node0001", [4, 5, 6, 7])
    assert any("GPU 0 of node0001 ran at" in line for line in culprit["evidence"])
    assert main(["query", lake, "select distinct host from ranks order by 1", "--format", "json"]) == 0
    assert "node0001" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("file", "host"),
    [
        ("/data/logs/nvidia-smi-node1.csv", "node1"),
        ("/data/node10/nvidia-smi.csv", "node10.cluster"),
        ("/node1/logs/nvidia-smi.csv", None),  # neither its name nor its folder
        ("/data/node1/node10.csv", None),  # two hosts
        ("/data/logs/nvidia-smi-node100.csv", None),
        ("/data/logs/node1x.csv", None),
    ],
)
def test_a_log_is_of_the_host_that_its_path_names(file: str, host: str | None) -> None:
    assert host_of_file(file, ["node1", "node10.cluster"]) == host


def test_clocks_of_two_hosts_are_kept_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """1,980 / 1.2 = 1,650 MHz; the other host's GPU of the same number runs at 1,980 MHz."""
    traces, lake = str(tmp_path / "traces"), str(tmp_path / "lake")
    job = ["--ranks", "8", "--gpus-per-node", "4", "--steps", "6", "--kernels", "60"]
    assert main(["sample", traces, *job, "--fault", "slow_gpu:rank=5,factor=1.2", "--evidence", "--quiet"]) == 0
    assert main(["ingest", traces, "-o", lake, "--quiet"]) == 0
    capsys.readouterr()
    assert main(["report", lake, "--json"]) == 0
    [culprit] = json.loads(capsys.readouterr().out)["culprits"]
    clocks = [line for line in culprit["evidence"] if line.startswith("GPU 1 of node0001")]
    assert clocks[0] == "GPU 1 of node0001 ran at 1,650 MHz, the other GPUs at 1,980 MHz (median)"
    assert clocks[1].endswith("limited by temperature in 5 of 5 samples")
