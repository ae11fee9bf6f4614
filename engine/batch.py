"""A step's plan turned into tensors: all chunks packed behind one another into one row."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.attention.base import Sequences
from engine.scheduler import StepPlan


@dataclass(frozen=True, slots=True)
class Batch:
    """Inputs of one forward pass over ``num_tokens`` packed tokens."""

    input_ids: Tensor  #: int64 ``[1, num_tokens]``
    position_ids: Tensor  #: int64 ``[1, num_tokens]``
    slots: Tensor  #: int64 ``[num_tokens]``: ``block * block_size + offset`` of each token in the cache
    logits_rows: Tensor  #: int64 ``[n]``: the packed rows whose logits are needed: sampled ones, then scored ones
    sequences: Sequences

    @classmethod
    def of(cls, plan: StepPlan, block_size: int, device: torch.device) -> Batch:
        """Pack a plan. Plain lists first, then one tensor each: per-token tensor calls would cost more."""
        input_ids: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        sampled_rows: list[int] = []
        scored_rows: list[int] = []
        for chunk in plan.chunks:
            scored_rows += range(
                len(input_ids) + chunk.scored.start - chunk.start, len(input_ids) + chunk.scored.stop - chunk.start
            )
            input_ids += chunk.token_ids
            for position in range(chunk.start, chunk.end):
                positions.append(position)
                slots.append(chunk.block_table[position // block_size] * block_size + position % block_size)
            if chunk.samples:
                sampled_rows.append(len(input_ids) - 1)

        def tensor(values: list[int]) -> Tensor:
            return torch.tensor(values, dtype=torch.int64, device=device)

        return cls(
            input_ids=tensor(input_ids).unsqueeze(0),
            position_ids=tensor(positions).unsqueeze(0),
            slots=tensor(slots),
            logits_rows=tensor(sampled_rows + scored_rows),
            sequences=Sequences(
                query_lens=tuple(len(chunk.token_ids) for chunk in plan.chunks),
                kv_lens=tuple(chunk.end for chunk in plan.chunks),
                block_tables=tuple(chunk.block_table for chunk in plan.chunks),
                block_size=block_size,
            ),
        )
