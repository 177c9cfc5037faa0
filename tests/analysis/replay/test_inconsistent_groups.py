"""Recorded groups that cannot be right: two ranks meet in two groups, each in the other order."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from jitter.simulate import simulate
from tests.support.replay_assertions import assert_replay_matches_recording
from tests.support.simulated import accept_changed_files, ingest_run, small

GROUPS = {0: ["one", "two"], 1: ["two", "one"]}


def test_the_run_is_replayed_as_recorded_all_the_same(tmp_path: Path):
    lake = ingest_run(simulate(small("tensor_parallel", ranks=2)), tmp_path)
    for path in (lake.root / "kernels").rglob("*.parquet"):
        rows = pq.read_table(path, partitioning=None)
        names = rows["group_name"].to_pylist()
        crossing = [at for at, kind in enumerate(rows["kind"].to_pylist()) if kind == "collective"][:2]
        for at, name in zip(crossing, GROUPS[rows["rank"][0].as_py()], strict=True):
            names[at] = name
        # who takes part would tell more than a name
        for column, values in (("group_name", names), ("group_ranks", [None] * len(names))):
            place = rows.schema.get_field_index(column)
            field = rows.schema.field(place)
            rows = rows.set_column(place, field, pa.array(values, field.type))
        pq.write_table(rows, path)
    lake = accept_changed_files(lake)
    examined = lake.analyze()
    assert len(examined.run.schedule.uncoupled) == 1
    assert len(examined.run.matching.collectives) > 2
    assert_replay_matches_recording(lake)
    # nothing is charged to it: each rank ends it by itself
    (uncoupled,) = examined.run.schedule.uncoupled
    assert all((account.losses.collective != uncoupled).all() for account in examined.accounts)
    assert all(len(account.losses) for account in examined.accounts)
