"""`jitter collectives` on a healthy job and on one whose network is slow for all ranks in all steps."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

import jitter
from jitter.cli import main
from jitter.simulate import Fault, Job, simulate, write, write_logs

SIZE = 26_214_400


@pytest.fixture(scope="module")
def lakes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same job healthy and with a slow network, with the logs of each; in Nsight Systems' and PyTorch's format."""
    folder = tmp_path_factory.mktemp("network")
    found = {}
    for name, faults in (("healthy", []), ("slow", [Fault.parse("slow_collective:factor=6")])):
        for form, options in (("nsys", {"layout": "2026.2"}), ("kineto", {})):
            run = simulate(Job(ranks=8, steps=6, kernels=300, seed=3), faults)
            traces = folder / f"{name}-{form}" / "traces"
            write(run, traces, form, **options)
            write_logs(run, traces)
            found[f"{name}-{form}"] = lake = folder / f"{name}-{form}" / "lake"
            report = jitter.ingest([traces], lake, executor=jitter.LocalExecutor(), label="fabric")
            assert len(report.logs.added) == 3
    return found


def run(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    assert main(list(map(str, arguments))) == 0
    return capsys.readouterr().out


def document(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run(capsys, "collectives", *arguments, "--json"))
    return found


@pytest.mark.parametrize("form", ["nsys", "kineto"])
@pytest.mark.parametrize(("name", "busbw"), [("healthy", 182.0), ("slow", 30.3)])
def test_bandwidth(lakes: dict[str, Path], capsys: pytest.CaptureFixture[str], form: str, name: str, busbw: float):
    found = document(capsys, lakes[f"{name}-{form}"])
    (row,) = (row for row in found["collectives"] if row["size"] == SIZE)
    assert (row["collective"], row["calls"], row["group_size"]) == ("all_reduce", 36, 8)
    assert round(row["busbw"], 1) == busbw
    assert row["algbw"] == pytest.approx(row["busbw"] / 1.75, abs=0.01)
    assert found["schema_version"] == 1
    assert found["reasons"] == []
    for one in [*found["ranks"], *found["steps"]]:
        parts = [one[f"{part}_ms"] for part in ("compute", "hidden", "exposed", "waiting", "copies", "idle")]
        assert sum(parts) == pytest.approx(one["step_ms"], abs=0.005)
    assert (len(found["ranks"]), len(found["steps"])) == (8, 6)


def test_baseline_by_label_and_by_file(lakes: dict[str, Path], capsys: pytest.CaptureFixture[str]):
    by_label = document(capsys, lakes["slow-kineto"], "--baseline", "fabric")
    log = lakes["slow-kineto"].parent / "traces" / "nccl-tests-all_reduce-8.log"
    by_file = document(capsys, lakes["slow-kineto"], "--baseline", log)
    assert by_label["baseline"]["rows"] == by_file["baseline"]["rows"]
    rows = {row["size_bytes"]: row for row in by_label["baseline"]["rows"]}
    assert rows[SIZE]["ratio"] == pytest.approx(1 / 6, rel=0.02)
    assert len(by_label["findings"]) == 2
    healthy = document(capsys, lakes["healthy-kineto"], "--baseline", log)
    assert healthy["findings"] == []


@pytest.mark.parametrize("by", ["size", "group", "rank", "step"])
def test_csv_and_text_have_the_same_rows(lakes: dict[str, Path], capsys: pytest.CaptureFixture[str], by: str):
    text = run(capsys, "collectives", lakes["healthy-nsys"], "--by", by)
    rows = list(
        csv.DictReader(run(capsys, "collectives", lakes["healthy-nsys"], "--by", by, "--format", "csv").splitlines())
    )
    assert len(rows) == {"size": 2, "group": 2, "rank": 8, "step": 6}[by]
    assert len(text.split("\n\n")[0].splitlines()) == len(rows) + 1


def test_group_and_steps(lakes: dict[str, Path], capsys: pytest.CaptureFixture[str]):
    lake = lakes["healthy-kineto"]
    assert document(capsys, lake, "--group", "0", "--steps", "1-2")["collectives"][0]["calls"] in (2, 12)
    assert main(["collectives", str(lake), "--group", "none"]) == 2
    assert "no collectives of group 'none'" in capsys.readouterr().err
    assert main(["collectives", str(lake), "--baseline", "none"]) == 2
    assert "labels of the lake: fabric" in capsys.readouterr().err


def test_the_report_tells_of_the_network(lakes: dict[str, Path], capsys: pytest.CaptureFixture[str]):
    slow = json.loads(run(capsys, "report", lakes["slow-kineto"], "--json"))
    assert [one["kind"] for one in slow["efficiency"]] == ["communication"]
    assert " GB/s (" in slow["efficiency"][0]["finding"]
    assert slow["efficiency"][0]["finding"] in slow["culprits"][0]["evidence"]
    culprit, exposed = slow["culprits"]
    assert (exposed["rung"], exposed["cause"], exposed["scope"]) == ("overlap", "exposed_communication", "job")
    assert (culprit["rung"], culprit["scope"], culprit["cause"]) == ("network", "job", "slow_network")
    timed = [step for step in slow["steps"] if step["step_time_ns"]]
    assert culprit["gain_ns"] / len(timed) == pytest.approx(3_160_000, rel=0.1)
    healthy = json.loads(run(capsys, "report", lakes["healthy-kineto"], "--json"))
    assert healthy["culprits"] == []
    assert [one["kind"] for one in healthy["efficiency"]] == ["compute_bound"]


def test_sample_writes_logs(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["sample", str(tmp_path / "t"), "--ranks", "2", "--steps", "2", "--evidence", "--quiet"]) == 0
    names = {path.name for path in (tmp_path / "t").glob("*.log")}
    assert names == {"nccl-tests-all_reduce-2.log", "nccl_debug.log"}
    assert names < set(json.loads((tmp_path / "t" / "truth.json").read_text())["traces"])
    capsys.readouterr()
    assert main(["sample", str(tmp_path / "t"), "--ranks", "2", "--steps", "2", "--quiet"]) == 2
    assert "add --force to write anew" in capsys.readouterr().err
    assert {path.name for path in (tmp_path / "t").glob("*.log")} == names
    assert main(["sample", str(tmp_path / "t"), "--ranks", "2", "--steps", "2", "--force", "--quiet"]) == 0
    assert list((tmp_path / "t").glob("*.log")) == []
