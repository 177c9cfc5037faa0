"""The meaning of the names of kernels and markers, in every spelling met."""

import re
import time

import pytest

from jitter.core.names.kernels import (
    ALIGNING_OPERATIONS,
    COLLECTIVE_NAMES,
    OPERATIONS,
    _qualified_name,
    collective_operation,
    is_collective,
    short_name,
)
from jitter.core.names.marker_numbers import parse_marker_numbers


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
        "void mlx::core::all_reduce_kernel<float, Sum>(float const*, float*)",  # of one array
        "volta_fp16_s884gemm_fp16_256x128_ldg8_f2f_tn",
        "void scatter_gather_elementwise_kernel<128, 4>(int)",
        "",
    ],
)
def test_others(name: str):
    assert not is_collective(name)
    assert collective_operation(name) is None


# fmt: off
_OF_LIBRARIES = [  # names as reported in public profiles of these libraries: the operation must be right, too
    ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "all_reduce"),
    ("ncclSymkRun_AllGather_RailRing_LsaSTMC(ncclSymkDevWorkArgs const*)", "all_gather"),
    ("mscclKernel_Sum_half_Simple_false(ncclDevComm*, mscclAlgo*, mscclWork*)", None),
    ("void mscclpp::collective::allreducePacket<(mscclpp::ReduceOp)0, __half, false>(int)", "all_reduce"),
    ("void allreduceAllPairs<(Op)0, __half>(int)", "all_reduce"),
    ("void mscclpp::executionKernel<__half, mscclpp::LL8Packet, true>(int)", None),
    ("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(int)", "all_reduce"),
    ("void (anonymous namespace)::all_reduce_1shot_push_kernel<"
     "LoadStoreImpl, __nv_bfloat16, 8u, true>(int)", "all_reduce"),
    ("void aiter::ar_ll128_vec_unroll2<__hip_bfloat16, 8, 512>(int)", "all_reduce"),
    ("allreduce_one_shot_push_intra_node_kernel", "all_reduce"),
    ("_all_gather_kernel_inner", "all_gather"),
    ("void aiter::reduce_scatter_cross_device_store<__hip_bfloat16, 8>(int)", "reduce_scatter"),
    ("void aiter::allgather_lastdim<__hip_bfloat16, 8>(int)", "all_gather"),
    ("void quickreduce::allreduce_prototype_twoshot<AllReduceTwoshot<__half, CodecQ4<"
     "__half, 8>, true>, __half>(int)", "all_reduce"),
    ("void tensorrt_llm::kernels::oneShotAllReduceKernel<__half, 8, true, true>(AllReduceParams)", "all_reduce"),
    ("void tensorrt_llm::kernels::reduce_fusion::lamport_style_one_shot_all_reduce_norm_kernel<"
     "__half, 8, true>(int)", "all_reduce"),
    ("void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<"
     "(flashinfer::trtllm_allreduce_fusion::AllReduceFusionPattern)1, __nv_bfloat16, 8, true>(int)", "all_reduce"),
    ("void flashinfer::trtllm_mnnvl_allreduce::oneshotAllreduceFusionKernel<"
     "8, __nv_bfloat16, true>(int)", "all_reduce"),
    ("void tensorrt_llm::kernels::lowPrecisionTwoShotHierKernel<__half, 8>(int)", "all_reduce"),
    ("void tensorrt_llm::kernels::moe_comm::moeA2ADispatchKernel<WarpPolicy, 8>(int)", "all_to_all"),
    ("void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(int)", "all_reduce"),
    ("void c10d::nvshmem_extension::allToAllV(int)", "all_to_all"),
    ("c10d::symmetric_memory::barrier_kernel(unsigned int**, int, int, int, unsigned long)", "barrier"),
    ("void deep_ep::intranode::dispatch<8, 768, 8192>(int)", "all_to_all"),
    ("void deep_ep::intranode::barrier<8>(int**, int)", "barrier"),
    ("void mori::moe::EpDispatchIntraNodeKernel<hip_bfloat16>(int)", "all_to_all"),
    ("void mori::moe::EpCombineSyncBarrier<hip_bfloat16>(int)", "barrier"),
    ("void a2a_dispatch_send_kernel<true, 16, NotFixed>(int)", "all_to_all"),
    ("void userbuffers_fp16_sum_inplace_gpu_mc_rs_oop<8>(int)", "reduce_scatter"),
    ("void userbuffers_fp16_sum_inplace_gpu_mc_ag<8>(int)", "all_gather"),
    ("kuserbuffers_pushrecv(int, int, int, int, int*, int*, int, unsigned long)", "send_recv"),
    ("void userbuffers_fp16_sum_inplace_gpu_rr<8>(int)", "all_reduce"),
    ("void barrier_on_stream_kernel_threadgroup<(threadgroup_t)1>(int, int)", "barrier"),
    ("void alltoall_on_stream_kernel<float>(int, float*, float const*, unsigned long)", "all_to_all"),
    ("void rdxn_on_stream_kernel<float, (rdxn_ops)4>(int, float*, float const*, unsigned long)", "all_reduce"),
    ("void nvshmemi_reduce_kernel<int, (rdxn_ops)4>(int)", "reduce"),
    ("allreduce_kernel(float*, unsigned long, unsigned int, unsigned int)", "all_reduce"),
    ("oneccl_allreduce_pcie<sycl::half, Rt64_128_PCIE, RingTransmit>", "all_reduce"),
    ("void stream_executor::gpu::AllReduceKernelImpl<float, xla::ReductionKind::SUM>(int)", "all_reduce"),
    ("void stream_executor::gpu::RaggedAllToAllKernelImpl<8l>(int)", "all_to_all"),
    ("void stream_executor::gpu::MultiGpuBarrierKernelImpl<8>(long, std::array<void*, 8ul>)", "barrier"),
    ("void push_pull_halos_1d_kernel<__half, true, true, true>(int)", "send_recv"),
    ("void rcclGenericKernel<1, false>(ncclDevKernelArgsStorage<4096ul>)", None),
    ("ncclSymDevKernel_AllReduce_RSxLD_AGxST_sum_bf16(ncclSymDevArgs)", "all_reduce"),
    ("ncclSymkDevKernel_AllReduce_AGxLLMC_R_sum_f32", "all_reduce"),
    ("ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>) [clone .kd]", None),
    ("ncclKernelAllGatherCtranDirect(int*)", "all_gather"),
    ("mscclKernel_Sum_hip_bfloat16_Simple_false(ncclDevComm*, mscclAlgo*, mscclWork*)", None),
    ("void allreduce7<(Op)0, __half>(__half*, __half*)", "all_reduce"),
    ("void allgather6<true>(void*, unsigned long)", "all_gather"),
    ("void sglang::cross_device_reduce_1stage<__half, 8>(sglang::RankData*, int)", "all_reduce"),
    ("void sglang::all_reduce_kernel<sglang::AllReducePushImpl<float, 8u>, 1>(sglang::Params)", "all_reduce"),
    ("void sglang::all_reduce_2shot_pull_kernel<sglang::Impl, float, 8u>(sglang::P)", "all_reduce"),
    ("all_reduce_one_shot_kernel", "all_reduce"),
    ("void (anonymous namespace)::ar_fusion_pull_kernel<8u, true, true>(ArFusionParams)", "all_reduce"),
    ("void aiter::cross_device_reduce_2stage_naive<__half, 8>(aiter::RankData*)", "all_reduce"),
    ("void vllm::sm70_cross_device_reduce_sum2_1stage_push<4>(vllm::RankData*)", "all_reduce"),
    ("mcclKernel_AllReduce_RING_SIMPLE_Sum___mt_bfloat16", "all_reduce"),
    ("_ZN5aiter33reduce_scatter_cross_device_storeIDF16bLi8EEEvPNS_8RankDataE", "reduce_scatter"),
    ("void <unnamed>::multimem_all_reduce_kernel<c10::BFloat16, 16>(int)", "all_reduce"),
    ("void (anonymous namespace)::multimem_all_gather_kernel<16>(char*)", "all_gather"),
    ("void (anonymous namespace)::multimem_one_shot_all_reduce_kernel<float, 16>(int)", "all_reduce"),
    ("void (anonymous namespace)::one_shot_all_reduce_kernel<float, 16, 8>(float**)", "all_reduce"),
    ("void (anonymous namespace)::two_shot_all_reduce_kernel_inplace<float, 16, 8>(int)", "all_reduce"),
    ("one_shot_all_reduce_kernel_0d1d2d3de", "all_reduce"),
    ("all_to_all_vdev_2d_offset(long)", "all_to_all"),
    ("void c10d::nvshmem_extension::exchangeSplitAndOffset_2d<false>(long*)", "all_to_all"),
    ("void deep_ep::intranode::combine<__nv_bfloat16, 8, 768, 4096>(int)", "all_to_all"),
    ("void deep_ep::intranode::cached_notify_combine<8>(void**, int*, int)", "all_to_all"),
    ("void deep_ep::intranode::notify_dispatch<8>(int const*)", "all_to_all"),
    ("void deep_ep::internode_ll::dispatch<true, false, 7168>(void*)", "all_to_all"),
    ("void uccl::internode_ll::combine<true, 7168>(void*)", "all_to_all"),
    ("void primus_turbo::deep_ep::intranode::dispatch<8, 768>(int4*)", "all_to_all"),
    ("void hybrid_ep::dispatch_kernel<unsigned char, 4>(int)", "all_to_all"),
    ("EpDispatchIntraNodeKernel_bf16", "all_to_all"),
    ("void mori::moe::EpCombineInterNodeV1KernelLowLatency<hip_bfloat16>(int)", "all_to_all"),
    ("void mori::moe::EpDispatchLowLatencyAsyncSend<hip_bfloat16>(int)", "all_to_all"),
    ("kuserbuffers_pushsend(int*, int*, int*, int4*, int4*, int)", "send_recv"),
    ("void userbuffers_fp16_sum_inplace_gpu_rr_rs_oop_stride<4>(int)", "reduce_scatter"),
    ("void userbuffers_fp16_sum_inplace_gpu_rr_ag<4>(int)", "all_gather"),
    ("void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_twoshot_sync<int>(int)", "all_reduce"),
    ("moefinalize_allreduce_fusion_kernel_oneshot_lamport", "all_reduce"),
    ("void tensorrt_llm::kernels::moe_comm::moeA2ACombineKernel<int>(int)", "all_to_all"),
    ("moeAllToAllKernel(MoeEpWorldInfo, MoeCommWorkspace)", "all_to_all"),
    ("oneccl_allgatherv_pcie<sycl::half, Rt64_128_PCIE, RingTransmit>", "all_gather"),
]
# fmt: on


