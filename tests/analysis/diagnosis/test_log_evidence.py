"""What logs state: facts of ranks, hosts and GPUs, joined with a diagnosis; none if the logs hold nothing unusual."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from jitter.analysis.diagnosis.diagnosis import Diagnosis
from jitter.analysis.diagnosis.evidence.locations import name_gpus
from jitter.analysis.diagnosis.evidence.logs.job_logs import JobLogs
from jitter.analysis.diagnosis.evidence.logs.measurements import failures
from jitter.analysis.diagnosis.evidence.logs.rules import find_facts
from jitter.analysis.diagnosis.log_passes import _costs_all, _locate, add_log_evidence
from jitter.analysis.diagnosis.model import Cause, Fact, Loss, WhatIf
from jitter.analysis.diagnosis.verdict import describe_advice
from jitter.core.step_key import StepKey
from jitter.lake.rank_places import RankPlace
from tests.support.findings import culprit


def communicator(rank: int, **more: Any) -> dict[str, Any]:
    row = {"rank": rank, "ranks": 4, "host": f"node{rank // 2}", "device": rank % 2, "bus_id": f"0000:{rank:02x}:00"}
    row |= {"network": "IB", "plugin": None, "version": "2.21.5", "interfaces": ["mlx5_0"], "lacks_ib": None}
    return row | more


def edge(one: int, other: int, transport: str = "NET/IB", gdr: bool | None = True) -> dict[str, Any]:
    return {"from_rank": one, "to_rank": other, "transport": transport, "gdr": gdr, "nic": 0}


HEALTHY = JobLogs(
    communicators=[communicator(rank) for rank in range(4)], edges=[edge(0, 1, "P2P/IPC", None), edge(1, 2), edge(3, 0)]
)
NODE0 = {1: RankPlace("node0", 1)}
NO_CULPRIT = Diagnosis(Loss(0, 0.0), (), (), WhatIf(0, 0), 0)


def words(logs: JobLogs, *kinds: Any, items: bool = False) -> list[str]:
    return [one.words for one in find_facts(logs, kinds or ("network",)) if one.is_item or not items]


def test_a_healthy_network_adds_nothing():
    assert find_facts(HEALTHY) == ()


def test_tcp_where_a_fabric_is_present():
    tcp = [communicator(rank, network="Socket", interfaces=["nmn0"]) for rank in range(4)]
    nics = [{"gpu": 0, "near_cpus": None, "near_nics": ["hsn0"]}]
    assert words(JobLogs(communicators=tcp, topology=nics)) == [
        "NCCL communicates by TCP over nmn0, although hsn0 is present"
    ]
    without = JobLogs(communicators=tcp)  # nothing shows that there is a fabric
    assert words(without) == ["NCCL communicates by TCP over nmn0"]
    assert words(without, items=True) == []
    assert words(JobLogs(communicators=tcp[:1])) == []  # TCP within a host is its loopback


@pytest.mark.parametrize(
    ("ranks", "edges"), [(range(4), []), ([0], [edge(0, 1, "P2P/CUMEM", None), edge(3, 0, "SHM/direct/direct", None)])]
)
def test_a_job_of_one_host_uses_no_network(ranks: Sequence[int], edges: list[dict[str, Any]]):
    """NCCL names a network and what it lacks all the same."""
    tcp = [communicator(rank, host="node0", network="Socket", lacks_ib=True) for rank in ranks]
    assert words(JobLogs(communicators=tcp, edges=edges)) == []
    leaving = [*edges, edge(3, 0, "NET/Socket", gdr=False)]
    assert words(JobLogs(communicators=tcp[:1], edges=leaving)) == [
        "NCCL communicates by TCP over mlx5_0: no InfiniBand device was found"
    ]


def test_a_plugin_that_failed_on_a_host_that_the_log_does_not_name():
    tcp = [communicator(0, host=None, network="Socket", interfaces=["eth0"], plugin="failed")]
    between = [edge(0, 1, "NET/Socket", gdr=False)]
    assert words(JobLogs(communicators=tcp, edges=between)) == [
        "NCCL communicates by TCP over eth0: the network plug-in could not be loaded"
    ]


@pytest.mark.parametrize("rank", [{"rank": None, "ranks": None}, {"rank": 0}])
def test_an_excerpt_of_one_host_does_not_show_that_there_are_others(rank: dict[str, Any]):
    """Without connections, and without all ranks: what NCCL has for other hosts is stated, and nothing of its use."""
    rows = [communicator(0, network="Socket", interfaces=["eth0"], lacks_ib=True) | rank]
    (fact,) = find_facts(JobLogs(communicators=rows))
    assert fact.words == "NCCL reaches other hosts by TCP over eth0: no InfiniBand device was found"
    assert (fact.certainty, fact.is_item) == ("unknown", True)

    def beside(*hosts: str | None) -> list[str]:
        return words(JobLogs(communicators=rows, places={at: RankPlace(host, 0) for at, host in enumerate(hosts)}))

    assert beside("node0", "node0", "node0", "node0") == []  # the recordings are of one host
    assert beside(None, None, None, None) == [fact.words]  # or of processes that each see one GPU, on any
    assert beside("node0", "node0", "node1", "node1") == [
        "NCCL communicates by TCP over eth0: no InfiniBand device was found"
    ]


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"plugin": "failed"}, ": the network plug-in could not be loaded on node0, node1"),
        ({"lacks_ib": True}, ": no InfiniBand device was found"),
        ({"disables_ib": True}, ": NCCL_IB_DISABLE or NCCL_NET in its environment turns InfiniBand off"),
    ],
)
def test_why_it_is_tcp(more: dict[str, Any], why: str):
    rows = [communicator(rank, network="Socket", interfaces=["eth0"], **more) for rank in range(4)]
    edges = [edge(1, 2, "NET/Socket", gdr=False)]
    (fact,) = find_facts(JobLogs(communicators=rows, edges=edges))
    assert fact.words == f"NCCL communicates by TCP over eth0{why}"
    assert (fact.certainty, fact.is_of_job, fact.is_item) == ("certain", True, True)


@pytest.mark.parametrize("odd", [range(4), [1]])
def test_a_log_of_other_hosts_than_the_recordings_is_certain_of_nothing(odd: Sequence[int]):
    rows = [communicator(rank, network="Socket" if rank in odd else "IB", lacks_ib=True) for rank in range(4)]
    place = RankPlace(device=0, conflicts=("host n7 by recording, host node0 by NCCL",))
    facts = find_facts(JobLogs(communicators=rows, places=dict.fromkeys(range(4), place)), ["network", "contradiction"])
    assert {fact.certainty for fact in facts} == {"unknown"}
    assert all(fact.kind == "contradiction" for fact in facts if fact.ranks)
    assert facts[-1].kind == "contradiction"


def test_a_plugin_that_failed_where_a_fabric_is_used_all_the_same():
    rows = [communicator(rank, plugin="failed") for rank in range(4)]
    (fact,) = find_facts(JobLogs(communicators=rows))
    assert (fact.words, fact.certainty) == ("the network plug-in could not be loaded on node0, node1", "likely")


def test_edges_without_gdr_and_of_unequal_transport():
    edges = [edge(0, 1), edge(1, 2), edge(2, 3, "NET/Socket", gdr=False)]
    assert words(JobLogs(edges=edges)) == [
        "network connections use different transports (2 NET/IB, 1 NET/Socket): NET/Socket from rank 2 to 3",
        "1 of 3 network connections do not use GPUDirect RDMA (GDR)",
    ]


def test_a_rank_unlike_the_others():
    ranks = [communicator(0), communicator(1), communicator(2), communicator(3, version="2.18.1")]
    assert words(JobLogs(communicators=ranks)) == ["rank 3: version 2.18.1, the other ranks: 2.21.5"]


def test_ranks_on_tcp_are_off_the_fabric_that_others_use():
    def job(*over_tcp: int) -> tuple[Any, ...]:
        rows = [communicator(rank, **({"network": "Socket"} if rank in over_tcp else {})) for rank in range(4)]
        edges = [edge(1, 2, "NET/Socket", gdr=False), edge(3, 0)]
        return find_facts(JobLogs(communicators=rows, edges=edges if over_tcp else ()))

    (fact,) = job(2)  # its edges are a consequence
    assert (fact.words, fact.ranks) == ("rank 2 communicates by TCP over mlx5_0, the other ranks by IB", (2,))
    assert fact.certainty == "certain"
    for over_tcp in ((1, 2), (0, 1, 2)):  # also where these are most ranks: one on the fabric is not at fault
        assert [(one.ranks, one.certainty) for one in job(*over_tcp)] == [(over_tcp, "certain")]


def test_ranks_of_a_smaller_group_are_named_by_their_gpu():
    """Rank 1 of a group of two is another rank of the job."""
    halves = [communicator(rank) | {"rank": rank % 2, "ranks": 2, "comm": f"c{rank // 2}"} for rank in range(4)]
    halves[3]["version"] = "2.18.1"
    places = {rank: RankPlace(f"node{rank // 2}", rank % 2) for rank in range(4)}
    (fact,) = find_facts(JobLogs(communicators=halves, places=places))
    assert (fact.words, fact.ranks) == ("rank 3: version 2.18.1, the other ranks: 2.21.5", (3,))


def test_the_log_of_another_job_is_not_joined_by_rank():
    places = {rank: RankPlace("other", rank) for rank in range(4)}
    rows = [communicator(rank, network="Socket" if rank == 2 else "IB") for rank in range(4)]
    assert not any(one.ranks for one in find_facts(JobLogs(communicators=rows, places=places)))


def rails(odd: dict[int, str], hosts: int = 2) -> JobLogs:
    """Return the logs of nodes with four GPUs, each with an adapter of its own but for the odd ranks."""
    ranks = range(4 * hosts)
    names = {rank: odd.get(rank, f"mlx5_{rank % 4}:1/IB") for rank in ranks}
    rows = [
        communicator(rank, ranks=len(ranks), host=f"node{rank // 4}", device=rank % 4, interfaces=[names[rank]])
        for rank in ranks
    ]
    return JobLogs(communicators=rows, places={rank: RankPlace(f"node{rank // 4}", rank % 4) for rank in ranks})


def test_a_rank_on_another_network_adapter():
    assert words(rails({})) == []
    told = "rank 5: network adapter mlx5_0, ranks of GPU 1 elsewhere: mlx5_1"
    assert words(rails({5: "mlx5_0:1/IB"})) == [told]
    assert words(rails({5: "mlx5_0:1/IB"}, hosts=4)) == [told]
    shared = dict.fromkeys(range(8), "mlx5_0:1/IB")  # one adapter for all
    assert words(rails(shared)) == []
    assert words(rails(shared | {6: "mlx5_7:1/IB"})) == ["rank 6: network adapter mlx5_7, the other ranks: mlx5_0"]
    assert words(rails(shared | dict.fromkeys(range(4, 8), "mlx5_2:1/IB"), hosts=2)) == []  # a host's own order
    assert words(rails(dict.fromkeys(range(12), "mlx5_0:1/IB") | dict.fromkeys(range(8, 12), "ib3"), hosts=3)) == []


def test_errors_of_gpus_at_another_time_are_told_and_evidence_of_nothing():
    error = at({"host": "node0", "bus_id": "0000:01:00", "code": 63}, 900)
    unknown = at({"host": None, "bus_id": "0000:09:00", "code": 79, "source": "logs/dmesg-node9.log"}, 900)
    logs = JobLogs(gpu_errors=[error, unknown], places=NODE0, step_times_ns=STEP_TIMES)
    facts = add_log_evidence(NO_CULPRIT, logs).facts
    assert [fact.words for fact in facts] == [
        "Xid 63 of the GPU at 0000:01:00 (whose rank is not known) on node0, at another time than the steps, "
        "unless the log is in another time zone",
        "Xid 79 of the GPU at 0000:09:00 in dmesg-node9.log, at another time than the steps, "
        "unless the log is in another time zone",
    ]
    assert all(fact.causes == () for fact in facts)


def test_a_node_at_its_power_cap_is_one_line():
    rows = [clock(gpu, 1980.0 - host * (974 + 2 * gpu), *["sw_power_cap"] * host, host=f"node{host}")
            for host in (0, 1) for gpu in range(8)]  # fmt: skip
    places = {8 * host + gpu: RankPlace(f"node{host}", gpu) for host in (0, 1) for gpu in range(8)}
    fact, usual = find_facts(JobLogs(gpu_clocks=rows, places=places), ("gpu_clock",))
    assert usual.words == "8 GPUs of node0 (ranks 0-7): clock of 1,980 MHz, as on the other GPUs"
    assert fact.words == (
        "8 GPUs of node1 (ranks 8-15) limited by their power cap: 992 to 1,006 of 1,980 MHz, the other GPUs' median, "
        "in the only sample"
    )
    assert (fact.ranks, fact.host, fact.device, fact.certainty) == (tuple(range(8, 16)), "node1", None, "certain")


def test_a_clock_that_is_lower_for_a_while_is_not_that_of_the_others():
    """In 20 of 60 samples, whose limits are unknown: its median is that of the others, and yet it may be the cause."""
    rows = [clock(gpu, 1200.0 if gpu == 3 and at < 20 else 1980.0) for gpu in range(8) for at in range(60)]
    places = {gpu: RankPlace("node0", gpu) for gpu in range(8)}
    (usual,) = find_facts(JobLogs(gpu_clocks=rows, places=places), ("gpu_clock",))
    assert usual.ranks == (0, 1, 2, 4, 5, 6, 7)


def test_gpus_of_a_host_of_which_the_same_is_said_are_one_fact():
    rows = [clock(gpu, 1000.0 if gpu in (1, 2) else 1410.0, host="node0") for gpu in range(8)]
    rows[5] = clock(5, 1100.0, host="node0")
    facts = find_facts(JobLogs(gpu_clocks=rows, places={gpu: RankPlace("node0", gpu) for gpu in range(8)}))
    assert {(fact.words, fact.ranks, fact.device) for fact in facts} == {
        ("2 GPUs of node0 (ranks 1-2): 1,000 of 1,410 MHz, the other GPUs' median", (1, 2), None),
        ("GPU 5 of node0 (rank 5): 1,100 of 1,410 MHz, the other GPUs' median", (5,), 5),
        ("5 GPUs of node0 (ranks 0,3-4,6-7): clock of 1,410 MHz, as on the other GPUs", (0, 3, 4, 6, 7), None),
    }


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"link": 0, "state": "active", "gb_per_s": 12.5}, "NVLink of GPU 2: 12.5 of 25 GB/s (1 link) on node0"),
        ({"link": 3, "state": "inactive"}, "NVLink of GPU 2 inactive (1 link) on node0"),
        ({"link": 0, "counter": "CRC", "count": 7}, "NVLink of GPU 2: CRC 7 on node0"),
        ({"link": 0, "counter": "CRC", "count": 0}, None),
    ],
)
def test_links(row: dict[str, Any], said: str | None):
    of_gpu = {"host": "node0", "device": 2, "nic": None, "state": None, "counter": None, "count": None}
    links = [of_gpu | {"state": "active", "link": 1, "gb_per_s": 25.0}, of_gpu | row]
    assert words(JobLogs(links=links)) == ([] if said is None else [said])


@pytest.mark.parametrize("kind", ["load", "cpu_clock"])
@pytest.mark.parametrize(("busy", "certainty"), [([1], "likely"), ([0, 1], "unknown")])
def test_the_load_of_all_hosts_tells_nothing_of_one(kind: str, busy: list[int], certainty: str):
    row = {
        "rank": None,
        "bus_id": None,
        "kind": kind,
        "detail": "all processors were busy",
        "count": 1,
        "seconds": None,
    }
    places = {rank: RankPlace(f"node{rank // 2}", rank % 2) for rank in range(4)}
    facts = find_facts(JobLogs(incidents=[row | {"host": f"node{host}"} for host in busy], places=places))
    assert [(fact.host, fact.certainty, fact.is_item) for fact in facts] == [
        (f"node{host}", certainty, False) for host in busy
    ]


@pytest.mark.parametrize(
    ("state", "down", "said"),
    [
        ("Down", [2], [("port of mlx5_1 down (1 link) on node2", "likely")]),
        ("Down", [0, 1, 2, 3], []),  # an adapter that no host uses
        ("Down", [0, 1, 2], []),
        (None, [2], [("port of mlx5_1: 12.5 of 50 GB/s (1 link) on node2", "likely")]),
        (None, [0, 1, 2, 3], []),
    ],
)
def test_ports_are_compared_with_those_of_the_same_name(state: str | None, down: list[int], said: list[Any]):
    links = [
        {"host": f"node{host}", "device": None, "nic": f"mlx5_{nic}", "link": 1, "counter": None, "count": None}
        | {"state": "Active", "gb_per_s": 50.0}
        | (({"state": state} if state else {"gb_per_s": 12.5}) if nic and host in down else {})
        for host in range(4)
        for nic in range(2)
    ]
    assert [(fact.words, fact.certainty) for fact in find_facts(JobLogs(links=links))] == said
    used = [communicator(rank, interfaces=["mlx5_0:1/IB"]) for rank in range(4)]  # a fabric of storage, for example
    facts = find_facts(JobLogs(links=links, communicators=used))
    assert [(fact.words, fact.certainty) for fact in facts] == [(words, "unknown") for words, _ in said]


def test_a_link_of_an_unknown_host_is_evidence_of_no_rank():
    row = {"host": None, "device": None, "nic": "mlx5_0", "link": 1, "state": None, "counter": "port error", "count": 1}
    places = {rank: RankPlace(f"node{rank}", 0) for rank in range(2)}
    for ranks, is_evidence in (((0, 1), False), ((1,), True)):
        logs = JobLogs(links=[row | {"is_event": True}], places={rank: places[rank] for rank in ranks})
        (fact,) = find_facts(logs)
        assert (fact.words, bool(fact.causes)) == ("port of mlx5_0: port error 1", is_evidence)


def test_counters_that_are_read_twice_count_once_and_events_each_time():
    row = {"host": "node0", "device": 2, "nic": None, "state": None, "counter": "CRC"}
    counters = [row | {"link": link, "count": count} for count in (3, 5) for link in (0, 1)]
    event = row | {"device": None, "nic": "mlx5_0", "link": 1, "counter": "port error", "count": 1, "is_event": True}
    assert words(JobLogs(links=[*counters, event, event])) == [
        "NVLink of GPU 2: CRC 10 on node0",
        "port of mlx5_0: port error 2 on node0",
    ]


def clock(device: int, sm_mhz: float, *reasons: str, host: str | None = None) -> dict[str, Any]:
    return {"host": host, "device": device, "sm_mhz": sm_mhz, "reasons": list(reasons)}


@pytest.mark.parametrize(
    ("slow", "said", "certainty"),
    [
        (clock(1, 1000.0), ["GPU 1 of node0 (rank 1): 1,000 of 1,410 MHz, the other GPUs' median"], "certain"),
        (
            clock(1, 1400.0, "sw_power_cap"),
            ["GPU 1 of node0 (rank 1) limited by its power cap in the only sample"],
            "certain",
        ),
        (
            clock(1, 1400.0, "sw_thermal_slowdown", "hw_thermal_slowdown"),
            ["GPU 1 of node0 (rank 1) limited by heat in the only sample"],
            "certain",
        ),
        (
            clock(1, 1000.0, "hw_thermal_slowdown"),
            ["GPU 1 of node0 (rank 1) limited by heat: 1,000 of 1,410 MHz, the other GPUs' median, in the only sample"],
            "certain",
        ),
        (clock(1, 1400.0), ["GPU 1 of node0 (rank 1): clock of 1,400 MHz, as on the other GPUs"], "unknown"),
    ],
)
def test_clocks(slow: dict[str, Any], said: list[str], certainty: str):
    clocks = [clock(0, 1410.0), slow, clock(2, 1410.0)]
    found = find_facts(JobLogs(gpu_clocks=clocks, places=NODE0))
    assert [one.words for one in found] == said
    assert all((one.ranks, one.certainty) == ((1,), certainty) for one in found)


def test_files_of_unknown_hosts_stand_for_them():
    """GPU 3 of two nodes is two GPUs: the samples of one would halve what the other one lost."""
    rows = [
        clock(gpu, 1200.0 if (node, gpu) == (1, 3) else 1980.0) | {"source": f"logs/node{node}/smi.csv"}
        for node in range(2)
        for gpu in range(8)
        for _ in range(4)
    ]
    places = {rank: RankPlace(f"host{rank // 8}", rank % 8) for rank in range(16)}
    assert words(JobLogs(gpu_clocks=rows, places=places), "gpu_clock") == [
        "GPU 3 in node1/smi.csv: 1,200 of 1,980 MHz, the other GPUs' median"
    ]
    one_file = [row | {"source": "logs/smi.csv"} for row in rows if "node1" in row["source"]]
    one_node = {rank: place for rank, place in places.items() if rank >= 8}
    assert "GPU 3 of host1 (rank 11): 1,200 of 1,980 MHz, the other GPUs' median" in words(
        JobLogs(gpu_clocks=one_file, places=one_node), "gpu_clock"
    )


def test_proxies_speak_for_a_slow_network_and_are_no_item():
    (fact,) = find_facts(JobLogs(proxied=[{"duration_ns": 1000, "proxy_ns": 900, "kernel_ns": 950}]))
    assert fact.words == "network proxies work for 90.0% of the time of 1 collective (median), kernels for 95.0%"
    assert ("communication" in fact.causes, fact.certainty, fact.is_item) == (True, "unknown", False)


def test_rows_that_state_no_reasons_are_no_samples_of_them():
    """DCGM prints a clock and its reasons as two metrics."""
    clocks = [{**clock(device, 1410.0), "reasons": None} for device in range(2)]
    reasons = [{**clock(0, 0.0), "sm_mhz": None}, {**clock(1, 0.0, "hw_thermal_slowdown"), "sm_mhz": None}]
    assert words(JobLogs(gpu_clocks=clocks + reasons, places=NODE0), "gpu_clock") == [
        "GPU 1 of node0 (rank 1) limited by heat in the only sample"
    ]


def test_ends_and_states_of_another_time_are_told_as_such():
    """Slurm's accounts and the states of its nodes go back to other jobs; a busy host is no item."""
    day = 86_400
    killed = {"rank": None, "process": "python", "manner": "lack of memory", "stated_by": "system"}
    lost = {"rank": None, "process": "job 7", "manner": "NODE_FAIL", "stated_by": "sacct", "host": "n[0-3]"}
    incident = {"rank": None, "bus_id": None, "count": 1, "seconds": None}
    state = {**incident, "host": "node0", "kind": "state", "detail": "out of service in Slurm (GPU)"}
    load = {**incident, "host": "node0", "kind": "load", "detail": "all processors were busy"}
    logs = JobLogs(
        exits=[at({**killed, "host": "node0"}, 2_600), at({**killed, "host": "node1"}, 40 * day), at(lost, 20 * day)],
        incidents=[at(state, 2_000), at(state | {"host": "node1"}, 20 * day), at(load, 2_000), at(load, 20 * day)],
        places=NODE0,
        step_times_ns=STEP_TIMES,
    )
    assert [fact.words for fact in add_log_evidence(NO_CULPRIT, logs).facts] == [
        "the system killed python on node0 for lack of memory",
        "on node0: out of service in Slurm (GPU)",
        "the system killed python on node1 for lack of memory, at another time than the steps",
        "Slurm ended job 7 on n[0-3]: NODE_FAIL, at another time than the steps",
        "on node1: out of service in Slurm (GPU), at another time than the steps",
    ]


