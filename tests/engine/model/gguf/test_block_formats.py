"""Every block format gives the numbers that llama.cpp gives.

``data/block_formats.npz`` holds, for each format, two rows of 512 random numbers as llama.cpp's library ggml quantized
them (``ggml_quantize_chunk``) and as it read them again (``dequantize_row_*``); version 0.25.3 of the library.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engine.model.gguf import dequantize as module
from engine.model.gguf.dequantize import dequantize
from engine.model.tensors import BlockTensor

DATA = np.load(Path(__file__).parent / "data" / "block_formats.npz")
FORMATS = sorted(name.removesuffix(".blocks") for name in DATA if name.endswith(".blocks"))


def stored(format_: str, row_order: torch.Tensor | None = None) -> BlockTensor:
    return BlockTensor(format_, torch.from_numpy(DATA[f"{format_}.blocks"]), 512, row_order)


def test_all_formats_are_here() -> None:
    assert set(FORMATS) == {
        *("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"),
        *("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"),
        *("IQ4_NL", "IQ4_XS", "MXFP4"),
    }


@pytest.mark.parametrize("format_", FORMATS)
def test_numbers_are_those_of_llama_cpp(format_: str) -> None:
    expected = torch.from_numpy(DATA[f"{format_}.numbers"])
    torch.testing.assert_close(dequantize(stored(format_)), expected, rtol=1e-6, atol=1e-7)


def test_the_witness_is_near_the_numbers_that_were_quantized() -> None:
    for format_ in FORMATS:
        assert np.abs(DATA[f"{format_}.numbers"] - DATA["numbers"]).max() < 0.2


def test_rows_come_in_the_wanted_order_and_format() -> None:
    numbers = dequantize(stored("Q4_K", torch.tensor([1, 0])), torch.bfloat16)
    expected = torch.from_numpy(DATA["Q4_K.numbers"]).flip(0).bfloat16()
    assert torch.equal(numbers, expected)


def test_slices_of_rows_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks: Any = torch.from_numpy(np.tile(DATA["Q6_K.blocks"], (5, 1)))
    whole = dequantize(BlockTensor("Q6_K", blocks, 512))
    monkeypatch.setattr(module, "_SLICE", 3 * 512)  # ten rows in slices of three
    assert torch.equal(dequantize(BlockTensor("Q6_K", blocks, 512)), whole)


def test_an_unknown_format_is_an_error() -> None:
    with pytest.raises(ValueError, match="Q9_X"):
        dequantize(BlockTensor("Q9_X", torch.zeros(1, 32, dtype=torch.uint8), 32))
