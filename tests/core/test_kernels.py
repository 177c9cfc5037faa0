"""What a kernel's name means, in every spelling met."""

import pytest

from jitter.core.kernels import ALIGNING_OPERATIONS, OPERATIONS, collective_operation, is_collective, short_name


@pytest.mark.parametrize(
    ("name", "operation"),
    [
        ("ncclAllReduceRingLLKernel_sum_f16(ncclColl)", "all_reduce"),
        ("ncclKernel_AllReduce_RING_LL_Sum_half(ncclDevComm*, unsigned long, ncclWork*)", "all_reduce"),
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "all_reduce"),
        ("ncclDevKernel_ReduceScatter_PreMulSum_f32_RING_SIMPLE(ncclDevKernelArgsStorage<4096ul>)", "reduce_scatter"),
        ("ncclKernel_AllGather_RING_LL_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)", "all_gather"),
        ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "all_gather"),
        ("ncclKernel_Broadcast_RING_LL_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)", "broadcast"),
        ("ncclDevKernel_Reduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "reduce"),
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)", "send_recv"),
        ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", "send_recv"),
        ("ncclSymkDevKernel_AllReduce_RSxLD_AGxST_Sum_bf16(ncclSymkDevWorkArgs)", "all_reduce"),
        ("ncclSymkDevKernel_AllGather_LL(ncclSymkDevWorkArgs)", "all_gather"),
        ("rcclKernel_AllReduce_RING_LL_Sum_float", "all_reduce"),
        ("ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)", None),
        ("ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)", None),
        ("void ncclKernel_AllReduce_TREE_LL_Sum_float(ncclDevComm*)", "all_reduce"),
    ],
)
def test_collectives(name: str, operation: str | None):
    assert is_collective(name)
    assert collective_operation(name) == operation
    assert operation is None or operation in OPERATIONS


@pytest.mark.parametrize(
    "name",
    [
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float> >(int)",
        "void multi_tensor_apply_kernel<ncclFake>(int)",
        "void my::all_reduce_helper(int)",
        "volta_fp16_s884gemm_fp16_256x128_ldg8_f2f_tn",
        "void scatter_gather_elementwise_kernel<128, 4>(int)",
        "",
    ],
)
def test_others(name: str):
    assert not is_collective(name)
    assert collective_operation(name) is None


def test_which_align():
    assert {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"} == ALIGNING_OPERATIONS


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("void at::native::elementwise_kernel<128, 4, Foo<a::b>>(int, Foo)", "elementwise_kernel"),
        (
            "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float>(int)",
            "vectorized_layer_norm_kernel",
        ),
        ("volta_sgemm_128x64_nn", "volta_sgemm_128x64_nn"),
        (
            "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
            "ncclDevKernel_AllReduce_Sum_bf16_RING_LL",
        ),
        ("", ""),
    ],
)
def test_short_names(name: str, short: str):
    assert short_name(name) == short
