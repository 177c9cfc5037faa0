"""XPU and other devices, times as strings, custom collectives and their peers; fields as in public traces."""

from pathlib import Path

import pytest

import jitter
from jitter.core.errors import UnreadableTraceError
from jitter.lake.parquet import read_kernels
from tests.support.kineto_traces import call, kernel, read, small, step, write

SEND = {
    "Collective name": "send",
    "In msg nelems": 1000,
    "Group size": 4,
    "dtype": "BFloat16",
    "Process Group Name": "7",
    "Process Group Ranks": "[0, 2, 4, 6]",
    "Dst Rank": 4,
}


# fields of `xpu_runtime` and `kernel` events as intel's Kineto plugin writes them (libkineto/src/plugin/xpupti)
@pytest.mark.parametrize(
    ("category", "name"),
    [
        ("xpu_runtime", "urEnqueueKernelLaunch"),
        ("xpu_runtime", "zeCommandListAppendLaunchKernel"),
        ("privateuse1_runtime", "aclrtLaunchKernel"),
        ("privateuse1_driver", "tpuLaunchKernel"),
        ("hip_runtime", "hipLaunchKernel"),
    ],
)
def test_launches_of_other_devices_join(tmp_path: Path, category: str, name: str):
    launch = call(name, ts=90, correlation=5, cat=category)
    recording, rows = read(write(tmp_path / "rank0.json", [step(), launch, kernel("gemm", ts=100, correlation=5)]))
    assert [(recording.names[row["name"]], row["correlation"]) for row in rows["calls"]] == [(name, 5)]
    jitter.ingest([tmp_path / "rank0.json"], tmp_path / "lake", executor=jitter.LocalExecutor())
    found = read_kernels(next((tmp_path / "lake").rglob("rank=0.parquet")), ["launch_name", "launch_start_ns"])
    assert found.to_pylist() == [{"launch_name": name, "launch_start_ns": 90_000}]


@pytest.mark.parametrize(
    ("category", "device"), [("mtia_ccp_events", "MTIA"), ("mtia_runtime", "MTIA"), ("hpu_op", "Habana")]
)
def test_devices_that_are_not_read_are_named(tmp_path: Path, category: str, device: str):
    with pytest.raises(UnreadableTraceError, match=f"holds activities of {device}"):
        read(write(tmp_path / "a.json", [step(), call(), call("job", cat=category)]))


def test_other_activities_do_not_hide_a_gpu(tmp_path: Path):
    _, rows = read(write(tmp_path / "a.json", [*small(), call("job", cat="mtia_runtime")]))
    assert len(rows["activities"]) == 3


def test_times_as_strings(tmp_path: Path):
    events = small()
    plain = read(write(tmp_path / "a.json", events))[1]
    for event in events:
        for member in ("ts", "dur"):
            if member in event:
                event[member] = str(event[member])
    assert read(write(tmp_path / "b.json", events))[1] == plain


def test_a_custom_kernel_with_collective_arguments_is_communication(tmp_path: Path):
    custom = kernel(
        "void mycorp::ring<float>(float*)", ts=120, correlation=2, **(SEND | {"Collective name": "all_to_all"})
    )
    renamed = kernel("ncclDevKernel_SendRecv", ts=140, correlation=3, **(SEND | {"Collective name": "all_to_allv"}))
    events = [step(), kernel(ts=100), custom, renamed, *(call(ts=80 + n, correlation=n) for n in (1, 2, 3))]
    write(tmp_path / "rank0.json", events)
    jitter.ingest([tmp_path / "rank0.json"], tmp_path / "lake", executor=jitter.LocalExecutor())
    found = read_kernels(next((tmp_path / "lake").rglob("rank=0.parquet")), ["kind", "collective", "group_size"])
    assert [tuple(row.values()) for row in found.to_pylist()] == [
        ("compute", None, None),
        ("collective", "all_to_all", 4),
        ("collective", "all_to_all", 4),
    ]


def test_peers_of_sends_and_receives(tmp_path: Path):
    receive = {**SEND, "Collective name": "recv", "Src Rank": 0}
    del receive["Dst Rank"]
    events = [
        step(),
        kernel("ncclDevKernel_SendRecv", ts=100, **SEND),
        kernel("ncclDevKernel_SendRecv", ts=120, correlation=2, **receive),
        kernel("gemm", ts=140, correlation=3),
        *(call(ts=80 + n, correlation=n) for n in (1, 2, 3)),
    ]
    write(tmp_path / "rank2.json", events)
    jitter.ingest([tmp_path / "rank2.json"], tmp_path / "lake", executor=jitter.LocalExecutor())
    peers = read_kernels(next((tmp_path / "lake").rglob("rank=2.parquet")), ["source_rank", "destination_rank"])
    assert [tuple(row.values()) for row in peers.to_pylist()] == [(2, 4), (0, 2), (None, None)]
