"""Weights that published packers wrote are read to the values that the same packages dequantize them to."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch import Tensor

from engine.model.quantized import DequantizedSource, read_format

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
