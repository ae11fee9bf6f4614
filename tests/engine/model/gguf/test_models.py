"""A model in a GGUF file computes what the same model computes from safetensors."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from engine import EngineSettings, ModelLoadError, SamplingParams
from engine.execution.attention.hf_attention import register
from engine.execution.load import load_model
from engine.model.filled_module import fill_module
from engine.model.gguf.checkpoint import open_gguf_checkpoint
from testing.gguf_files import CONVERSIONS, make_gguf


def ignore(_stage: str, _share: float) -> None:
    """Progress that nobody watches."""


def logits(module: torch.nn.Module, vocab_size: int) -> torch.Tensor:
    module.set_attn_implementation("eager")  # type: ignore[operator]
    ids = torch.randint(0, vocab_size, (1, 40), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        result: torch.Tensor = module(input_ids=ids, use_cache=False).logits
    return result


@pytest.mark.parametrize("family", CONVERSIONS)
def test_a_file_gives_the_logits_of_its_folder(family: str, tmp_path: Path) -> None:
    path = make_gguf(tmp_path / "model.gguf", family, layers=6)
    register()
    checkpoint = open_gguf_checkpoint(path, EngineSettings(model=str(path)), ignore)
    module = fill_module(checkpoint, "model", torch.float32, torch.device("cpu"), ignore)
    expected = AutoModelForCausalLM.from_pretrained(path.with_suffix(""), dtype=torch.float32)
    vocab_size = expected.config.vocab_size
    torch.testing.assert_close(logits(module, vocab_size), logits(expected, vocab_size), rtol=1e-4, atol=1e-4)


def test_parameters_beside_a_file_are_its_defaults(tmp_path: Path) -> None:
    path = make_gguf(tmp_path / "tiny.gguf", "llama")
    beside = tmp_path / "tiny.generation_config.json"
    beside.write_text('{"temperature": 0.25, "top_p": 0.9, "eos_token_id": 7, "transformers_version": "5"}')
    checkpoint = open_gguf_checkpoint(path, EngineSettings(model=str(path)), ignore)
    defaults = SamplingParams.from_generation_config(checkpoint.generation_config)
    assert (defaults.temperature, defaults.top_p, defaults.top_k) == (0.25, 0.9, SamplingParams.neutral().top_k)
    assert checkpoint.generation_config.eos_token_id == checkpoint.config.eos_token_id


@pytest.mark.parametrize("text", ["{", "[1]", '{"temperature": "warm"}', '{"temperature": -3}', "[" * 100_000])
def test_broken_parameters_beside_a_file_are_named(tmp_path: Path, text: str) -> None:
    path = make_gguf(tmp_path / "tiny.gguf", "llama")
    (tmp_path / "tiny.generation_config.json").write_text(text)
    with pytest.raises(ModelLoadError, match=r"generation_config\.json|sampling fields of .*tiny\.gguf"):
        SamplingParams.from_generation_config(
            open_gguf_checkpoint(path, EngineSettings(model=str(path)), ignore).generation_config
        )


def test_a_file_loads_into_the_engine(tmp_path: Path) -> None:
    path = make_gguf(tmp_path / "tiny-Q8_0.gguf", "llama", "Q8_0")
    model = load_model(EngineSettings(model=str(path)), ignore)
    assert model.name == "tiny-Q8_0"
    assert model.file_format == "Q8_0"
    assert model.tokenizer.decode(model.tokenizer.encode("Grüße", add_special_tokens=False)) == "Grüße"
