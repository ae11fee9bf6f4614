"""Whole models with quantized weights reply as their dense copies do; what is damaged is refused in a sentence."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from engine import EngineSettings, ModelLoadError
from engine.execution.load import load_model
from engine.model.attention_hook import LayerProbe
from engine.model.loaded_model import LoadedModel
from testing import quantized
from testing.models import make_model
from testing.quantized import Packing, edit_config, edit_tensors, save_quantized

PACKINGS: dict[str, Packing] = {
    **{f"awq-{group}": quantized.awq(group) for group in (32, 64, 128, -1)},
    **{f"gptq-{group}": quantized.gptq(4, group) for group in (32, 64, 128, -1)},
    "gptq-symmetric": quantized.gptq(4, 32, symmetric=True),
    "gptq-v2": quantized.gptq(4, 128, v2=True),
    "gptq-8": quantized.gptq(8, 64),
    "gptq-order": quantized.gptq(4, 32, desc_act=True),
    "gptq-8-order": quantized.gptq(8, 128, v2=True, desc_act=True),
    "w4a16": quantized.compressed_tensors_packed(4, 32),
    "w4a16-asymmetric": quantized.compressed_tensors_packed(4, 128, symmetric=False),
    "w4a16-channel": quantized.compressed_tensors_packed(4, -1),
    "w8a16": quantized.compressed_tensors_packed(8, -1),
    "w8a8": quantized.compressed_tensors_int8(),
    **{f"w8a8-{each}": quantized.compressed_tensors_float8(each) for each in ("tensor", "channel", "block")},
    "fp8": quantized.float8(),
    "bitsandbytes-4": quantized.bitsandbytes_4bit(),
    "bitsandbytes-4-nested": quantized.bitsandbytes_4bit(nested=True),
    "bitsandbytes-8": quantized.bitsandbytes_8bit(),
}
Q_PROJ = "model.layers.0.self_attn.q_proj"


def load(model: Path, **settings: Any) -> LoadedModel:
    return load_model(EngineSettings(model=str(model), device="cpu", **settings), lambda _stage, _fraction: None)


def refusal(model: Path) -> str:
    with pytest.raises(ModelLoadError) as caught:
        load(model, dtype="float32", native=False)
    sentence = str(caught.value)
    assert "\n" not in sentence
    return sentence


@torch.inference_mode()
def logits(model: LoadedModel) -> Tensor:
    positions = torch.arange(24)
    tokens = positions * 37 % model.vocab_size
    return model.logits(tokens[None], positions[None], positions, LayerProbe()).float()


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("models") / "llama", hidden=128, std=0.1)


def parameters(model: LoadedModel) -> dict[str, Tensor]:
    assert model.module is not None
    return dict(model.module.named_parameters())


@pytest.mark.parametrize("name", PACKINGS)
def test_a_model_has_the_weights_of_its_dense_copy(llama: Path, tmp_path: Path, name: str) -> None:
    save_quantized(llama, PACKINGS[name], tmp_path / "quantized", tmp_path / "dense")
    got = load(tmp_path / "quantized", dtype="float32", native=False)
    expected = load(tmp_path / "dense", dtype="float32", native=False)
    theirs = parameters(expected)
    assert parameters(got).keys() == theirs.keys()
    for key, parameter in parameters(got).items():
        torch.testing.assert_close(parameter, theirs[key], atol=0, rtol=1e-6, msg=key)
    assert not torch.equal(
        theirs[f"{Q_PROJ}.weight"], parameters(load(llama, dtype="float32", native=False))[f"{Q_PROJ}.weight"]
    )
    torch.testing.assert_close(logits(got), logits(expected), atol=1e-3, rtol=1e-4)
    assert got.generation_config.eos_token_id == expected.generation_config.eos_token_id


@pytest.mark.parametrize("family", ["qwen2", "qwen3-moe", "gemma3", "phi3"])
@pytest.mark.parametrize("packing", ["awq-32", "w8a8", "bitsandbytes-4-nested"])
def test_other_families(tmp_path: Path, family: str, packing: str) -> None:
    """Biases, experts that transformers stacks, and fused weights."""
    model = make_model(tmp_path / "model", family, std=0.1)
    save_quantized(model, PACKINGS[packing], tmp_path / "quantized", tmp_path / "dense")
    got = load(tmp_path / "quantized", dtype="float32", native=False)
    expected = load(tmp_path / "dense", dtype="float32", native=False)
    torch.testing.assert_close(logits(got), logits(expected), atol=1e-3, rtol=1e-4)


def test_gpt_oss_in_mxfp4(tmp_path: Path) -> None:
    model = make_model(tmp_path / "model", "gpt-oss", std=0.1)
    save_quantized(model, quantized.mxfp4(), tmp_path / "quantized", tmp_path / "dense")
    got = load(tmp_path / "quantized", dtype="float32", native=False)
    expected = load(tmp_path / "dense", dtype="float32", native=False)
    for (key, ours), theirs in zip(parameters(got).items(), parameters(expected).values(), strict=True):
        assert torch.equal(ours, theirs), key
    torch.testing.assert_close(logits(got), logits(expected), atol=1e-3, rtol=1e-4)


def test_embeddings_that_are_the_output_layer_stay_tied(tmp_path: Path) -> None:
    model = make_model(tmp_path / "model", hidden=128, std=0.1, tie_word_embeddings=True)
    save_quantized(model, PACKINGS["gptq-128"], tmp_path / "quantized", tmp_path / "dense")
    got = load(tmp_path / "quantized", dtype="float32", native=False)
    module: Any = got.module
    assert module.lm_head.weight.data_ptr() == module.model.embed_tokens.weight.data_ptr()
    expected = load(tmp_path / "dense", dtype="float32", native=False)
    torch.testing.assert_close(logits(got), logits(expected), atol=1e-3, rtol=1e-4)


def test_layers_that_the_config_leaves_as_they_are(llama: Path, tmp_path: Path) -> None:
    packing = PACKINGS["awq-32"]
    some = Packing(
        packing.pack, packing.config | {"modules_to_not_convert": ["self_attn"]}, skip=(*packing.skip, "attn")
    )
    save_quantized(llama, some, tmp_path / "quantized", tmp_path / "dense")
    got = parameters(load(tmp_path / "quantized", dtype="float32", native=False))
    theirs = parameters(load(tmp_path / "dense", dtype="float32", native=False))
    assert all(torch.allclose(got[name], theirs[name], atol=0, rtol=1e-6) for name in got)


def test_weights_in_several_files(llama: Path, tmp_path: Path) -> None:
    folder = tmp_path / "quantized"
    save_quantized(llama, PACKINGS["gptq-32"], folder, tmp_path / "dense")
    tensors = load_file(folder / "model.safetensors")
    halves = [dict(list(tensors.items())[start::2]) for start in (0, 1)]  # parts of one weight lie in both files
    weight_map: dict[str, str] = {}
    for index, half in enumerate(halves):
        save_file(half, folder / f"model-{index}.safetensors")
        weight_map |= dict.fromkeys(half, f"model-{index}.safetensors")
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    got = parameters(load(folder, dtype="float32", native=False))
    theirs = parameters(load(tmp_path / "dense", dtype="float32", native=False))
    assert all(torch.allclose(got[name], theirs[name], atol=0, rtol=1e-6) for name in got)


Damage = Callable[[Path], object]


def in_config(**fields: object) -> Damage:
    return lambda folder: edit_config(folder, lambda config: config.update(fields))


def in_scheme(**fields: object) -> Damage:
    return lambda folder: edit_config(
        folder, lambda config: config["config_groups"]["group_0"]["weights"].update(fields)
    )


def without(name: str) -> Damage:
    return lambda folder: edit_tensors(folder, lambda tensors: tensors.pop(name))


def changed(name: str, change: Callable[[Tensor], Tensor]) -> Damage:
    return lambda folder: edit_tensors(
        folder, lambda tensors: tensors.update({name: change(tensors[name]).contiguous()})
    )


def with_nan(tensor: Tensor) -> Tensor:
    wide = tensor.float()
    wide.view(-1)[3] = torch.nan
    return wide.to(tensor.dtype)


LIES: dict[str, tuple[str, Damage, tuple[str, ...]]] = {
    "awq: another group size": (
        "awq-32",
        in_config(group_size=64),
        ("mlp.down_proj.scales is 8 x 128", "groups of 64", "4 x 128"),
    ),
    "awq: no scales": ("awq-32", without(f"{Q_PROJ}.scales"), (f"{Q_PROJ}.scales is missing",)),
    "awq: no zero points": ("awq-32", without(f"{Q_PROJ}.qzeros"), (f"{Q_PROJ}.qzeros is missing",)),
    "awq: NaN": ("awq-32", changed(f"{Q_PROJ}.scales", with_nan), ("1 of the 512 scales", f"{Q_PROJ}.scales")),
    "awq: short": ("awq-32", changed(f"{Q_PROJ}.qweight", lambda words: words[:96]), ("96 inputs", "3 x 128")),
    "awq: one group, short": (
        "awq--1",
        changed(f"{Q_PROJ}.qweight", lambda words: words[:96]),
        (f"{Q_PROJ}.weight is 128 x 96", "128 x 128"),
    ),
    "awq: of floats": ("awq-32", changed(f"{Q_PROJ}.qweight", lambda words: words.float()), ("float32", "int32")),
    "gptq: other bits": ("gptq-32", in_config(bits=8), ("mlp.down_proj.scales is 8 x 128", "8 bits", "4 x 128")),
    "gptq: other bits, one group": ("gptq--1", in_config(bits=8), (".qzeros is 1 x 16", "8 bits", "1 x 32")),
    "gptq: groups out of range": (
        "gptq-order",
        changed(f"{Q_PROJ}.g_idx", lambda order: order + 1),
        ("from 1 to 4", "there are 4"),
    ),
    "gptq: another group size": ("gptq-32", in_config(group_size=48), ("mlp.down_proj.scales is 8 x 128", "6 x 128")),
    "gptq: infinite": ("gptq-32", changed(f"{Q_PROJ}.scales", lambda scales: scales / 0), ("512 of the 512 scales",)),
    "compressed: other bits": ("w4a16", in_scheme(num_bits=8), (".weight_packed is 128 x 32", "128 x 64")),
    "compressed: another group size": ("w4a16", in_scheme(group_size=64), ("128 x 8", "groups of 64", "128 x 4")),
    "compressed: no scales": ("w4a16", without(f"{Q_PROJ}.weight_scale"), (f"{Q_PROJ}.weight_scale is missing",)),
    "compressed: no zero points": ("w4a16", in_scheme(symmetric=False), ("weight_zero_point is missing",)),
    "compressed: NaN": ("w8a8", changed(f"{Q_PROJ}.weight_scale", with_nan), ("1 of the 128 scales",)),
    "compressed: int8 without scales": (
        "w8a8",
        without(f"{Q_PROJ}.weight_scale"),
        (f"{Q_PROJ}.weight is stored as int8",),
    ),
    "compressed: int8, not FP8": ("w8a8", in_scheme(type="float"), ("stored as int8", "8-bit floating point")),
    "compressed: no target": (
        "w8a8",
        lambda folder: edit_config(folder, lambda config: config["config_groups"]["group_0"].update(targets=["re:x"])),
        ("no target of its config matches", "re:x"),
    ),
    "compressed: a shape of its own": (
        "w4a16",
        changed(f"{Q_PROJ}.weight_shape", lambda shape: shape * 2),
        (".weight_packed is 128 x 16", "256 x 32"),
    ),
    "fp8: other blocks": ("fp8", in_config(weight_block_size=[64, 64]), ("1 x 2", "blocks of 64 x 64", "2 x 4")),
    "fp8: no scales": ("fp8", without(f"{Q_PROJ}.weight_scale_inv"), (f"{Q_PROJ}.weight is stored as float8_e4m3fn",)),
    "fp8: none": ("awq-32", in_config(quant_method="fp8"), ("FP8", "no tensor is stored that way")),
    "bitsandbytes: short": (
        "bitsandbytes-4",
        changed(f"{Q_PROJ}.weight", lambda octets: octets[:-1]),
        ("8,191 bytes", "8,192"),
    ),
    "bitsandbytes: no scales": ("bitsandbytes-4", without(f"{Q_PROJ}.weight.absmax"), (".weight.absmax is missing",)),
    "bitsandbytes: damaged": (
        "bitsandbytes-4",
        changed(f"{Q_PROJ}.weight.quant_state.bitsandbytes__nf4", lambda state: state[:-3]),
        ("is damaged",),
    ),
    "bitsandbytes: NaN": ("bitsandbytes-8", changed(f"{Q_PROJ}.SCB", with_nan), ("1 of the 128 scales",)),
    "bitsandbytes: no scales of scales": (
        "bitsandbytes-4-nested",
        without(f"{Q_PROJ}.weight.nested_absmax"),
        (".weight.nested_absmax is missing",),
    ),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_checkpoint_that_contradicts_itself(llama: Path, tmp_path: Path, lie: str) -> None:
    packing, damage, words = LIES[lie]
    save_quantized(llama, PACKINGS[packing], tmp_path / "quantized", tmp_path / "dense")
    damage(tmp_path / "quantized")
    sentence = refusal(tmp_path / "quantized")
    assert sentence.startswith(f"The quantized weights of {tmp_path / 'quantized'} cannot be used: ")
    for word in words:
        assert word in sentence, sentence


UNSUPPORTED: dict[str, tuple[dict[str, object], str]] = {
    "aqlm": ({"quant_method": "aqlm"}, "quantized with aqlm"),
    "unnamed": ({}, "an unnamed method"),
    "awq gemv": ({"quant_method": "awq", "version": "gemv"}, "AWQ in the layout gemv"),
    "awq 8 bits": ({"quant_method": "awq", "bits": 8}, "AWQ in 8 bits"),
    "gptq 3 bits": ({"quant_method": "gptq", "bits": 3}, "GPTQ in 3 bits"),
    "marlin": ({"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"}, "layout marlin"),
    "sparse": (
        {"quant_method": "compressed-tensors", "sparsity_config": {"format": "sparse-24-bitmask"}},
        "sparse format sparse-24-bitmask",
    ),
    "nvfp4": (
        {
            "quant_method": "compressed-tensors",
            "format": "nvfp4-pack-quantized",
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "float"}}},
        },
        "format nvfp4-pack-quantized",
    ),
    "no bits": ({"quant_method": "gptq", "bits": "four"}, "bits=four"),
    "no group": ({"quant_method": "gptq", "bits": 4, "group_size": 0}, "group_size=0"),
    "no block": ({"quant_method": "fp8", "weight_block_size": [128]}, "weight_block_size=[128]"),
    "bitsandbytes": ({"quant_method": "bitsandbytes"}, "neither 4 nor 8 bits"),
}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_an_unsupported_format_is_refused_by_its_name(llama: Path, tmp_path: Path, name: str) -> None:
    config, words = UNSUPPORTED[name]
    packing = PACKINGS["awq-32"]
    save_quantized(llama, Packing(packing.pack, config), tmp_path / "quantized", tmp_path / "dense")
    sentence = refusal(tmp_path / "quantized")
    assert words in sentence
    assert "which Deskmate does not read" in sentence


def test_a_scheme_for_the_cache_is_ignored_with_a_log_line(
    llama: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    save_quantized(llama, PACKINGS["w8a8"], tmp_path / "quantized", tmp_path / "dense")
    load(tmp_path / "quantized", dtype="float32", native=False)
    assert "kv_cache_scheme" in caplog.text
    assert "compressed-tensors (int-quantized, 8 bits, one scale per output)" in caplog.text
