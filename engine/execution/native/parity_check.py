"""Checks that the C++ decoder computes what the model computes, by comparing their logits on the same tokens.

By then, :mod:`engine.execution.native.parts` has shown that each part computes as expected. Here they are checked
together:

- :func:`check_sample` compares a sample: one layer of each kind, with the first tokens of the vocabulary, as
  a long prompt, single tokens and a draft. In float32 no weight is rounded, and any difference is a fault; then in the
  number format that the model is served in, against its weights as that format rounds them.
- :func:`pack_and_check` compares the whole model in that format on a few tokens, so a weight of any layer that was
  read or packed wrongly shows. The model reads the tokens while its weights are packed: each product is computed with
  the weights at hand, as the format rounds them, so neither the model nor the check holds them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.errors import first_line
from engine.execution.attention.base import GroupStep, LayerCache, PagedMetadata, Sequences
from engine.execution.attention.cpu import CpuKernel
from engine.execution.attention.int8_cache import Int8LayerCache
from engine.execution.batch import Batch
from engine.execution.native.decoder import Decoder
from engine.execution.native.experts import gated, routed
from engine.execution.native.modules import UnsupportedModel
from engine.execution.native.structure import Structure
from engine.execution.native.weights import CACHE_DTYPES, DecoderWeights, ExpertGroup, LinearGroup
from engine.model.attention_hook import LayerProbe
from engine.model.forwards import FAILURES, replaced_forwards
from engine.model.gguf.dequantize import dequantize
from engine.model.named_tensors import ModuleTensors
from engine.model.tensors import BlockTensor, TensorSource

MAX_TOKENS = 8
"""Tokens that the whole model reads, at most."""
_BLOCK_SIZE = 16
_MAX_ERROR = {"float32": 1e-4, "bfloat16": 0.2, "int8": 0.2, "int4": 0.2, "blocks": 0.2}
"""Most that all logits may differ, relative to their norm. Rounding makes 0.01 on models with random weights and up to
0.1 on trained ones (SmolLM2-135M in bfloat16); a weight that was read or packed wrongly makes more than this."""
_MAX_INT8_CACHE_ERROR = 0.05
"""The same in float32 with an int8 cache on both sides. Another order of rounding makes 0.001: it moves some numbers of
the cache by one."""
_SAMPLE_VOCAB = 512
_SAMPLE_EXPERTS = 8
_SAMPLE_CHUNK_ENDS = (75, 76, 77, 80)
"""Ends of the chunks in which the sample reads its text: a prompt, two decodes, and a chunk like a draft."""
_MAX_SAMPLE_ERROR = 1e-4
"""Most that a row of the sample's logits may differ, relative; rounding in float32 makes a hundredth of that."""


@torch.inference_mode()
def check_sample(
    model: Any,
    structure: Structure,
    tensors: TensorSource | None = None,
    served: str = "float32",
    kv_cache_dtype: str = "auto",
) -> None:
    """Compares decoder and model on one layer of each kind, with the first tokens of the vocabulary.

    Args:
        model: a causal language model; its linear layers may lack their weights.
        tensors: of the model; by default its own.
        served: number format that the sample is compared in after float32.
        kv_cache_dtype: ``int8`` if the sample is then compared with such a cache.

    Raises:
        UnsupportedModel: their logits differ.
    """
    try:
        sample = _Sample(model, structure, ModuleTensors(model) if tensors is None else tensors)
        error = sample.worst_row_error()
        is_compared_as_served = served != "float32" or kv_cache_dtype == "int8"
        served_error = sample.error(served, kv_cache_dtype) if is_compared_as_served else 0.0
    except FAILURES as failure:
        raise UnsupportedModel(f"a copy of its layers cannot be run ({first_line(failure)})") from failure
    if not error <= _MAX_SAMPLE_ERROR:  # true for NaN, too
        raise UnsupportedModel(
            f"its layers together differ from what the C++ decoder computes (logits differ by {error:.1e})"
        )
    max_error = max(_MAX_ERROR[served], _MAX_INT8_CACHE_ERROR if kv_cache_dtype == "int8" else 0.0)
    if not served_error <= max_error:
        cache = " with an int8 cache" if kv_cache_dtype == "int8" else ""
        raise UnsupportedModel(
            f"its layers together differ from what the C++ decoder computes in {served}{cache} (logits differ by "
            f"{served_error:.1e})"
        )


