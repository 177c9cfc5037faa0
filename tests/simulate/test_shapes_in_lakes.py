"""Jobs of every shape, written as traces and ingested: kernels, groups and syncs arrive as they were."""

from itertools import product
from pathlib import Path

import pandas as pd
import pytest

import jitter
from jitter.simulate import Job, Run, simulate, write
from jitter.simulate.shapes import SHAPES
from tests.support.fuzz_depth import fuzz, some_of
from tests.support.kernel_truth import kernel_truth
from tests.support.metric_assertions import assert_matches_truth

pytestmark = pytest.mark.slow


def the_run(shape: str) -> Run:
    more = {"syncs": frozenset({"loss", "before"}), "side_stream": 21, "autotuned": 0.3, "launch_queue": 40}
    sizes = {"ranks": 4, "gpus_per_node": 2, "kernels": 110, "steps": 2, "seed": 3}
    return simulate(Job(**sizes, **more, shape=shape, marker="profiler", epoch=None))  # type: ignore[arg-type]


def rows(lake: Path, under: str) -> pd.DataFrame:
    return pd.concat(pd.read_parquet(path) for path in sorted((lake / under).rglob("*.parquet")))


@fuzz
@pytest.mark.parametrize(("shape", "form"), some_of(product(SHAPES, ["kineto", "nsys", "rocpd"]), 2))
def test_a_job_of_any_shape_arrives(tmp_path: Path, shape: str, form: str):
    run = the_run(shape)
    write(run, tmp_path / "traces", form)
    jitter.ingest([tmp_path / "traces"], tmp_path / "lake", executor=jitter.LocalExecutor())
    recordings = list(run.ranks())
    if form != "rocpd":  # RCCL has one name for all collectives
        assert_matches_truth(jitter.open(tmp_path / "lake"), kernel_truth(run))
    host = rows(tmp_path / "lake", "host")
    syncs = host[host["kind"] == "sync"]
    wanted = sorted((call.start_ns, call.end_ns) for one in recordings for call in one.calls if call.is_sync)
    assert sorted(zip(syncs["start_ns"], syncs["end_ns"], strict=True)) == wanted
    kernels = rows(tmp_path / "lake", "kernels")
    collectives = kernels[kernels["kind"] == "collective"]
    if form == "kineto":
        groups = {group.number: list(group.ranks) for one in recordings for group in one.groups.values()}
        used = {one.groups[op.group].number for one in recordings for op in one.operations if op.group}
        said = {
            name: list(ranks) for name, ranks in zip(collectives["group_name"], collectives["group_ranks"], strict=True)
        }
        assert said == {name: groups[name] for name in used}
        assert (collectives["group_size"] == collectives["group_ranks"].str.len()).all()
    else:
        assert collectives["group_name"].isna().all()


def test_numbers_of_collectives_in_their_groups(tmp_path: Path):
    run = the_run("tensor_data")
    write(run, tmp_path / "traces", "kineto", sequence=True)
    jitter.ingest([tmp_path / "traces"], tmp_path / "lake", executor=jitter.LocalExecutor())
    kernels = rows(tmp_path / "lake", "kernels")
    collectives = kernels[kernels["kind"] == "collective"].sort_values("start_ns")
    for (_, _), own in collectives.groupby(["rank", "group_name"]):
        assert own["sequence"].tolist() == list(range(1, len(own) + 1))
