"""The Triton kernels compiled for cards that are not here; ``test_triton.py`` runs this file.

That the compiler takes them, and that a tile fits into the shared memory and the registers of a card, needs no card.
"""

from __future__ import annotations

import pytest
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from engine.execution.attention import triton_kernels
from engine.execution.attention.triton_paged import MIN_SHARE, queries_per_tile, tile_options

# https://docs.nvidia.com/cuda/cuda-c-programming-guide/#features-and-technical-specifications
SHARED_KIB = {86: 99, 90: 227, 120: 99}
NAMES = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32"}
OPTIONS = ("num_warps", "num_stages", "enable_fp_fusion")


def compile_attend(
    capability: int, dtype: torch.dtype, *, group: int, dim: int, value_dim: int, decode: bool, special: bool
) -> triton.compiler.CompiledKernel:
    """As a call with these sizes would have it compiled."""
    kernel = triton_kernels.attend
    num_queries = 1 if decode else queries_per_tile(group, dtype)
    constants = {
        **tile_options(group, num_queries, dim, value_dim, dtype),
        "BLOCK_SIZE": 16,
        "MIN_SHARE": MIN_SHARE,
        "WINDOW": 128 if special else 0,
        "SOFTCAP": special,
        "SINKS": special,
        "SPLIT": decode,
        "UPCAST": False,
    }
    options = {name: constants.pop(name) for name in OPTIONS}
    kinds = dict.fromkeys(("output", "query", "key_cache", "value_cache", "sinks"), "*" + NAMES[dtype])
    kinds |= dict.fromkeys(("partial_output", "partial_log_sum"), "*fp32")
    kinds |= dict.fromkeys(("query_starts", "kv_lens", "block_table", "tile_sequence", "tile_start"), "*i32")
    kinds |= dict.fromkeys(("scale", "softcap"), "fp32")
    kinds |= dict.fromkeys(constants, "constexpr")
    signature = {name: kinds.get(name, "i32") for name in kernel.arg_names}
    aligned = [
        index
        for index, (name, kind) in enumerate(signature.items())
        if kind.startswith("*") or name.endswith("_stride")
    ]
    source = ASTSource(
        fn=kernel,
        signature=signature,
        constexprs=constants,
        attrs={(index,): [["tt.divisibility", 16]] for index in aligned},
    )
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)


@pytest.mark.parametrize("capability", SHARED_KIB)
@pytest.mark.parametrize(
    ("dtype", "group", "dim", "value_dim", "decode", "special"),
    [
        (torch.float16, 4, 128, 128, True, False),
        (torch.float16, 4, 128, 128, False, False),
        (torch.bfloat16, 71, 64, 64, True, False),
        (torch.bfloat16, 1, 256, 256, False, True),
        (torch.float32, 4, 80, 80, True, True),
        (torch.float32, 1, 256, 256, False, False),
    ],
)
def test_it_compiles_and_fits(
    capability: int, dtype: torch.dtype, group: int, dim: int, value_dim: int, decode: bool, special: bool
) -> None:
    compiled = compile_attend(
        capability, dtype, group=group, dim=dim, value_dim=value_dim, decode=decode, special=special
    )
    assert compiled.metadata.shared <= SHARED_KIB[capability] * 1024
    assert "cubin" in compiled.asm
    # Half precision goes through the tensor cores.
    on_tensor_cores = any(name in compiled.asm["ptx"] for name in ("mma.sync", "wgmma.mma_async", "tcgen05.mma"))
    assert on_tensor_cores == (dtype is not torch.float32)
