"""Kernel names of PyTorch, cuBLAS, cuDNN and NCCL by era, with durations and launch shapes."""

from itertools import cycle, islice
from typing import Final, Literal, NamedTuple

Era = Literal["2020", "2024"]


class KernelSpec(NamedTuple):
    """A kernel as launched: demangled name, mean duration in ns, grid and block in x."""

    name: str
    duration_ns: int
    grid: int
    block: int
    tiles: tuple[str, ...] = ()
    """Names that autotuning chooses from; empty without autotuning."""


INPUT_SIZED_NS: Final = 15_000
"""Kernels longer than this depend on the input size."""

_NATIVE = "at::native::"
_ANONYMOUS = "at::native::(anonymous namespace)::"


def _elementwise(functor: str) -> str:
    inner = f"{_NATIVE}{functor}, at::detail::Array<char*, 3>"
    return f"void at::native::vectorized_elementwise_kernel<4, {inner} >(int, {inner})"


EMBEDDING: Final = KernelSpec(
    f"void {_ANONYMOUS}indexSelectLargeIndex<c10::Half, long, unsigned int, 2, 2, -2, true>"
    "(at::cuda::detail::TensorInfo<c10::Half, unsigned int>, long)",
    8200,
    640,
    128,
)
"""The first kernel of a step."""
_ADD: Final = KernelSpec(_elementwise("CUDAFunctor_add<c10::Half>"), 5800, 1280, 128)
_MUL: Final = KernelSpec(
    _elementwise("AUnaryFunctor<float, float, float, at::native::binary_internal::MulFunctor<float> >"),
    3900,
    640,
    128,
)
_GELU: Final = KernelSpec(
    _elementwise("GeluCUDAKernelImpl(at::TensorIteratorBase&, at::native::GeluType)::{lambda(float)#1}"),
    11200,
    2560,
    128,
)
_DROPOUT: Final = KernelSpec(
    f"void {_ANONYMOUS}fused_dropout_kernel_vec<c10::Half, float, unsigned int, 1, 4, bool>"
    "(at::cuda::detail::TensorInfo<c10::Half const, unsigned int>, float, at::PhiloxCudaState)",
    9400,
    432,
    256,
)
_NORM: Final = KernelSpec(
    f"void {_ANONYMOUS}vectorized_layer_norm_kernel<c10::Half, float>"
    "(int, float, c10::Half const*, c10::Half const*, c10::Half const*, float*, float*, c10::Half*)",
    12800,
    640,
    128,
)
_NORM_BACKWARD: Final = KernelSpec(
    f"void {_ANONYMOUS}GammaBetaBackwardCUDAKernelTemplate<c10::Half, float, 32u, 8u, 64u, false>"
    "(long, long, c10::Half const*, c10::Half const*, float const*, float const*, c10::Half*, c10::Half*)",
    17600,
    32,
    256,
)
_SOFTMAX: Final = KernelSpec(
    f"void {_ANONYMOUS}cunn_SoftMaxForward<8, c10::Half, float, c10::Half, SoftMaxForwardEpilogue>"
    "(c10::Half*, c10::Half const*, int)",
    15300,
    5120,
    128,
)
_SOFTMAX_BACKWARD: Final = KernelSpec(
    f"void {_ANONYMOUS}cunn_SoftMaxBackward<8, c10::Half, float, c10::Half, SoftMaxBackwardEpilogue>"
    "(c10::Half*, c10::Half const*, c10::Half const*, long)",
    19100,
    5120,
    128,
)
REDUCE: Final = KernelSpec(
    "void at::native::reduce_kernel<128, 4, at::native::ReduceOp<c10::Half, at::native::func_wrapper_t<c10::Half, "
    "at::native::sum_functor<c10::Half, float, c10::Half>::operator()(at::TensorIterator&)::{lambda(float, "
    "float)#1}>, unsigned int, c10::Half, 4> >(at::native::ReduceOp<c10::Half, float>)",
    13700,
    256,
    512,
)
"""A sum, such as that of the squares of a rank\'s gradients."""
OPTIMIZER: Final = KernelSpec(
    f"void {_ANONYMOUS}multi_tensor_apply_kernel<{_ANONYMOUS}FusedOptimizerTensorListMetadata<4>, "
    f"{_ANONYMOUS}FusedAdamMathFunctor<float, 4> >({_ANONYMOUS}FusedOptimizerTensorListMetadata<4>, float const*)",
    38500,
    320,
    512,
)
"""The fused weight update, launched several times per step."""
EXTRA_KERNEL: Final = KernelSpec(
    f"void {_NATIVE}index_elementwise_kernel<128, 4, {_NATIVE}gpu_index_kernel<{_NATIVE}index_put_kernel_impl"
    f"<{_NATIVE}OpaqueType<2> > > >(long, {_NATIVE}OpaqueType<2>)",
    6400,
    40,
    128,
)
"""The kernel of the fault extra_kernel; no step runs it otherwise."""

