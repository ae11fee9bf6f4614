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
    slots: tuple[Tensor, ...]  #: for each group int64 ``[num_tokens]``: ``block * block_size + offset`` in the cache
    logits_rows: Tensor  #: int64 ``[n]``: the packed rows whose logits are needed: sampled ones, then scored ones
    sequences: tuple[Sequences, ...]  #: for each group
    lengths: Tensor | None  #: int64 ``[num_tokens]``, see ``LoadedModel.logits``

    @classmethod
    def of(
        cls, plan: StepPlan, block_size: int, num_groups: int, device: torch.device, *, tell_lengths: bool = False
    ) -> Batch:
        """Pack a plan. Plain lists first, then one tensor each: per-token tensor calls would cost more."""
        input_ids: list[int] = []
        positions: list[int] = []
        slots: list[list[int]] = [[] for _ in range(num_groups)]
        sampled_rows: list[int] = []
        scored_rows: list[int] = []
        lengths: list[int] = []
        for chunk in plan.chunks:
            scored_rows += range(
                len(input_ids) + chunk.scored.start - chunk.start, len(input_ids) + chunk.scored.stop - chunk.start
            )
            input_ids += chunk.token_ids
            positions += range(chunk.start, chunk.end)
            if tell_lengths:
                prompt = chunk.request.num_prompt_tokens
                lengths += [max(prompt, position + 1) for position in range(chunk.start, chunk.end)]
            for table, group_slots in zip(chunk.block_tables, slots, strict=True):
                group_slots += [
                    table[position // block_size] * block_size + position % block_size
                    for position in range(chunk.start, chunk.end)
                ]
            if chunk.samples:
                sampled_rows.append(len(input_ids) - 1)

        query_lens = tuple(len(chunk.token_ids) for chunk in plan.chunks)
        kv_lens = tuple(chunk.end for chunk in plan.chunks)

        def tensor(values: list[int]) -> Tensor:
            return torch.tensor(values, dtype=torch.int64, device=device)

        return cls(
            input_ids=tensor(input_ids).unsqueeze(0),
            position_ids=tensor(positions).unsqueeze(0),
            slots=tuple(tensor(group_slots) for group_slots in slots),
            logits_rows=tensor(sampled_rows + scored_rows),
            sequences=tuple(
                Sequences(
                    query_lens=query_lens,
                    kv_lens=kv_lens,
                    block_tables=tuple(chunk.block_tables[group] for chunk in plan.chunks),
                    block_size=block_size,
                )
                for group in range(num_groups)
            ),
            lengths=tensor(lengths) if tell_lengths else None,
        )
