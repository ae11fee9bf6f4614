"""Turns a step's plan into tensors: all chunks are packed one after another into one row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from engine.device.host_to_device import to_device
from engine.execution.attention.base import Sequences
from engine.model.lora import AdapterRows, LoraAdapter
from engine.scheduling.step_plan import StepPlan


@dataclass(frozen=True, slots=True)
class FutureTokens:
    """Tokens that a step takes from the previous step on the device, before the host has read them."""

    tokens: Tensor  #: int64 ``[n]``: what the previous step sampled
    sources: tuple[int, ...]  #: indices into ``tokens``
    targets: tuple[int, ...]  #: for each source, the packed row it is written to

    def write_to(self, input_ids: Tensor) -> None:
        """Writes the tokens into ``input_ids``, int64 ``[1, num_tokens]``."""
        if self.targets:
            index = to_device([self.sources, self.targets], torch.int64, input_ids.device)
            input_ids[0].index_copy_(0, index[1], self.tokens[index[0]])


@dataclass(frozen=True, slots=True)
class Batch:
    """Inputs of one forward pass over ``num_tokens`` packed tokens."""

    input_ids: Tensor  #: int64 ``[1, num_tokens]``
    position_ids: Tensor  #: int64 ``[1, num_tokens]``
    slots: tuple[Tensor, ...]  #: for each group int64 ``[num_tokens]``: ``block * block_size + offset`` in the cache
    logits_rows: Tensor  #: int64 ``[n]``: the packed rows whose logits are needed: sampled ones, then scored ones;
    #: for a chunk with draft tokens, the row before the draft and the rows of the draft tokens, in order
    sequences: tuple[Sequences, ...]  #: one for each group
    lengths: Tensor | None  #: int64 ``[num_tokens]``, see ``LoadedModel.logits``
    adapters: tuple[AdapterRows, ...] = ()  #: rows whose linear layers an adapter changes

    @classmethod
    def of(
        cls, plan: StepPlan, block_size: int, num_groups: int, device: torch.device, *, with_lengths: bool = False
    ) -> Batch:
        """Packs a plan. Builds plain lists first, then one tensor: a tensor call per token would cost more."""
        input_ids: list[int] = []
        positions: list[int] = []
        slots: list[list[int]] = [[] for _ in range(num_groups)]
        sampled_rows: list[int] = []
        scored_rows: list[int] = []
        lengths: list[int] = []
        query_lens: list[int] = []
        kv_lens: list[int] = []
        for chunk in plan.chunks:
            first, start = len(input_ids), chunk.start
            if len(chunk.token_ids) == 1 and not (chunk.draft or chunk.scored or with_lengths):  # a decode
                input_ids += chunk.token_ids
                positions.append(start)
                block, offset = divmod(start, block_size)
                for table, group_slots in zip(chunk.block_tables, slots, strict=True):
                    group_slots.append(table[block] * block_size + offset)
                if chunk.samples:
                    sampled_rows.append(first)
                query_lens.append(1)
                kv_lens.append(chunk.end)
                continue
            span = range(start, chunk.computed_end)
            query_lens.append(len(span))
            kv_lens.append(span.stop)
            if chunk.scored:
                scored_rows += range(first + chunk.scored.start - chunk.start, first + chunk.scored.stop - chunk.start)
            input_ids += chunk.token_ids
            input_ids += chunk.draft
            positions += span
            if with_lengths:
                prompt = chunk.request.num_prompt_tokens
                lengths += [max(prompt, position + 1) for position in span]
            for table, group_slots in zip(chunk.block_tables, slots, strict=True):
                group_slots += [table[position // block_size] * block_size + position % block_size for position in span]
            if chunk.samples:
                sampled_rows += range(len(input_ids) - 1 - len(chunk.draft), len(input_ids))

        ids_, positions_, rows_, lengths_, *slots_ = _to_tensors(
            (input_ids, positions), (sampled_rows + scored_rows, lengths, *slots), device
        )
        return cls(
            input_ids=ids_,
            position_ids=positions_,
            slots=tuple(slots_),
            logits_rows=rows_,
            sequences=tuple(
                Sequences(
                    query_lens=tuple(query_lens),
                    kv_lens=tuple(kv_lens),
                    block_tables=tuple([chunk.block_tables[group] for chunk in plan.chunks]),
                    block_size=block_size,
                )
                for group in range(num_groups)
            ),
            lengths=lengths_ if with_lengths else None,
            adapters=adapter_rows(plan),
        )


def _to_tensors(rows: Sequence[list[int]], others: Sequence[list[int]], device: torch.device) -> list[Tensor]:
    """Returns int64 tensors: ``[1, n]`` for each of ``rows``, ``[n]`` for each of the others."""
    if device.type == "cpu":  # operators of PyTorch, such as a split, would release the GIL
        arrays = [np.array([row], np.int64) for row in rows] + [np.array(other, np.int64) for other in others]
        return [torch.from_numpy(array) for array in arrays]
    # One tensor that is then split: it crosses the bus once.
    parts = [*rows, *others]
    together = to_device([number for part in parts for number in part], torch.int64, device)
    tensors = together.split_with_sizes([len(part) for part in parts])
    return [tensor.unsqueeze(0) for tensor in tensors[: len(rows)]] + list(tensors[len(rows) :])


def adapter_rows(plan: StepPlan) -> tuple[AdapterRows, ...]:
    """Returns the packed rows of a plan that have an adapter."""
    rows: list[AdapterRows] = []
    first = 0
    for chunk in plan.chunks:
        count = chunk.computed_end - chunk.start
        adapter = chunk.request.adapter
        if isinstance(adapter, LoraAdapter):
            rows.append(AdapterRows(first, first + count, adapter))
        first += count
    return tuple(rows)
