"""The README's commands do what it says, in the order in which it says them."""

import os
import re
import shlex
import shutil
from functools import partial
from pathlib import Path

import pytest

from tests.support.forked_command import run_forked

ROOT = Path(__file__).parents[2]


def commands(heading: str) -> list[str]:
    """The jitter commands of the first bash block after `heading`."""
    after = (ROOT / "README.md").read_text().split(heading, 1)[1]
    block = re.search(r"```bash\n(.*?)```", after, re.DOTALL)
    assert block is not None
    lines = [line.split("#")[0].strip() for line in block[1].splitlines()]
    return [line for line in lines if line.startswith("jitter ")]


def test_the_sample_shows_what_the_readme_says(tmp_path):
    shutil.copytree(ROOT / "data", tmp_path / "data")
    said = {}
    for command in commands("Try it on the sample"):
        wide = partial(os.environ.update, COLUMNS="160")
        done = run_forked(*shlex.split(command)[1:], cwd=tmp_path, prepare=wide)
        assert done.returncode == 0, f"{command}: {done.stderr}"
        said.setdefault(command.split()[1], done.stdout)
    step = next(line.split() for line in said["steps"].splitlines() if line.split()[0] == "1/2003")
    _, time_ms, loss_ms, _, _, max_rank, start_ms, launch_ms, gpu_ms, network_ms, cause, began, *_ = step
    assert (max_rank, cause, began) == ("5", "cpu_launch", "17")
    # the stall is nearly all of the step's loss
    assert float(time_ms) / 4 < 0.95 * float(loss_ms) < float(launch_ms) < float(loss_ms)
    others = [float(ms) for ms in (start_ms, gpu_ms, network_ms) if ms != "-"]
    assert float(launch_ms) > 20 * max(map(abs, others))
    assert sum(others) + float(launch_ms) == pytest.approx(float(loss_ms), abs=0.003)
    assert "Rank 5 (node0001): late kernel launches (CPU), kernel 17" in " ".join(said["report"].split())
    assert said["table"].splitlines()[0] == "kernel_index,kernel_name,mean,rank_4,rank_5,rank_6"
    assert (tmp_path / "jitter-report.html").stat().st_size > 100_000
