"""Evidence from logs of a culprit's cause, each as a sentence; none if they hold nothing unusual."""

from typing import Any

import pytest

from jitter.analysis.diagnosis.diagnosis import Diagnosis
from jitter.analysis.diagnosis.evidence.logs.add_evidence import add_log_evidence
from jitter.analysis.diagnosis.evidence.logs.gpu import gpu_evidence
from jitter.analysis.diagnosis.evidence.logs.network import describe_network, network_evidence, ranks_off_fabric
from jitter.analysis.diagnosis.evidence.logs.placement import cpu_evidence
from jitter.analysis.diagnosis.evidence.logs.relations import JobLogs
from jitter.analysis.diagnosis.model import Loss, WhatIf
from jitter.core.step_key import StepKey


def communicator(rank: int, **more: Any) -> dict[str, Any]:
    row = {"rank": rank, "host": f"node{rank // 2}", "device": rank % 2, "bus_id": f"0000:{rank:02x}:00"}
    return {**row, "network": "IB", "plugin": None, "version": "2.21.5", "interfaces": ["mlx5_0"], **more}


def edge(one: int, other: int, transport: str = "NET/IB", gdr: bool | None = True) -> dict[str, Any]:
    return {"from_rank": one, "to_rank": other, "transport": transport, "gdr": gdr, "nic": 0}


HEALTHY = JobLogs(
    communicators=[communicator(rank) for rank in range(4)],
    edges=[edge(0, 1, "P2P/IPC", None), edge(1, 2), edge(3, 0)],
)


def test_a_healthy_network_adds_nothing():
    assert network_evidence([0], HEALTHY) == []


def test_tcp_where_a_fabric_is_present():
    tcp = [communicator(rank, network="Socket", interfaces=["nmn0"]) for rank in range(4)]
    nics = [{"gpu": 0, "near_cpus": None, "near_nics": ["hsn0"]}]
    assert network_evidence([0], JobLogs(communicators=tcp, topology=nics)) == [
        "NCCL communicates by TCP over nmn0, although hsn0 is present"
    ]
    without = JobLogs(communicators=tcp)  # nothing shows that there is a fabric
    assert network_evidence([0], without) == ["NCCL communicates by TCP over nmn0"]
    assert describe_network(without) == []
    assert network_evidence([0], JobLogs(communicators=tcp[:1])) == []  # TCP within a host is its loopback


def test_a_failed_plugin():
    failed = [communicator(rank, network="Socket", interfaces=["eth0"], plugin="failed") for rank in range(4)]
    assert network_evidence([0], JobLogs(communicators=failed)) == [
        "the network plug-in could not be loaded on node0, node1",
        "NCCL communicates by TCP over eth0",
    ]


def test_edges_without_gdr_and_of_unequal_transport():
    edges = [edge(0, 1), edge(1, 2), edge(2, 3, "NET/Socket", gdr=False)]
    assert network_evidence([0], JobLogs(edges=edges)) == [
        "network connections use different transports (2 NET/IB, 1 NET/Socket): NET/Socket from rank 2 to 3",
        "1 of 3 network connections do not use GPUDirect RDMA (GDR)",
    ]


def test_a_rank_unlike_the_others():
    ranks = [communicator(0), communicator(1), communicator(2), communicator(3, version="2.18.1")]
    assert network_evidence([0], JobLogs(communicators=ranks)) == ["rank 3: version 2.18.1, the other ranks: 2.21.5"]


def test_ranks_off_the_fabric_are_a_minority_on_tcp():
    def job(*over_tcp: int) -> JobLogs:
        rows = [communicator(rank, **({"network": "Socket"} if rank in over_tcp else {})) for rank in range(4)]
        return JobLogs(communicators=rows)

    assert ranks_off_fabric(range(4), job(2)) == (2,)
    assert ranks_off_fabric([0, 1], job(2)) == ()  # these ranks are not of the slow group
    assert ranks_off_fabric(range(4), job(1, 2)) == ()  # half of the job: which half is odd is not known
    assert ranks_off_fabric(range(4), job(0, 1, 2)) == ()  # the lone rank on the fabric is not at fault
    assert ranks_off_fabric(range(4), HEALTHY) == ()


def clock(device: int, sm_mhz: float, *reasons: str, host: str | None = None) -> dict[str, Any]:
    return {"host": host, "device": device, "sm_mhz": sm_mhz, "reasons": list(reasons)}


