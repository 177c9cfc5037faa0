"""Fixtures that several packages' tests share. Tests must not change what a session fixture returns."""

import gc
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import settings

import jitter
from jitter.core import durability
from jitter.core.memory import reduce_gc
from jitter.core.numeric import compilation
from jitter.core.step_key import StepKey
from jitter.ingestion import workers
from jitter.simulate import Fault, Job, simulate, write
from tests.support.chromium import browser
from tests.support.dask_cluster import dask_cluster
from tests.support.loops import each_way

__all__ = ["browser", "dask_cluster", "each_way"]

SAMPLE = Path(__file__).parents[1] / "data" / "sample"
IN_MEMORY = Path("/dev/shm")
ROOM_BYTES = 8 << 30
settings.register_profile("without deadline", deadline=None)  # a busy machine is no failure
settings.load_profile("without deadline")


def pytest_configure() -> None:
    """Let commands that tests start end on SIGINT: a shell's background job ignores it, and children inherit that."""
    if "TMPDIR" not in os.environ and _holds_all_lakes(IN_MEMORY):
        # a lake is many small files in many folders: a disk takes longer to make and remove these than all else
        tempfile.tempdir = os.environ["TMPDIR"] = str(IN_MEMORY)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # waits for the disk take longer than small lakes; commands that tests start wait, and power cuts are simulated
    if "PYTEST_XDIST_WORKER" in os.environ:  # hundreds of small jobs in one process: a diagnosis takes half the time
        compilation.compile_loops(compilation.WORTH_COMPILING)
        reduce_gc()  # as in the commands
    os.fsync = lambda _descriptor: None
    workers.cpu_count = lambda: 1  # an ingest converts here: worker processes take longer than a small job
    durability._syncfs = lambda: lambda _descriptor: 0


def _holds_all_lakes(folder: Path) -> bool:
    """Return whether a file system in memory has room for what all tests write."""
    pages = Path("/proc/meminfo")
    if not (os.access(folder, os.W_OK) and pages.exists()):
        return False
    available_kib = int(pages.read_text().split("MemAvailable:")[1].split()[0])
    return min(shutil.disk_usage(folder).free, available_kib << 10) > ROOM_BYTES


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Build the wheel first: other tests on this machine then load its machine code instead of compiling loops."""
    items.sort(key=lambda item: "packaging" not in item.path.parts)


def pytest_collection_finish() -> None:
    """Spare the garbage collector the modules and thousands of tests, which live until the end."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    """Let the interpreter free them: libraries report what is left."""
    gc.unfreeze()


@pytest.fixture(scope="session")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with rank0.sqlite to rank2.sqlite: epoch 1, steps 2000 to 2002.

    In step 2001 rank 2 runs one kernel more than the others and its host stalls for 3 ms.
    """
    folder = tmp_path_factory.mktemp("traces")
    faults = ["cpu_stall:rank=2,step=2001,kernel=5,ms=3", "extra_kernel:rank=2,step=2001,kernel=7"]
    job = Job(ranks=3, steps=3, kernels=16, first_step=2000)
    write(simulate(job, [Fault.parse(fault) for fault in faults]), folder, "nsys")
    return folder


@pytest.fixture
def own_traces(traces: Path, tmp_path: Path) -> Path:
    """Return a copy of `traces` that the test may change."""
    return Path(shutil.copytree(traces, tmp_path / "own"))


@pytest.fixture(scope="session")
def small_lake(traces: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a lake made from `traces`."""
    root = tmp_path_factory.mktemp("lakes") / "lake"
    assert jitter.ingest([traces], root).refused == []
    return root


@pytest.fixture(scope="session")
def sample_lake(tmp_path_factory: pytest.TempPathFactory) -> "jitter.Lake":
    """Return the lake of `data/sample`: in step 2003 the host of rank 5 stalls before kernel 17."""
    root = tmp_path_factory.mktemp("sample") / "lake"
    assert jitter.ingest([SAMPLE], root).refused == []
    return jitter.open(root)


@pytest.fixture(scope="session")
def simulated_traces(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return a function that writes a small job's traces: `job` are `Job`'s fields, `options` the format's."""

    def make(job: dict[str, object], **options: object) -> Path:
        folder = tmp_path_factory.mktemp("simulated")
        write(simulate(Job(**({"ranks": 2, "steps": 2, "kernels": 16} | job))), folder, "nsys", **options)  # type: ignore[arg-type]
        return folder

    return make


@pytest.fixture
def computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Diagnose and draw equal recordings once, for tests of commands: that takes longer than all else.

    Not for tests that change a lake's files, or what the analysis does.
    """
    from jitter.api import Lake
    from jitter.report import page  # loads Bokeh

    def once(name: str, compute: Callable[..., Any]) -> Callable[..., Any]:
        def known(lake: jitter.Lake, steps: Sequence[StepKey] | None = None, *more: Any) -> Any:
            asked = name, msgspec.json.encode((lake.sources, lake.logs)), tuple(steps or ())
            if asked not in _computed:
                _computed[asked] = compute(lake, steps, *more)
            return _computed[asked]

        return known

    monkeypatch.setattr(page, "render_html", once("page", page.render_html))
    monkeypatch.setattr(Lake, "_diagnose", once("answers", Lake._diagnose))


_computed: dict[tuple[object, ...], Any] = {}
