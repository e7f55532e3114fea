"""The Triton kernels compile without a GPU. The interpreter accepts code that the compiler does not."""

import os

import pytest

pytest.importorskip("triton", reason="needs triton")
if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("the interpreter compiles nothing", allow_module_level=True)

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from swad.gpu import _fused_norm_kernel, _fused_vit_kernel
from swad.testbed.data import _gpu_augment_kernel

HOPPER = GPUTarget("cuda", 90, 32)
HALF, FULL, WHOLE = "*bf16", "*fp32", "i32"
BATCH_NORM = {"weight": FULL, "gamma": FULL, "beta": FULL, "mean": FULL, "var": FULL, "n": WHOLE, "eps": "fp32"}
CASES = {
    "scale weights": (_fused_norm_kernel._scale_weights, {**BATCH_NORM, "scaled": HALF, "shift": FULL}, {"BLOCK": 64}),
    "split gradients": (
        _fused_norm_kernel._split_gradients,
        {**BATCH_NORM, "grad": HALF, "sums": FULL, "of_weight": FULL, "of_gamma": FULL, "of_beta": FULL,
         "parts": WHOLE, "rows": WHOLE},
        {"BLOCK": 64},
    ),
    "activation backward": (
        _fused_norm_kernel._activation_backward,
        {"first": HALF, "second": HALF, "y": HALF, "grad": HALF, "sums": FULL, "rows": WHOLE, "channels": WHOLE,
         "each": WHOLE, "above": "fp32"},
        {"TILE": 32, "COLUMNS": 128, "TWO": True, "CLAMPS": True, "WRITES": True},
    ),
    "shift": (
        _fused_norm_kernel._shift_act,
        {"y": HALF, "shift": FULL, "shortcut": HALF, "rows": WHOLE, "channels": WHOLE, "above": "fp32"},
        {"TILE": 32, "COLUMNS": 128, "ADDS": True, "CLAMPS": True},
    ),
    **{
        name: (
            kernel,
            {"x": HALF, "y": HALF, "of_x": HALF, "of_y": HALF, "place": "*i8", "rows": WHOLE, "channels": WHOLE,
             "height": WHOLE, "width": WHOLE, "out_height": WHOLE, "out_width": WHOLE},
            {"SIZE": 3, "STRIDE": 2, "PADDING": 1, "TILE": 16, "COLUMNS": 64},
        )
        for name, kernel in (
            ("max pool", _fused_norm_kernel._max_pool), ("max pool backward", _fused_norm_kernel._max_pool_backward)
        )
    },
    "add and norm": (
        _fused_vit_kernel._add_norm,
        {"x": FULL, "delta": HALF, "bias": FULL, "gamma": FULL, "beta": FULL, "total": FULL, "y": HALF,
         "statistics": FULL, "rows": WHOLE, "width": WHOLE, "eps": "fp32"},
        {"BLOCK": 1024, "ADDS": True, "HAS_BIAS": True},
    ),
    "add and norm backward": (
        _fused_vit_kernel._add_norm_backward,
        {"of_total": FULL, "of_y": HALF, "total": FULL, "gamma": FULL, "statistics": FULL, "of_x": FULL,
         "of_delta": HALF, "sums": FULL, "n": WHOLE, "rows": WHOLE, "width": WHOLE, "each": WHOLE, "every": WHOLE},
        {"BLOCK": 1024, "ADDS": True},
    ),
    "GELU": (
        _fused_vit_kernel._bias_gelu, {"hidden": HALF, "bias": FULL, "y": HALF, "rows": WHOLE, "width": WHOLE},
        {"TILE": 32, "COLUMNS": 128},
    ),
    "GELU backward": (
        _fused_vit_kernel._bias_gelu_backward,
        {"grad": HALF, "hidden": HALF, "bias": FULL, "result": HALF, "sums": FULL, "rows": WHOLE, "width": WHOLE,
         "each": WHOLE},
        {"TILE": 32, "COLUMNS": 128},
    ),
    "queries, keys and values": (
        _fused_vit_kernel._pack,
        {"first": HALF, "second": HALF, "third": HALF, "packed": HALF, "sums": FULL, "rows": WHOLE, "width": WHOLE,
         "each": WHOLE},
        {"TILE": 32, "COLUMNS": 128},
    ),
    "resampling weights": (
        _gpu_augment_kernel._weights,
        {"parameters": FULL, "result": HALF, "length": WHOLE, "pixels": WHOLE, "size": WHOLE},
        {"AXIS": 0, "OUTPUTS": 32, "COLUMNS": 256},
    ),
    "gray": (
        _gpu_augment_kernel._sum_gray,
        {"pixels": HALF, "parameters": FULL, "sums": FULL},
        {"SIZE": 224, "PIXELS": 1024},
    ),
    "jitter": (
        _gpu_augment_kernel._finish,
        {"pixels": HALF, "parameters": FULL, "sums": FULL, "mean": FULL, "std": FULL, "result": FULL,
         "per_image": WHOLE, "per_channel": WHOLE, "per_row": WHOLE, "per_column": WHOLE, "chunks": WHOLE},
        {"SIZE": 224, "PIXELS": 1024, "CHUNKS": 64},
    ),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")
@pytest.mark.parametrize("case", CASES)
def test_the_kernel_compiles(case):
    kernel, types, constants = CASES[case]
    signature = {name: "constexpr" if name in constants else types[name] for name in kernel.arg_names}
    made = triton.compile(ASTSource(fn=kernel, signature=signature, constexprs=constants), target=HOPPER)
    assert made.asm["cubin"]
