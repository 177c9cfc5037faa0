"""Benchmarks in the logs of two runs, compared where there are no traces."""

import pytest
from published_logs import PLUGIN, PLUGIN_AND_GDR, TCP, as_printed

import jitter
from jitter.comparison.compare_documents import comparison_document
from jitter.comparison.runs import load_run
from tests.support.printed import output_of


def test_benchmarks_with_and_without_a_plugin(tmp_path, capsys):
    """The published tables of two nodes: 8.03 GB/s by TCP, 57 GB/s with the plug-in at 4 GiB."""
    runs = []
    for name, table in (("plain", TCP), ("plugin", PLUGIN)):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "all_reduce.log").write_text(as_printed(table))
        jitter.ingest([folder], folder / "lake")
        runs.append(load_run(folder / "lake"))
    found = comparison_document(jitter.compare(*runs))
    last = found["bandwidths"][-1]
    assert (last["collective"], last["ranks"], last["size_bytes"]) == ("all_reduce", 16, 1 << 32)
    of_table = [float(table.splitlines()[-1].split()[6]) for table in (TCP, PLUGIN)]  # in place
    assert [last["base"], last["new"], last["ratio"]] == [*of_table, of_table[1] / of_table[0]]
    assert found["sentence"].startswith("By the logs, all_reduce of 16 ranks reaches ")
    printed = " ".join(output_of(capsys, "compare", tmp_path / "plain" / "lake", tmp_path / "plugin" / "lake").split())
    assert "Bus bandwidth, by benchmarks" in printed


def test_a_change_that_helps_large_messages_only_shows_by_size(tmp_path):
    """GPUDirect RDMA: nothing at 64 KiB, twice the bandwidth at 4 GiB."""
    folders = []
    for name, table in (("plugin", PLUGIN), ("gdr", PLUGIN_AND_GDR)):
        (folder := tmp_path / name).mkdir()
        (folder / "all_reduce.log").write_text(as_printed(table))
        jitter.ingest([folder], folder / "lake")
        folders.append(folder / "lake")
    found = comparison_document(jitter.compare(*folders))["bandwidths"]
    by_size = {one["size_bytes"]: one["ratio"] for one in found if one["in_place"]}
    assert by_size[1 << 16] == pytest.approx(2.67 / 2.74)
    assert by_size[1 << 32] == pytest.approx(109.01 / 56.85)
