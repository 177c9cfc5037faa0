"""Logs of GPUs and of the network beside the traces."""

import gzip
import os
import re
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import jitter
from jitter.cli import main
from tests.support.json_report import differing
from tests.support.printed import json_of, output_of
from tests.support.simulated import sampled_lake


@pytest.mark.parametrize("form", ["nsys", "kineto"])
def test_clocks_of_a_slow_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str], form: str):
    job = f"--ranks 4 --steps 5 --kernels 60 --seed 3 --format {form} --fault slow_gpu:rank=2,factor=1.3 --evidence"
    lake = sampled_lake(tmp_path, job)
    found = json_of(capsys, "report", lake.root, "--json")
    (culprit,) = differing(found)
    assert (culprit["rank"], culprit["cause"]) == (2, "gpu_compute")
    told = "GPU 2 of node0000 (rank 2) limited by heat: 1,523 of 1,980 MHz, the other GPUs' median, in 5 of 5 samples"
    (clocks,) = [line for line in culprit["evidence"] if "MHz" in line]
    assert clocks == told  # NCCL's log names the host that a Kineto trace does not
    assert (found["verdict"].endswith(f" By the logs, {clocks}."), found["facts"]) == (True, [])


def test_clocks_in_local_time_count_where_the_time_of_their_file_tells_the_zone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = "--ranks 4 --steps 5 --kernels 60 --seed 3 --fault slow_gpu:rank=2,factor=1.3 --evidence --quiet"
    assert main(["sample", str(tmp_path / "traces"), *job.split()]) == 0
    (clocks,) = (tmp_path / "traces").glob("nvidia-smi*")
    ahead, times = timedelta(hours=5, minutes=30), list[datetime]()

    def in_local_time(match: re.Match[str]) -> str:
        times.append(datetime.strptime(f"{match[0]} +0000", "%Y/%m/%d %H:%M:%S.%f %z"))
        return f"{times[-1] + ahead:%Y/%m/%d %H:%M:%S.%f}"

    clocks.write_text(re.sub(r"(?m)^\d{4}/[\d/]+ [\d:.]+", in_local_time, clocks.read_text()))
    said = []
    for number, late in enumerate((timedelta(), timedelta(minutes=7))):
        os.utime(clocks, ((times[-1] + late).timestamp(),) * 2)
        lake = str(tmp_path / f"lake{number}")
        assert main(["ingest", str(tmp_path / "traces"), "-o", lake]) == 0
        found = json_of(capsys, "report", lake, "--json")
        (culprit,) = differing(found)
        said.append(culprit["cause_certainty"])
    assert said == ["certain", "likely"]


def test_logs_beside_the_recordings_of_another_run_are_left_out_with_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = "--ranks 4 --steps 5 --kernels 60 --evidence --quiet"
    for name, more in (("healthy", ""), ("slow", "--fault slow_gpu:rank=2,factor=1.3")):
        assert main(["sample", str(tmp_path / name), *job.split(), *more.split()]) == 0
    lake = str(tmp_path / "lake")
    assert main(["ingest", str(tmp_path / "healthy"), "-o", lake]) == 0
    held = sorted(record.file for record in jitter.open(lake).logs)
    capsys.readouterr()
    main(["ingest", str(tmp_path / "slow"), "-o", lake])
    assert "beside recordings that are left out, and left out too (and " in capsys.readouterr().err
    assert sorted(record.file for record in jitter.open(lake).logs) == held
    (clocks,) = (tmp_path / "slow").glob("nvidia-smi*")
    assert main(["ingest", str(clocks), "-o", lake]) == 0
    assert str(clocks) in [record.file for record in jitter.open(lake).logs]


def report(place: Path, capsys: pytest.CaptureFixture[str], fault: str, *more: str) -> dict[str, Any]:
    job = f"--ranks 8 --gpus-per-node 4 --steps 6 --kernels 60 --fault {fault}"
    lake = sampled_lake(place, " ".join((job, *more)))
    found: dict[str, Any] = json_of(capsys, "report", lake.root, "--json")
    return found


