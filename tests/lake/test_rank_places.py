"""Hosts of ranks from NCCL's log, where the traces name none."""

from pathlib import Path
from typing import Any, cast

import pytest

from jitter.lake.rank_places import RankPlace, fill_hosts, find_rank_places, host_of_file
from jitter.lake.records import SourceRecord
from tests.support.json_report import differing
from tests.support.printed import json_of, output_of
from tests.support.simulated import sampled_lake


class Recording:
    """The fields of a record that state a place."""

    def __init__(self, rank: int, host: str | None = None, device: int | None = None, bus_id: str | None = None):
        self.rank, self.host, self.device, self.bus_id, self.pid = rank, host, device, bus_id, 4000 + rank
        self.format, self.gpu_model = "kineto", "NVIDIA H100"


def recordings(ranks: int, **more: Any) -> list[SourceRecord]:
    return [cast(SourceRecord, Recording(rank, **more)) for rank in range(ranks)]


def row(rank: int, host: str, ranks: int = 4, **more: Any) -> dict[str, Any]:
    return {"rank": rank, "ranks": ranks, "host": host, "device": None, "bus_id": None} | more


WHOLE = [row(rank, f"node{rank // 2}") for rank in range(4)]


def hosts(rows: list[dict[str, Any]], ranks: int) -> dict[int, str]:
    records = recordings(ranks)
    return fill_hosts(records, find_rank_places(records, {"communicators": rows}))


def test_communicators_of_the_whole_job_name_hosts() -> None:
    halves = [row(rank % 2, "other", ranks=2) for rank in range(4)]
    assert hosts([*WHOLE, *halves], 4) == {0: "node0", 1: "node0", 2: "node1", 3: "node1"}
    assert hosts([*WHOLE, row(3, "node2")], 4) == {}  # two hosts: of another job
    assert hosts(WHOLE[:3], 4) == {}
    assert hosts(WHOLE, 5) == {}  # the job has more ranks than the log
    assert hosts(halves, 4) == {}
    assert hosts([], 0) == {}


def test_a_host_that_two_sources_state_differently_is_unknown() -> None:
    records = recordings(4, host="node0.cluster")
    places = find_rank_places(records, {"communicators": WHOLE})
    assert [places[rank].host for rank in range(4)] == ["node0.cluster", "node0.cluster", None, None]
    assert places[2].conflicts == ("host node0 by recording, host node1 by NCCL",)
    assert (places[0].host_from, places[0].process, places[0].conflicts) == ("recording", 4000, ())


def test_the_pci_address_of_a_rank() -> None:
    def address(device: int | None, host: str | None, **relations: list[dict[str, Any]]) -> tuple[str | None, ...]:
        records = recordings(2, host="a")
        for rank, record in enumerate(records):
            record.device = device if device is not None else rank
        clocks = [{"host": host, "device": number, "bus_id": f"0000:0{number}:00"} for number in range(2)]
        places = find_rank_places(records, {"gpu_clocks": clocks, **relations})
        return tuple(places[rank].bus_id for rank in range(2))

    assert address(None, "a") == address(None, None) == ("0000:00:00", "0000:01:00")
    assert address(0, "a") == (None, None)  # each process sees one GPU, and numbers it 0
    assert address(None, "b") == (None, None)
    nccl = [row(rank, "a", 2, bus_id=f"0000:0{5 + rank}:00") for rank in range(2)]
    assert address(0, "a", communicators=nccl) == ("0000:05:00", "0000:06:00")


@pytest.mark.parametrize(
    ("form", "first", "model", "devices"),
    [
        ("kineto", 0, None, [2, 3]),
        ("kineto", 0, "AMD Instinct MI300X", [2, 3]),
        ("kineto", 0, "NVIDIA H100", [4, 5]),
        ("kineto", 1, None, [4, 5]),  # rank 0 was not recorded
        ("rocprof-csv", 0, None, [2, 3]),  # without a list of agents
        ("rocprof-csv", 0, "AMD Instinct MI300X", [4, 5]),
        ("nsys", 0, None, [4, 5]),
    ],
)
def test_gpus_of_rocm_are_counted_from_0(form: str, first: int, model: str | None, devices: list[int]) -> None:
    """The logs state GPUs 2 and 3 for ranks 2 and 3, which PyTorch's profiler calls 4 and 5, after two processors.

    So does rocprofv3, if the list of agents was not kept.
    """
    records = recordings(4, host="a")[first:]
    for record in records:
        record.device, record.gpu_model, record.format = 2 + (record.rank or 0), model, form
    places = find_rank_places(records, {})
    assert [places[rank].device for rank in (2, 3)] == devices


def test_logs_alone_name_ranks() -> None:
    bindings = [{"rank": 3, "host": "node9", "cpus": [1], "gpus": None}]
    assert find_rank_places([], {"bindings": bindings})[3] == RankPlace("node9", host_from="CPU binding")


def test_a_slow_node_is_named_by_the_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = "--ranks 8 --gpus-per-node 4 --steps 6 --kernels 60 --format kineto --evidence"
    lake = str(sampled_lake(tmp_path, f"{job} --fault slow_gpu:rank=4-7,factor=1.3").root)
    [culprit] = differing(json_of(capsys, "report", lake, "--json"))
    assert (culprit["scope"], culprit["host"], culprit["ranks"]) == ("host", "node0001", [4, 5, 6, 7])
    assert any("4 GPUs of node0001 (ranks 4-7) limited by heat: " in line for line in culprit["evidence"])
    assert "node0001" in output_of(
        capsys, "query", lake, "select distinct host from ranks order by 1", "--format", "json"
    )


@pytest.mark.parametrize(
    ("file", "host"),
    [
        ("/data/logs/nvidia-smi-node1.csv", "node1"),
        ("/data/node10/nvidia-smi.csv", "node10.cluster"),
        ("/node1/logs/nvidia-smi.csv", None),  # neither its name nor its folder
        ("/data/node1/node10.csv", None),  # two hosts
        ("/data/logs/nvidia-smi-node100.csv", None),
        ("/data/logs/node1x.csv", None),
    ],
)
def test_a_log_is_of_the_host_that_its_path_names(file: str, host: str | None) -> None:
    assert host_of_file(file, ["node1", "node10.cluster"]) == host


def test_clocks_of_two_hosts_are_kept_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """1,980 / 1.2 = 1,650 MHz; the other host's GPU of the same number runs at 1,980 MHz."""
    job = "--ranks 8 --gpus-per-node 4 --steps 6 --kernels 60 --evidence --fault slow_gpu:rank=5,factor=1.2"
    lake = str(sampled_lake(tmp_path, job).root)
    [culprit] = differing(json_of(capsys, "report", lake, "--json"))
    clocks = [line for line in culprit["evidence"] if line.startswith("GPU 1 of node0001")]
    assert clocks == [
        "GPU 1 of node0001 (rank 5) limited by heat: 1,650 of 1,980 MHz, the other GPUs' median, in 5 of 5 samples"
    ]


def test_an_ip_address_names_no_host() -> None:
    ras = [row(rank, "172.16.64.213" if rank < 2 else "fe80::1") for rank in range(4)]
    places = find_rank_places(recordings(4, host="node0"), {"ras": ras})
    assert {place.host for place in places.values()} == {"node0"}
    assert not any(place.conflicts for place in places.values())
