"""The kernels of 8-bit weights compiled for cards that are not here; ``test_gpu_linears.py`` runs this file."""

from __future__ import annotations

import pytest
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from engine.model import gpu_kernels
from engine.model.gpu_linears import row_tile, rows_tile
from tests.engine.execution.triton_compile_cases import NAMES, OPTIONS, SHARED_KIB

STEPS = {torch.int8: "i8", torch.float8_e4m3fn: "fp8e4nv"}


def compile_product(
    capability: int, steps: torch.dtype, dtype: torch.dtype, num_rows: int, num_inputs: int
) -> triton.compiler.CompiledKernel:
    """As a call with these sizes would have it compiled."""
    kernel = gpu_kernels.multiply_row if num_rows == 1 else gpu_kernels.multiply_rows
    tile = row_tile(num_inputs) if num_rows == 1 else rows_tile(num_rows, num_inputs, dtype)
    constants = {**tile, "BIASED": False} | ({} if num_rows == 1 else {"UPCAST": False})
    options = {name: constants.pop(name) for name in OPTIONS if name in constants}
    kinds = dict.fromkeys(("product", "row", "rows", "bias"), "*" + NAMES[dtype])
    kinds |= {"weight": "*" + STEPS[steps], "scales": "*fp32"} | dict.fromkeys(constants, "constexpr")
    signature = {name: kinds.get(name, "i32") for name in kernel.arg_names}
    aligned = [
        index
        for index, (name, kind) in enumerate(signature.items())
        if kind.startswith("*") or name in ("num_inputs", "num_outputs")
    ]
    source = ASTSource(
        fn=kernel,
        signature=signature,
        constexprs=constants,
        attrs={(index,): [["tt.divisibility", 16]] for index in aligned},
    )
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)


@pytest.mark.parametrize("capability", SHARED_KIB)
@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize(
    ("dtype", "num_rows", "num_inputs"),
    [
        (torch.bfloat16, 1, 4096),
        (torch.bfloat16, 1, 896),
        (torch.bfloat16, 2, 14_336),
        (torch.bfloat16, 64, 4096),
        (torch.bfloat16, 128, 4096),
        (torch.float32, 128, 1024),
    ],
)
def test_it_compiles_and_fits(
    capability: int, steps: torch.dtype, dtype: torch.dtype, num_rows: int, num_inputs: int
) -> None:
    if steps is torch.float8_e4m3fn and capability < 89:
        with pytest.raises(Exception, match="fp8e4nv not supported"):  # which the engine says before
            compile_product(capability, steps, dtype, num_rows, num_inputs)
        return
    compiled = compile_product(capability, steps, dtype, num_rows, num_inputs)
    assert compiled.metadata.shared <= SHARED_KIB[capability] * 1024
    assert "cubin" in compiled.asm
    ptx = compiled.asm["ptx"]
    on_tensor_cores = any(name in ptx for name in ("mma.sync", "wgmma.mma_async", "tcgen05.mma"))
    assert on_tensor_cores == (num_rows > 1 and dtype is not torch.float32)
    if num_rows == 1 and num_inputs % 2048 == 0:
        assert "ld.global.v4" in ptx  # sixteen weights at once