def test_a_power_cap_alone_is_no_item():
    clocks = [clock(device, 1400.0, *(["sw_power_cap"] if device == 1 else [])) for device in range(4)]
    assert words(JobLogs(gpu_clocks=clocks, places=NODE0), "gpu_clock", items=True) == []


def test_heat_of_most_gpus_is_a_fact_of_the_job():
    clocks = [clock(device, 1400.0, "sw_thermal_slowdown") for device in range(4)]
    assert words(JobLogs(gpu_clocks=clocks, places=NODE0), "gpu_clock") == [
        "4 of 4 GPUs are limited by heat (4 of 4 samples)"
    ]


def test_xid_of_the_ranks_gpu_only():
    errors = [{"host": "node0", "bus_id": f"0000:{bus}:00", "code": 79} for bus in ("01", "01", "00")]
    places = {rank: RankPlace("node0", rank, f"0000:{rank:02x}:00") for rank in range(2)}
    found = {one.ranks: one.words for one in find_facts(JobLogs(gpu_errors=errors, places=places))}
    assert found == {(1,): "Xid 79 (2 times) of GPU 1 (rank 1) on node0", (0,): "Xid 79 of GPU 0 (rank 0) on node0"}


def test_scrapes_and_copies_repeat_an_error():
    """Files of one host that state an error of one time, or of none, state one error; files of unknown hosts two."""
    times = [("1", None), ("2", None), ("1", 5), ("1", 5), ("2", 5), ("2", 6)]
    for host, told in (("node0", "Xid 79 (4 times) of GPU 1 on node0"), (None, "Xid 79 (6 times) of GPU 1 in 1, 2")):
        errors = [
            {"host": host, "device": 1, "bus_id": None, "code": 79, "source": file, "time_ns": time_ns}
            for file, time_ns in times
        ]
        assert words(JobLogs(gpu_errors=errors), "gpu_error") == [told]


