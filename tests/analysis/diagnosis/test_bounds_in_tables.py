"""What profilers' tables of operators and kernels say: compute-bound, communication-bound, or nothing."""

from typing import Any

import pytest

from jitter.analysis.diagnosis.efficiency import find_bounds_in_tables


def table(**shares: float) -> list[dict[str, Any]]:
    return [
        {"source": "x/results.csv", "name": name, "share": share, "self_device_ns": 1e6 * share}
        for name, share in shares.items()
    ]


@pytest.mark.parametrize(
    ("rows", "limits"),
    [
        (table(gemm=0.9, ncclDevKernel_AllReduce_Sum_f32_RING_LL=0.1), []),
        (table(gemm=0.98, ncclDevKernel_AllReduce_Sum_f32_RING_LL=0.02), ["compute_bound"]),
        (table(gemm=0.3, ncclDevKernel_AllReduce_Sum_f32_RING_LL=0.7), ["communication"]),
        (table(CopyHostToDevice=0.53, CopyDeviceToHost=0.47), []),
    ],
)
def test_the_limit_that_a_table_states(rows: list[dict[str, Any]], limits: list[str]):
    assert [one.kind for one in find_bounds_in_tables(rows)] == limits
