"""Which device is chosen, and how a GPU's memory is shared out. Without a GPU its answers are given by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine import EngineSettings, ModelLoadError
from engine.execution.capacity import GIB, gpu_budget, run_largest_step
from engine.execution.load import load_model
from engine.model.placement import choose_device
from testing.models import make_model


def pretend_gpu(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], broken: bool = False) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["sm_75", "sm_80", "sm_90a", "compute_90"])
    ones = torch.ones

    def on_gpu(*size: int, device: str) -> torch.Tensor:
        assert device == "cuda"
        if broken:
            raise RuntimeError("CUDA driver version is insufficient\nmore")
        return ones(*size)

    monkeypatch.setattr(torch, "ones", on_gpu)


def test_auto_takes_a_gpu_that_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_gpu(monkeypatch, (9, 0))
    assert choose_device("auto").type == "cuda"
    assert choose_device("cpu").type == "cpu"


@pytest.mark.parametrize(("capability", "broken", "says"), [((6, 1), False, "7.5"), ((8, 0), True, "insufficient")])
def test_auto_passes_over_a_gpu_that_does_not(
    capability: tuple[int, int], broken: bool, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend_gpu(monkeypatch, capability, broken)
    assert choose_device("auto").type == "cpu"
    with pytest.raises(ModelLoadError, match=says):
        choose_device("cuda")


def test_the_cache_takes_what_is_left_of_the_gpus_share() -> None:
    assert gpu_budget(60 * GIB, 80 * GIB, 2 * GIB, 0.75) == 38 * GIB
    with pytest.raises(ModelLoadError, match="Lower max_batched_tokens"):
        gpu_budget(20 * GIB, 80 * GIB, 2 * GIB, 0.75)


@pytest.mark.parametrize("family", ["llama", "gemma2", "qwen3-moe"])
def test_the_largest_step_computes_without_a_cache(family: str, tmp_path: Path) -> None:
    settings = EngineSettings(
        model=str(make_model(tmp_path / "model", family)),
        device="cpu",
        native=False,
        max_batched_tokens=600,
        max_num_seqs=7,
    )
    model = load_model(settings, lambda _stage, _fraction: None)
    shapes: list[torch.Size] = []
    assert model.module is not None
    model.module.register_forward_hook(lambda _module, _args, output: shapes.append(output.logits.shape))
    run_largest_step(model, settings)
    assert shapes == [(1, 7, model.vocab_size)]