@pytest.mark.parametrize(("name", "operation"), _OF_LIBRARIES)
def test_names_of_other_libraries(name: str, operation: str | None):
    assert is_collective(name)
    assert collective_operation(name) == operation


def test_every_pattern_has_an_example():
    names = [_qualified_name(name) for name, _ in _OF_LIBRARIES]
    assert [pattern for _, pattern in COLLECTIVE_NAMES if not any(re.fullmatch(pattern, name) for name in names)] == []


@pytest.mark.parametrize(
    "name",
    [
        "allreduce_input_norm",
        "void dispatch_elementwise<float>(float*)",
        "void cub::CUB_200200_800_900_NS::DeviceReduceKernel<cub::DispatchReduce<float*> >(float*)",
        "void cub::detail::dispatch::combine<int>(int)",
        "void cub::DeviceScanByKeyKernel<cub::DispatchScan<int> >(int)",
        "void flash::flash_fwd_splitkv_combine_kernel<Flash_fwd_kernel_traits<128, 64> >(int)",
        "combine_kernel",
        "void adam_combine_momentum<float>(float*)",
        "void splitKreduce_kernel<32, 16, int, float>(float*)",
        "void deep_ep::layout::get_dispatch_layout<256, 32, 8>(long const*)",
        "void deep_ep::internode_ll::query_mask_buffer<32>(int*)",
        "void mori::moe::EpDispatchCopyToStaging<hip_bfloat16>(int)",
        "EpDispatchLowLatencyAsyncSendCopySlotAssign_bf16",
        "void moe_combine<float>(float*)",
        "void tensorrt_llm::kernels::moe_comm::moeA2APrepareDispatchKernel(int*)",
        "void vllm::moe::moe_align_block_size_kernel<int>(int*)",
        "void vllm::rms_norm_kernel<c10::BFloat16>(int)",
        "void aiter::local_device_load_rmsnorm<__hip_bfloat16, 8>(int)",
        "void at::native::index_put_with_sort_kernel<c10::BFloat16, 4>(long*)",
        "void at::native::_scatter_gather_elementwise_kernel<128, 8>(int)",
        "reduce_1Block_kernel",
        "void reduce_segments<float>(float*)",
        "triton_red_fused__to_copy_all_reduce_0",
        "triton_poi_fused_all_gather_into_tensor_wait_tensor_3",
        "reduce_scatter_gradient_bucket_norm",
        "gather_scatter_kernel",
        "void reshape_and_cache_kernel<ncclKernel_AllReduce>(int)",
        "notify_dispatch",
        "dispatch",
        "barrier_kernel",
        "void cooperative_groups::barrier<int>(int)",
        "void my_allreduce_kernel(float*)",
        "CUDA graph",
        "_ZN7cutlass6KernelI3ncclEEvNT_6ParamsE",
        "_Z",
    ],
)
def test_kernels_that_only_sound_like_communication(name: str):
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
        ("void cutlass::Kernel<gemv_bf16>()", "gemv_bf16"),
        (
            "void cutlass::device_kernel<at::cuda::detail::enable_3x_kernel_for_sm9x<A<int>>>(P)",
            "enable_3x_kernel_for_sm9x",
        ),
        ("void my::kernel<c10::BFloat16, 4>(int)", "kernel"),
        ("void my_kernel<a_b>(int)", "my_kernel"),
        ("CUDA graph 3", "CUDA graph 3"),
        ("Memcpy DtoH (Device -> Pinned)", "Memcpy DtoH"),
        (
            "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
            "ncclDevKernel_AllReduce_Sum_bf16_RING_LL",
        ),
        ("", ""),
    ],
)
def test_short_names(name: str, short: str):
    assert short_name(name) == short


@pytest.mark.parametrize(
    ("text", "step", "epoch", "rank", "numbers"),
    [
        (
            "epoch1_step2003-rank0-640_8-512_8",
            2003,
            1,
            0,
            [("number_1", 640), ("number_2", 8), ("number_3", 512), ("number_4", 8)],
        ),
        ("ProfilerStep#12", 12, None, 3, []),
        ("step 12 batch=640 seq_len: 2048", 12, None, 3, [("batch", 640), ("seq_len", 2048)]),
        ("train_step 12, rank 3, loss 0.5", 12, None, 3, [("loss", 0.5)]),
        ("batch 12", 12, None, None, []),
        ("", 1, None, None, []),
    ],
)
def test_numbers(text: str, step: int, epoch: int | None, rank: int | None, numbers: list[tuple[str, float]]):
    assert [tuple(one) for one in parse_marker_numbers(text, step, epoch, rank)] == numbers


@pytest.mark.parametrize("word", ["a", "a_", "step "])
def test_time_is_linear_in_the_text(word: str):
    start = time.process_time()
    assert parse_marker_numbers(word * (60_000 // len(word)), 1, None, None) == ()
    assert time.process_time() - start < 5