def test_errors_of_gpus_of_no_known_rank_are_items():
    errors = [{"host": "node0", "bus_id": "0000:01:00", "code": code} for code in (48, 63, 63)]
    errors += [{"host": None, "bus_id": None, "code": 12_028}, {"host": None, "bus_id": "0000:86:00", "code": 12_028}]
    found = add_log_evidence(NO_CULPRIT, JobLogs(gpu_errors=errors))
    assert [(one.words, one.host, one.ranks) for one in found.facts] == [
        ("Xid 63 (2 times), Xid 48 of the GPU at 0000:01:00 on node0", "node0", ()),
        ("SXid 12028 of the NVSwitch at 0000:86:00 in a kernel log", None, ()),
        ("SXid 12028 in a kernel log", None, ()),
    ]
    assert add_log_evidence(found, JobLogs(gpu_errors=errors)) == found


@pytest.mark.parametrize(
    ("places", "row", "ranks"),
    [
        ({0: RankPlace("a", 0), 1: RankPlace("b", 0)}, {"host": "a", "device": 0}, (0,)),
        ({0: RankPlace("a.x", 0), 1: RankPlace("b.x", 0)}, {"host": "b", "device": 0}, (1,)),
        ({0: RankPlace("a.x", 0), 1: RankPlace("b.x", 0)}, {"host": "b.y", "device": 0}, ()),  # of another domain
        ({0: RankPlace("a", 0), 1: RankPlace("b", 0)}, {"host": None, "device": 0}, ()),  # of which host?
        ({0: RankPlace("a", 0), 1: RankPlace("a", 0)}, {"host": "a", "device": 0}, ()),  # each sees one GPU
        ({0: RankPlace(None, 0), 1: RankPlace(None, 1)}, {"host": "a", "device": 1}, (1,)),  # one node, not named
        ({0: RankPlace(None, 0), 1: RankPlace("a", 1)}, {"host": "a", "device": 0}, ()),  # rank 0's host is unknown
        ({0: RankPlace("a", 0, "0000:01:00")}, {"host": "a", "device": 0, "bus_id": "0000:02:00"}, ()),
    ],
)
def test_a_row_is_joined_where_host_and_gpu_are_known(
    places: dict[int, RankPlace], row: dict[str, Any], ranks: tuple[int, ...]
):
    assert JobLogs(places=places).ranks_of_gpu(row["host"], row["device"], row.get("bus_id")) == ranks


