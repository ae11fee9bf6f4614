"""A model runs in C++ only where each of its parts is the known part, at every position of its context."""

from __future__ import annotations

import logging
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM
from transformers.models.llama import modeling_llama as llama

from engine import EngineSettings, SamplingParams
from engine.execution.attention.base import GroupStep, LayerCache, PagedMetadata, Sequences
from engine.execution.attention.cpu import CpuKernel
from engine.execution.attention.hf_attention import register
from engine.execution.batch import Batch
from engine.execution.load import load_model
from engine.execution.native.decoder import Decoder
from engine.execution.native.modules import UnsupportedModel
from engine.execution.native.parity_check import check_sample
from engine.execution.native.parts import check_parts
from engine.execution.native.structure import Structure
from engine.execution.native.weights import DecoderWeights, PackedLinear
from engine.model.attention_hook import ATTENTION_NAME
from engine.model.loaded_model import LoadedModel
from engine.model.position_check import spread_positions
from engine.runtime.engine_core import EngineCore
from engine.scheduling.cache_layout import LayerShape
from testing.models import FAMILIES, Family, make_model
from testing.native import needs_compiler
from testing.reference import Comparison, Reference

ORIGINAL = 40
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 8.0, "original_max_position_embeddings": ORIGINAL}
LLAMA3 = {**YARN, "rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}
MINISTRAL3 = {**YARN, "llama_4_scaling_beta": 0.5}
OTHERS = {
    "helium": Family("helium", sentencepiece=True),
    "ernie": Family("ernie4_5", sentencepiece=True),
    "ministral3": Family("ministral3", {"rope_parameters": MINISTRAL3}),
    "seed-oss": Family("seed_oss"),
}
BIASES = {"attention_bias": True, "mlp_bias": True}


@pytest.fixture(autouse=True)
def other_families(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, family in OTHERS.items():
        monkeypatch.setitem(FAMILIES, name, family)


def load(path: Path, dtype: str = "bfloat16", *, native: bool = True) -> LoadedModel:
    settings = EngineSettings(model=str(path), device="cpu", dtype=dtype, native=native)
    return load_model(settings, lambda _stage, _fraction: None)


@needs_compiler
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize(
    ("family", "config", "part"),
    [
        ("llama", {"hidden_act": "gelu"}, "activation GELUActivation of layer 0"),
        ("llama", {"hidden_act": "relu2"}, "activation ReLUSquaredActivation of layer 0"),
        ("ministral3", {}, f"query of layer 0 .*first at position {ORIGINAL}"),
    ],
)
def test_a_model_with_another_part_runs_through_transformers(
    tmp_path: Path, family: str, config: dict[str, Any], part: str, dtype: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="engine"):
        path = make_model(tmp_path / "model", family, std=0.05, config=config)  # whose logits alone hardly tell
        assert load(path, dtype).decoder is None
    (line,) = [line for line in caplog.messages if "runs through transformers" in line]
    assert re.search(f"transformers: {part}.* differs from what the C\\+\\+ decoder computes", line)


@needs_compiler
@pytest.mark.parametrize(
    ("family", "config"),
    [
        *(
            (family, {})
            for family in ("llama", "qwen2", "qwen3", "mistral", "mistral-window", "seed-oss", "helium", "ernie")
        ),
        ("llama", BIASES),
        ("llama", {"rms_norm_eps": 1e-2}),
        ("llama", {"rope_parameters": YARN}),
        ("llama", {"rope_parameters": LLAMA3}),
        ("llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}}),
        ("llama", {"hidden_act": "gelu_pytorch_tanh"}),
    ],
)
def test_a_model_of_the_known_parts_runs_in_cpp(tmp_path: Path, family: str, config: dict[str, Any]) -> None:
    assert load(make_model(tmp_path / "model", family, config=config)).decoder is not None


@pytest.mark.parametrize("family", ["ministral3", "llama"])
def test_replies_are_right_behind_the_original_context(tmp_path: Path, family: str) -> None:
    path = make_model(tmp_path / "model", family, eos=False, config={"max_position_embeddings": 8 * ORIGINAL})
    core = EngineCore(load(path, "float32"), EngineSettings(max_model_len=160, num_kv_blocks=60, kv_block_size=4))
    prompt = random.Random(0).choices(range(3, 390), k=2 * ORIGINAL - 10)
    params = SamplingParams(temperature=0, ignore_eos=True, max_tokens=40)
    core.add(core.request_processor.process("0", prompt, core.request_processor.resolve(prompt, params)))
    reply: list[int] = []
    while core.has_work:
        for delta in core.step().deltas:
            reply += delta.token_ids
    comparison = Comparison()
    comparison.check(reply, Reference(path).greedy(prompt, 40))
    assert comparison.tokens > 30


# ---- one part altered after another


def scaled(factor: float) -> Callable[[Any], Any]:
    return lambda result: result * factor


def altered(forward: Callable[..., Any], change: Callable[[Any], Any]) -> Callable[..., Any]:
    return lambda *arguments, **named: change(forward(*arguments, **named))


def from_position(start: int, change: Callable[[Tensor], Tensor]) -> Callable[..., Any]:
    """Rotary embedding whose cosines and sines are others from one position on."""
    forward = llama.LlamaRotaryEmbedding.forward

    def turned(self: Any, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        cosines, sines = forward(self, x, position_ids)
        late = (position_ids >= start).unsqueeze(-1)
        return torch.where(late, change(cosines), cosines), torch.where(late, change(sines), sines)

    return turned


def residual(factor: float, only_layer: int | None = None) -> Callable[..., Any]:
    def forward(self: Any, hidden_states: Tensor, **named: Any) -> Any:
        is_altered = only_layer in (None, self.self_attn.layer_idx)
        attended, _weights = self.self_attn(hidden_states=self.input_layernorm(hidden_states), **named)
        stream = hidden_states + attended * (factor if is_altered else 1)
        return stream + self.mlp(self.post_attention_layernorm(stream))

    return forward


def parallel(self: Any, hidden_states: Tensor, **named: Any) -> Any:
    attended, _weights = self.self_attn(hidden_states=self.input_layernorm(hidden_states), **named)
    return hidden_states + attended + self.mlp(self.post_attention_layernorm(hidden_states))


def half_plus_weight(self: Any, rows: Tensor) -> Any:
    return rows * torch.rsqrt(rows.square().mean(-1, keepdim=True) + self.variance_epsilon) * (0.5 + self.weight)


def other_epsilon(self: Any, rows: Tensor) -> Any:
    return rows * torch.rsqrt(rows.square().mean(-1, keepdim=True) + 10 * self.variance_epsilon) * self.weight


def clamped(self: Any, rows: Tensor) -> Any:
    gate = self.gate_proj(rows).clamp(max=7.0)
    return self.down_proj(self.act_fn(gate) * self.up_proj(rows))


def capped(output: Any) -> Any:
    output.logits = 30 * torch.tanh(output.logits / 30)
    return output


def neighbours(query: Tensor, key: Tensor, cosines: Tensor, sines: Tensor, **_named: Any) -> tuple[Tensor, Tensor]:
    def turn(heads: Tensor) -> Tensor:
        half = cosines.shape[-1] // 2
        cosine, sine = cosines.unsqueeze(1)[..., :half], sines.unsqueeze(1)[..., :half]
        even, odd = heads[..., ::2], heads[..., 1::2]
        return torch.stack([even * cosine - odd * sine, odd * cosine + even * sine], -1).flatten(-2)

    return turn(query), turn(key)


def only_queries(query: Tensor, key: Tensor, *angles: Tensor, **named: Any) -> tuple[Tensor, Tensor]:
    return llama_turn(query, key, *angles, **named)[0], key


llama_turn = llama.apply_rotary_pos_emb
ALTERED: list[tuple[Any, str, Any, str]] = [
    (llama.LlamaDecoderLayer, "forward", residual(0.99), "residual sum before mlp norm of layer 0"),
    (llama.LlamaDecoderLayer, "forward", residual(0.99, 1), "residual sum before mlp norm of layer 1"),
    (llama.LlamaDecoderLayer, "forward", parallel, "residual sum before mlp norm of layer 0"),
    (
        llama.LlamaMLP,
        "forward",
        altered(llama.LlamaMLP.forward, scaled(1.01)),
        "residual sum before input_layernorm of",
    ),
    (llama.LlamaMLP, "forward", clamped, "input of down of layer 0"),
    (llama.LlamaRMSNorm, "forward", half_plus_weight, "input_layernorm of layer 0"),
    (llama.LlamaRMSNorm, "forward", other_epsilon, "input_layernorm of layer 0"),
    (llama.LlamaForCausalLM, "forward", altered(llama.LlamaForCausalLM.forward, capped), "logits"),
    (llama, "apply_rotary_pos_emb", neighbours, "query of layer 0 .*position 1"),
    (llama, "apply_rotary_pos_emb", only_queries, "key of layer 0 .*position 1"),
    (llama.LlamaRotaryEmbedding, "forward", from_position(16_384, scaled(1.07)), "query .*first at position 16384"),
    (llama.LlamaRotaryEmbedding, "forward", from_position(65_535, scaled(1.001)), "query .*first at position 65535"),
    (llama.LlamaRotaryEmbedding, "forward", from_position(40_000, torch.neg), "query .*first at position 4"),
]


def bare(path: Path, dtype: torch.dtype = torch.float32) -> tuple[Any, Structure]:
    register()
    model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype, attn_implementation=ATTENTION_NAME).eval()
    return model, Structure.of(model, [LayerShape(2, 16, 16, None)] * 2)


@pytest.fixture(scope="module")
def llama_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "llama"
    return make_model(path, "llama", max_position_embeddings=65_536, config=BIASES)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_unaltered_parts_pass_and_stay_as_they_are(llama_path: Path, dtype: torch.dtype) -> None:
    model, structure = bare(llama_path, dtype)
    before = {name: dict(vars(module)) for name, module in model.named_modules()}
    check_parts(model, structure, spread_positions(65_536, model.config))
    assert {name: dict(vars(module)) for name, module in model.named_modules()} == before


@pytest.mark.parametrize(("owner", "name", "replacement", "part"), ALTERED)
def test_an_altered_part_is_named(
    llama_path: Path, owner: Any, name: str, replacement: Any, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, structure = bare(llama_path)
    monkeypatch.setattr(owner, name, replacement)
    with pytest.raises(UnsupportedModel, match=f"^{part}.*differs from what the C"):
        check_parts(model, structure, spread_positions(65_536, model.config))


def test_linear_layers_with_hooks_or_forwards_of_their_own_are_not_the_known_ones(llama_path: Path) -> None:
    for alter in (
        lambda linear: linear.register_forward_hook(lambda _module, _rows, output: output * 2),
        lambda linear: setattr(linear, "forward", lambda rows: rows),
        lambda linear: nn.utils.parametrizations.weight_norm(linear),
    ):
        model, _structure = bare(llama_path)
        alter(model.model.layers[1].mlp.up_proj)
        with pytest.raises(UnsupportedModel, match="something other than plain linear layers"):
            Structure.of(model, [LayerShape(2, 16, 16, None)] * 2)


# ---- the parts together


@needs_compiler
@pytest.mark.parametrize("lost", ["bias", "one row"])
def test_weights_that_are_read_wrongly_show_in_the_sample(
    llama_path: Path, lost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, structure = bare(llama_path)
    check_sample(model, structure)
    of = PackedLinear.of.__func__  # type: ignore[attr-defined]

    def wrong(cls: type[PackedLinear], linears: Any, *arguments: Any, **named: Any) -> PackedLinear:
        product: PackedLinear = of(cls, linears, *arguments, **named)
        if lost == "bias":
            return PackedLinear(product.weight, product.scales, product.weight_sums, None)
        product.weight[0, :, 3].zero_()
        return product

    monkeypatch.setattr(PackedLinear, "of", classmethod(wrong))
    with pytest.raises(UnsupportedModel, match="its layers together differ"):
        check_sample(model, structure)


@needs_compiler
def test_far_positions_are_turned_in_cpp_as_in_transformers(tmp_path: Path) -> None:
    """With a window, so that only the last blocks of a long text are read."""
    window, end = 16, 1_048_576
    path = make_model(
        tmp_path / "model", "mistral-window", max_position_embeddings=end, config={"sliding_window": window}
    )
    model, reference = load(path, "float32"), load(path, "float32", native=False)
    assert model.decoder is not None
    for start in (16_384, end - 64):
        positions = torch.arange(start, start + 64)
        blocks = (0,) * (start // 16 - 1) + (1, 2, 3, 4, 5)
        batch = Batch(
            input_ids=(positions % 300).unsqueeze(0),
            position_ids=positions.unsqueeze(0),
            slots=(positions - start + 32,),
            logits_rows=torch.arange(64),
            sequences=(Sequences((64,), (start + 64,), (blocks,), 16),),
            lengths=None,
        )
        ours, theirs = (
            [LayerCache.zeros(shape, 6, 16, torch.float32, model.device) for shape in model.layers] for _ in range(2)
        )
        kernel = CpuKernel()
        paged = PagedMetadata(
            kernel,
            theirs,
            [0] * len(theirs),
            (GroupStep(batch.slots[0], kernel.prepare(batch.sequences[0], model.device)),),
        )
        with torch.inference_mode():
            expected = reference.logits(batch.input_ids, batch.position_ids, batch.logits_rows, paged)
        assert isinstance(model.decoder, DecoderWeights)
        found = Decoder(model.decoder, ours, [0] * len(ours)).logits(batch)
        assert float((found - expected).norm() / expected.norm()) < 1e-5
