"""Triton kernels of :mod:`engine.model.gpu_linears`. Imports triton, which only GPU machines have.

A product with few rows is bound by reading the weights: each program reads a strip of 8-bit weights once and
dequantizes it in registers. Tile sizes divide the number of inputs; a program's outputs beyond the last one repeat the
last one and are not stored. So no load of weights needs a mask.
"""

import triton
import triton.language as tl


@triton.jit
def multiply_row(
    product,  # [num_outputs]
    row,  # [num_inputs]
    weight,  # int8 or fp8 [num_outputs, num_inputs]
    scales,  # fp32 [num_outputs]
    bias,  # [num_outputs]; only if BIASED
    num_outputs,
    num_inputs,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,  # inputs read at once; divides num_inputs
    BIASED: tl.constexpr,
):
    """One program: ``OUTPUTS`` products of a single row, without tensor cores, which need sixteen rows."""
    output = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    read = tl.minimum(output, num_outputs - 1)
    sums = tl.zeros([OUTPUTS, INPUTS], tl.float32)
    for start in range(0, num_inputs, INPUTS):
        column = start + tl.arange(0, INPUTS)
        numbers = tl.load(row + column).to(tl.float32)
        steps = tl.load(weight + read.to(tl.int64)[:, None] * num_inputs + column[None, :])
        sums += steps.to(tl.float32) * numbers[None, :]
    total = tl.sum(sums, 1) * tl.load(scales + read)
    if BIASED:
        total += tl.load(bias + read).to(tl.float32)
    tl.store(product + output, total.to(product.dtype.element_ty), mask=output < num_outputs)


@triton.jit(do_not_specialize=("num_rows",))  # varies from step to step
def multiply_rows(
    product,  # [num_rows, num_outputs]
    rows,  # [num_rows, num_inputs]
    weight,  # this and the following as in multiply_row
    scales,
    bias,
    num_rows,
    num_outputs,
    num_inputs,
    ROWS: tl.constexpr,  # at least num_rows
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
    BIASED: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """One program: ``OUTPUTS`` products of all rows, through tensor cores. 8-bit weights are exact in bfloat16."""
    output = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    read = tl.minimum(output, num_outputs - 1)
    row = tl.arange(0, ROWS)
    is_row = row < num_rows
    sums = tl.zeros([ROWS, OUTPUTS], tl.float32)
    for start in range(0, num_inputs, INPUTS):
        column = start + tl.arange(0, INPUTS)
        numbers = tl.load(rows + row[:, None] * num_inputs + column[None, :], mask=is_row[:, None], other=0.0)
        if UPCAST:
            numbers = numbers.to(tl.float32)
        steps = tl.load(weight + read.to(tl.int64)[:, None] * num_inputs + column[None, :])
        sums = tl.dot(numbers, tl.trans(steps.to(numbers.dtype)), sums, input_precision="ieee")
    sums *= tl.load(scales + read)[None, :]
    if BIASED:
        sums += tl.load(bias + read).to(tl.float32)[None, :]
    tl.store(
        product + row.to(tl.int64)[:, None] * num_outputs + output[None, :],
        sums.to(product.dtype.element_ty),
        mask=is_row[:, None] & (output < num_outputs)[None, :],
    )