@pytest.mark.parametrize(
    ("slow", "said"),
    [
        (clock(1, 1000.0), ["GPU 1 of node0 ran at 1,000 MHz, the other GPUs at 1,410 MHz (median)"]),
        (clock(1, 1400.0, "sw_power_cap"), ["GPU 1 of node0: its clock was limited by power cap in 1 of 1 samples"]),
        (
            clock(1, 1400.0, "sw_thermal_slowdown", "hw_thermal_slowdown"),
            ["GPU 1 of node0: its clock was limited by temperature in 1 of 1 samples"],
        ),
        (clock(1, 1400.0), []),
    ],
)
def test_clocks(slow: dict[str, Any], said: list[str]):
    clocks = [clock(0, 1410.0), slow, clock(2, 1410.0)]
    logs = JobLogs(gpu_clocks=clocks, hosts={1: "node0"}, devices={1: 1})
    assert gpu_evidence([1], logs) == said


def test_xid_of_the_ranks_gpu_only():
    errors = [{"host": "node0", "bus_id": f"0000:{bus}:00", "code": 79} for bus in ("01", "01", "00")]
    logs = JobLogs(HEALTHY.communicators, gpu_errors=errors, hosts={1: "node0"}, devices={1: 1})
    assert gpu_evidence([1], logs) == ["the kernel log has 2 errors Xid 79 of GPU 1 of node0"]


def test_errors_of_gpus_of_no_known_rank_are_listed():
    errors = [{"host": "node0", "bus_id": "0000:01:00", "code": code} for code in (48, 63, 63)]
    errors += [{"host": None, "bus_id": None, "code": 12_028}]
    healthy = Diagnosis(Loss(0, 0.0), (), (), WhatIf(0, 0), "")
    found = add_log_evidence(healthy, JobLogs(gpu_errors=errors))
    gpu = "of the GPU at 0000:01:00"
    assert found.notes == (
        f"GPU errors in the kernel log of node0: Xid 63 {gpu} (2 times), Xid 48 {gpu}.",
        "GPU errors in a kernel log: SXid 12028.",
    )
    assert add_log_evidence(found, JobLogs(gpu_errors=errors)) == found


def binding(rank: int, *cpus: int, gpus: tuple[int, ...] = ()) -> dict[str, Any]:
    return {"rank": rank, "host": "node0", "cpus": list(cpus), "gpus": list(gpus)}


def test_shared_cores_and_cores_far_from_the_gpu():
    near = [{"gpu": gpu, "near_cpus": [4 * gpu, 4 * gpu + 1], "near_nics": None} for gpu in range(2)]
    logs = JobLogs(bindings=[binding(0, 0, 1), binding(1, 1, 2, gpus=(1,)), binding(2, 4, 5)], topology=near)
    assert cpu_evidence([1], logs) == [
        "rank 1 shares 1 of 2 hardware threads with rank 0",
        "rank 1 runs on hardware threads far from its GPU 1: 1-2",
    ]
    assert cpu_evidence([2], logs) == []


SECOND = 1_000_000_000
STEP_TIMES = {StepKey(None, 1): (1_000 * SECOND, 1_001 * SECOND), StepKey(None, 2): (2_000 * SECOND, 2_001 * SECOND)}


def at(row: dict[str, Any], seconds: int) -> dict[str, Any]:
    return {**row, "time_ns": seconds * SECOND}


def test_only_clocks_and_errors_of_the_steps_time_count():
    slow = [at(clock(1, 1000.0, "sw_thermal_slowdown"), 1_500), at(clock(1, 1400.0), 2_004)]
    clocks = [*slow, at(clock(0, 1410.0), 1_000), at(clock(0, 1410.0), 2_000)]
    errors = [
        at({"host": "node0", "bus_id": "0000:01:00", "code": code}, when) for code, when in ((79, 2_000), (31, 900))
    ]
    logs = JobLogs(
        HEALTHY.communicators,
        gpu_clocks=clocks,
        gpu_errors=errors,
        hosts={1: "node0"},
        devices={1: 1},
        step_times_ns=STEP_TIMES,
    )
    assert gpu_evidence([1], logs.during([StepKey(None, 2)])) == ["the kernel log has 1 error Xid 79 of GPU 1 of node0"]
    assert gpu_evidence([1], logs.during([StepKey(None, 1)])) == []
    assert len(gpu_evidence([1], logs.during([StepKey(None, 9)]))) == 4  # the time of the step is unknown


@pytest.mark.parametrize(("seconds", "said"), [(1_000, 0), (1_005, 0), (1_007, 1), (5_000, 1), (None, 0)])
def test_logs_of_another_time_are_said(seconds: int | None, said: int):
    row = clock(1, 1000.0) if seconds is None else at(clock(1, 1000.0), seconds)
    logs = JobLogs(gpu_clocks=[row], hosts={1: "node0"}, devices={1: 1}, step_times_ns=STEP_TIMES)
    healthy = Diagnosis(Loss(0, 0.0), (), (), WhatIf(0, 0), "")
    notes = add_log_evidence(healthy, logs).notes
    assert len([note for note in notes if note.startswith("The GPU clocks in the logs are of another time")]) == said
