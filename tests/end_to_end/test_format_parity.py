"""One simulated job gives the same tables whatever profiler recorded it, to the nanosecond."""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import jitter
from jitter.core.names.kernels import is_collective
from jitter.simulate import Fault, Job, simulate, write
from tests.support.kernel_truth import kernel_truth

METRICS = ("duration", "gap", "ttke", "launch_latency")
JOB = Job(ranks=3, steps=3, kernels=48, seed=11, first_step=5, epoch=None, marker="profiler", gpus_per_node=2)
FAULTS = (
    Fault.parse("cpu_stall:rank=1,step=6,kernel=17,ms=2"),
    Fault.parse("extra_kernel:rank=2,step=7,kernel=9,ms=1"),
)
FORMATS: dict[str, tuple[str, dict[str, Any]]] = {
    "nsys": ("nsys", {"layout": "2022.4"}),
    "nsys parquet": ("nsys", {"layout": "2026.2", "container": "parquet", "shuffle": True}),
    "kineto": ("kineto", {}),
    "kineto rocm": ("kineto", {"layout": "rocm"}),
    "v3 csv 0.5": ("rocprof-csv", {"layout": "0.5"}),
    "v3 csv 1.0": ("rocprof-csv", {"layout": "1.0", "shuffle": True}),
    "v3 csv 7.1": ("rocprof-csv", {"layout": "7.1", "names": "number"}),
    "rocpd": ("rocpd", {}),
    "v1 db": ("rocprof-v1", {}),
    "v1 json": ("rocprof-v1", {"forms": "json"}),
}
Tables = dict[tuple[int, str], pd.DataFrame]


@cache
def the_run() -> Any:
    return simulate(JOB, list(FAULTS))


def tables(folder: Path, format_name: str, **options: Any) -> Tables:
    traces = folder / "traces"
    write(the_run(), traces, format_name, **options)
    report = jitter.ingest([traces], folder / "lake")
    assert report.refused == []
    assert report.other_files == 0
    assert len(report.added) == JOB.ranks
    lake = jitter.open(folder / "lake")
    return {(step, metric): lake.table(metric, step=step) for step in JOB.step_numbers for metric in METRICS}


def plain(table: pd.DataFrame) -> pd.DataFrame:
    """Without what a format's nature decides: RCCL has one kernel for all operations."""
    names = ["collective" if is_collective(name) else name for name in table["kernel_name"]]
    return table.assign(kernel_name=names)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Tables:
    return tables(tmp_path_factory.mktemp("reference"), "nsys")


def test_the_reference_is_the_truth(reference: Tables):
    truth = kernel_truth(the_run())
    for step in JOB.step_numbers:
        for rank in range(JOB.ranks):
            told = {k.kernel_index: k for k in truth[None, step, rank] if k.kernel_index is not None}
            for metric in METRICS[:3]:
                column = reference[step, metric][f"rank_{rank}"].dropna()
                assert column.to_dict() == {at: getattr(told[at], f"{metric}_ns") for at in column.index}


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "nsys"])
def test_same_tables(tmp_path: Path, reference: Tables, name: str):
    format_name, options = FORMATS[name]
    found = tables(tmp_path, format_name, **options)
    for key, table in reference.items():
        pd.testing.assert_frame_equal(plain(found[key]), plain(table), check_exact=True, obj=f"{name} {key}")


@pytest.fixture(scope="module")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> Tables:
    return tables(tmp_path_factory.mktemp("graphs"), "nsys", graphs="node")


@pytest.mark.parametrize("name", ["v3 csv 1.0", "rocpd", "v1 db", "v1 json", "kineto rocm"])
def test_same_tables_of_graphs(tmp_path: Path, graphs: Tables, name: str):
    """One hipGraphLaunch, one correlation, many kernels."""
    format_name, options = FORMATS[name]
    found = tables(tmp_path, format_name, graphs="node", **options)
    for key, table in graphs.items():
        pd.testing.assert_frame_equal(plain(found[key]), plain(table), check_exact=True, obj=f"{name} {key}")


def test_whole_microseconds(tmp_path: Path, reference: Tables):
    """Early Chrome traces had no nanoseconds: what they lack is under two microseconds a value."""
    found = tables(tmp_path, "rocprof-v1", forms="json", nanoseconds=False)
    for (step, metric), table in reference.items():
        theirs = plain(found[step, metric])
        assert list(theirs["kernel_name"]) == list(plain(table)["kernel_name"])
        if metric == "ttke":
            continue  # a sum of many values
        for rank in range(JOB.ranks):
            column = f"rank_{rank}"
            assert (theirs[column].isna() == table[column].isna()).all()
            off = (theirs[column] - table[column]).dropna().to_numpy(np.int64)
            assert np.abs(off).max() <= 2_000


def test_collectives_by_their_calls(tmp_path: Path):
    """RCCL's one kernel names no operation: its calls do, where they were traced."""
    write(the_run(), tmp_path / "with", "rocprof-csv")
    write(the_run(), tmp_path / "without", "rocprof-csv")
    for path in (tmp_path / "without").glob("*_rccl_api_trace.csv"):
        path.unlink()
    write(the_run(), tmp_path / "rocpd", "rocpd")
    write(the_run(), tmp_path / "kineto", "kineto", layout="rocm")
    said = {}
    for name in ("with", "without", "rocpd", "kineto"):
        jitter.ingest([tmp_path / name], tmp_path / f"{name}-lake")
        kernels = pd.concat(
            pd.read_parquet(path) for path in (tmp_path / f"{name}-lake" / "kernels").rglob("*.parquet")
        )
        collectives = kernels[kernels["kind"] == "collective"]
        assert set(collectives["kernel_name"].map(is_collective)) == {True}
        said[name] = collectives["collective"].value_counts(dropna=False).to_dict()
    assert said["with"] == said["rocpd"] == said["kineto"]
    assert set(said["with"]) == {"all_reduce"}
    assert {type(key) for key in said["without"]} == {type(None)} or all(pd.isna(key) for key in said["without"])
