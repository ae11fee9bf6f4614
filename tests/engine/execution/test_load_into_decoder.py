"""A model that the C++ decoder runs whole goes from its files into the decoder, and no module holds its weights."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from engine import EngineSettings, ModelLoadError, SamplingParams
from engine.execution.load import load_model
from engine.execution.native import decoder, eligibility
from engine.execution.native.weights import DecoderWeights
from engine.model.loaded_model import LoadedModel
from engine.runtime.engine_core import EngineCore
from testing.models import make_model
from testing.native import FORMATS, needs_compiler
from testing.reference import Comparison, Reference

pytestmark = [needs_compiler, pytest.mark.usefixtures("one_thread")]


@pytest.fixture
def every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the decoder run steps of any number of rows, as it does with AVX2."""
    monkeypatch.setattr(decoder, "MAX_ROWS_WITHOUT_AVX2", sys.maxsize)


def load(path: Path, **settings: object) -> LoadedModel:
    chosen = EngineSettings(model=str(path), device="cpu", **{"dtype": "float32", **settings})  # type: ignore[arg-type]
    return load_model(chosen, lambda _stage, _fraction: None)


def rewrite(path: Path, change: Callable[[dict[str, Tensor]], object]) -> Path:
    tensors = load_file(path / "model.safetensors")
    change(tensors)
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    return path


def parts_of(model: LoadedModel) -> list[Tensor | None]:
    """Everything that the decoder reads."""
    weights = model.decoder
    assert isinstance(weights, DecoderWeights)
    linears = [(one.qkv, one.output, one.gate_up, one.down) for one in weights.layers]
    norms = [(one.attention_norm, one.query_norm, one.key_norm, one.mlp_norm) for one in weights.layers]
    packed = [linear for group in linears for linear in group] + [weights.lm_head]
    return [
        weights.embedding,
        weights.norm,
        *(norm for group in norms for norm in group),
        *(part for one in packed if one is not None for part in (one.weight, one.scales, one.weight_sums, one.bias)),
    ]


def equal(one: LoadedModel, other: LoadedModel) -> bool:
    pairs = zip(parts_of(one), parts_of(other), strict=True)
    return all((a is None and b is None) or (a is not None and b is not None and torch.equal(a, b)) for a, b in pairs)


def reply(model: LoadedModel, prompt: list[int], max_tokens: int) -> list[int]:
    core = EngineCore(model, EngineSettings(max_model_len=160, num_kv_blocks=60, kv_block_size=4))
    params = SamplingParams(temperature=0, ignore_eos=True, max_tokens=max_tokens)
    core.add(core.request_processor.process("0", prompt, core.request_processor.resolve(prompt, params)))
    tokens: list[int] = []
    while core.has_work:
        for delta in core.step().deltas:
            tokens += delta.token_ids
    return tokens


@pytest.mark.usefixtures("every_step")
@pytest.mark.parametrize(
    ("family", "config"),
    [
        ("llama", {"attention_bias": True, "mlp_bias": True}),
        ("qwen3", {"tie_word_embeddings": True}),
        ("mistral-window", {}),
    ],
)
def test_replies_are_those_of_transformers_without_a_module(
    tmp_path: Path, family: str, config: dict[str, Any]
) -> None:
    path = make_model(tmp_path / "model", family, eos=False, vocab_size=397, config=config)
    model = load(path)
    assert model.module is None
    prompt = [7 * index % 390 + 3 for index in range(100)]
    comparison = Comparison()
    comparison.check(reply(model, prompt, 30), Reference(path).greedy(prompt, 30))
    assert comparison.tokens > 20


@pytest.mark.parametrize(("settings", "_largest"), FORMATS)
@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16])
def test_weights_are_those_that_are_packed_from_a_module(
    tmp_path: Path,
    settings: dict[str, str],
    _largest: float,
    stored: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = make_model(tmp_path / "model", "llama", vocab_size=397, config={"attention_bias": True, "mlp_bias": True})
    rewrite(path, lambda tensors: tensors.update({name: part.to(stored) for name, part in tensors.items()}))
    monkeypatch.setattr(eligibility, "max_rows", lambda: 64)
    through = load(path, **settings)
    assert through.module is not None
    monkeypatch.setattr(eligibility, "max_rows", lambda: sys.maxsize)
    straight = load(path, **settings)
    assert straight.module is None
    assert equal(straight, through)
    described = [
        (one.num_parameters, one.weight_bytes, one.layers, one.needs, one.max_position_embeddings, one.eos_token_ids)
        for one in (through, straight)
    ]
    assert described[0] == described[1]


# ---- what the files hold


@pytest.mark.usefixtures("every_step")
def test_files_in_shards_are_read_as_one(tmp_path: Path) -> None:
    path = make_model(tmp_path / "model", "qwen3")
    whole = load(path)
    tensors = load_file(path / "model.safetensors")
    (path / "model.safetensors").unlink()
    files = {name: f"model-0000{index % 3}.safetensors" for index, name in enumerate(sorted(tensors))}
    for file in set(files.values()):
        save_file({name: tensors[name] for name in tensors if files[name] == file}, path / file, {"format": "pt"})
    (path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}))
    # A file that the index does not name is not read, such as the original weights in another format.
    save_file({"model.norm.weight": torch.zeros(64)}, path / "consolidated.safetensors", {"format": "pt"})
    sharded = load(path)
    assert sharded.module is None
    assert equal(sharded, whole)


