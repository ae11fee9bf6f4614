"""Rotary embeddings that depend on how long a sequence is, made right for many sequences in one step.

With the kinds ``dynamic`` and ``longrope`` transformers chooses the frequencies by the longest position of the whole
forward pass. In a packed step that would be somebody else's: here each token is turned as in a pass of its own
request, whose prompt is read at once and whose reply grows by one token at a time, whatever chunks it came in.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from engine.errors import ModelLoadError

LENGTH_DEPENDENT = ("dynamic", "longrope")


class LengthDependentRotary(nn.Module):
    """Stands in the place of a model's rotary embedding.

    Args:
        rotary: the model's own, of one of the kinds in :data:`LENGTH_DEPENDENT`.
    """

    def __init__(self, rotary: Any) -> None:
        super().__init__()
        self.rotary = rotary
        self.kind: str = rotary.rope_type
        #: sequences up to this length are all turned alike
        self.limit: int = (
            rotary.original_max_seq_len
            if self.kind == "dynamic"
            else rotary.config.rope_parameters["original_max_position_embeddings"]
        )
        self.lengths: Tensor | None = None  #: int64 ``[num_tokens]`` of the coming step: each token's own pass

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines ``[1, num_tokens, rotary_dim]`` for positions ``[1, num_tokens]``."""
        if self.lengths is None:
            raise RuntimeError("the lengths of the step's sequences were not told")
        # Beyond the limit `dynamic` has frequencies for every length, `longrope` one more set for all.
        most = None if self.kind == "dynamic" else self.limit + 1
        kinds = self.lengths.clamp(self.limit, most)
        parts: list[tuple[Tensor, Tensor, Tensor]] = []
        for length in sorted(set(kinds.tolist())):
            rows = (kinds == length).nonzero().squeeze(1)
            self._reset()
            # The length is told by one more position, which is cut off again.
            told = torch.full((1, 1), length - 1, dtype=position_ids.dtype, device=position_ids.device)
            cos, sin = self.rotary(x, torch.cat([position_ids[:, rows], told], dim=1))
            parts.append((rows, cos[:, :-1], sin[:, :-1]))
        if len(parts) == 1:
            return parts[0][1:]
        order = torch.cat([rows for rows, _, _ in parts]).argsort()
        return (
            torch.cat([cos for _, cos, _ in parts], dim=1)[:, order],
            torch.cat([sin for _, _, sin in parts], dim=1)[:, order],
        )

    def _reset(self) -> None:
        """Forget the longest sequence seen: what `dynamic` does next must not depend on what came before."""
        if self.kind == "dynamic":
            self.rotary.inv_freq = self.rotary.original_inv_freq
            self.rotary.max_seq_len_cached = self.rotary.original_max_seq_len

    def cache_salt(self, num_prompt_tokens: int) -> bytes:
        """Prompts with equal salt turn their tokens alike, and may share keys."""
        if num_prompt_tokens <= self.limit:
            return b""
        return b"long" if self.kind == "longrope" else b"%d" % num_prompt_tokens


def replace_length_dependent(module: nn.Module, name: str) -> LengthDependentRotary | None:
    """Put a :class:`LengthDependentRotary` in the place of a model's rotary embedding, where it needs one.

    Raises:
        ModelLoadError: there are several, or its layers differ in kind: nobody makes such models yet.
    """
    found = [
        (path, part) for path, part in module.named_modules() if any(kind in _kinds(part) for kind in LENGTH_DEPENDENT)
    ]
    if not found:
        return None
    if len(found) > 1 or not isinstance(found[0][1].rope_type, str):
        raise ModelLoadError(
            f"{name} cannot run here: its layers use several rotary embeddings that depend on the sequence's length."
        )
    path, rotary = found[0]
    parent, _, attribute = path.rpartition(".")
    stand_in = LengthDependentRotary(rotary)
    setattr(module.get_submodule(parent), attribute, stand_in)
    return stand_in


def _kinds(module: nn.Module) -> tuple[str, ...]:
    kind = getattr(module, "rope_type", ())
    return (kind,) if isinstance(kind, str) else tuple(kind.values()) if isinstance(kind, dict) else ()
