"""Whether the decoder in C++ computes what a model computes: both read a few tokens, and their logits are compared.

A model may consist of the known parts and yet put them together otherwise, with a factor somewhere or a layer that
does not turn positions. Then nobody names it; its logits tell.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import torch

from engine.attention.base import LayerCache, Sequences
from engine.attention.seam import LayerProbe
from engine.batch import Batch
from engine.native.decoder import Decoder
from engine.native.weights import DecoderWeights

if TYPE_CHECKING:
    from engine.model.loading import LoadedModel

log = logging.getLogger(__name__)

MOST_TOKENS = 8
_BLOCK_SIZE = 16
_LARGEST_ERROR = {"float32": 1e-3, "bfloat16": 0.1, "int8": 0.1, "int4": 0.1}
"""Of all logits, as a share of their size. Rounding makes up to a tenth of that on models with random weights, which
are the worst; whatever is put together otherwise makes more than this."""


@torch.inference_mode()
def agrees(weights: DecoderWeights, model: LoadedModel) -> bool:
    """Whether the decoder's logits are the model's."""
    windows = [shape.sliding_window for shape in weights.shapes if shape.sliding_window is not None]
    num_tokens = min([MOST_TOKENS, model.max_position_embeddings, *windows])  # the probe's attention has no window
    caches = [LayerCache.zeros(shape, 1, _BLOCK_SIZE, model.dtype, model.device) for shape in weights.shapes]
    positions = torch.arange(num_tokens)
    batch = Batch(
        input_ids=(positions * 7919 % model.vocab_size).unsqueeze(0),
        position_ids=positions.unsqueeze(0),
        slots=(positions,),
        logits_rows=positions,
        sequences=(Sequences((num_tokens,), (num_tokens,), ((0,),), _BLOCK_SIZE),),
        lengths=None,
    )
    ours = Decoder(weights, caches, [0] * len(caches)).logits(batch)
    theirs = model.logits(batch.input_ids, batch.position_ids, batch.logits_rows, LayerProbe()).float()
    error = float((ours - theirs).norm() / theirs.norm())
    if error <= _LARGEST_ERROR[weights.number_format]:  # not so for NaN
        log.info("%s runs in C++ (logits differ by %.1e)", model.name, error)
        return True
    log.info("every step of %s runs through transformers: it computes otherwise (by %.1e)", model.name, error)
    return False
