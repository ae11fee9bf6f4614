"""Experts that a checkpoint stores one by one are read as transformers' modules hold them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from engine.model.safetensors_files import open_tensors
from engine.model.stacked_experts import stack_experts
from engine.model.tensors import TensorSource
from testing.models import make_model


class Memory:
    """Tensors in memory. What is released is lost, as in memory that is no file's."""

    def __init__(self, source: TensorSource) -> None:
        self.tensors = {name: source.read(name).clone() for name in source.names()}  # type: ignore[union-attr]

    def names(self) -> Iterable[str]:
        return self.tensors

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self.tensors[name].shape)

    def block_format(self, _name: str) -> None:
        return None

    def read(self, name: str) -> Tensor:
        return self.tensors[name]

    def release(self, part: Tensor) -> None:
        part.zero_()


@pytest.fixture(params=["mixtral", "qwen3-moe"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return make_model(tmp_path / "model", request.param)


def test_they_are_what_transformers_makes_of_them(path: Path) -> None:
    source = open_tensors(path, "model")
    assert source is not None
    stacked = stack_experts(source)
    parameters = dict(AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).named_parameters())
    assert set(parameters) <= set(stacked.names())
    for name, parameter in parameters.items():
        found = stacked.read(name)
        assert isinstance(found, Tensor)
        assert stacked.shape(name) == tuple(parameter.shape)
        assert torch.equal(found, parameter)


def test_what_was_stacked_is_kept_and_what_was_read_is_released(path: Path) -> None:
    opened = open_tensors(path, "model")
    assert opened is not None
    source = Memory(opened)
    stacked = stack_experts(source)
    name = next(name for name in stacked.names() if name.endswith("experts.down_proj"))
    found = stacked.read(name)
    assert isinstance(found, Tensor)
    stacked.release(found[1])
    assert (found != 0).any(dim=(1, 2)).all()
    layer = ".".join(name.split(".")[:3])
    read = [
        key for key in source.tensors if key.startswith(f"{layer}.") and key.endswith(("down_proj.weight", "w2.weight"))
    ]
    assert len(read) == len(found)
    assert not any(source.tensors[key].any() for key in read)


def test_a_layer_that_lacks_an_expert_is_not_offered(path: Path) -> None:
    opened = open_tensors(path, "model")
    assert opened is not None
    source = Memory(opened)
    del source.tensors[next(name for name in source.tensors if "layers.1." in name and ".experts.2." in name)]
    offered = {name for name in stack_experts(source).names() if name.endswith(("experts.gate_up_proj", "down_proj"))}
    assert not any("layers.1." in name and name.endswith("experts.down_proj") for name in offered)
    assert any("layers.0." in name and name.endswith("experts.down_proj") for name in offered)


def test_a_model_without_experts_is_as_it_was(tmp_path: Path) -> None:
    source = open_tensors(make_model(tmp_path / "model", "llama"), "model")
    assert source is not None
    assert stack_experts(source) is source
