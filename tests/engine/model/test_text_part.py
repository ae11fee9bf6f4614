"""A multimodal checkpoint runs as the language model that it contains."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

from engine import EngineSettings, ModelLoadError, SamplingParams
from engine.execution.load import load_model
from engine.model.loaded_model import LoadedModel
from engine.runtime.engine_core import EngineCore
from testing.multimodal import SPECIAL, make_multimodal
from testing.native import needs_compiler

PROMPT = [token * 7 % 300 + 5 for token in range(20)]
REPLY = 12


def load(path: Path, **settings: object) -> LoadedModel:
    chosen = EngineSettings(model=str(path), device="cpu", **{"dtype": "float32", **settings})  # type: ignore[arg-type]
    return load_model(chosen, lambda _stage, _fraction: None)


def reply(model: LoadedModel) -> list[int]:
    core = EngineCore(model, EngineSettings(max_model_len=64, max_num_seqs=4, num_kv_blocks=64, kv_block_size=4))
    params = SamplingParams(temperature=0, ignore_eos=True, max_tokens=REPLY)
    core.add(core.request_processor.process("0", PROMPT, core.request_processor.resolve(PROMPT, params)))
    tokens: list[int] = []
    while core.has_work:
        for delta in core.step().deltas:
            tokens += delta.token_ids
    return tokens


@torch.inference_mode()
def expected(model: PreTrainedModel) -> list[int]:
    """The whole model's reply to a text without images, one forward pass for each token."""
    tokens = list(PROMPT)
    for _ in range(REPLY):
        logits: Tensor = model(input_ids=torch.tensor([tokens])).logits[0, -1]
        tokens.append(int(logits.argmax()))
    return tokens[len(PROMPT) :]


@needs_compiler
@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("model_type", SPECIAL)
def test_replies_are_those_of_the_whole_model(
    tmp_path: Path, model_type: str, native: bool, caplog: pytest.LogCaptureFixture
) -> None:
    whole = make_multimodal(tmp_path / "model", model_type)
    with caplog.at_level(logging.INFO, logger="engine"):
        model = load(tmp_path / "model", native=native)
    assert f"is a multimodal model ({model_type}): its text part is loaded" in caplog.text
    assert (model.decoder is not None) == native
    assert model.num_parameters < sum(parameter.numel() for parameter in whole.parameters())
    assert reply(model) == expected(whole)


def rename(path: Path, change: dict[str, str]) -> None:
    weights = load_file(path / "model.safetensors")
    for old, new in change.items():
        weights = {name.replace(old, new): weight for name, weight in weights.items()}
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})


def test_names_of_older_checkpoints(tmp_path: Path) -> None:
    whole = make_multimodal(tmp_path / "model", "llava")
    names = set(load_file(tmp_path / "model" / "model.safetensors"))
    old, new = ("language_model.model.", "model.language_model.")
    if any(name.startswith(old) for name in names):
        old, new = new, old
    rename(tmp_path / "model", {new: old, "lm_head.weight": "language_model.lm_head.weight"})
    assert reply(load(tmp_path / "model", native=False)) == expected(whole)


def test_a_checkpoint_without_an_embedding_of_that_size_is_refused(tmp_path: Path) -> None:
    make_multimodal(tmp_path / "model", "llava")
    rename(tmp_path / "model", {"embed_tokens": "embedding"})
    with pytest.raises(ModelLoadError, match="its text part was not found: 0 of its tensors"):
        load(tmp_path / "model")