def binding(rank: int, *cpus: int, gpus: tuple[int, ...] = (), host: str | None = "node0") -> dict[str, Any]:
    return {"rank": rank, "host": host, "cpus": list(cpus), "gpus": list(gpus)}


def test_shared_cores_and_cores_far_from_the_gpu():
    near = [{"gpu": gpu, "near_cpus": [4 * gpu, 4 * gpu + 1], "near_nics": None} for gpu in range(2)]
    logs = JobLogs(bindings=[binding(0, 0, 1), binding(1, 1, 2, gpus=(1,)), binding(2, 4, 5)], topology=near)
    found = find_facts(logs, ["placement"])
    assert [(one.words, one.ranks) for one in found if one.causes] == [
        ("2 of 3 ranks share some of their hardware threads with other ranks (all but 2)", (0, 1)),
        ("1 of 1 rank runs on hardware threads far from its GPU (all)", (1,)),
    ]


def test_cores_are_shared_on_a_node_that_no_trace_names():
    places = {rank: RankPlace(None, rank % 4) for rank in range(8)}  # two nodes by their devices
    bound = [binding(rank, rank % 4 if rank != 3 else 0, host=None) for rank in range(8)]
    found = [one for one in find_facts(JobLogs(bindings=bound, places=places)) if one.causes]
    assert [(one.ranks, one.certainty) for one in found] == [((0, 3), "certain")]


def test_ranks_that_are_not_bound_prove_nothing():
    bound = [binding(rank, 0, 1) for rank in range(4)]
    (found,) = find_facts(JobLogs(bindings=bound), ["placement"])
    assert found.words == "4 of 4 ranks share all of their hardware threads with other ranks (all)"
    assert found.certainty == "unknown"