@torch.inference_mode()
def pack_and_check(
    model: Any, weights: DecoderWeights, context_window: int, progress: Callable[[float], None]
) -> float:
    """Packs the weights while the model reads a few tokens with them, and compares its logits with the decoder's.

    Args:
        model: as transformers made it; its linear layers may lack their weights, and keep the ones they have.
        weights: nothing is packed yet.
        progress: gets the share of the weights that is packed.

    Returns:
        The difference of the logits, relative to their norm.

    Raises:
        UnsupportedModel: the difference is too large.
    """
    structure = weights.structure
    windows = [shape.sliding_window for shape in structure.shapes if shape.sliding_window is not None]
    num_tokens = min([MAX_TOKENS, context_window, *windows])  # the probe's attention has no window
    batch = text_batch(0, num_tokens, structure.vocab_size)
    packing = _PackingPass(model, weights, progress)
    try:
        with replaced_forwards(packing.forwards()):
            theirs = model(
                input_ids=batch.input_ids,
                position_ids=batch.position_ids,
                use_cache=False,
                logits_to_keep=batch.logits_rows,
                paged=LayerProbe(),
            ).logits[0]
    except FAILURES as failure:
        raise UnsupportedModel(f"it cannot be run layer by layer ({first_line(failure)})") from failure
    caches = [LayerCache.zeros(shape, 1, _BLOCK_SIZE, weights.dtype, torch.device("cpu")) for shape in structure.shapes]
    decoder = Decoder(weights, caches, [0] * len(caches))
    ends = sorted({0, num_tokens // 2, num_tokens - 1, num_tokens})  # a prompt, more of it, and a decode
    ours = torch.cat([decoder.logits(text_batch(*chunk, structure.vocab_size)) for chunk in pairwise(ends)])
    error = logits_error(ours, theirs.float(), structure)
    if not error <= _MAX_ERROR[weights.number_format]:  # true for NaN, too
        raise UnsupportedModel(f"its logits differ from C++ by {error:.1e}")
    return error


def logits_error(found: Tensor, expected: Tensor, structure: Structure) -> float:
    """Returns how much logits ``[num_tokens, vocab_size]`` differ, relative to their norm.

    With experts it is the median of the rows: where two experts are about equally probable, rounding decides which one
    a router chooses, and that row differs as a whole.
    """
    if any(layer.routing is not None for layer in structure.layers):
        return float(((found - expected).norm(dim=1) / expected.norm(dim=1)).median())
    return float((found - expected).norm() / expected.norm())


class _PackingPass:
    """One forward pass of a model, in which the first use of a linear layer packs its group."""

    def __init__(self, model: Any, weights: DecoderWeights, progress: Callable[[float], None]) -> None:
        self._model = model
        self._weights = weights
        self._progress = progress
        self._num_packed = 0
        self._outputs: dict[str, Tensor] = {}  #: of layers whose group is packed and that are still to be called

    def forwards(self) -> Iterator[tuple[nn.Module, Callable[..., Tensor]]]:
        """Yields each linear layer, and all experts of a layer, with the function that replaces its ``forward``."""
        gate_up: ExpertGroup | None = None
        for group in self._weights.groups:
            if isinstance(group, LinearGroup):
                for name in group.names:
                    yield self._model.get_submodule(name), partial(self._forward, group, name)
            elif group.interleaved:
                gate_up = group
            elif gate_up is not None:
                yield self._experts(group), partial(self._mix, gate_up, group)

    def _forward(self, group: LinearGroup, name: str, rows: Tensor) -> Tensor:
        if name not in self._outputs:
            self._pack(group, rows)
        return self._outputs.pop(name)

    def _pack(self, group: LinearGroup, rows: Tensor) -> None:
        linears = [self._model.get_submodule(name) for name in group.names]
        outputs = [rows.new_empty(*rows.shape[:-1], linear.out_features) for linear in linears]

        def multiply(part: int, start: int, weight: Tensor) -> None:
            product = F.linear(rows, weight.to(rows.dtype))
            outputs[part][..., start : start + len(weight)] = product

        self._weights.pack(group, multiply)
        for name, linear, output in zip(group.names, linears, outputs, strict=True):
            self._outputs[name] = output if linear.bias is None else output.add_(linear.bias)
        self._count()

    def _mix(self, gate_up: ExpertGroup, down: ExpertGroup, rows: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """Computes all experts for all rows, and mixes those that were chosen."""
        experts, layout = self._experts(gate_up), gate_up.layout
        num_experts, hidden = len(experts.down_proj), rows.shape[1]
        inner = layout.matrix(experts.down_proj[0]).shape[1]
        both = rows.new_empty(num_experts, 2, len(rows), inner)
        outputs = rows.new_empty(num_experts, len(rows), hidden)

        def multiply(part: int, start: int, weight: Tensor) -> None:
            both[part // 2, part % 2, :, start : start + len(weight)] = F.linear(rows, weight.to(rows.dtype))

        def multiply_gated(expert: int, start: int, weight: Tensor) -> None:
            outputs[expert, :, start : start + len(weight)] = F.linear(activated[expert], weight.to(rows.dtype))

        self._weights.pack(gate_up, multiply)
        if hasattr(experts, "gate_up_proj_bias"):
            for expert, bias in enumerate(experts.gate_up_proj_bias):
                both[expert] += torch.stack(layout.split(bias)).unsqueeze(1)
        activated = gated(experts)(both[:, 0], both[:, 1])
        self._weights.pack(down, multiply_gated)
        if hasattr(experts, "down_proj_bias"):
            outputs += experts.down_proj_bias.unsqueeze(1)
        self._count(2)
        mixed = torch.einsum("re,erh->rh", routed((rows, weights, chosen), num_experts).to(rows.dtype), outputs)
        return mixed.view_as(rows)

    def _experts(self, group: ExpertGroup) -> Any:
        return self._model.get_submodule(group.parameter.rpartition(".")[0])

    def _count(self, groups: int = 1) -> None:
        self._num_packed += groups
        self._progress(self._num_packed / len(self._weights.groups))


class _Sample:
    """A float32 copy of a model with some of its layers and the first tokens of its vocabulary."""

    def __init__(self, model: Any, structure: Structure, tensors: TensorSource) -> None:
        kinds = list(zip([shape.sliding_window for shape in structure.shapes], structure.layers, strict=True))
        self._chosen = sorted(kinds.index(kind) for kind in set(kinds))
        self._num_layers = len(kinds)
        self._model = _cut(model, structure, self._chosen, tensors)
        self._structure = Structure.of(self._model, [structure.shapes[index] for index in self._chosen])

    def worst_row_error(self) -> float:
        """Returns the relative error of the worst row of logits, in float32."""
        found, expected = self._logits(self._weights("float32"), "auto")
        return float(((found - expected).norm(dim=1) / expected.norm(dim=1)).max())

    def error(self, number_format: str, kv_cache_dtype: str = "auto") -> float:
        """Rounds the sample's weights as a number format does; returns the relative error of its logits in it."""
        found, expected = self._logits(self._weights(number_format), kv_cache_dtype)
        return logits_error(found, expected, self._structure)

    def _weights(self, number_format: str) -> DecoderWeights:
        weights = DecoderWeights(
            ModuleTensors(self._model), self._structure, number_format, CACHE_DTYPES[number_format]
        )
        for group in weights.groups:
            if isinstance(group, ExpertGroup):
                self._round_experts(weights, group)
                continue
            linears = [self._model.get_submodule(name) for name in group.names]
            rounded = [torch.empty(linear.weight.shape) for linear in linears]
            weights.pack(group, partial(_store, rounded))
            for linear, weight in zip(linears, rounded, strict=True):
                linear.weight = nn.Parameter(weight, requires_grad=False)
        return weights

    def _round_experts(self, weights: DecoderWeights, group: ExpertGroup) -> None:
        part, _, name = group.parameter.rpartition(".")
        experts = self._model.get_submodule(part)
        rounded = getattr(experts, name).detach().clone()
        matrices = [group.layout.matrix(weight) for weight in rounded]
        views = [part for matrix in matrices for part in group.layout.split(matrix)] if group.interleaved else matrices
        weights.pack(group, partial(_store, views))
        setattr(experts, name, nn.Parameter(rounded, requires_grad=False))

    def _logits(self, weights: DecoderWeights, kv_cache_dtype: str) -> tuple[Tensor, Tensor]:
        """Returns the logits of the decoder and of the model."""
        ours, theirs = (_caches(self._structure, dtype, kv_cache_dtype) for dtype in (weights.dtype, torch.float32))
        decoder = Decoder(weights, ours, [0] * len(ours))
        found, expected = [], []
        for start, stop in pairwise((0, *_SAMPLE_CHUNK_ENDS)):
            batch = text_batch(start, stop, self._structure.vocab_size)
            found.append(decoder.logits(batch))
            caches = dict(zip(self._chosen, theirs, strict=True))
            expected.append(_logits(self._model, batch, caches, self._num_layers))
        return torch.cat(found), torch.cat(expected)


def _store(weights: Sequence[Tensor], part: int, start: int, rows: Tensor) -> None:
    weights[part][start : start + len(rows)] = rows


def _cut(model: Any, structure: Structure, chosen: Sequence[int], tensors: TensorSource) -> Any:
    """Returns a float32 copy of a model with the chosen layers, the first tokens of its vocabulary and some experts."""
    vocab_size = min(_SAMPLE_VOCAB, model.model.embed_tokens.num_embeddings)
    layers = model.model.layers
    shared: dict[int, Any] = {id(layer): nn.Identity() for layer in layers}  # only the chosen layers are copied
    for index in chosen:
        del shared[id(layers[index])]
    for parameter in model.parameters():
        shared[id(parameter)] = nn.Parameter(parameter.detach(), requires_grad=False)
    sample = copy.deepcopy(model, shared)
    dtype = model.model.embed_tokens.weight.dtype
    num_experts = dict(_sampled_experts(structure, chosen))
    for name, parameter in list(sample.named_parameters(remove_duplicate=False)):
        part, _, own = name.rpartition(".")
        if not parameter.is_meta and part not in num_experts:
            continue
        weight = tensors.read(name) if parameter.is_meta else parameter.detach()
        if part == "lm_head":
            weight = (
                replace(weight, blocks=weight.blocks[:vocab_size])
                if isinstance(weight, BlockTensor)
                else weight[:vocab_size]
            )
        numbers = dequantize(weight) if isinstance(weight, BlockTensor) else weight
        numbers = numbers[: num_experts.get(part)]
        setattr(sample.get_submodule(part), own, nn.Parameter(numbers.to(dtype).float(), requires_grad=False))
        tensors.release(weight.blocks if isinstance(weight, BlockTensor) else weight)
    for name, count in num_experts.items():
        sample.get_submodule(name).num_experts = count
    sample.model.layers = nn.ModuleList([sample.model.layers[index] for index in chosen])
    sample.config.num_hidden_layers = len(chosen)
    if getattr(sample.config, "layer_types", None):
        sample.config.layer_types = [sample.config.layer_types[index] for index in chosen]
    for module in (sample.model.embed_tokens, sample.lm_head):
        module.weight = nn.Parameter(module.weight[:vocab_size], requires_grad=False)
    if sample.lm_head.bias is not None:
        sample.lm_head.bias = nn.Parameter(sample.lm_head.bias[:vocab_size], requires_grad=False)
    sample.model.embed_tokens.num_embeddings = sample.lm_head.out_features = vocab_size
    return sample.float()


def _sampled_experts(structure: Structure, chosen: Sequence[int]) -> Iterator[tuple[str, int]]:
    """Yields the names of routers and of modules with experts, and how many experts the sample has there."""
    for index in chosen:
        names, routing = structure.names.layers[index], structure.layers[index].routing
        if routing is not None and names.router is not None and names.experts is not None:
            count = min(routing.num_experts, max(_SAMPLE_EXPERTS, 2 * routing.per_token))
            yield from ((names.router, count), (names.experts.name, count))


def _caches(structure: Structure, dtype: torch.dtype, kv_cache_dtype: str) -> list[LayerCache]:
    num_blocks, device = -(-_SAMPLE_CHUNK_ENDS[-1] // _BLOCK_SIZE), torch.device("cpu")
    if kv_cache_dtype == "int8":
        return [Int8LayerCache.allocate(shape, num_blocks, _BLOCK_SIZE, device) for shape in structure.shapes]
    return [LayerCache.zeros(shape, num_blocks, _BLOCK_SIZE, dtype, device) for shape in structure.shapes]


def text_batch(start: int, stop: int, vocab_size: int) -> Batch:
    """Returns a batch with the tokens ``start`` to ``stop`` of a text that is alone in its cache."""
    positions = torch.arange(start, stop)
    blocks = tuple(range(-(-stop // _BLOCK_SIZE)))
    return Batch(
        input_ids=(positions * 7919 % vocab_size).unsqueeze(0),
        position_ids=positions.unsqueeze(0),
        slots=(positions,),
        logits_rows=positions - start,
        sequences=(Sequences((stop - start,), (stop,), (blocks,), _BLOCK_SIZE),),
        lengths=None,
    )


def _logits(sample: Any, batch: Batch, caches: dict[int, LayerCache], num_layers: int) -> Tensor:
    """Computes logits through transformers, on the engine's cache; layers keep their numbers from the whole model."""
    kernel = CpuKernel()
    some = next(iter(caches.values()))
    paged = PagedMetadata(
        kernel=kernel,
        layers=[caches.get(index, some) for index in range(num_layers)],
        group_of_layer=[0] * num_layers,
        groups=(GroupStep(batch.slots[0], kernel.prepare(batch.sequences[0], torch.device("cpu"))),),
    )
    output = sample(
        input_ids=batch.input_ids,
        position_ids=batch.position_ids,
        use_cache=False,
        logits_to_keep=batch.logits_rows,
        paged=paged,
    )
    logits: Tensor = output.logits[0]
    return logits