_GEMMS: Final[dict[Era, tuple[str, str, str]]] = {
    "2020": (
        "volta_fp16_s884gemm_fp16_256x128_ldg8_f2f_tn",
        "volta_fp16_s884gemm_fp16_128x128_ldg8_f2f_nn",
        "volta_fp16_s884gemm_fp16_64x128_ldg8_f2f_nt",
    ),
    "2024": (
        "nvjet_hsh_256x128_64x4_1x2_h_bz_coopA_TNT",
        "sm90_xmma_gemm_bf16bf16_bf16f32_f32_nn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_"
        "kernel__5x_cublas",
        "ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x4_nt",
    ),
}
_TILES: Final = (("128x128", "64x256"), ("256x128", "128x256"), ("64x128", "128x64"))
"""Pairs of tiles that autotuning chooses from."""


def _tuned(shape: KernelSpec) -> KernelSpec:
    for tile, other_tile in _TILES:
        if tile in shape.name:
            return shape._replace(tiles=(shape.name, shape.name.replace(tile, other_tile)))
    return shape


_ARGUMENTS: Final[dict[Era, str]] = {
    "2020": "(ncclDevComm*, unsigned long, ncclWork*)",
    "2024": "(ncclDevKernelArgsStorage<4096ul>)",
}
# NCCL has no all-to-all kernel: it is sends and receives in one
_EXCHANGES: Final = ("all_to_all", "send", "recv", "send_recv")
_COLLECTIVES: Final[dict[Era, dict[str, str]]] = {
    "2020": {
        "all_reduce": "ncclKernel_AllReduce_RING_LL_Sum_half",
        "all_gather": "ncclKernel_AllGather_RING_LL_Sum_int8_t",
        "reduce_scatter": "ncclKernel_ReduceScatter_RING_LL_Sum_half",
        **dict.fromkeys(_EXCHANGES, "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t"),
    },
    "2024": {
        "all_reduce": "ncclDevKernel_AllReduce_Sum_bf16_RING_LL",
        "all_gather": "ncclDevKernel_AllGather_RING_LL",
        "reduce_scatter": "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL",
        **dict.fromkeys(_EXCHANGES, "ncclDevKernel_SendRecv"),
    },
}


def forward_layer(era: Era) -> tuple[KernelSpec, ...]:
    wide, square, _ = _GEMMS[era]
    qkv, out = KernelSpec(wide, 92000, 480, 256), KernelSpec(square, 41000, 160, 128)
    scores, context = KernelSpec(square, 24000, 320, 128), KernelSpec(square, 23000, 320, 128)
    up, down = KernelSpec(wide, 121000, 640, 256), KernelSpec(wide, 118000, 160, 256)
    attention = (_NORM, qkv, _ADD, scores, _MUL, _SOFTMAX, _DROPOUT, context, out, _DROPOUT, _ADD)
    return tuple(map(_tuned, (*attention, _NORM, up, _GELU, down, _DROPOUT, _ADD)))


def backward_layer(era: Era) -> tuple[KernelSpec, ...]:
    wide, square, thin = _GEMMS[era]
    grads = (KernelSpec(square, 117000, 640, 128), KernelSpec(thin, 109000, 320, 128))
    feed = (_MUL, REDUCE, *grads, _GELU, REDUCE, *grads, _NORM_BACKWARD, _ADD)
    small = (KernelSpec(square, 26000, 320, 128), KernelSpec(thin, 25000, 320, 128))
    out = KernelSpec(wide, 88000, 480, 256)
    attention = (_MUL, *small, _SOFTMAX_BACKWARD, _MUL, *small, REDUCE, out, _NORM_BACKWARD)
    return tuple(map(_tuned, (*feed, *attention)))


def loss_kernels(era: Era) -> tuple[KernelSpec, ...]:
    """Return the kernels from the last layer to the loss."""
    return (_NORM, KernelSpec(_GEMMS[era][0], 164000, 960, 256), _SOFTMAX)


def repeat_layer(layer: tuple[KernelSpec, ...], count: int) -> list[KernelSpec]:
    """Return `count` kernels of a layer, repeated if it has fewer."""
    return list(islice(cycle(layer), count))


def collective_kernel_name(era: Era, operation: str) -> str:
    """Return the name of NCCL's device kernel for an operation."""
    return _COLLECTIVES[era][operation] + _ARGUMENTS[era]