@pytest.mark.usefixtures("every_step")
@pytest.mark.parametrize("head", ["absent", "the same", "another"])
def test_an_output_layer_that_is_tied_by_the_configuration(tmp_path: Path, head: str) -> None:
    path = make_model(tmp_path / "model", "qwen3", tie_word_embeddings=True, eos=False)
    embedding = load_file(path / "model.safetensors")["model.embed_tokens.weight"]
    stored = {
        "absent": {},
        "the same": {"lm_head.weight": embedding.clone()},
        "another": {"lm_head.weight": -embedding},
    }
    rewrite(path, lambda tensors: (tensors.pop("lm_head.weight", None), tensors.update(stored[head])))
    model = load(path)
    assert model.module is None
    comparison = Comparison()
    comparison.check(reply(model, [5, 6, 7], 20), Reference(path).greedy([5, 6, 7], 20))
    assert comparison.tokens > 10


@pytest.mark.usefixtures("every_step")
def test_tensors_without_the_prefix_and_others_besides(tmp_path: Path) -> None:
    path = make_model(tmp_path / "model", "llama", tie_word_embeddings=True)
    whole = load(path)

    def rename(tensors: dict[str, Tensor]) -> None:
        for name in list(tensors):
            tensors[name.removeprefix("model.")] = tensors.pop(name)
        tensors["layers.0.self_attn.rotary_emb.inv_freq"] = torch.zeros(8)

    assert equal(load(rewrite(path, rename)), whole)


@pytest.mark.usefixtures("every_step")
@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            lambda tensors: tensors.pop("model.layers.1.mlp.up_proj.weight"),
            "are incomplete: 1 tensors are missing, model.layers.1.mlp.up_proj.weight among them",
        ),
        (lambda tensors: tensors.pop("lm_head.weight"), "1 tensors are missing, lm_head.weight among them"),
        (
            lambda tensors: tensors.update({"model.layers.0.mlp.up_proj.weight": torch.zeros(128, 32)}),
            "the sizes of some tensors differ from config.json. Download both files from the same source",
        ),
    ],
)
def test_tensors_that_are_missing_or_of_another_shape_are_refused(
    tmp_path: Path, change: Callable[[dict[str, Tensor]], object], sentence: str
) -> None:
    path = rewrite(make_model(tmp_path / "model", "llama"), change)
    with pytest.raises(ModelLoadError, match=sentence):
        load(path)


@pytest.mark.usefixtures("every_step")
@pytest.mark.parametrize("damage", ["truncated", "missing"])
def test_a_shard_that_is_not_whole_is_refused(tmp_path: Path, damage: str) -> None:
    path = make_model(tmp_path / "model", "llama")
    tensors = load_file(path / "model.safetensors")
    (path / "model.safetensors").unlink()
    files = {name: f"model-0000{index % 2}.safetensors" for index, name in enumerate(sorted(tensors))}
    for file in set(files.values()):
        save_file({name: tensors[name] for name in tensors if files[name] == file}, path / file, {"format": "pt"})
    (path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}))
    shard = path / "model-00001.safetensors"
    if damage == "truncated":
        shard.write_bytes(shard.read_bytes()[:-100])
    else:
        shard.unlink()
    with pytest.raises(ModelLoadError, match=r"model-00001\.safetensors"):
        load(path)


@pytest.mark.usefixtures("every_step")
def test_what_transformers_alone_can_read_still_goes_through_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The decoder gets its weights all the same, and the module goes."""
    path = make_model(tmp_path / "model", "llama")
    straight = load(path)
    monkeypatch.setattr("engine.model.safetensors_folder.open_tensors", lambda *_: None)
    through = load(path)
    assert through.module is None
    assert equal(through, straight)


# ---- what the checks see


@pytest.mark.usefixtures("every_step")
@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize(("settings", "_largest"), FORMATS)
def test_a_layer_that_is_packed_wrongly_is_seen(
    tmp_path: Path,
    settings: dict[str, str],
    _largest: float,
    layer: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    path = make_model(tmp_path / "model", "llama", config={"num_hidden_layers": 2})
    pack = DecoderWeights.pack

    def wrong(self: DecoderWeights, group: Any, served: Any = None) -> None:
        pack(self, group, served)
        is_whole_model = len(self.structure.shapes) == 2
        if is_whole_model and group.names[0] == f"model.layers.{layer}.mlp.down_proj":
            self._packed[group].weight[1].zero_()

    monkeypatch.setattr(DecoderWeights, "pack", wrong)
    with caplog.at_level(logging.INFO, logger="engine"):
        assert load(path, **settings).decoder is None
    assert "its logits differ from C++" in caplog.text