def test_hosts_that_sources_state_differently_are_said():
    places = {0: RankPlace(None, 0, conflicts=("host a by recording, host b by NCCL",)), 1: RankPlace("a", 1)}
    (fact,) = find_facts(JobLogs(places=places))
    assert fact.words.startswith("rank 0 has host a by recording, host b by NCCL: their logs may be of another job")


SECOND = 1_000_000_000
STEP_TIMES = {StepKey(None, 1): (1_000 * SECOND, 1_001 * SECOND), StepKey(None, 2): (2_000 * SECOND, 2_001 * SECOND)}


def at(row: dict[str, Any], seconds: float) -> dict[str, Any]:
    return {**row, "time_ns": round(seconds * SECOND)}


def test_only_clocks_and_errors_of_the_steps_time_count():
    slow = [at(clock(1, 1000.0, "sw_thermal_slowdown"), 1_500), at(clock(1, 1400.0), 2_004)]
    clocks = [*slow, at(clock(0, 1410.0), 1_000), at(clock(0, 1410.0), 2_000)]
    errors = [
        at({"host": "node0", "bus_id": "0000:01:00", "code": code}, when) for code, when in ((79, 2_000), (31, 900))
    ]
    places = {1: RankPlace("node0", 1, "0000:01:00")}
    logs = JobLogs(gpu_clocks=clocks, gpu_errors=errors, places=places, step_times_ns=STEP_TIMES)
    times = "gpu_clock", "gpu_error"
    assert words(logs.during([StepKey(None, 2)]), *times) == ["Xid 79 of GPU 1 (rank 1) on node0"]
    assert words(logs.during([StepKey(None, 1)]), *times) == []
    assert len(words(logs.during([StepKey(None, 9)]), *times)) == 2  # the time of the step is unknown


@pytest.mark.parametrize(
    ("name", "counts", "said"),
    [
        ("Replay", [1, 1, 2, 1], []),  # since boot
        ("Replay", [1, 0, 900, 1], [2]),
        ("Replay", [7, 0, 900, 0], [2]),
        ("PCIe replays", [0, 0, 900, 400], [2, 3]),
        ("Replay", [(50, 50), (50, 50), (50, 90), (0, 0)], [2]),  # in a log before the run, and in one after it
        ("Replay", [(50, 50)], []),
        ("link_down_events_phy", [4], []),  # the link was down at each boot
        ("DCGM's counter of limits by heat", [5_000, 4_000, 90_000, 5_000], [2]),
        ("DCGM's counter of limits by heat", [5_000], []),
    ],
)
def test_counters_tell_of_links_unlike_the_others(name: str, counts: list[Any], said: list[int]):
    row = {"host": "node0", "nic": None, "link": None, "state": None, "counter": name}
    readings = [(gpu, of_gpu if isinstance(of_gpu, tuple) else (of_gpu,)) for gpu, of_gpu in enumerate(counts)]
    links = [
        row | {"device": gpu, "count": count, "source": f"{at}.txt"}
        for gpu, of_gpu in readings
        for at, count in enumerate(of_gpu)
    ]
    places = {gpu: RankPlace("node0", gpu) for gpu in range(4)}
    facts = find_facts(JobLogs(links=links, places=places))
    assert [fact.ranks for fact in facts] == [(gpu,) for gpu in said]
    assert {fact.certainty for fact in facts} <= {
        "likely" if any(isinstance(one, tuple) for one in counts) else "unknown"
    }
    is_of_clock = "counter of" in name
    assert all(("gpu_compute" in fact.causes) == is_of_clock for fact in facts)


@pytest.mark.parametrize(
    ("counts", "said"), [([1, 0, 2, 1, 0, 0, 2, 1], 0), ([1, 0, 9, 1, 0, 0, 0, 1], 1), ([0, 3], 0)]
)
def test_a_few_counts_since_boot_of_some_of_many_links_are_chance(counts: list[int], said: int):
    """Each boot, and each time that a cable is plugged, counts a port down."""
    row = {"host": "node0", "device": None, "link": 1, "state": None, "counter": "link_downed"}
    links = [row | {"nic": f"mlx5_{nic}", "count": count} for nic, count in enumerate(counts)]
    assert len(find_facts(JobLogs(links=links))) == said


def test_a_counter_that_cannot_count_on_is_told_although_it_did_not_grow():
    row = {"host": "node0", "nic": "mlx5_3", "link": 1, "state": None, "device": None, "count": 65_535}
    names = "SymbolErrorCounter", "PortXmitWait"
    links = [row | {"counter": name, "source": f"{at}.txt"} for at in (1, 2) for name in names]
    facts = find_facts(JobLogs(links=links))
    assert [(fact.words, fact.certainty) for fact in facts] == [
        ("port of mlx5_3: SymbolErrorCounter at its largest value, 65,535 on node0", "unknown")
    ]


@pytest.mark.parametrize(
    ("seconds", "ending", "certainty"),
    [
        (1_718_000_000, "", "likely"),
        (1_718_007_200, ", at another time than the steps, unless the log is in another time zone", "unknown"),
        (1_718_086_400, ", at another time than the steps", "unknown"),
        (77_004_800 - 86_400, ", at another time than the steps", "unknown"),  # 9 June of no year
        (77_004_800, "", "likely"),  # 10 June
        (None, ", at a time that the log does not state", "unknown"),
    ],
)
def test_an_error_of_another_day_is_no_cause(seconds: int | None, ending: str, certainty: str):
    """The steps are of 2024-06-10 06:13:20, a kernel log states no year, and `dmesg` the time since boot."""
    row = {"host": "node0", "bus_id": "0000:01:00", "code": 63, "time_ns": seconds and seconds * SECOND}
    steps = {StepKey(None, 1): (1_718_000_000 * SECOND, 1_718_000_001 * SECOND)}
    places = {1: RankPlace("node0", 1, "0000:01:00")}
    (fact,) = add_log_evidence(NO_CULPRIT, JobLogs(gpu_errors=[row], places=places, step_times_ns=steps)).facts
    assert (fact.words, fact.certainty) == (f"Xid 63 of GPU 1 (rank 1) on node0{ending}", certainty)


def test_a_link_that_was_down_at_another_time_is_no_cause():
    down = {"host": "node0", "device": None, "nic": "mlx5_5", "link": 1, "state": None, "counter": "link down events"}
    events = [at(down | {"count": 1, "is_event": True}, seconds) for seconds in (1_000, 90_000)]
    undated = JobLogs(links=[down | {"count": 1, "is_event": True}], step_times_ns=STEP_TIMES)  # maybe at the boot
    assert words(undated) == ["port of mlx5_5: link down events 1 on node0, at a time that the log does not state"]
    facts = add_log_evidence(NO_CULPRIT, JobLogs(links=events, places=NODE0, step_times_ns=STEP_TIMES)).facts
    assert [(fact.words, bool(fact.causes)) for fact in facts] == [
        ("port of mlx5_5: link down events 1 on node0", True),
        ("port of mlx5_5: link down events 1 on node0, at another time than the steps", False),
    ]


@pytest.mark.parametrize(("seconds", "said"), [(1_000, 0), (1_005, 0), (1_007, 1), (5_000, 1), (None, 0)])
def test_logs_of_another_time_are_said(seconds: int | None, said: int):
    row = clock(1, 1000.0) if seconds is None else at(clock(1, 1000.0), seconds)
    logs = JobLogs(gpu_clocks=[row], places=NODE0, step_times_ns=STEP_TIMES)
    facts = add_log_evidence(NO_CULPRIT, logs).facts
    assert len([fact for fact in facts if fact.words.startswith("GPU clocks of another time than the steps")]) == said


