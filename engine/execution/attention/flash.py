"""The base of the FlashAttention kernels: their metadata, and their requirements of a model and a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.device.host_to_device import overwrite, to_device
from engine.execution.attention.base import AttentionKernel, Sequences
from engine.model.attention_hook import AttentionNeeds
from engine.scheduling.block_pool import NULL_BLOCK


@dataclass(frozen=True, slots=True)
class FlashStep:
    """One step as FlashAttention takes it: packed queries, paged keys."""

    cu_seqlens_q: Tensor  #: int32 ``[batch + 1]``: start of each sequence's queries, and the end of all
    cu_seqlens_k: Tensor  #: int32 ``[batch + 1]``: the same for the keys, as if they were packed
    seqused_k: Tensor  #: int32 ``[batch]``: number of keys of each sequence
    block_table: Tensor  #: int32 ``[batch, pages]``, padded with the null block
    max_seqlen_q: int
    max_seqlen_k: int


class FlashKernel(AttentionKernel):
    """Base class of the FlashAttention kernels. CUDA only, in half precision."""

    device_types = frozenset({"cuda"})
    supports_sliding_window = True
    supports_sinks = False
    dtypes = frozenset({torch.float16, torch.bfloat16})
    max_head_dim = 256
    supports_graphs = True

    @classmethod
    def unsupported_reason(cls, needs: AttentionNeeds) -> str | None:
        if needs.head_dim != needs.value_head_dim:
            return "the model's keys and values differ in size"
        return super().unsupported_reason(needs)

    def prepare(self, sequences: Sequences, device: torch.device) -> FlashStep:
        def int32(values: list[int] | list[list[int]]) -> Tensor:
            return to_device(values, torch.int32, device)

        pages = [-(-length // sequences.block_size) for length in sequences.kv_lens]
        width = max(pages)
        return FlashStep(
            cu_seqlens_q=int32([0, *accumulate(sequences.query_lens)]),
            cu_seqlens_k=int32([0, *accumulate(sequences.kv_lens)]),
            seqused_k=int32(list(sequences.kv_lens)),
            block_table=int32(
                [
                    [*table[:count], *[NULL_BLOCK] * (width - count)]
                    for table, count in zip(sequences.block_tables, pages, strict=True)
                ]
            ),
            max_seqlen_q=max(sequences.query_lens),
            max_seqlen_k=max(sequences.kv_lens),
        )

    def refill(self, prepared: FlashStep, sequences: Sequences) -> None:
        step = self.prepare(sequences, torch.device("cpu"))
        assert step.max_seqlen_q == prepared.max_seqlen_q == 1
        overwrite(prepared.cu_seqlens_q, step.cu_seqlens_q)
        overwrite(prepared.cu_seqlens_k, step.cu_seqlens_k)
        overwrite(prepared.seqused_k, step.seqused_k)
        refill_table(prepared.block_table, step.block_table)


def refill_table(block_table: Tensor, step: Tensor) -> None:
    """Writes a step's block table, int32 ``[batch, pages]``, into a wider one, and null blocks after it."""
    wider = block_table.shape[1] - step.shape[1]
    overwrite(block_table, F.pad(step, (0, wider), value=NULL_BLOCK))


def window_size(sliding_window: int | None) -> tuple[int, int]:
    """Returns how many keys a query sees to its left and right, itself not counted; -1 for all."""
    return (-1 if sliding_window is None else sliding_window - 1, 0)
