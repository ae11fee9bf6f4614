"""Makes one vector of the vectors of a text's tokens."""

from __future__ import annotations

import torch

from engine.encoder.recipe import Pooling


def pool(hidden: torch.Tensor, mask: torch.Tensor, pooling: Pooling) -> torch.Tensor:
    """Returns the vector of each text, shape (texts, dimensions), as sentence-transformers makes it.

    Args:
        hidden: last hidden states, shape (texts, tokens, dimensions), padded on the right.
        mask: 1 for the tokens that count, shape (texts, tokens).
    """
    if pooling is Pooling.CLS:
        return hidden[:, 0]
    if pooling is Pooling.LAST_TOKEN:
        last = mask.shape[1] - 1 - mask.flip(1).argmax(1)
        return hidden[torch.arange(len(hidden)), last]
    weights = mask[:, :, None].to(hidden.dtype)
    if pooling is Pooling.MAX:
        return hidden.masked_fill(weights == 0, -torch.inf).amax(1)
    return (hidden * weights).sum(1) / weights.sum(1).clamp(min=1e-9)
