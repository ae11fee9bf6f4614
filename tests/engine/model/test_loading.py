"""What cannot run is refused at load, in one sentence that says why and what to do."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers import (
    BertConfig,
    BloomConfig,
    BloomForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

from engine import Engine, EngineSettings, ModelLoadError
from engine.execution.load import load_model
from engine.model.loaded_model import LoadedModel
from engine.runtime.engine_core import EngineCore
from testing.models import make_model


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("models") / "llama")


@pytest.fixture
def copy(llama: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(llama, tmp_path / "copy"))


def load(model: Path | str, **settings: object) -> LoadedModel:
    return load_model(EngineSettings(model=str(model), **settings), lambda _stage, _fraction: None)  # type: ignore[arg-type]


def refusal(model: Path | str, **settings: object) -> str:
    with pytest.raises(ModelLoadError) as caught:
        load(model, **settings)
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert "Traceback" not in sentence
    return sentence


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    missing = tmp_path / "nowhere"
    assert f"There is no model folder at {missing}" in refusal(missing)


def test_a_file_instead_of_a_folder(llama: Path) -> None:
    assert "is a file" in refusal(llama / "model.safetensors")


def test_a_folder_without_a_model(tmp_path: Path) -> None:
    assert "has no config.json" in refusal(tmp_path)


def test_a_folder_without_weights(copy: Path) -> None:
    (copy / "model.safetensors").unlink()
    assert "has no weights" in refusal(copy)


def test_pickle_weights(copy: Path) -> None:
    (copy / "model.safetensors").unlink()
    torch.save({}, copy / "pytorch_model.bin")
    sentence = refusal(copy)
    assert "pickle weights (pytorch_model.bin)" in sentence
    assert "safetensors" in sentence


def add_adapter(folder: Path) -> None:
    (folder / "adapter_config.json").write_text('{"peft_type": "LORA", "base_model_name_or_path": "some/base"}')
    save_file({"lora_A.weight": torch.zeros(1, 1)}, folder / "adapter_model.safetensors")


async def test_an_adapter_beside_the_weights_is_named_where_the_model_is(
    copy: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for is_there in (False, True):
        if is_there:
            add_adapter(copy)
        caplog.clear()
        async with Engine(EngineSettings(model=str(copy), dtype="float32", device="cpu", native=False)) as engine:
            assert engine.info.has_unused_adapter is is_there
        assert ("holds a LoRA adapter, which is not applied" in caplog.text) is is_there


@pytest.mark.parametrize("with_config", [True, False])
def test_an_adapter_without_its_model(copy: Path, *, with_config: bool) -> None:
    add_adapter(copy)
    (copy / "model.safetensors").unlink()
    if not with_config:
        (copy / "config.json").unlink()
    sentence = refusal(copy)
    assert "holds a LoRA adapter for some/base and not a whole model" in sentence
    assert f"--lora NAME={copy}" in sentence


def test_an_adapter_whose_configuration_is_damaged(copy: Path) -> None:
    add_adapter(copy)
    (copy / "model.safetensors").unlink()
    for damaged in ("not json", "[]", '{"base_model_name_or_path": 3}', '{"base_model_name_or_path": "a\\nb"}'):
        (copy / "adapter_config.json").write_text(damaged)
        assert "holds a LoRA adapter and not a whole model" in refusal(copy)


def test_damaged_config(copy: Path) -> None:
    (copy / "config.json").write_text("{ not json")
    assert "cannot be read" in refusal(copy)


def test_damaged_weights(copy: Path) -> None:
    (copy / "model.safetensors").write_bytes(b"\x00" * 64)
    assert "weights of" in refusal(copy)


def test_incomplete_weights(copy: Path) -> None:
    config = json.loads((copy / "config.json").read_text())
    config["num_hidden_layers"] += 1
    config.pop("layer_types", None)
    (copy / "config.json").write_text(json.dumps(config))
    assert "are incomplete" in refusal(copy)


def test_missing_tokenizer(copy: Path) -> None:
    for path in copy.glob("tokenizer*"):
        path.unlink()
    assert "tokenizer of" in refusal(copy)


def test_remote_code(copy: Path) -> None:
    config = json.loads((copy / "config.json").read_text())
    config["model_type"] = "homemade"
    config["auto_map"] = {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}
    (copy / "config.json").write_text(json.dumps(config))
    (copy / "evil.py").write_text("raise SystemExit('the code of a model was run')")
    assert "its own Python code" in refusal(copy)


def test_unknown_architecture(copy: Path) -> None:
    config = json.loads((copy / "config.json").read_text())
    config["model_type"] = "not_invented_yet"
    (copy / "config.json").write_text(json.dumps(config))
    assert "cannot be read" in refusal(copy)


TINY = {"vocab_size": 32, "hidden_size": 16, "num_hidden_layers": 1}


def test_encoder_decoder(copy: Path) -> None:
    config = T5Config(vocab_size=32, d_model=16, num_layers=1, d_ff=16, num_heads=2, d_kv=8)
    T5ForConditionalGeneration(config).save_pretrained(copy)
    assert "encoder-decoder" in refusal(copy)


def test_state_space_model(copy: Path) -> None:
    MambaForCausalLM(MambaConfig(**TINY, state_size=4)).save_pretrained(copy)
    assert "layers of the kind linear_attention" in refusal(copy)


def test_model_without_an_attention_hook(copy: Path) -> None:
    BloomForCausalLM(BloomConfig(vocab_size=32, hidden_size=16, n_layer=1, n_head=2)).save_pretrained(copy)
    assert "no hook for a custom attention function" in refusal(copy)


def test_model_that_is_no_language_model(copy: Path) -> None:
    config = BertConfig(**TINY, num_attention_heads=2).to_dict()
    config["model_type"] = "vit"
    (copy / "config.json").write_text(json.dumps(config))
    assert "vit model" in refusal(copy)


def test_model_that_reads_in_both_directions(tmp_path: Path) -> None:
    path = make_model(tmp_path / "model", "gemma3", config={"use_bidirectional_attention": True})
    assert "attend to later tokens" in refusal(path)


def test_linear_attention_beside_full_attention(tmp_path: Path) -> None:
    path = make_model(tmp_path / "model", "qwen3")
    config = json.loads((path / "config.json").read_text())
    config["model_type"], config["layer_types"] = "qwen3_next", ["linear_attention", "full_attention"]
    (path / "config.json").write_text(json.dumps(config))
    assert "layers of the kind linear_attention" in refusal(path)


class TestRoom:
    def test_one_sequence_that_does_not_fit(self, llama: Path) -> None:
        model = load(llama)
        with pytest.raises(ModelLoadError, match=r"One sequence of 400 tokens needs .* room for 48 tokens.*Lower"):
            EngineCore(model, EngineSettings(max_model_len=400, num_kv_blocks=4))

    def test_without_a_wish_the_context_shrinks_to_what_fits(self, llama: Path) -> None:
        assert EngineCore(load(llama), EngineSettings(num_kv_blocks=4)).request_processor.max_model_len == 48

    def test_a_context_longer_than_the_model_was_made_for(self, llama: Path) -> None:
        with pytest.raises(ModelLoadError, match="Lower it to 512 or less"):
            EngineCore(load(llama), EngineSettings(max_model_len=513))

    def test_more_memory_than_there_is(self, llama: Path) -> None:
        with pytest.raises(ModelLoadError, match=r"only .* GiB of memory are free"):
            EngineCore(load(llama), EngineSettings(kv_cache_memory=10_000))
        with pytest.raises(ModelLoadError, match=r"num_kv_blocks=1000000000000 takes .* Lower it"):
            EngineCore(load(llama), EngineSettings(num_kv_blocks=10**12))


def test_unknown_attention_kernel(llama: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"attention='magic' is unknown.*sdpa"):
        EngineCore(load(llama), EngineSettings(attention="magic"))


def test_cuda_where_there_is_none(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "no CUDA device" in refusal(llama, device="cuda")


def test_loading_reports_progress(llama: Path) -> None:
    seen: list[tuple[str, float]] = []
    load_model(EngineSettings(model=str(llama)), lambda stage, fraction: seen.append((stage, fraction)))
    fractions = [fraction for stage, fraction in seen if stage == "Loading weights"]
    assert fractions[-1] == 1.0
    assert fractions == sorted(fractions)
    assert len(fractions) > 5
