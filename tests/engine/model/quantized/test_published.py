"""Weights that published packers wrote are read to the values that the same packages dequantize them to."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch import Tensor

from engine.model.gguf.dequantize import dequantize
from engine.model.quantized import DequantizedSource, read_format
from engine.model.tensors import BlockTensor

CHECKPOINTS = sorted((Path(__file__).parent / "checkpoints").glob("*.safetensors"))


class Written:
    """The tensors of one file, as a source."""

    def __init__(self, file: Path) -> None:
        with safe_open(file, framework="pt") as opened:
            self._tensors: dict[str, Tensor] = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
            self.config = json.loads(opened.metadata()["quantization_config"])
        self.expected = self._tensors.pop("expected")

    def names(self) -> Iterable[str]:
        return self._tensors

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._tensors[name].shape)

    def block_format(self, _name: str) -> None: ...

    def read(self, name: str) -> Tensor:
        return self._tensors[name]

    def release(self, part: Tensor) -> None: ...


def test_every_format_and_group_size_was_written() -> None:
    names = {file.stem for file in CHECKPOINTS}
    assert {f"awq-{group}" for group in (32, 64, 128, -1)} <= names
    for start in ("gptq-4-32", "gptq-4-64", "gptq-4-128", "gptq-4--1", "gptq-8", "mxfp4", "fp8", "bitsandbytes-nf4"):
        assert any(name.startswith(start) for name in names), start
    assert len(names) == 29


@pytest.mark.parametrize("file", CHECKPOINTS, ids=lambda file: file.stem)
def test_what_a_published_packer_wrote(file: Path) -> None:
    written = Written(file)
    source = DequantizedSource(written, read_format(written.config, "model"), "model", written.expected.dtype)
    (name,) = source.names()
    source.check({name: written.expected.shape})
    dense = source.read(name)
    assert isinstance(dense, Tensor)
    assert dense.dtype is written.expected.dtype
    if file.stem == "gptq-4-64-asym-auto-round":  # it has no function that dequantizes: this is its product
        torch.testing.assert_close(dense, written.expected, atol=0, rtol=2e-3)
    else:
        assert torch.equal(dense, written.expected)


BLOCKS = {
    "Q4_0": {
        "gptq-4--1-sym-gptq",
        "gptq-4-32-sym-gptq",
        "compressed-tensors-w4a16-32",
        "compressed-tensors-w4a16-channel",
    },
    "Q4_1": {
        *(f"awq-{group}" for group in (32, 64, 128, -1)),
        "compressed-tensors-w4a16-128-asym",
        *(f"gptq-4-{case}" for case in ("64-asym-gptq", "64-asym-auto-round", "128-asym-gptq_v2")),
    },
    "Q8_0": {
        "gptq-8-128-sym-gptq",
        *(f"compressed-tensors-{case}" for case in ("w8a16-channel", "w8a8-channel", "w8a8-tensor")),
    },
}


@pytest.mark.parametrize("file", CHECKPOINTS, ids=lambda file: file.stem)
def test_groups_are_blocks_of_llama_cpp(file: Path) -> None:
    """Read back by llama.cpp's own package."""
    written = Written(file)
    source = DequantizedSource(written, read_format(written.config, "model"), "model")
    (name,) = source.names()
    dense, got = source.read(name), source.in_blocks().read(name)
    assert source.in_blocks().block_format(name) == (got.format if isinstance(got, BlockTensor) else None)
    assert isinstance(dense, Tensor)
    expected = next((format_ for format_, names in BLOCKS.items() if file.stem in names), None)
    if expected is None:
        assert isinstance(got, Tensor), "no blocks hold it"
        assert torch.equal(got, dense)
        return
    assert isinstance(got, BlockTensor)
    assert got.format == expected
    if expected == "Q4_1":  # its minimum is rounded; the farthest number from zero is at least half of it
        assert bool(((dequantize(got) - dense).abs() <= 2.0**-10 * dense.abs().amax(1, keepdim=True)).all())
    else:
        assert torch.equal(dequantize(got), dense)
