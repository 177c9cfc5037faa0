"""Kernel names of PyTorch, cuBLAS, cuDNN and NCCL, with durations and launch shapes."""

from itertools import cycle, islice
from typing import Final, NamedTuple


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

_WIDE: Final = "nvjet_hsh_256x128_64x4_1x2_h_bz_coopA_TNT"
_SQUARE: Final = (
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_nn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_"
    "kernel__5x_cublas"
)
_THIN: Final = "ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x4_nt"
_TILES: Final = (("128x128", "64x256"), ("256x128", "128x256"), ("64x128", "128x64"))
"""Pairs of tiles that autotuning chooses from."""


def _tuned(shape: KernelSpec) -> KernelSpec:
    for tile, other_tile in _TILES:
        if tile in shape.name:
            return shape._replace(tiles=(shape.name, shape.name.replace(tile, other_tile)))
    return shape


def _forward_layer() -> tuple[KernelSpec, ...]:
    qkv, out = KernelSpec(_WIDE, 92000, 480, 256), KernelSpec(_SQUARE, 41000, 160, 128)
    scores, context = KernelSpec(_SQUARE, 24000, 320, 128), KernelSpec(_SQUARE, 23000, 320, 128)
    up, down = KernelSpec(_WIDE, 121000, 640, 256), KernelSpec(_WIDE, 118000, 160, 256)
    attention = (_NORM, qkv, _ADD, scores, _MUL, _SOFTMAX, _DROPOUT, context, out, _DROPOUT, _ADD)
    return tuple(map(_tuned, (*attention, _NORM, up, _GELU, down, _DROPOUT, _ADD)))


def _backward_layer() -> tuple[KernelSpec, ...]:
    grads = (KernelSpec(_SQUARE, 117000, 640, 128), KernelSpec(_THIN, 109000, 320, 128))
    feed = (_MUL, REDUCE, *grads, _GELU, REDUCE, *grads, _NORM_BACKWARD, _ADD)
    small = (KernelSpec(_SQUARE, 26000, 320, 128), KernelSpec(_THIN, 25000, 320, 128))
    out = KernelSpec(_WIDE, 88000, 480, 256)
    attention = (_MUL, *small, _SOFTMAX_BACKWARD, _MUL, *small, REDUCE, out, _NORM_BACKWARD)
    return tuple(map(_tuned, (*feed, *attention)))


_FORWARD: Final = _forward_layer()
_BACKWARD: Final = _backward_layer()
LOSS_KERNELS: Final = (_NORM, KernelSpec(_WIDE, 164000, 960, 256), _SOFTMAX)
"""The kernels from the last layer to the loss."""


def forward_kernels(count: int) -> list[KernelSpec]:
    """Return `count` kernels of a layer's forward pass, repeated if it has fewer."""
    return list(islice(cycle(_FORWARD), count))


def backward_kernels(count: int) -> list[KernelSpec]:
    """Return the same of the backward pass."""
    return list(islice(cycle(_BACKWARD), count))


_ARGUMENTS: Final = "(ncclDevKernelArgsStorage<4096ul>)"
COLLECTIVE_KERNELS: Final = {
    "all_reduce": f"ncclDevKernel_AllReduce_Sum_bf16_RING_LL{_ARGUMENTS}",
    "all_gather": f"ncclDevKernel_AllGather_RING_LL{_ARGUMENTS}",
    "reduce_scatter": f"ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL{_ARGUMENTS}",
    # NCCL has no all-to-all kernel: it is sends and receives in one
    **dict.fromkeys(("all_to_all", "send", "recv", "send_recv"), f"ncclDevKernel_SendRecv{_ARGUMENTS}"),
}
"""The name of NCCL's device kernel for an operation."""