def test_where_the_clock_log_calls_a_busy_gpu_idle_the_trace_is_believed():
    others = [at(clock(0, 1410.0), 1_000.2), at(clock(2, 1410.0), 1_000.4)]
    idle = [at(clock(1, 300.0, "gpu_idle"), 1_000.3), at(clock(1, 300.0, "gpu_idle"), 1_000.8)]
    logs = JobLogs(gpu_clocks=[*others, *idle], places=NODE0, step_times_ns=STEP_TIMES)
    (fact,) = find_facts(logs)  # and nothing of its clock of 300 MHz
    assert fact.kind == "contradiction"
    assert "idle in 2 of 2 samples during the steps" in fact.words
    assert "the trace is believed" in fact.words
    between = [replace(logs, gpu_clocks=[*others, *(at(row, 1_003) for row in idle)])]  # no step was running
    assert [one.kind for one in find_facts(between[0])] == ["gpu_clock"]


def step_line(step: int, **values: float) -> dict[str, Any]:
    row = {"step": step, "seconds": None, "samples_per_s": None, "tokens_per_s": None, "source": "train.log"}
    return row | values


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        # steps 1 and 2 are recorded, and take a second each
        ([step_line(step, seconds=1.2 if step in (1, 2) else 1.0) for step in range(12)], "20.0%"),
        ([step_line(step, samples_per_s=80 if step in (1, 2) else 100) for step in range(12)], "25.0%"),
        ([step_line(step, seconds=0.8) for step in range(10, 20)], "25.0%"),  # recorded steps are not in the log
        ([step_line(step, seconds=1.0) for step in range(12)], None),
        ([step_line(step, seconds=0.1) for step in range(10, 20)], None),  # another program
        ([step_line(step, tokens_per_s=80) for step in range(10, 20)], None),
    ],
)
def test_what_the_profiler_costs(lines: list[dict[str, Any]], said: str | None):
    found = words(JobLogs(throughput=lines, step_times_ns=STEP_TIMES), "profiler")
    assert [text.split(" longer")[0] for text in found] == ([] if said is None else [f"recorded steps take {said}"])


def test_the_gpu_of_an_unknown_rank_is_evidence_of_no_rank():
    """Two hosts, and a clock log that names none: its GPU 1 is one of two."""
    places = {rank: RankPlace(f"node{rank // 2}", rank % 2) for rank in range(4)}
    clocks = [clock(0, 1410.0), clock(1, 1000.0)]
    errors = [{"host": None, "bus_id": "0000:01:00", "code": 79}, {"host": "node1", "bus_id": None, "code": 48}]
    found = find_facts(JobLogs(gpu_clocks=clocks, gpu_errors=errors, places=places))
    assert [(one.kind, one.ranks, bool(one.causes), one.is_item) for one in found] == [
        ("gpu_clock", (), False, True),
        ("gpu_error", (), True, True),  # of node1: evidence of its ranks, and proof of nothing
        ("gpu_error", (), False, True),
    ]
    assert (found[1].host, found[1].certainty) == ("node1", "unknown")


def test_logs_of_two_runs_contradict_each_other_and_neither_is_believed():
    old = [communicator(rank, network="Socket", interfaces=["eth0"], source="/x/old.log") for rank in range(4)]
    new = [communicator(rank, source="/x/new.log") for rank in range(4)]
    logs = JobLogs(communicators=[*old, *new]).reconciled()
    assert words(logs) == []
    (fact,) = find_facts(logs, ("contradiction",))
    assert fact.words.startswith("the files new.log, old.log state different hosts or networks of ranks 0-3")
    assert words(JobLogs(communicators=old).reconciled()) == ["NCCL communicates by TCP over eth0"]
    appended = JobLogs(communicators=[row | {"source": "/x/job.log"} for row in (*old, *new)]).reconciled()
    (fact,) = find_facts(appended)
    assert fact.words.startswith("the file job.log states different hosts or networks of ranks 0-3")
    smaller = [row | {"ranks": 2} for row in old[:2]]  # a run on one of the hosts
    logs = JobLogs(communicators=[*smaller, *new], places={at: RankPlace("node0", at) for at in range(2)}).reconciled()
    (fact,) = find_facts(logs)
    assert fact.words.startswith("the files new.log, old.log state different hosts or networks of ranks 0-1")


def test_what_differs_between_recordings_and_logs_is_told_once():
    error = at({"host": "node0", "bus_id": "0000:01:00", "code": 63}, 900)
    places = {1: RankPlace(None, 1, conflicts=("host node0 by recording, host node1 by NCCL",))}
    logs = JobLogs(gpu_errors=[error], places=places, step_times_ns=STEP_TIMES)
    facts = add_log_evidence(NO_CULPRIT, logs).facts
    assert [fact.kind for fact in facts] == ["contradiction", "gpu_error"]


def test_a_process_of_another_program_says_nothing_of_the_job():
    """It is no rank of the job, all of whose ranks state their network."""
    ranks = [communicator(rank) for rank in range(4)]
    other = communicator(0, network="Socket", interfaces=["eth0"], lacks_ib=True) | {"rank": None, "ranks": None}
    assert words(JobLogs(communicators=[*ranks, other]).reconciled()) == []
    assert words(JobLogs(communicators=[*ranks[:3], other]).reconciled()) != []


def test_adapters_of_two_protocols():
    rows = [communicator(rank, interfaces=[f"mlx5_0:1/{'RoCE' if rank == 2 else 'IB'}"]) for rank in range(4)]
    (fact,) = find_facts(JobLogs(communicators=rows))
    assert (fact.words, fact.ranks) == ("rank 2: adapters of RoCE, the other ranks: IB", (2,))


def test_adapters_of_processes_of_unknown_ranks_name_no_rank():
    """Whose adapters speak the other protocol is not known; adapters of RoCE are of a fabric, whatever their name."""
    names = ("irdma0:1/RoCE", "irdma1:1/RoCE", "mlx5_0:1/IB")
    rows = [communicator(at, interfaces=[name]) | {"rank": None} for at, name in enumerate(names)]
    assert find_facts(JobLogs(communicators=rows), ("network",)) == ()


def test_faults_of_programs_are_no_cause_and_of_many_gpus_one_line():
    def error(code: int, gpu: int, host: str = "node0") -> dict[str, Any]:
        return {"host": host, "device": gpu, "bus_id": None, "code": code}

    ended = [error(45, gpu % 8, f"node{gpu // 8}") for gpu in range(64)]
    logs = JobLogs(gpu_errors=[*ended, error(79, 1), error(31, 3, "node9")], places=NODE0)
    facts = find_facts(logs, ("gpu_error",))
    assert [(fact.words, fact.causes, fact.certainty) for fact in facts[:1]] == [
        ("Xid 45, Xid 79 of GPU 1 (rank 1) on node0", ("gpu_compute", "gpu_time", "gpu_pause"), "likely")
    ]
    why = "which a program's own fault or its end causes, too"
    assert {(fact.words, fact.causes) for fact in facts[1:]} == {
        (f"Xid 45 of 63 GPUs on 8 hosts, {why}", ()), (f"Xid 31 of GPU 3 on node9, {why}", ()),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("codes", "is_of_link"), [((74,), True), ((149, 45), True), ((145, 79), False), ((45, 63), False)]
)
def test_errors_of_nvlink_speak_for_slow_communication(codes: tuple[int, ...], is_of_link: bool):
    """Also beside the Xid 45 with which the driver ends the program after them."""
    errors = [{"host": "node0", "device": 1, "bus_id": None, "code": code} for code in codes]
    (fact,) = find_facts(JobLogs(gpu_errors=errors, places=NODE0), ("gpu_error",))
    assert ("communication" in fact.causes, "gpu_compute" in fact.causes) == (is_of_link, not is_of_link)


