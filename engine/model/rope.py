"""Makes rotary embeddings that depend on the sequence length correct for packed steps of many sequences.

With the kinds ``dynamic`` and ``longrope``, transformers chooses the frequencies by the largest position in the whole
forward pass. In a packed step that may be another request's. Here each token is rotated as in a forward pass of its own
request, which computes the prompt at once and the reply one token at a time, however the step chunks it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from engine.errors import ModelLoadError

LENGTH_DEPENDENT = ("dynamic", "longrope")


def fixed_length(rotary: Any) -> int:
    """Returns how long sequences may be that all use the same frequencies of a length-dependent embedding."""
    if rotary.rope_type == "dynamic":
        return int(rotary.original_max_seq_len)
    return int(rotary.config.rope_parameters["original_max_position_embeddings"])


class LengthDependentRotary(nn.Module):
    """Replaces a model's rotary embedding.

    Args:
        rotary: the model's own embedding, of one of the kinds in :data:`LENGTH_DEPENDENT`.
    """

    def __init__(self, rotary: Any) -> None:
        super().__init__()
        self.rotary = rotary
        self.kind: str = rotary.rope_type
        self.limit = fixed_length(rotary)
        self.lengths: Tensor | None = None  #: int64 ``[num_tokens]``, set before each step: each token's pass length

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Returns cosines and sines, ``[1, num_tokens, rotary_dim]``, for positions ``[1, num_tokens]``.

        Raises:
            RuntimeError: :attr:`lengths` is not set.
        """
        if self.lengths is None:
            raise RuntimeError("the lengths of the step's sequences were not set")
        # Beyond the limit, `dynamic` has frequencies for every length, `longrope` one more set for all lengths.
        most = None if self.kind == "dynamic" else self.limit + 1
        kinds = self.lengths.clamp(self.limit, most)
        parts: list[tuple[Tensor, Tensor, Tensor]] = []
        for length in sorted(set(kinds.tolist())):
            rows = (kinds == length).nonzero().squeeze(1)
            self._reset()
            # One more position passes the length on to the embedding; its result is cut off again.
            last_position = torch.full((1, 1), length - 1, dtype=position_ids.dtype, device=position_ids.device)
            cos, sin = self.rotary(x, torch.cat([position_ids[:, rows], last_position], dim=1))
            parts.append((rows, cos[:, :-1], sin[:, :-1]))
        if len(parts) == 1:
            return parts[0][1:]
        order = torch.cat([rows for rows, _, _ in parts]).argsort()
        return (
            torch.cat([cos for _, cos, _ in parts], dim=1)[:, order],
            torch.cat([sin for _, _, sin in parts], dim=1)[:, order],
        )

    def _reset(self) -> None:
        """Resets the longest sequence seen: the result of `dynamic` must not depend on earlier calls."""
        if self.kind == "dynamic":
            self.rotary.inv_freq = self.rotary.original_inv_freq
            self.rotary.max_seq_len_cached = self.rotary.original_max_seq_len

    def cache_salt(self, num_prompt_tokens: int) -> bytes:
        """Returns a salt for the prefix cache. Prompts with equal salt use the same frequencies and may share keys."""
        if num_prompt_tokens <= self.limit:
            return b""
        return b"long" if self.kind == "longrope" else b"%d" % num_prompt_tokens


def replace_length_dependent(module: nn.Module, name: str) -> LengthDependentRotary | None:
    """Replaces a model's rotary embedding with a :class:`LengthDependentRotary` if it depends on the length.

    Returns:
        The replacement; None if the model needs none.

    Raises:
        ModelLoadError: there are several such embeddings, or layers of different kinds: no such model is known yet.
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
