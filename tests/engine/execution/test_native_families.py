"""The families that run in C++: what transformers computes, and one part altered after another."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM
from transformers.models.gemma2 import modeling_gemma2 as gemma2
from transformers.models.gemma3 import modeling_gemma3 as gemma3
from transformers.models.glm4 import modeling_glm4 as glm4
from transformers.models.granite import modeling_granite as granite
from transformers.models.mixtral import modeling_mixtral as mixtral
from transformers.models.olmo2 import modeling_olmo2 as olmo2
from transformers.models.phi3 import modeling_phi3 as phi3
from transformers.models.smollm3 import modeling_smollm3 as smollm3

from engine import EngineSettings, SamplingParams
from engine.execution.attention.base import GroupStep, LayerCache, PagedMetadata, Sequences
from engine.execution.attention.cpu import CpuKernel
from engine.execution.attention.hf_attention import register
from engine.execution.batch import Batch
from engine.execution.load import load_model
from engine.execution.native.activations import Activation
from engine.execution.native.decoder import Decoder
from engine.execution.native.experts import Routing
from engine.execution.native.modules import UnsupportedModel
from engine.execution.native.parity_check import check_sample, logits_error
from engine.execution.native.parts import check_parts
from engine.execution.native.structure import Structure
from engine.execution.native.weights import DecoderWeights, PackedLinear
from engine.model.attention_hook import ATTENTION_NAME
from engine.model.loaded_model import LoadedModel
from engine.model.position_check import spread_positions
from engine.model.probe import probe_calls
from engine.runtime.engine_core import EngineCore
from testing.models import FAMILIES, Family, make_model
from testing.native import FORMATS, needs_compiler
from testing.reference import Comparison, Reference

pytestmark = pytest.mark.slow

CONTEXT = 512
LENGTH = 75  #: tokens; several times a sliding window
PARTIAL = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
FAMILIES_IN_CPP = {
    "gemma": FAMILIES["gemma"],
    "gemma2": FAMILIES["gemma2"],
    "gemma3": FAMILIES["gemma3"],
    "phi3": FAMILIES["phi3"],
    "phi4-mini": Family("phi3", {"rope_parameters": PARTIAL}),
    "olmo2": FAMILIES["olmo2"],
    "olmo3": Family("olmo3", {"sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"]}),
    "smollm3": FAMILIES["smollm3"],
    "granite": FAMILIES["granite"],
    "glm4": FAMILIES["glm4"],
    "ernie": Family("ernie4_5", sentencepiece=True),
    "mixtral": FAMILIES["mixtral"],
    "qwen3-moe": FAMILIES["qwen3-moe"],
    "granitemoe": Family("granitemoe", {"num_experts_per_tok": 2, "num_local_experts": 4}),
    "flex-olmo": Family("flex_olmo", {"num_experts_per_tok": 2, "num_experts": 4}),
    "gpt-oss": FAMILIES["gpt-oss"],
}
EXPERTS = ("mixtral", "qwen3-moe", "granitemoe", "flex-olmo", "gpt-oss")
EVERY_FORMAT = ("gemma3", "glm4", "granite", "mixtral", "gpt-oss")
every_family = pytest.mark.parametrize("family", FAMILIES_IN_CPP)


@pytest.fixture(autouse=True)
def families(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One thread, and every family by its name here."""
    for name, family in FAMILIES_IN_CPP.items():
        monkeypatch.setitem(FAMILIES, name, family)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def load(path: Path, **settings: Any) -> LoadedModel:
    model = load_model(EngineSettings(model=str(path), device="cpu", **settings), lambda _stage, _fraction: None)
    assert model.decoder is not None
    return model