def test_a_cluster_s_log_is_told_of_the_job_s_hosts():
    hosts = [incident("soft_lockup", host=f"node{host}", seconds=22.0) for host in range(20)]
    assert [fact.words for fact in find_facts(JobLogs(incidents=hosts, places=NODE0))] == [
        "on node0: a processor was held in the kernel for 22 s",
        "on node1: a processor was held in the kernel for 22 s; 18 more such lines of hosts without a recording",
    ]
    errors = [{"host": "node1", "device": gpu, "bus_id": None, "code": 79} for gpu in range(8)]
    (fact,) = find_facts(JobLogs(gpu_errors=errors, places=NODE0))
    assert fact.words == "Xid 79 of GPU 0 on node1; 7 more such lines of hosts without a recording"
    assert len(find_facts(JobLogs(incidents=hosts))) == 20  # without recordings
    listed = incident("state", host="login1,node[00-12]", detail="down")
    places = {rank: RankPlace(f"node{rank:02}", 0) for rank in range(20, 10, -1)}
    assert [fact.host for fact in find_facts(JobLogs(incidents=[listed], places=places))] == ["node11", "node12"]


def test_the_generation_of_a_pcie_link_is_that_of_its_time():
    """Idle GPUs lower it."""
    row = {"host": "node0", "nic": None, "link": None, "state": None, "counter": "PCIe generation", "gb_per_s": None}
    idle = [at(row | {"device": 1, "count": 1}, 2_000)]
    busy = [at(row | {"device": gpu, "count": 5 - 2 * gpu}, 1_000) for gpu in (0, 1)]
    logs = JobLogs(links=[*idle, *busy], places=NODE0, step_times_ns=STEP_TIMES)
    assert words(logs.during([StepKey(None, 1)])) == ["PCIe link of GPU 1: generation 3 of 5 (rank 1) on node0"]
    assert words(logs.during([StepKey(None, 2)])) == []


def test_an_adapter_with_a_slower_pcie_link_than_on_other_hosts():
    row = {
        "device": None,
        "nic": "the adapter at 5e:00.0",
        "link": None,
        "state": None,
        "counter": "PCIe",
        "count": None,
    }
    links = [row | {"host": f"node{host}", "gb_per_s": 7.876 if host == 2 else 31.506} for host in range(4)]
    assert words(JobLogs(links=links)) == ["PCIe link of the adapter at 5e:00.0: 7.88 of 31.5 GB/s (1 link) on node2"]
    assert words(JobLogs(links=[one | {"gb_per_s": 7.876} for one in links])) == []


def test_links_and_memory_errors_of_a_gpu_are_of_its_rank():
    row = {"host": "node0", "nic": None, "state": None}
    lanes = [row | {"device": gpu, "link": None, "counter": "PCIe lanes", "count": 8 if gpu else 16} for gpu in (0, 1)]
    replays = [row | {"device": 1, "link": 3, "counter": "Replay", "count": 12}]
    memory = [{"host": "node0", "device": 1, "bus_id": None, "code": None, "memory": "DRAM errors", "count": 4}]
    logs = JobLogs(links=[*lanes, *replays], gpu_errors=memory, places=NODE0)
    assert [(fact.words, fact.ranks) for fact in find_facts(logs)] == [
        ("NVLink of GPU 1: Replay 12 (rank 1) on node0", (1,)),
        ("PCIe link of GPU 1: lanes 8 of 16 (rank 1) on node0", (1,)),
        ("GPU 1 of node0 (rank 1): DRAM errors 4 (nvidia-smi)", (1,)),
    ]


@pytest.mark.parametrize(("slow", "is_excluded"), [((1,), True), ((0, 1, 2, 3), False)])
def test_a_clock_as_the_others_is_not_advised_to_be_checked(slow: tuple[int, ...], is_excluded: bool):
    """Not where all ranks are slow: clocks of GPUs are compared with each other."""
    places = {gpu: RankPlace("node0", gpu) for gpu in range(4)}
    row = {"host": "node0", "bus_id": None, "time_ns": None, "reasons": [], "power_w": None, "power_cap_w": None}
    logs = JobLogs(gpu_clocks=[row | {"device": gpu, "sm_mhz": 1_980.0} for gpu in range(4)] * 3, places=places)
    late = culprit(slow[0], ranks=slow, scope="rank" if len(slow) == 1 else "job")
    (joined,) = add_log_evidence(replace(NO_CULPRIT, culprits=(late,)), logs).culprits
    stated = "4 GPUs of node0 (ranks 0-3): clock of 1,980 MHz, as on the other GPUs"
    assert (stated in joined.evidence) == is_excluded
    assert ("clocks" in describe_advice(joined)) != is_excluded


def test_a_gpu_that_no_rank_uses_is_evidence_of_no_finding():
    row = {"host": "node0", "nic": None, "state": None, "link": None, "counter": "PCIe lanes"}
    lanes = [row | {"device": gpu, "count": 8 if gpu == 7 else 16} for gpu in range(8)]
    (unused,) = find_facts(JobLogs(links=lanes, places=NODE0))
    assert unused.words == "PCIe link of GPU 7: lanes 8 of 16 on node0"
    assert unused.causes == ()
    # each process numbers the only GPU that it sees 0
    (unknown,) = find_facts(JobLogs(links=lanes, places=dict.fromkeys(range(8), RankPlace("node0", 0))))
    assert "communication" in unknown.causes


def capped(device: int, cap: float, drawn: float | None, host: str = "node0") -> dict[str, Any]:
    row = {"host": host, "device": device, "bus_id": None, "time_ns": None, "sm_mhz": None, "reasons": None}
    return row | {"power_cap_w": cap, "power_w": drawn}


@pytest.mark.parametrize(("drawn", "certainty"), [(498.0, "certain"), (72.0, "likely"), (None, "likely")])
def test_a_gpu_with_a_lower_power_cap(drawn: float | None, certainty: str):
    equal = [capped(gpu, 700.0, 690.0) for gpu in range(4)]
    assert find_facts(JobLogs(gpu_clocks=equal)) == ()
    (fact,) = find_facts(JobLogs(gpu_clocks=[*equal[:1], capped(1, 500.0, drawn), *equal[2:]], places=NODE0))
    assert fact.words == "GPU 1 of node0 (rank 1): power cap 500 W, most GPUs: 700 W"
    assert (fact.certainty, fact.ranks, fact.causes) == (certainty, (1,), ("gpu_compute", "gpu_time"))
    node = [capped(gpu, 500.0, drawn, "node1") for gpu in range(3)]
    assert words(JobLogs(gpu_clocks=[*equal, *node]), "gpu_clock") == [
        "3 GPUs of node1: power cap 500 W, most GPUs: 700 W"
    ]


def incident(kind: str, **more: Any) -> dict[str, Any]:
    row = {"time_ns": None, "rank": None, "host": None, "device": None, "bus_id": None, "detail": None}
    return row | {"kind": kind, "count": 1, "seconds": None} | more


