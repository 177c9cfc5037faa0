"""`jitter.record.torch_profiler` under torchrun: two processes with gloo on processors, without GPUs.

PyTorch is no dependency: the tests run with the interpreter JITTER_TORCH_PYTHON, or this one, if it has torch.
"""

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import jitter
import jitter.record
from jitter.core.errors import UsageError

PYTHON = os.environ.get("JITTER_TORCH_PYTHON", sys.executable)
pytestmark = pytest.mark.slow

TRAIN = """
import sys
import torch
import torch.distributed
import jitter.record

torch.distributed.init_process_group("gloo")
model = torch.nn.Linear(8, 8)
with jitter.record.torch_profiler(sys.argv[1], steps=range(3, 6), stacks=len(sys.argv) > 2) as profiler:
    for step in range(8):
        model(torch.ones(4, 8)).sum().backward()
        for parameter in model.parameters():
            torch.distributed.all_reduce(parameter.grad)
        profiler.step()
torch.distributed.destroy_process_group()
"""


@pytest.fixture(scope="module")
def python() -> str:
    found = subprocess.run([PYTHON, "-c", "import torch"], capture_output=True, check=False)
    if found.returncode:
        pytest.skip(f"{PYTHON} has no torch: set JITTER_TORCH_PYTHON to a Python that has")
    return PYTHON


def launch(python: str, folder: Path, *arguments: str) -> None:
    (folder / "train.py").write_text(TRAIN)
    command = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(folder / "train.py")]
    environment = os.environ | {"PYTHONPATH": str(Path(jitter.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, str(folder / "traces"), *arguments], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize("stacks", [False, True])
def test_two_processes(python: str, tmp_path: Path, stacks: bool):
    launch(python, tmp_path, *(["stacks"] if stacks else []))
    files = sorted((tmp_path / "traces").iterdir())
    assert [file.name.partition("-steps")[0] for file in files] == ["rank-0-of-2", "rank-1-of-2"]
    for rank, file in enumerate(files):
        trace = json.loads(gzip.decompress(file.read_bytes()))
        info = trace["distributedInfo"]
        assert (info["rank"], info["world_size"]) == (rank, 2)
        assert trace["jitter_host"]
        names = [event.get("name", "") for event in trace["traceEvents"]]
        assert sorted({name for name in names if name.startswith("ProfilerStep")}) == [
            f"ProfilerStep#{step}" for step in (3, 4, 5)
        ]
        assert any(event.get("cat") == "python_function" for event in trace["traceEvents"]) == stacks
    report = jitter.ingest(tmp_path / "traces", tmp_path / "lake")
    assert len(report.refused) == 2  # processors only
    assert all("no GPU activity" in error.message for error in report.refused)


def test_a_process_without_a_launcher_states_its_rank(python: str, tmp_path: Path):
    program = (
        "import torch, jitter.record\n"
        f"with jitter.record.torch_profiler({str(tmp_path)!r}, steps=range(1, 3), rank=5, world_size=9) as profiler:\n"
        "    for step in range(3):\n"
        "        torch.ones(3).sum()\n"
        "        profiler.step()\n"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(jitter.__file__).parents[1])}
    subprocess.run([python, "-c", program], env=environment, check=True, capture_output=True)
    (file,) = tmp_path.glob("*.json.gz")
    assert file.name.startswith("rank-5-of-9-steps1-2-")
    assert json.loads(gzip.decompress(file.read_bytes()))["distributedInfo"] == {"rank": 5, "world_size": 9}


@pytest.mark.parametrize("steps", [[], [1, 3], [3, 2], [-1, 0]])
def test_steps_that_are_no_range(steps: list[int]):
    with pytest.raises(UsageError, match="not consecutive"):
        jitter.record.torch_profiler("traces", steps)
