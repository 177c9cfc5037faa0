"""Perfetto traces of rocprofv3 and rocprof-sys: the tables of the same run in another format; damage."""

from pathlib import Path
from typing import Any

import pytest

from jitter.core.errors import UnreadableTraceError
from jitter.readers.amd.perfetto import READER
from jitter.simulate.capture import CaptureOptions, apply_capture
from tests.readers.test_xplane import RUN, assert_same_tables, lake_of
from tests.support.perfetto_traces import Packets, recorded, write_run


@pytest.mark.parametrize(("graphs", "ends_apart"), [("off", False), ("off", True), ("node", False)])
def test_same_tables_as_another_format(graphs: Any, ends_apart: bool, tmp_path: Path):
    options = CaptureOptions(graphs=graphs)
    ranks = (apply_capture(own, options) for own in RUN.ranks())
    write_run(ranks, tmp_path / "perfetto" / "traces", ends_apart=ends_apart)
    perfetto = lake_of(tmp_path / "perfetto")
    assert_same_tables(perfetto, tmp_path, graphs)
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
