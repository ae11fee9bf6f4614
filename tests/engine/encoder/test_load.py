"""A folder that is no encoder, or a damaged one, is refused with a sentence; the recipe is read as it is stated."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from engine import EngineSettings, ModelLoadError, encoder_memory
from engine.device import host_memory
from engine.encoder import load
from engine.encoder.load import load_encoder
from testing.encoders import make_encoder
from testing.models import make_model


def no_progress(_stage: str, _fraction: float) -> None:
    pass


def refusal(folder: Path) -> str:
    with pytest.raises(ModelLoadError) as refused:
        load_encoder(str(folder), no_progress)
    sentence = str(refused.value)
    assert "\n" not in sentence
    assert sentence.endswith(".")
    return sentence


def test_a_model_that_writes_text_is_no_encoder(tmp_path: Path) -> None:
    assert "is not an encoder: it is a model that writes text" in refusal(make_model(tmp_path))


def test_a_causal_model_without_a_pooling_is_no_encoder(tmp_path: Path) -> None:
    assert "no modules.json says how to pool" in refusal(make_encoder(tmp_path, "qwen3", modules=()))


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    assert str(tmp_path / "nothing") in refusal(tmp_path / "nothing")


def test_an_unknown_step_is_named(tmp_path: Path) -> None:
    folder = make_encoder(tmp_path, modules=("Transformer", "Pooling", "Dense"))
    assert "has a step Dense" in refusal(folder)


@pytest.mark.parametrize(
    "pooling",
    [
        {"pooling_mode_weightedmean_tokens": True},
        {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True},
        {"pooling_mode": "attention"},
    ],
)
def test_an_unknown_pooling_is_refused(tmp_path: Path, pooling: dict[str, object]) -> None:
    assert "cannot run here: it pools by" in refusal(make_encoder(tmp_path, pooling=pooling))


@pytest.mark.parametrize("content", ["{", "3", '{"a": 1}'])
def test_a_damaged_list_of_modules_is_refused(tmp_path: Path, content: str) -> None:
    (make_encoder(tmp_path) / "modules.json").write_text(content)
    assert "is damaged: modules.json" in refusal(tmp_path)


def test_a_pooling_outside_of_the_folder_is_not_read(tmp_path: Path) -> None:
    folder = make_encoder(tmp_path / "encoder")
    steps = [{"path": "", "type": "x.Transformer"}, {"path": "../other", "type": "x.Pooling"}]
    (folder / "modules.json").write_text(json.dumps(steps))
    assert "names a folder outside of it" in refusal(folder)


def test_missing_weights_are_named(tmp_path: Path) -> None:
    file = make_encoder(tmp_path) / "model.safetensors"
    tensors = load_file(file)
    lost = next(name for name in tensors if "layer.1" in name)
    del tensors[lost]
    save_file(tensors, file, {"format": "pt"})
    assert "its weights lack" in refusal(tmp_path)


def test_an_encoder_larger_than_the_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_encoder(tmp_path)
    monkeypatch.setattr(load, "available_host_memory", lambda: 1000)
    assert "does not fit into memory" in refusal(folder)


def test_reserved_memory_is_not_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_memory, "_reserved", {})
    before = host_memory.available_host_memory()
    host_memory.reserve_host_memory("test", before + (1 << 40))
    assert host_memory.available_host_memory() == 0
    host_memory.reserve_host_memory("test", 0)
    assert host_memory.available_host_memory() > 0


def test_the_fingerprint_tells_encoders_apart(tmp_path: Path) -> None:
    one = load_encoder(str(make_encoder(tmp_path / "one")), no_progress)
    same = load_encoder(str(shutil.copytree(tmp_path / "one", tmp_path / "same")), no_progress)
    for other in ("trained", "pooled", "prompted"):
        shutil.copytree(tmp_path / "one", tmp_path / other)
    file = tmp_path / "trained" / "model.safetensors"
    save_file({name: 1.01 * tensor for name, tensor in load_file(file).items()}, file, {"format": "pt"})
    (tmp_path / "pooled" / "1_Pooling" / "config.json").write_text('{"pooling_mode_cls_token": true}')
    prompts = tmp_path / "prompted" / "config_sentence_transformers.json"
    prompts.write_text('{"prompts": {"document": "passage: "}}')
    fingerprints = [one.info.fingerprint]
    for other in ("trained", "pooled", "prompted"):
        fingerprints.append(load_encoder(str(tmp_path / other), no_progress).info.fingerprint)
    prompts.write_text('{"prompts": {"document": "another: "}}')
    fingerprints.append(load_encoder(str(tmp_path / "prompted"), no_progress).info.fingerprint)
    assert one.info.fingerprint == same.info.fingerprint
    assert len(set(fingerprints)) == 5


@pytest.mark.parametrize(
    ("config", "asked", "is_allowed"),
    [
        ({}, 16, False),
        ({}, 32, True),
        ({"is_matryoshka": True}, 16, True),
        ({"is_matryoshka": True}, 33, False),
        ({"is_matryoshka": True}, 0, False),
        ({"matryoshka_dimensions": [8, 16]}, 16, True),
        ({"matryoshka_dimensions": [8, 16]}, 12, False),
    ],
)
def test_vectors_are_cut_only_as_the_model_says(
    tmp_path: Path, config: dict[str, object], asked: int, is_allowed: bool
) -> None:
    info = load_encoder(str(make_encoder(tmp_path, config=config)), no_progress).info
    if is_allowed:
        assert info.check_dimensions(asked) == asked
    else:
        with pytest.raises(ValueError, match=r"^dimensions must be"):
            info.check_dimensions(asked)


def test_the_memory_is_counted_from_the_files(tmp_path: Path) -> None:
    folder = make_encoder(tmp_path)
    encoder = load_encoder(str(folder), no_progress)
    settings = EngineSettings(_env_file=None, encoder=str(folder), encoder_vectors=10)
    memory = encoder_memory(settings)
    assert memory is not None
    assert (memory.weights, memory.vectors) == (encoder.num_bytes, 10 * 32 * 4)
    assert encoder_memory(settings.model_copy(update={"encoder": None})) is None
    (folder / "config.json").write_text("{")
    with pytest.raises(ModelLoadError, match="ENGINE_ENCODER: the folder"):
        encoder_memory(settings)
