"""Batch invariance: a token's results depend on its own sequence only, never on the rest of the batch.

Rounding depends on shapes: a matrix product picks its kernel by the number of rows, and attention by how many queries
and sequences share a call. In bf16 that is enough to change a reply. Here every step is split into tiles of the same
number of rows, the last one padded, and attention runs for each token alone. So prompt chunks, prefix hits and
preemption make no difference either.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.execution.attention.base import AttentionCall, AttentionKernel, Sequences
from engine.execution.batch import Batch
from engine.model.lora import AdapterRows
from engine.scheduling.block_pool import NULL_BLOCK

TILE_ROWS = 16
"""Rows of a tile. A larger tile makes a single decode pay for more padding; a smaller one makes a prompt read the
weights more often, once per tile."""


def tile_rows(module: nn.Module) -> int:
    """Returns the rows of a tile for a model: 1 for a mixture of experts, which distributes the rows itself."""
    experts = any(parameter.ndim == 3 for parameter in module.parameters())
    return 1 if experts else TILE_ROWS


@dataclass(frozen=True, slots=True)
class Tile:
    """A slice of a step with a fixed number of rows."""

    batch: Batch  #: each token is its own sequence; rows after the last token are padding
    outputs: Tensor  #: int64 ``[m]``: indices of the step's logits that this tile computes
    rows: Tensor  #: int64 ``[m]``: the tile's row for each of them


def tiles(batch: Batch, num_rows: int) -> Iterator[Tile]:
    """Splits a step into tiles, in order: a token may attend to tokens of earlier tiles."""
    singles = [sequences.token_by_token() for sequences in batch.sequences]
    num_tokens = batch.input_ids.shape[1]
    everything = torch.arange(num_rows, device=batch.input_ids.device)
    for start in range(0, num_tokens, num_rows):
        end = min(start + num_rows, num_tokens)
        empty = start + num_rows - end
        outputs = torch.nonzero((batch.logits_rows >= start) & (batch.logits_rows < end)).flatten()
        tile = Batch(
            input_ids=F.pad(batch.input_ids[:, start:end], (0, empty)),
            position_ids=F.pad(batch.position_ids[:, start:end], (0, empty)),
            slots=tuple(F.pad(slots[start:end], (0, empty), value=NULL_BLOCK) for slots in batch.slots),
            # All rows go through the output layer: its shape must not depend on how many are needed.
            logits_rows=everything if len(outputs) else everything[:1],
            sequences=tuple(_cut(sequences, start, end) for sequences in singles),
            lengths=None if batch.lengths is None else F.pad(batch.lengths[start:end], (0, empty), value=1),
            adapters=tuple(
                AdapterRows(max(rows.start, start) - start, min(rows.stop, end) - start, rows.adapter)
                for rows in batch.adapters
                if rows.start < end and rows.stop > start
            ),
        )
        yield Tile(tile, outputs, batch.logits_rows[outputs] - start)


def _cut(sequences: Sequences, start: int, end: int) -> Sequences:
    return replace(
        sequences,
        query_lens=sequences.query_lens[start:end],
        kv_lens=sequences.kv_lens[start:end],
        block_tables=sequences.block_tables[start:end],
    )


class PerSequenceKernel(AttentionKernel):
    """Wraps another kernel and calls it for one sequence at a time; rows of no sequence are zero."""

    def __init__(self, kernel: AttentionKernel) -> None:
        self._kernel = kernel

    def prepare(self, sequences: Sequences, device: torch.device) -> tuple[tuple[slice, Any], ...]:
        prepared = []
        row = 0
        for index, query_len in enumerate(sequences.query_lens):
            alone = _cut(sequences, index, index + 1)
            prepared.append((slice(row, row + query_len), self._kernel.prepare(alone, device)))
            row += query_len
        return tuple(prepared)

    def forward(self, call: AttentionCall, prepared: tuple[tuple[slice, Any], ...]) -> Tensor:
        output = call.query.new_zeros(*call.query.shape[:2], call.cache.value_head_dim)
        for rows, alone in prepared:
            output[rows] = self._kernel.forward(replace(call, query=call.query[rows]), alone)
        return output
