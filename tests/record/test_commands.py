"""`jitter record` prints commands whose names and markers the readers understand."""

import re
import shlex
import subprocess
from pathlib import Path
from typing import get_args

import pytest

from jitter.cli import main
from jitter.ingestion.names import compile_step_pattern, rank_in_path
from jitter.ingestion.transform.steps.step_markers import parse_marker
from jitter.readers.amd.perfetto import PerfettoReader
from jitter.record.commands import Launcher, Profiler
from jitter.record.torch import file_name
from jitter.simulate import Job, simulate
from tests.support.perfetto_traces import write_run


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["record", *arguments]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


@pytest.mark.parametrize("profiler", ["nsys", "rocprofv3", "rocprof-sys", "torch"])
@pytest.mark.parametrize("launcher", get_args(Launcher))
def test_the_lines(capsys: pytest.CaptureFixture[str], profiler: str, launcher: str):
    text = printed(capsys, profiler, "--launcher", launcher, "--nodes", "2", "--gpus", "4", "--steps", "20-29")
    if launcher != "k8s":
        subprocess.run(["bash", "-n"], input=text, text=True, check=True)
    variable = {"srun": "SLURM_PROCID", "mpirun": "OMPI_COMM_WORLD_RANK"}.get(launcher, "RANK")
    if profiler == "nsys":
        (name,) = re.findall(r"traces/rank-%q\{(\w+)\}", text)
        assert name == variable
        assert "if step == 20:" in text
        assert "if step == 29:" in text
    if profiler.startswith("rocprof"):
        (name,) = re.findall(r"rank-%env\{(\w+)\}%", text)
        assert name == variable
    if profiler == "torch":
        assert "range(20, 30)" in text
    else:
        marker = f"step{21}-rank{3}"
        assert 'range_push(f"step{step}-rank{rank}")' in text
        found = parse_marker(compile_step_pattern(None), marker)
        assert found is not None
        assert (found.step, found.rank) == (21, 3)
        assert ("--no-python" in text) == (launcher in ("torchrun", "k8s"))
    counts = {"torchrun": "--nnodes 2 --nproc-per-node 4", "srun": "--nodes 2 --ntasks-per-node 4", "mpirun": "-np 8"}
    assert counts.get(launcher, '"--nproc-per-node", "4"') in text


@pytest.mark.parametrize("profiler", ["jax", "vllm", "sglang"])
def test_the_lines_of_frameworks(capsys: pytest.CaptureFixture[str], profiler: str):
    assert profiler in get_args(Profiler)
    text = printed(capsys, profiler, "--gpus", "4", "--steps", "20-29", "--folder", "my traces")
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)
    wanted = {
        "jax": ["if step == 20:", "if step == 29:", 'StepTraceAnnotation("train", step_num=step)'],
        "vllm": [
            "torch_profiler_dir \"$(realpath 'my traces')\"",
            "--tensor-parallel-size 4 --profiler-config.profiler torch",
        ],
        "sglang": ['"num_steps": 10', "--tp 4"],
    }
    assert all(words in text for words in wanted[profiler])
    assert rank_in_path(Path("my traces/rank3/plugins")) == 3
    assert parse_marker(compile_step_pattern(None), "train#step_num=21#") is not None


def test_a_light_recording(capsys: pytest.CaptureFixture[str]):
    text = printed(capsys, "nsys", "--light")
    assert "nsys profile -t cuda,nvtx --sample=none --cpuctxsw=none -o" in text
    assert main(["record", "torch", "--light"]) == 2


@pytest.mark.parametrize("nodes", ["1", "2"])
def test_workers_of_several_nodes_meet(capsys: pytest.CaptureFixture[str], nodes: str):
    """Without a rendezvous, the torchrun of each node takes itself for the first node and waits for the others."""
    text = printed(capsys, "torch", "--nodes", nodes)
    assert ("--rdzv-backend c10d --rdzv-endpoint HEAD_NODE:29500 train.py" in text) == (nodes == "2")
    assert ("# on each node" in text) == (nodes == "2")


def test_the_program(capsys: pytest.CaptureFixture[str]):
    text = printed(capsys, "nsys", "--launcher", "srun", "--folder", "my traces", "my train.py", "--lr", "0.1")
    (line,) = [line for line in text.splitlines() if line.startswith("srun")]
    words = shlex.split(line)
    assert words[-4:] == ["python", "my train.py", "--lr", "0.1"]
    assert "my traces/rank-%q{SLURM_PROCID}" in words


@pytest.mark.parametrize("steps", ["1,5", "x", "5-2"])
def test_steps_that_are_no_range(capsys: pytest.CaptureFixture[str], steps: str):
    assert main(["record", "torch", "--steps", steps]) == 2
    assert "--steps" in capsys.readouterr().err


def test_the_name_states_the_rank():
    assert rank_in_path(Path(file_name(3, 8, 100, 109))) == 3
    assert rank_in_path(Path(file_name(12, None, 0, 4))) == 12


def test_the_traces_of_rocprof_sys_state_the_rank(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    text = printed(capsys, "rocprof-sys", "--launcher", "srun")
    (prefix,) = re.findall(r"ROCPROFSYS_OUTPUT_PREFIX=(\S+)", text)
    trace = tmp_path / (prefix.replace("%env{SLURM_PROCID}%", "3") + "perfetto-trace.proto")
    write_run(simulate(Job(ranks=1, steps=1, kernels=8)).ranks(), tmp_path / "traces")
    next(tmp_path.glob("traces/*.pftrace")).rename(trace)
    assert PerfettoReader().sniff(trace)
    assert rank_in_path(trace) == 3
