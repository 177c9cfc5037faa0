"""`jitter report --scheduler`: what a cluster's workers compute is what one process computes."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jitter.cli import main
from jitter.core.parallel import dask_client
from jitter.simulate import Fault, Job, simulate
from tests.support.dask_cluster import StartCluster, address_of
from tests.support.printed import output_of
from tests.support.simulated import ingest_run

pytestmark = pytest.mark.slow

JOB = Job(
    ranks=8, steps=6, kernels=60, gpus_per_node=4, shape="tensor_data", marker="profiler", epoch=None, launch_queue=16
)
FAULTS = ["slow_gpu:rank=5,factor=1.3", "cpu_stall:rank=2,step=3,kernel=9,ms=2"]


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("job")
    run = simulate(JOB, [Fault.parse(fault) for fault in FAULTS])
    ingest_run(run, folder, "kineto")
    return folder / "lake"


def _command(lake: Path, *words: str) -> list[str]:
    return [sys.executable, "-m", "jitter", "report", str(lake), "--json", *words]


def test_the_same_answers_although_a_worker_dies(
    lake: Path, dask_cluster: StartCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    processes = dask_cluster(2, forgiven=3, fresh={})
    command = _command(lake, "--scheduler", address_of(tmp_path / "scheduler.json"))
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as report:
        while not (busy := [process for process in processes if _is_at_it(process.pid)]):
            assert report.poll() is None
            time.sleep(0.02)
        busy[0].send_signal(signal.SIGKILL)
        told, said = report.communicate(timeout=120)
    assert report.returncode == 0, said
    assert told == output_of(capsys, "report", lake, "--json")
    late = {(one["rank"], one["cause"]) for one in json.loads(told)["culprits"] if one["rung"] == "ranks"}
    assert late == {(5, "gpu_compute"), (2, "cpu_launch")}


def _is_at_it(pid: int) -> bool:
    """Whether the worker has loaded what it reads lakes with: nothing but a task of ours makes it."""
    return "libparquet" in Path(f"/proc/{pid}/maps").read_text()


def test_a_lake_that_workers_do_not_see(lake: Path, dask_cluster: StartCluster, tmp_path: Path):
    from jitter.analysis.detection.dask_executor import RemoteRun, _opened
    from jitter.core.errors import LakeError

    with pytest.raises(LakeError, match="does not see it"):
        _opened(RemoteRun("x", tmp_path / "nowhere", (), None, frozenset()))  # type: ignore[arg-type]


def test_a_lake_that_lost_a_recording_meanwhile(lake: Path):
    from jitter.analysis.detection.dask_executor import RemoteRun, _opened
    from jitter.core.errors import LakeError

    with pytest.raises(LakeError, match="has changed while it was read"):
        _opened(RemoteRun("y", lake, (), None, frozenset({"0" * 32})))  # type: ignore[arg-type]


def test_no_scheduler(lake: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr(dask_client, "_ANSWERS_WITHIN_S", 0.5)
    assert main(_command(lake, "--scheduler", "tcp://127.0.0.1:9")[3:]) == 3
    said = capsys.readouterr().err
    assert "no Dask scheduler answers" in said
    assert "Traceback" not in said