def test_incidents_of_hosts_and_ranks():
    places = {1: RankPlace("node0", 1, "0000:29:00")}
    logs = JobLogs(
        incidents=[
            *(incident("soft_lockup", host="node0", detail="python", seconds=seconds) for seconds in (22.0, 48.0)),
            incident("hung_task", detail="python", seconds=120.0),
            *(incident("allocator", rank=0, count=count) for count in (2, 3)),
            *(incident("allocator", rank=1, count=count, detail="CUDA") for count in (4, 9)),
            *[incident("pcie", host="node0", bus_id="0000:29:00", detail="corrected")] * 9,
            incident("pcie", host="node0", bus_id="0000:29:00", detail="uncorrected"),
        ],
        places=places,
    )
    said = "PyTorch's allocator ran out of GPU memory {} times and freed its cache"
    assert [(one.words, one.ranks, bool(one.causes), one.is_item) for one in find_facts(logs)] == [
        (f"rank 0: {said.format(5)}", (0,), True, True),
        (f"rank 1: {said.format(9)}", (1,), True, True),
        ("on node0: a processor was held in the kernel for 48 s by python (2 times)", (), True, True),
        ("on a host: python was blocked in the kernel for more than 120 s", (), False, True),
        ("the device at 0000:29:00 of node0 (rank 1): 9 corrected PCIe errors", (1,), True, False),
        ("the device at 0000:29:00 of node0 (rank 1): 1 uncorrected PCIe error", (1,), True, True),
    ]


def test_how_processes_ended_is_told_and_blames_nobody():
    names = ("rank", "host", "exit_code", "tasks", "manner", "process", "stated_by", "is_first", "time_ns")

    def ended(**values: Any) -> dict[str, Any]:
        return dict.fromkeys(names) | values

    logs = JobLogs(
        exits=[
            *(ended(stated_by="system", host=host, process="python") for host in ("n7", "n1", "n7")),
            ended(stated_by="srun", host="n7", tasks="0-7", manner="Killed"),
            ended(stated_by="srun", host="n8", tasks="8", manner="Terminated"),
            ended(stated_by="slurmctld", host="n9"),
            ended(stated_by="an enemy"),
            ended(rank=8, exit_code=-9, is_first=True),
            *(ended(stated_by="program", rank=rank, manner="CUDA out of memory") for rank in (3, 4)),
        ]
    )
    killed = "the first process that torchrun saw fail is rank 8, with signal 9"
    assert [(one.words, one.causes) for one in find_facts(logs)] == [
        (f"{killed}, as the system does that is out of memory, and the scheduler", ()),
        ("ranks 3-4 failed: CUDA out of memory", ()),
        ("the system killed python on n1, n7 for lack of memory", ()),
        ("Slurm lost nodes: n9", ()),
        ("the first that srun saw end: task 0-7 on n7, Killed", ()),
    ]


@pytest.mark.parametrize(
    ("killed_ns", "failed"),
    [(None, {8: "killed for lack of memory"}), (200 * SECOND, {8: "killed for lack of memory"}), (10**7 * SECOND, {})],
)
def test_a_rank_is_killed_for_the_lack_of_memory_of_its_day(killed_ns: int | None, failed: dict[int, str]):
    names = "rank", "host", "exit_code", "manner", "stated_by", "is_first", "time_ns"
    first = {"rank": 8, "host": "n1.x", "exit_code": -9, "is_first": True, "time_ns": 300 * SECOND}
    killed = {"host": "n1", "stated_by": "system", "time_ns": killed_ns}
    assert failures([dict.fromkeys(names) | row for row in (first, killed)]) == failed


def test_hosts_whose_gpus_do_not_reach_each_other():
    lacking = [communicator(rank, lacks_p2p=True if rank > 1 else None) for rank in range(4)]
    places = {rank: RankPlace(f"node{rank // 2}", rank % 2) for rank in range(4)}
    (fact,) = find_facts(JobLogs(communicators=lacking, places=places))
    said = "do not reach each other's memory (P2P is disabled)"
    assert (fact.words, fact.ranks) == (f"GPUs of node1 {said}, unlike those of the other hosts", (2, 3))
    everywhere = JobLogs(communicators=[communicator(rank, lacks_p2p=True) for rank in range(4)])
    assert [(one.words, one.is_item) for one in find_facts(everywhere)] == [(f"GPUs of a host {said}", False)]


def clocks(host: str, device: int, mhz: float) -> dict[str, Any]:
    return {"host": host, "device": device, "bus_id": None, "sm_clock_mhz": mhz, "time_ns": None}


ONE_GPU_EACH = {rank: RankPlace(f"node{rank // 4}", 0, f"0000:{0x40 - rank:02x}:00") for rank in range(8)}


@pytest.mark.parametrize(("gpus", "ranks"), [(4, (6,)), (3, ()), (8, ())])
def test_the_drivers_number_is_the_place_of_the_pci_address(gpus: int, ranks: tuple[int, ...]):
    """Where processes see one GPU each and the samples number as many as the node has ranks."""
    logs = JobLogs(places=ONE_GPU_EACH, gpu_clocks=[clocks("node1", device, 1_800.0) for device in range(gpus)])
    assert logs.ranks_of_gpu("node1", 1, None) == ranks
    assert logs.ranks_of_gpu("node0", 1, None) == ()
    assert logs.gpu_numbers == {}


def test_an_error_names_the_gpu_by_its_address_where_each_process_numbers_its_own_0():
    error = {"host": "node1", "bus_id": "0000:3b:00", "code": 79, "device": None}
    (said,) = words(JobLogs(places=ONE_GPU_EACH, gpu_errors=[error]), "gpu_error")
    assert said.startswith("Xid 79 of the GPU at 0000:3b:00 (rank 5) on node1")
    distinct = {rank: place._replace(device=rank % 4) for rank, place in ONE_GPU_EACH.items()}
    (said,) = words(JobLogs(places=distinct, gpu_errors=[error]), "gpu_error")
    assert said.startswith("Xid 79 of GPU 1 (rank 5) on node1")


@pytest.mark.parametrize(
    ("cause", "ranks", "is_told"),
    [
        ("exposed_communication", (5,), True),
        ("serial_copies", (5,), False),
        ("serial_copies", tuple(range(8)), True),
    ],
)
def test_one_slow_link_costs_all_ranks_by_communication_alone(cause: Cause, ranks: tuple[int, ...], is_told: bool):
    fact = Fact("network", "PCIe link", ("exposed_communication", "serial_copies"), "likely", ranks)
    of_all = culprit(0, cause=cause, scope="job", rung="overlap", ranks=tuple(range(8)))
    assert _costs_all(fact, of_all) is is_told


@pytest.mark.parametrize(("distinct", "device"), [(False, None), (True, 1)])
def test_a_link_that_logs_narrow_to_a_rank_has_its_device_where_the_number_tells_the_gpu(
    distinct: bool, device: object
):
    places = {rank: place._replace(device=rank % 4 if distinct else 0) for rank, place in ONE_GPU_EACH.items()}
    slow = culprit(4, cause="communication", scope="ranks", ranks=(4, 5, 6, 7))
    fact = Fact("network", "NCCL over TCP", ("communication",), "certain", (5,))
    [found] = name_gpus([_locate(slow, [fact], JobLogs(places=places))], places)
    assert (found.scope, found.ranks, found.host, found.device) == ("rank", (5,), "node1", device)
