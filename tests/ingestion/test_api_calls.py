"""The kinds of calls of the CUDA and HIP interfaces."""

import pytest

from jitter.ingestion.transform.launch_join import capture_boundary, is_launch, is_synchronising

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
    assert is_launch(name) == (name in LAUNCHES)
    assert is_synchronising(name) == (name in WAITS)


def test_capture_of_graphs():
    assert capture_boundary("cudaStreamBeginCapture_v10000") == "begin"
    assert capture_boundary("hipStreamEndCapture") == "end"
    assert capture_boundary("cudaStreamIsCapturing_v10000") is None
