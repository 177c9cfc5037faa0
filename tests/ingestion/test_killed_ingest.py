"""An ingest that is killed, and run again: the lake is as if nothing had happened."""

import errno
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

import jitter
from jitter.ingestion import workers
from jitter.ingestion.convert import Outcome, Task, convert
from jitter.lake.folder import LakeFolder
from jitter.lake.layout import files_of_record
from jitter.simulate import Job, simulate, write
from tests.support.fuzz_depth import fuzz, of_all
from tests.support.killed_process import KILLED, run_killed
from tests.support.lake_content import content

pytestmark = pytest.mark.slow

INGEST = [sys.executable, "-m", "jitter", "ingest", "--jobs", "2", "--quiet"]


def _start(*arguments: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen([*INGEST, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def _wait_for(*, process: subprocess.Popen[bytes], lake: Path, glob: str, count: int) -> None:
    while process.poll() is None and len(list(lake.glob(glob))) < count:
        time.sleep(0.004)


def _no_children_left(process: subprocess.Popen[bytes]) -> bool:
    """The pipes close when the last process that inherited them has ended."""
    try:
        process.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        return False
    return True


def test_kill_9_at_random_moments(traces: Path, tmp_path: Path):
    jitter.ingest([traces], tmp_path / "whole")
    whole = content(tmp_path / "whole")
    lake = tmp_path / "lake"
    chance = random.Random(7)
    # moments of the lake's growth and, between them, of the clock
    moments = [(".staging/*/*/*", 2), ("kernels/*/*/*.parquet", 1)]
    for glob, count in moments:
        process = _start(traces, "-o", lake)
        _wait_for(process=process, lake=lake, glob=glob, count=count)
        time.sleep(chance.random() * 0.004)
        process.kill()
        assert _no_children_left(process)
        assert process.returncode in (-signal.SIGKILL, 0)
    report = jitter.ingest([traces], lake)
    assert not report.refused
    assert content(lake) == whole
    assert not (lake / ".staging").exists()


def test_what_was_converted_before_the_end_is_not_converted_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write(simulate(Job(ranks=12, steps=2, kernels=16)), tmp_path / "traces", "nsys")
    jitter.ingest([tmp_path / "traces"], tmp_path / "whole")
    lake = tmp_path / "lake"
    converted = 0

    def end_early(task: Task, advance: Callable[[int], None]) -> Outcome:
        nonlocal converted
        if converted == 10:
            raise KeyboardInterrupt
        converted += 1
        return convert(task, advance)

    monkeypatch.setattr(workers, "convert", end_early)
    with pytest.raises(KeyboardInterrupt):
        jitter.ingest([tmp_path / "traces"], lake)
    monkeypatch.undo()
    report = jitter.ingest([tmp_path / "traces"], lake)
    assert (report.unchanged, len(report.added)) == (10, 2)
    assert content(lake) == content(tmp_path / "whole")


@fuzz
def test_killed_at_every_write(own_traces: Path, tmp_path: Path):
    """Each change of the lake makes, renames or removes a file or folder: die before each, in two readings."""
    told = tmp_path / "map.csv"
    told.write_text("rank0.sqlite,10\nrank1.sqlite,11\nrank2.sqlite,1\n")
    jitter.ingest([own_traces], tmp_path / "first")
    first = content(tmp_path / "first")
    jitter.ingest([own_traces], tmp_path / "first", rank_map=told)
    second = content(tmp_path / "first")
    assert second != first
    for options, before, expected in (({}, None, first), ({"rank_map": told}, first, second)):
        lake = tmp_path / f"lake{len(options)}"
        if before is not None:
            jitter.ingest([own_traces], lake)
        read_again = partial(jitter.ingest, [own_traces], lake, **options)
        for death in range(0, 10_000, of_all(1, 8)):
            if (code := run_killed(read_again, lake, death)) != KILLED:
                assert code == 0
                break
        else:
            pytest.fail("never came to its end")
        assert death > 5
        assert content(lake) == expected


def test_what_another_run_is_about_to_put_there_stays(tmp_path: Path):
    one, other = LakeFolder(tmp_path / "lake"), LakeFolder(tmp_path / "lake")
    one.create()
    places = [Path("kernels", "step=1", f"rank={rank}.parquet") for rank in (0, 1)]
    files = [one.root / place for place in places]
    files[0].parent.mkdir()
    with other.journal([], places[:1]):
        for file in files:
            file.touch()
        with pytest.raises(OSError, match="refuses"), one.journal([], places):
            raise OSError("the disk refuses")
        one.close()
        assert [file.exists() for file in files] == [True, False]
    other.close()
    assert files[0].exists()


def test_ctrl_c(traces: Path, tmp_path: Path):
    lake = tmp_path / "lake"
    process = _start(traces, "-o", lake)
    _wait_for(process=process, lake=lake, glob=".staging/*/*", count=2)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert out == b""
    assert err.split() == [b"interrupted"]
    assert not (lake / ".staging").exists()
    jitter.ingest([traces], lake)
    jitter.ingest([traces], tmp_path / "whole")
    assert content(lake) == content(tmp_path / "whole")


def test_a_full_disk_leaves_nothing_that_no_record_accounts_for(
    own_traces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    jitter.ingest([own_traces], tmp_path / "whole")
    lake = tmp_path / "lake"
    really, moved = os.replace, 0

    def replace(source: str | Path, target: str | Path) -> None:
        nonlocal moved
        moved += str(target).endswith(".parquet")
        if moved == 4:
            raise OSError(errno.ENOSPC, "No space left on device")
        really(source, target)

    with monkeypatch.context() as full:
        full.setattr(os, "replace", replace)
        with pytest.raises(OSError, match="No space"):
            jitter.ingest([own_traces], lake)
    held = {path.relative_to(lake) for record in LakeFolder(lake).records() for path in files_of_record(record)}
    assert {path.relative_to(lake) for path in (lake / "kernels").rglob("*.parquet")} <= held
    assert not (lake / ".staging").exists()
    jitter.ingest([own_traces], lake)
    assert content(lake) == content(tmp_path / "whole")
