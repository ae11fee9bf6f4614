"""Checks that the C++ decoder computes what the model computes, by comparing their logits on the same tokens.

By then, :mod:`engine.execution.native.parts` has shown that each part computes as expected. Here they are checked
together: a sample of the layers in float32, where no weight is rounded and any difference is a fault, and then the
whole model in the number format that it is served in.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from engine.errors import first_line
from engine.execution.attention.base import GroupStep, LayerCache, PagedMetadata, Sequences
from engine.execution.attention.cpu import CpuKernel
from engine.execution.batch import Batch
from engine.execution.native.decoder import Decoder
from engine.execution.native.modules import UnsupportedModel
from engine.execution.native.structure import Structure
from engine.execution.native.weights import DecoderWeights
from engine.model.attention_hook import LayerProbe
from engine.model.forwards import FAILURES

if TYPE_CHECKING:
    from engine.model.load import LoadedModel

log = logging.getLogger(__name__)

MAX_TOKENS = 8
"""Tokens that the whole model reads, at most."""
_BLOCK_SIZE = 16
_MAX_ERROR = {"float32": 1e-4, "bfloat16": 0.1, "int8": 0.1, "int4": 0.1}
"""Most that all logits may differ, relative to their norm. Rounding makes up to a tenth of that on models with random
weights, the worst case; a real difference in the computation makes more than this."""
_SAMPLE_VOCAB = 512
_SAMPLE_CHUNK_ENDS = (75, 76, 77, 80)
"""Ends of the chunks in which the sample reads its text: a prompt, two decodes, and a chunk like a draft."""
_MAX_SAMPLE_ERROR = 1e-4
"""Most that a row of the sample's logits may differ, relative; rounding in float32 makes a hundredth of that."""


@torch.inference_mode()
def check_sample(model: Any, structure: Structure) -> None:
    """Compares decoder and model on one layer of each kind, with the first tokens of the vocabulary.

    Raises:
        UnsupportedModel: their logits differ.
    """
    try:
        error = _sample_error(model, structure)
    except FAILURES as failure:
        raise UnsupportedModel(f"a copy of its layers cannot be run ({first_line(failure)})") from failure
    if not error <= _MAX_SAMPLE_ERROR:  # true for NaN, too
        raise UnsupportedModel(
            f"its layers together differ from what the C++ decoder computes (logits differ by {error:.1e})"
        )


@torch.inference_mode()
def logits_match(weights: DecoderWeights, model: LoadedModel) -> bool:
    """Whether the decoder's logits match the model's, in the number format that it is served in. Logs the result."""
    windows = [shape.sliding_window for shape in weights.structure.shapes if shape.sliding_window is not None]
    num_tokens = min([MAX_TOKENS, model.max_position_embeddings, *windows])  # the probe's attention has no window
    caches = [LayerCache.zeros(shape, 1, _BLOCK_SIZE, model.dtype, model.device) for shape in weights.structure.shapes]
    batch = _batch(0, num_tokens, model.vocab_size)
    ours = Decoder(weights, caches, [0] * len(caches)).logits(batch)
    theirs = model.logits(batch.input_ids, batch.position_ids, batch.logits_rows, LayerProbe()).float()
    error = float((ours - theirs).norm() / theirs.norm())
    if error <= _MAX_ERROR[weights.number_format]:  # false for NaN
        log.info("%s runs in C++ (logits differ by %.1e)", model.name, error)
        return True
    log.info("every step of %s runs through transformers: its logits differ from C++ by %.1e", model.name, error)
    return False


def _sample_error(model: Any, structure: Structure) -> float:
    """Returns the relative error of the worst row of logits."""
    kinds = list(zip([shape.sliding_window for shape in structure.shapes], structure.layers, strict=True))
    chosen = sorted(kinds.index(kind) for kind in set(kinds))
    sample = _sample(model, chosen)
    weights = DecoderWeights(sample, Structure.of(sample, [structure.shapes[index] for index in chosen]), "float32")
    ours, theirs = _caches(weights.structure), _caches(weights.structure)
    decoder = Decoder(weights, ours, [0] * len(ours))
    errors = []
    for start, stop in pairwise((0, *_SAMPLE_CHUNK_ENDS)):
        batch = _batch(start, stop, weights.structure.vocab_size)
        found = decoder.logits(batch)
        expected = _logits(sample, batch, dict(zip(chosen, theirs, strict=True)), len(structure.shapes))
        errors.append((found - expected).norm(dim=1) / expected.norm(dim=1))
    return float(torch.cat(errors).max())


def _sample(model: Any, chosen: Sequence[int]) -> Any:
    """Returns a float32 copy of a model with the chosen layers and the first tokens of its vocabulary."""
    vocab_size = min(_SAMPLE_VOCAB, model.model.embed_tokens.num_embeddings)
    layers = model.model.layers
    shared: dict[int, Any] = {id(layer): nn.Identity() for layer in layers}  # only the chosen layers are copied
    for index in chosen:
        del shared[id(layers[index])]
    for parameter in model.parameters():
        shared[id(parameter)] = nn.Parameter(parameter.detach(), requires_grad=False)
    sample = copy.deepcopy(model, shared)
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


def _caches(structure: Structure) -> list[LayerCache]:
    num_blocks = -(-_SAMPLE_CHUNK_ENDS[-1] // _BLOCK_SIZE)
    return [
        LayerCache.zeros(shape, num_blocks, _BLOCK_SIZE, torch.float32, torch.device("cpu"))
        for shape in structure.shapes
    ]


def _batch(start: int, stop: int, vocab_size: int) -> Batch:
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
