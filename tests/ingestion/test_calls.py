"""The kinds of calls of CUDA and HIP, and the calls that make a launch communication."""

import re
from pathlib import Path

import pyarrow as pa
import pytest

from jitter.core.errors import UsageError
from jitter.ingestion.ingest import ingest
from jitter.ingestion.names import compile_collective_pattern
from jitter.ingestion.transform.collective_calls import CollectiveCall, CommunicationFinder, parse_collective_call
from jitter.ingestion.transform.launch_join import flag_names
from jitter.lake.parquet import read_kernels
from jitter.simulate import Job, simulate, write

LAUNCHES = [
    "cudaLaunchKernel_v7000",
    "cudaLaunchKernel",
    "cudaLaunchKernelExC_v11060",
    "cuLaunchKernel",
    "cuLaunchKernelEx",
    "cudaGraphLaunch_v10000",
    "cudaLaunchCooperativeKernel_v9000",
    "cuLaunchCooperativeKernel",
    "hipLaunchKernel",
    "hipModuleLaunchKernel",
    "hipExtModuleLaunchKernel",
    "hipExtLaunchKernel",
    "hipGraphLaunch",
    "hipHccModuleLaunchKernel",
    "cuGraphLaunch",
]
WAITS = [
    "cudaDeviceSynchronize_v3020",
    "cudaStreamSynchronize_v3020",
    "cudaEventSynchronize_v3020",
    "cuCtxSynchronize",
    "cuStreamSynchronize",
    "cudaMemcpy_v3020",
    "cudaFree_v3020",
    "hipDeviceSynchronize",
    "hipStreamSynchronize",
    "hipMemcpy",
    "hipFree",
    "cuMemcpyDtoH_v2",
]
NEITHER = [
    "cudaLaunchHostFunc_v10000",
    "cudaMemcpyAsync_v3020",
    "cudaMemsetAsync_v3020",
    "cudaEventRecord_v3020",
    "cudaStreamWaitEvent_v3020",
    "cudaMalloc_v3020",
    "cudaFreeAsync_v11020",
    "hipMemcpyAsync",
    "cudaGetDevice",
    "cuMemcpyHtoDAsync_v2",
    "cudaStreamBeginCapture_v10000",
]


@pytest.mark.parametrize("name", [*LAUNCHES, *WAITS, *NEITHER])
def test_what_it_does(name: str):
    flags = flag_names([name], CommunicationFinder(None, []))
    assert flags["is_launch"] == [name in LAUNCHES]
    assert flags["is_synchronising"] == [name in WAITS]
    assert flags["is_operation"] == [name in NEITHER]


def test_capture_of_graphs():
    names = ["cudaStreamBeginCapture_v10000", "hipStreamEndCapture", "cudaStreamIsCapturing_v10000"]
    assert flag_names(names, CommunicationFinder(None, []))["is_capture_edge"] == [True, True, False]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("ncclAllReduce", ("all_reduce", True)),
        ("pncclBroadcast", ("broadcast", True)),
        ("ncclGroupEnd", (None, True)),
        ("ncclSend", ("send_recv", True)),
        ("nvshmemx_barrier_all_on_stream", ("barrier", True)),
        ("ucc_collective_post", (None, True)),
        ("nccl:all_to_all", ("all_to_all", False)),
        ("nccl:_reduce_scatter_base", ("reduce_scatter", False)),
        ("ncclCommInitRank", None),
        ("ncclCommDestroy", None),
        ("nccl", None),
        ("my ncclAllReduce", None),
        ("DistributedDataParallel.forward", None),
        ("nvshmem_malloc", None),
    ],
)
def test_ranges(text: str, found: tuple[str | None, bool] | None):
    assert parse_collective_call(text) == found


def test_the_outermost_call_takes_the_only_operation_inside():
    calls = [
        CollectiveCall(0, 1, 100, 200, None, True),
        CollectiveCall(0, 1, 110, 120, "all_to_all", True),
        CollectiveCall(0, 1, 130, 140, "all_to_all", True),
        CollectiveCall(0, 1, 300, 400, None, True),
        CollectiveCall(0, 1, 310, 320, "all_reduce", True),
        CollectiveCall(0, 1, 330, 340, "all_gather", True),
        CollectiveCall(0, 2, 310, 320, "broadcast", True),
    ]
    assert [(c.start_ns, c.operation) for c in CommunicationFinder(None, calls).calls] == [
        (100, "all_to_all"),
        (300, None),
        (310, "broadcast"),
    ]


def test_a_call_that_ended_holds_no_launch_that_begins_then():
    calls = [
        CollectiveCall(0, 1, 100, 200, None, True),
        CollectiveCall(0, 1, 110, 120, "all_reduce", True),
        CollectiveCall(0, 1, 200, 300, "all_gather", True),
        CollectiveCall(0, 1, 400, None, "broadcast", True),
    ]
    finder = CommunicationFinder(None, calls)
    assert [(call.start_ns, call.operation) for call in finder.calls] == [
        (100, "all_reduce"),
        (200, "all_gather"),
        (400, "broadcast"),
    ]
    launches = pa.table({"process": [0] * 5, "thread": [1] * 5, "start_ns": [100, 199, 200, 300, 400]})
    assert finder.launches.around(launches).tolist() == [0, 0, 1, -1, -1]


def test_declared_kernels_and_their_operations():
    communication = CommunicationFinder(re.compile("my_ring|exchange"), [])
    names = ["void my_ring_all_reduce<float>(float*)", "exchange_halo", "gemm", "ncclDevKernel_AllGather_RING_LL"]
    assert communication.of_names(names) == [True, True, False, True]
    assert communication.operations(names) == ["all_reduce", None, None, "all_gather"]


@pytest.mark.parametrize("expression", ["(", "", ".*", "a?"])
def test_a_pattern_must_name_something(expression: str):
    with pytest.raises(UsageError, match="--collective"):
        compile_collective_pattern(expression)


def test_a_declaration_is_kept_and_asks_for_reading_again(tmp_path: Path):
    write(simulate(Job(ranks=2, steps=2, kernels=20, seed=1)), tmp_path / "t", "nsys")
    first = ingest([tmp_path / "t"], tmp_path / "lake")
    assert {record.collective_pattern for record in first.added} == {None}
    again = ingest([tmp_path / "t"], tmp_path / "lake", collective="layer_norm")
    assert (again.unchanged, len(again.added)) == (0, 2)
    assert {record.collective_pattern for record in again.added} == {"layer_norm"}
    assert ingest([tmp_path / "t"], tmp_path / "lake").unchanged == 2
    rows = read_kernels(next((tmp_path / "lake" / "kernels").rglob("rank=0.parquet")), ["kernel_name", "kind"])
    kinds = {kind for name, kind in zip(*(c.to_pylist() for c in rows.columns), strict=True) if "layer_norm" in name}
    assert kinds == {"collective"}
