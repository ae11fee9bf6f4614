"""Executes batches on the model: owns the KV tensors, nothing else does."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.attention.base import AttentionKernel, LayerCache, PagedMetadata
from engine.batch import Batch
from engine.model.loading import LoadedModel
from engine.scheduler import StepPlan


class Runner:
    """Eager execution of one packed forward per step.

    Args:
        model: loaded with our attention function.
        kernel: runs the attention.
        num_blocks, block_size: size of the cache; must agree with the block pool.
    """

    def __init__(self, model: LoadedModel, kernel: AttentionKernel, *, num_blocks: int, block_size: int) -> None:
        self._model = model
        self._kernel = kernel
        self._block_size = block_size
        self.layers: Sequence[LayerCache] = tuple(
            LayerCache.zeros(shape, num_blocks, block_size, model.dtype, model.device) for shape in model.layers
        )

    @torch.inference_mode()
    def erase(self, blocks: Sequence[int]) -> None:
        """Zero blocks in every layer."""
        index = torch.tensor(blocks, dtype=torch.int64, device=self._model.device)
        for layer in self.layers:
            layer.keys.index_fill_(0, index, 0)
            layer.values.index_fill_(0, index, 0)

    @torch.inference_mode()
    def execute(self, plan: StepPlan) -> Tensor:
        """Compute a plan: fill the cache, and return logits.

        Returns:
            ``[len(plan.sampling) + n, vocab_size]``: a row for each chunk that samples, then one for each of the
            ``n`` positions that chunks score, both in the order of the chunks.
        """
        device = self._model.device
        batch = Batch.of(plan, self._block_size, device)
        metadata = PagedMetadata(
            kernel=self._kernel,
            layers=self.layers,
            slots=batch.slots,
            prepared=self._kernel.prepare(batch.sequences, device),
        )
        return self._model.logits(batch.input_ids, batch.position_ids, batch.logits_rows, metadata)