def batch(start: int, stop: int, vocab_size: int) -> Batch:
    """One text, alone in its cache."""
    positions = torch.arange(start, stop)
    return Batch(
        input_ids=(positions * 7919 % vocab_size).unsqueeze(0),
        position_ids=positions.unsqueeze(0),
        slots=(positions,),
        logits_rows=positions - start,
        sequences=(Sequences((stop - start,), (stop,), (tuple(range(-(-stop // 16))),), 16),),
        lengths=None,
    )


def caches(model: LoadedModel) -> list[LayerCache]:
    return [LayerCache.zeros(shape, -(-LENGTH // 16), 16, model.dtype, model.device) for shape in model.layers]


def ours(model: LoadedModel, *stops: int) -> Tensor:
    """Logits of a text from the decoder, in chunks that end there."""
    assert isinstance(model.decoder, DecoderWeights)
    decoder = Decoder(model.decoder, caches(model), [0] * len(model.layers))
    chunks = zip((0, *stops[:-1]), stops, strict=True)
    return torch.cat([decoder.logits(batch(*chunk, model.vocab_size)) for chunk in chunks])


@torch.inference_mode()
def theirs(path: Path, **settings: Any) -> Tensor:
    """The same through transformers, with our kernel for sliding windows and soft caps."""
    chosen = EngineSettings(model=str(path), device="cpu", native=False, **settings)
    model = load_model(chosen, lambda _stage, _fraction: None)
    text, kernel = batch(0, LENGTH, model.vocab_size), CpuKernel()
    group = GroupStep(text.slots[0], kernel.prepare(text.sequences[0], model.device))
    paged = PagedMetadata(kernel, caches(model), [0] * len(model.layers), (group,))
    return model.logits(text.input_ids, text.position_ids, text.logits_rows, paged).float()


# ---- what it computes


def logits_cases() -> Iterator[Any]:
    """Every family with the plainest and the smallest weights; the formats between them with families of each kind."""
    for number, form in enumerate(FORMATS):
        for family in FAMILIES_IN_CPP:
            is_between = number not in (0, len(FORMATS) - 1)
            marks = [*form.marks, *([pytest.mark.full] if is_between and family not in EVERY_FORMAT else [])]
            yield pytest.param(family, *form.values, id=f"{form.id}-{family}", marks=marks)


@needs_compiler
@pytest.mark.parametrize(("family", "settings", "largest"), logits_cases())
def test_logits_are_those_of_transformers(
    tmp_path: Path, family: str, settings: dict[str, Any], largest: float
) -> None:
    path = make_model(tmp_path / "model", family)
    model = load(path, **settings)
    found = ours(model, LENGTH)
    assert isinstance(model.decoder, DecoderWeights)
    # In bfloat16 transformers itself is farther than that from the model in float32.
    allowed = largest if model.dtype is torch.float32 else 0.15 if family in EXPERTS else 0.1
    if family not in EXPERTS or "quantization" not in settings:  # transformers' modules do not quantize experts
        assert logits_error(found, theirs(path, **settings), model.decoder.structure) < allowed
    threads = torch.get_num_threads()
    torch.set_num_threads(3)  # neither chunks nor threads change a bit, but with tiles, which round
    chunks = ours(model, 33, 42, LENGTH)
    torch.set_num_threads(threads)
    if model.dtype is torch.float32 or not torch.cpu._is_amx_tile_supported():
        assert torch.equal(chunks, found)


@needs_compiler
@every_family
@pytest.mark.parametrize("settings", [{"dtype": "float32"}, {"dtype": "bfloat16", "quantization": "int4"}])
def test_many_texts_in_one_step_are_as_each_alone(tmp_path: Path, family: str, settings: dict[str, Any]) -> None:
    """Threads divide the rows of a step then, instead of the columns of each."""
    model = load(make_model(tmp_path / "model", family), **settings)
    assert isinstance(model.decoder, DecoderWeights)
    count, length = 20, 21
    shapes = [LayerCache.zeros(shape, 2 * count, 16, model.dtype, model.device) for shape in model.layers]
    decoder = Decoder(model.decoder, shapes, [0] * len(shapes))

    def step(texts: range, start: int, stop: int) -> Tensor:
        """Computes the tokens from start on of these texts, of which each has two blocks."""
        positions = torch.arange(start, stop).repeat(len(texts))
        text = torch.tensor(list(texts)).repeat_interleave(stop - start)
        lengths = (stop - start,) * len(texts)
        return decoder.logits(
            Batch(
                input_ids=((positions * 7919 + text * 31) % model.vocab_size).unsqueeze(0),
                position_ids=positions.unsqueeze(0),
                slots=(text * 32 + positions,),
                logits_rows=torch.arange(stop - start - 1, len(positions), stop - start),
                sequences=(
                    Sequences(lengths, (stop,) * len(texts), tuple((2 * one, 2 * one + 1) for one in texts), 16),
                ),
                lengths=None,
            )
        )

    for text in range(count):
        step(range(text, text + 1), 0, length - 1)
    alone = torch.cat([step(range(text, text + 1), length - 1, length) for text in range(count)])
    torch.set_num_threads(3)
    assert torch.equal(step(range(count), length - 1, length), alone)


@needs_compiler
@every_family
def test_replies_are_those_of_transformers(tmp_path: Path, family: str) -> None:
    """Several requests at once, in a cache that is too small for them."""
    path = make_model(tmp_path / "model", family, eos=False)
    settings = EngineSettings(
        max_model_len=96, max_num_seqs=4, num_kv_blocks=44, kv_block_size=4, max_batched_tokens=48
    )
    core = EngineCore(load(path, dtype="float32"), settings)
    dice = random.Random(0)
    prompts = [dice.choices(range(3, 390), k=length) for length in (40, 3, 22)]
    replies: dict[str, list[int]] = {str(number): [] for number in range(len(prompts))}
    params = SamplingParams(temperature=0, ignore_eos=True, max_tokens=30)
    for number, prompt in enumerate(prompts):
        core.add(core.request_processor.process(str(number), prompt, core.request_processor.resolve(prompt, params)))
    while core.has_work:
        for delta in core.step().deltas:
            replies[delta.request_id] += delta.token_ids
    reference, comparison = Reference(path), Comparison()
    for number, prompt in enumerate(prompts):
        comparison.check(replies[str(number)], reference.greedy(prompt, 30), context=f"{family}, prompt {number}")
    assert comparison.ties <= 1


# ---- what it refuses


def bare(path: Path, dtype: torch.dtype = torch.float32) -> tuple[Any, Structure]:
    register()
    model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype, attn_implementation=ATTENTION_NAME).eval()
    return model, Structure.of(model, probe_calls(model, model.config, torch.device("cpu"), "model").layers)


@needs_compiler
@every_family
def test_a_row_that_is_read_wrongly_shows_in_the_sample(
    tmp_path: Path, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, structure = bare(make_model(tmp_path / "model", family))
    check_sample(model, structure)
    of = PackedLinear.of.__func__  # type: ignore[attr-defined]

    def wrong(cls: type[PackedLinear], linears: Any, *arguments: Any, **named: Any) -> PackedLinear:
        product: PackedLinear = of(cls, linears, *arguments, **named)
        product.weight[0, :, 3].zero_()
        return product

    monkeypatch.setattr(PackedLinear, "of", classmethod(wrong))
    with pytest.raises(UnsupportedModel, match="its layers together differ"):
        check_sample(model, structure)


def times(factor: float, layer: int | None = None) -> Callable[[Any, Any], Any]:
    """Multiplies what a forward returns, in one layer or in all."""

    def change(module: Any, output: Any) -> Any:
        if layer not in (None, getattr(module, "layer_idx", None)):
            return output
        return (output[0] * factor, *output[1:]) if isinstance(output, tuple) else output * factor

    return change


def logits(change: Callable[[Tensor], Tensor]) -> Callable[[Any, Any], Any]:
    def changed(_module: Any, output: Any) -> Any:
        output.logits = change(output.logits)
        return output

    return changed


ALTERED: list[tuple[str, Any, Callable[[Any, Any], Any], str]] = [
    ("gemma2", gemma2.Gemma2TextScaledWordEmbedding, times(1.01), "embedding|input_layernorm"),
    ("gemma2", gemma2.Gemma2Attention, times(1.01), "input of attention output norm of layer 0"),
    ("gemma2", gemma2.Gemma2Attention, times(1.01, 1), "input of attention output norm of layer 1"),
    ("gemma2", gemma2.Gemma2MLP, times(1.01), "input of mlp output norm of layer 0"),
    ("gemma2", gemma2.Gemma2ForCausalLM, logits(lambda rows: 29 * torch.tanh(rows / 29)), "logits"),
    ("gemma3", gemma3.Gemma3DecoderLayer, times(1.01, 0), "residual sum before input_layernorm of layer 1"),
    ("phi3", phi3.Phi3MLP, times(1.01), "residual sum before input_layernorm of layer 1"),
    ("olmo2", olmo2.Olmo2Attention, times(1.01), "input of attention output norm of layer 0"),
    ("granite", granite.GraniteMLP, times(1.01), "residual sum before input_layernorm of layer 1"),
    ("mixtral", mixtral.MixtralTopKRouter, lambda _, output: (output[0], 1.01 * output[1], output[2]), "choice of"),
    ("mixtral", mixtral.MixtralExperts, times(1.01), "computation of the experts of layer 0"),
    ("mixtral", mixtral.MixtralSparseMoeBlock, times(1.01), "residual sum before input_layernorm of layer 1"),
    ("granite", granite.GraniteForCausalLM, logits(lambda rows: 1.01 * rows), "logits"),
    ("glm4", glm4.Glm4RotaryEmbedding, lambda _, output: (output[0], -output[1]), "query of layer 0"),
    ("smollm3", smollm3.SmolLM3RotaryEmbedding, lambda _, output: (output[0], -output[1]), "query of layer 0"),
]


@pytest.mark.parametrize(("family", "owner", "change", "part"), ALTERED)
def test_an_altered_part_is_named(
    tmp_path: Path, family: str, owner: Any, change: Any, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, structure = bare(make_model(tmp_path / "model", family))
    positions = spread_positions(CONTEXT, model.config)
    check_parts(model, structure, positions)
    forward = owner.forward
    monkeypatch.setattr(owner, "forward", lambda self, *given, **named: change(self, forward(self, *given, **named)))
    with pytest.raises(UnsupportedModel, match=f"^({part}).*differs from what the C"):
        check_parts(model, structure, positions)


def settings_of(path: str, name: str, value: Any) -> Callable[[Any], None]:
    def change(model: Any) -> None:
        setattr(model.get_submodule(path), name, value)

    return change


CHANGED: list[tuple[str, Callable[[Any], None], str]] = [
    ("gemma2", settings_of("model.layers.1.self_attn", "attn_logit_softcapping", 6.0), "soft cap .* of layer 1"),
    ("gemma2", settings_of("model.layers.1.self_attn", "attn_logit_softcapping", None), "soft cap .* of layer 1"),
    ("gemma2", settings_of("model.layers.1.self_attn", "sliding_window", 15), "sliding window of layer 1"),
    ("gemma3", settings_of("model.layers.1.self_attn", "scaling", 0.3), "attention scale of layer 1"),
    ("gemma3", settings_of("model.layers.1.mlp", "act_fn", torch.nn.GELU()), "activation GELU of layer 1"),
    ("gemma3", lambda model: model.model.layers[1].self_attn.q_norm.weight.data.add_(1), ""),  # a weight, no formula
    ("gemma3", settings_of("model.layers.1.self_attn.q_norm", "eps", 1e-2), "query norm of layer 1"),
    ("gemma3", settings_of("model.layers.1.post_feedforward_layernorm", "eps", 1e-2), "mlp output norm of layer 1"),
    ("smollm3", settings_of("model.layers.0.self_attn", "use_rope", 0), "query of layer 0"),
    ("smollm3", settings_of("model.layers.1.self_attn", "use_rope", 1), "query of layer 1"),
    ("granite", settings_of("model.layers.1", "residual_multiplier", 0.51), "residual sum before mlp norm of layer 1"),
    ("granite", settings_of("model", "embedding_multiplier", 3.01), "embedding"),
    ("mixtral", settings_of("model.layers.1.mlp.gate", "top_k", 1), "choice of experts of layer 1"),
    ("mixtral", settings_of("model.layers.1.mlp.experts", "act_fn", torch.nn.GELU()), "computation .* of layer 1"),
    ("qwen3-moe", settings_of("model.layers.1.mlp.gate", "norm_topk_prob", True), "choice of experts of layer 1"),
    ("gpt-oss", settings_of("model.layers.1.mlp.experts", "alpha", 1.6), "computation of the experts of layer 1"),
    ("gpt-oss", settings_of("model.layers.1.mlp.experts", "limit", 6.0), "computation of the experts of layer 1"),
]


@pytest.mark.parametrize(("family", "change", "part"), CHANGED)
def test_a_constant_that_differs_in_one_layer_is_named(
    tmp_path: Path, family: str, change: Callable[[Any], None], part: str
) -> None:
    model, structure = bare(make_model(tmp_path / "model", family))
    change(model)
    positions = spread_positions(CONTEXT, model.config)
    if part:
        with pytest.raises(UnsupportedModel, match=f"^{part}.*differs from what the C"):
            check_parts(model, structure, positions)
    else:
        check_parts(model, structure, positions)


def test_constants_of_experts_are_measured(tmp_path: Path) -> None:
    _model, mixed = bare(make_model(tmp_path / "mixtral", "mixtral"))
    assert mixed.activation == Activation("silu")
    assert {layer.routing for layer in mixed.layers} == {Routing(4, 2, 128, is_normalized=True, scale=1.0)}
    _model, unnormalized = bare(make_model(tmp_path / "qwen3", "qwen3-moe"))
    assert unnormalized.layers[0].routing == Routing(4, 2, 32, is_normalized=False, scale=1.0)
    _model, clamped = bare(make_model(tmp_path / "gpt-oss", "gpt-oss"))
    assert clamped.activation == Activation("silu", alpha=1.702, limit=7.0, up_offset=1.0)


def test_constants_are_measured_layer_by_layer(tmp_path: Path) -> None:
    model, structure = bare(make_model(tmp_path / "model", "gemma2"))
    before = structure.layers[1]
    model.model.layers[1].self_attn.attn_logit_softcapping = 6.0
    model.model.layers[1].self_attn.scaling = 0.3
    again = Structure.of(model, structure.shapes)
    assert (before.softcap, again.layers[0].softcap, again.layers[1].softcap) == (5.0, 5.0, 6.0)
    assert again.layers[1].attention_scale == 0.3
    check_parts(model, again, spread_positions(CONTEXT, model.config))
    assert structure.logits_softcap == 30.0
    assert structure.embedding_scale == pytest.approx(8.0)


class PlainNorm(gemma3.Gemma3RMSNorm):
    def forward(self, rows: Tensor) -> Tensor:
        normed: Tensor = self._norm(rows.float()) * self.weight
        return normed.to(rows.dtype)


@needs_compiler
@pytest.mark.parametrize("kind", ["longrope", "dynamic"])
def test_a_rotary_embedding_that_depends_on_the_length_runs_where_it_is_fixed(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    fixed = 128
    rope = {"rope_type": kind, "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": fixed}
    if kind == "longrope":
        rope |= {"short_factor": [1.0, 1.1, 1.2, 1.3] * 2, "long_factor": [2.0] * 8}
    config = {"rope_parameters": rope, "max_position_embeddings": fixed if kind == "dynamic" else 4 * fixed}
    config |= {"original_max_position_embeddings": fixed}
    path = make_model(tmp_path / "model", "phi3" if kind == "longrope" else "llama", config=config, eos=False)
    with caplog.at_level(logging.INFO, logger="engine"):
        settings = EngineSettings(model=str(path), device="cpu", dtype="float32")
        assert load_model(settings, lambda _stage, _fraction: None).decoder is None
    assert f"its rotary embedding depends on the sequence length (not with max_model_len={fixed})" in caplog.text
    settings = EngineSettings(max_model_len=fixed, max_num_seqs=4, num_kv_blocks=60, kv_block_size=4)
    core = EngineCore(load(path, dtype="float32", max_model_len=fixed), settings)
    prompt = random.Random(0).choices(range(3, 390), k=90)
    params = SamplingParams(temperature=0, ignore_eos=True, max_tokens=fixed - len(prompt))
    core.add(core.request_processor.process("0", prompt, core.request_processor.resolve(prompt, params)))
    reply: list[int] = []
    while core.has_work:
        for delta in core.step().deltas:
            reply += delta.token_ids
    comparison = Comparison()
    comparison.check(reply, Reference(path).greedy(prompt, fixed - len(prompt)), context=kind)
    assert comparison.tokens > 30


@needs_compiler
def test_the_sample_takes_layers_from_anywhere(tmp_path: Path) -> None:
    kinds = {"layer_types": [*["sliding_attention"] * 3, "full_attention"] * 2}
    load(make_model(tmp_path / "model", "gemma3", layers=8, config=kinds), dtype="float32")


@needs_compiler
def test_a_norm_that_adds_one_in_all_layers_but_one(tmp_path: Path) -> None:
    """Each norm's weight in C++ is what that norm multiplies by, whatever is stored."""
    model, structure = bare(make_model(tmp_path / "model", "gemma3"))
    model.model.layers[1].post_feedforward_layernorm.__class__ = PlainNorm
    check_parts(model, structure, spread_positions(CONTEXT, model.config))
    check_sample(model, structure)
