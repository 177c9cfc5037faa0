"""Clocks that `sample --evidence` writes beside the traces of a slow GPU are evidence of that GPU, and of no other."""

import json
from pathlib import Path

import pytest

import jitter
from jitter.cli import main
from tests.support.json_report import differing
from tests.support.simulated import sampled_lake


@pytest.mark.parametrize("form", ["nsys", "kineto"])
def test_clocks_of_a_slow_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str], form: str):
    job = f"--ranks 4 --steps 5 --kernels 60 --seed 3 --format {form} --fault slow_gpu:rank=2,factor=1.3 --evidence"
    lake = sampled_lake(tmp_path, job)
    capsys.readouterr()
    assert main(["report", str(lake.root), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    (culprit,) = differing(found)
    assert (culprit["rank"], culprit["cause"]) == (2, "gpu_compute")
    told = "GPU 2 of node0000 limited by heat: 1,523 of 1,980 MHz, the other GPUs' median, in 5 of 5 samples"
    (clocks,) = [line for line in culprit["evidence"] if "MHz" in line]
    assert clocks == told  # NCCL's log names the host that a Kineto trace does not
    assert (found["verdict"].endswith(f" By the logs, {clocks}."), found["facts"]) == (True, [])


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
