"""Perfetto traces of rocprofv3 and rocprof-sys: the tables of the same run in another format; damage."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import jitter
from jitter.core.errors import UnreadableTraceError
from jitter.readers.amd.perfetto import READER
from jitter.simulate import Fault, Job, simulate, write
from jitter.simulate.capture import CaptureOptions, apply_capture
from tests.support.perfetto_traces import Packets, recorded, write_run

METRICS = ("duration", "gap", "ttke", "launch_latency")
JOB = Job(ranks=3, steps=3, kernels=48, seed=11, first_step=5, epoch=None, marker="profiler", gpus_per_node=2)
RUN = simulate(JOB, [Fault.parse("cpu_stall:rank=1,step=6,kernel=17,ms=2")])


def lake_of(folder: Path) -> jitter.Lake:
    report = jitter.ingest([folder / "traces"], folder / "lake", executor=jitter.LocalExecutor())
    assert (report.refused, len(report.added)) == ([], JOB.ranks)
    return jitter.open(folder / "lake")


@pytest.mark.parametrize(("graphs", "ends_apart"), [("off", False), ("off", True), ("node", False)])
def test_same_tables_as_another_format(graphs: Any, ends_apart: bool, tmp_path: Path):
    write(RUN, tmp_path / "kineto" / "traces", "kineto", graphs=graphs)
    options = CaptureOptions(graphs=graphs)
    ranks = (apply_capture(own, options) for own in RUN.ranks())
    write_run(ranks, tmp_path / "perfetto" / "traces", ends_apart=ends_apart)
    kineto, perfetto = (lake_of(tmp_path / name) for name in ("kineto", "perfetto"))
    for step in JOB.step_numbers:
        for metric in METRICS:
            theirs, found = (lake.table(metric, step=step) for lake in (kineto, perfetto))
            pd.testing.assert_frame_equal(found, theirs, check_exact=True, obj=f"{metric} {step}")
    columns = "rank, step, ordinal, kind, device, start_ns, launch_start_ns, launch_thread, size_bytes, copy_direction"
    by = f"SELECT {columns} FROM kernels WHERE kind != 'collective' ORDER BY rank, step, ordinal"
    pd.testing.assert_frame_equal(perfetto.sql(by), kineto.sql(by))
    told = {one.rank: (one.pid, one.utc_offset_ns, one.rank_told_by) for one in perfetto.sources}
    assert told == {own.rank: (own.pid, own.clock.utc_epoch_ns, "file name") for own in RUN.ranks()}


def one_file(folder: Path, content: bytes) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "rank1_results.pftrace"
    path.write_bytes(content)
    return path


def test_names_are_void_after_a_cleared_state(tmp_path: Path):
    first, second = Packets(), Packets()
    for packets, name in ((first, "gemm"), (second, "attention")):
        packets.clocks(0, 0)
        packets.slice("kernel_dispatch", name, 8, {}, begin_ns=10, end_ns=20, agent=1, queue=2)
    recording, batches = READER.open(one_file(tmp_path / "a", b"".join([*first.packets, *second.packets])))
    rows = [row for batch in batches(lambda _: None) for row in batch.rows.to_pylist()]
    assert [recording.names[row["name"]] for row in rows] == ["gemm", "attention"]


def test_a_trace_of_another_tool_says_so(tmp_path: Path):
    packets = Packets()
    packets.slice("browser", "paint", 8, {}, begin_ns=10, end_ns=20)
    with pytest.raises(UnreadableTraceError, match="without kernels of rocprofv3"):
        list(READER.open(one_file(tmp_path / "a", b"".join(packets.packets)))[1](lambda _: None))


def test_what_precedes_the_cut_is_read(tmp_path: Path):
    whole = recorded(next(iter(RUN.ranks([1]))))
    recording, batches = READER.open(one_file(tmp_path / "a", whole[: len(whole) - 9]))
    assert sum(batch.rows.num_rows for batch in batches(lambda _: None) if batch.table == "activities") > 100
    assert recording.is_incomplete