@pytest.mark.parametrize(
    ("rank", "scope", "ranks", "named"),
    [("6", "rank", [6], "Rank 6 (node0001)"), ("1+6", "ranks", [1, 6], "The group of ranks 1,6")],
)
def test_a_slow_link_is_that_of_the_rank_off_the_fabric(
    rank: str, scope: str, ranks: list[int], named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = report(tmp_path, capsys, f"slow_link:rank={rank},factor=8", "--evidence")
    [culprit] = differing(found)
    assert (culprit["scope"], culprit["ranks"], culprit["cause"]) == (scope, ranks, "slow_network")
    assert culprit["cause_certainty"] == "certain"
    assert f" {named} communicates more slowly than the benchmark in every step" in found["verdict"]
    assert any("by TCP over ib0, the other ranks by IB" in line for line in culprit["evidence"])


def test_verdict_and_terminal_say_the_same_of_fixing_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = report(tmp_path, capsys, "slow_gpu:rank=2,factor=1.3 --fault slow_collective:factor=6", "--evidence")
    assert {culprit["cause"] for culprit in differing(found)} == {"gpu_compute", "slow_network"}
    assert main(["report", str(tmp_path / "lake"), "-v"]) == 0
    fixed = re.compile(r"fixing\s+all\s+findings\s+would\s+save\s+about\s+([\d.]+\s+\w+)")
    said = [fixed.findall(text) for text in (found["verdict"], capsys.readouterr().out)]
    assert all(said)
    assert len({" ".join(time.split()) for times in said for time in times}) == 1


@pytest.mark.parametrize("has_debug_log", [True, False])
def test_a_link_slower_than_its_peers_and_than_the_benchmark_is_one_finding(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], *, has_debug_log: bool
) -> None:
    """The loss is that of two rungs; what communication costs at the benchmark's speed is not TCP's."""
    job = "--ranks 8 --steps 4 --kernels 60 --shape tensor_data --tensor 4 --fault slow_link:rank=5,factor=4"
    traces = tmp_path / "traces"
    assert main(["sample", str(traces), *job.split(), "--evidence", "--quiet"]) == 0
    if not has_debug_log:
        (traces / "nccl_debug.log").unlink()
    found = json_of(capsys, "report", traces, "-L", tmp_path / "lake", "--json")
    [link] = differing(found)
    assert link["ranks"] == [5]
    rungs = {rung["rung"]: rung["loss_ns"] * 3 for rung in found["waterfall"] if rung["loss_ns"] is not None}
    assert rungs["ranks"] * 0.95 < link["loss_ns"] < rungs["ranks"] + rungs["network"]
    assert found["what_if"]["culprits_repaired_ns"] <= found["loss"]["ns"]
    told = [culprit for culprit in found["culprits"] if culprit["cause"] == "exposed_communication"]
    assert [culprit["scope"] for culprit in told] == ["job"]
    assert not any("TCP" in line for culprit in told for line in culprit["evidence"])


def test_without_logs_nobody_knows_whose_link_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    [culprit] = differing(report(tmp_path, capsys, "slow_link:rank=6,step=3,factor=8"))
    assert (culprit["scope"], culprit["cause_certainty"]) == ("job", "likely")


def test_tcp_on_all_ranks_is_the_cause_and_no_ranks_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = report(tmp_path, capsys, "slow_collective:factor=6", "--evidence")
    [culprit] = differing(found)
    assert (culprit["scope"], culprit["cause_certainty"]) == ("job", "certain")
    assert "NCCL communicates by TCP over ib0" in found["verdict"]


def test_without_a_benchmark_the_rank_off_the_fabric_explains_communication_in_every_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The traces know only that all ranks communicate for long; packed logs are logs."""
    job = "--ranks 8 --gpus-per-node 4 --steps 6 --kernels 60 --fault slow_link:rank=6,factor=8 --evidence --quiet"
    traces = tmp_path / "traces"
    assert main(["sample", str(traces), *job.split()]) == 0
    for log in traces.glob("nccl-tests*"):
        log.unlink()
    log = traces / "nccl_debug.log"
    (traces / "nccl_debug.log.gz").write_bytes(gzip.compress(log.read_bytes()))
    log.unlink()
    shown = " ".join(output_of(capsys, "report", traces, "-L", tmp_path / "lake").split())
    assert "Rank 6 (node0001): NCCL over TCP in place of IB (network)" in shown
    assert "would save at most" in shown
    assert "communicates by TCP over ib0, the other ranks by IB" in shown
