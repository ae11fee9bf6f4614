"""Runs the model on batches, and replays recorded decodes as CUDA graphs. The only owner of the KV cache tensors."""

from __future__ import annotations

import ctypes
import itertools
import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from engine.device.memory import populate_pages
from engine.execution.attention.base import AttentionKernel, GroupStep, LayerCache, PagedMetadata
from engine.execution.attention.int8_cache import Int8LayerCache
from engine.execution.batch import Batch, FutureTokens, adapter_rows
from engine.execution.batch_invariance import PerSequenceKernel, tile_rows, tiles
from engine.execution.graphs import DecodeGraphs, Recorder
from engine.execution.native.decoder import Decoder
from engine.execution.native.multi_step import Host, MultiStepOutput, MultiStepRow
from engine.execution.native.weights import DecoderWeights
from engine.model.loaded_model import LoadedModel
from engine.model.lora import LoraLayers
from engine.scheduling.block_pool import BlockCopy
from engine.scheduling.cache_layout import CacheLayout
from engine.scheduling.step_plan import StepPlan

_memmove = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)(
    ("memmove", ctypes.PyDLL(None))
)
"""``ctypes.memmove``, which would release the GIL: to get it back takes longer than to copy a block."""


class Runner:
    """Runs one packed forward pass per step.

    Args:
        model: loaded with our attention function.
        kernel: computes attention.
        layout: how the model's layers share block tables and memory.
        num_blocks, block_size: size of the cache; must agree with the block pool.
        batch_invariant: compute each token as if it ran alone, see :mod:`engine.execution.batch_invariance`.
        kv_cache_dtype: ``auto`` for the model's own dtype, or ``int8``.
        populates_cache: on a CPU, take the cache's memory now. Else each first use of a page waits for it, most of all
            while a burst of prompts begins: blocks of different chats lie on different huge pages.
        applies_adapters: whether requests' adapters are this model's.
    """

    def __init__(
        self,
        model: LoadedModel,
        kernel: AttentionKernel,
        layout: CacheLayout,
        *,
        num_blocks: int,
        block_size: int,
        batch_invariant: bool = False,
        kv_cache_dtype: str = "auto",
        populates_cache: bool = False,
        applies_adapters: bool = True,
    ) -> None:
        self._model = model
        self._kernel = PerSequenceKernel(kernel) if batch_invariant else kernel
        self._tile_rows = tile_rows(model.module) if batch_invariant and model.module is not None else None
        self._block_size = block_size
        self._num_groups = len(layout.groups)
        self._group_of_layer = layout.group_of_layer()
        group = max(layout.groups, key=lambda group: len(group.layers))
        self._caches = tuple(
            Int8LayerCache.allocate(layout.shapes[layer], num_blocks, block_size, model.device)
            if kv_cache_dtype == "int8"
            else LayerCache.zeros(layout.shapes[layer], num_blocks, block_size, model.dtype, model.device)
            for layer in group.layers
        )
        if populates_cache and model.device.type == "cpu":
            populate_pages([rows for cache in self._caches for rows in cache.tensors], torch.get_num_threads())
        #: address and bytes per block of each tensor
        self._blocks_at = [
            (rows.data_ptr(), rows.stride(0) * rows.element_size()) for cache in self._caches for rows in cache.tensors
        ]
        #: the cache of each layer; layers of different groups share tensors
        self.layers: Sequence[LayerCache] = tuple(self._caches[index] for index in layout.tensor_of_layer())
        self._lora = LoraLayers(model.module) if applies_adapters and model.module is not None else None
        self._graphs: DecodeGraphs | None = None
        self._decoder: Decoder | None = None
        if isinstance(model.decoder, DecoderWeights) and not batch_invariant:
            self._decoder = Decoder(model.decoder, self.layers, self._group_of_layer)

    @property
    def vocab_size(self) -> int:
        """Width of the logits."""
        return self._model.vocab_size

    @property
    def max_native_tokens(self) -> int:
        """Most tokens of a step that runs in C++; 0 if none does."""
        return 0 if self._decoder is None else self._decoder.max_rows

    @property
    def max_short_step_tokens(self) -> int | None:
        """Most tokens of a step that runs in C++; None if no step does, or every step does."""
        return self.max_native_tokens if 0 < self.max_native_tokens < sys.maxsize else None

    def record_decodes(self, recorder: Recorder, *, max_rows: int, max_model_len: int) -> tuple[int, ...]:
        """Records decodes as CUDA graphs and replays them from now on; returns the recorded numbers of rows.

        Raises:
            RuntimeError: the model does something that cannot be recorded. Steps then run as before.
        """
        self._graphs = DecodeGraphs(
            self._compute,
            self._kernel,
            recorder,
            self._model.device,
            num_groups=self._num_groups,
            block_size=self._block_size,
            max_model_len=max_model_len,
            max_rows=max_rows,
        )
        return self._graphs.sizes

    @torch.inference_mode()
    def zero_blocks(self, blocks: Sequence[int]) -> None:
        """Zeroes blocks in every layer."""
        index = torch.tensor(blocks, dtype=torch.int64, device=self._model.device)
        for cache in self._caches:
            for rows in cache.tensors:
                rows.index_fill_(0, index, 0)

    def _copy(self, copies: Sequence[BlockCopy]) -> None:
        """Copies blocks in order: the destination of one copy may be the source of the next."""
        whole = self._caches[0].copies_whole_blocks
        if self._model.device.type == "cpu":  # a copy between two tensor views is mostly overhead
            for copy in copies:
                for address, block_bytes in self._blocks_at:
                    size = block_bytes if whole else copy.num_rows * (block_bytes // self._block_size)
                    _memmove(address + copy.destination * block_bytes, address + copy.source * block_bytes, size)
            return
        for copy in copies:
            for cache in self._caches:
                for rows in cache.tensors:
                    first = slice(None) if whole else slice(copy.num_rows)
                    rows[copy.destination, first] = rows[copy.source, first]

    @torch.inference_mode()
    def execute(self, plan: StepPlan, future_tokens: FutureTokens | None = None) -> Tensor:
        """Computes a plan: fills the cache and returns logits.

        Args:
            future_tokens: tokens of the plan that only the device knows so far.

        Returns:
            ``[m + n, vocab_size]``: ``m`` rows, one for each chunk that samples and each of its draft tokens, then
            one for each of the ``n`` positions that chunks score, both in the order of the chunks.
        """
        self._copy(plan.copies)
        if self._graphs is not None and self._graphs.can_run(plan) and not adapter_rows(plan):
            on_host = Batch.of(plan, self._block_size, self._num_groups, torch.device("cpu"))
            return self._graphs.logits(on_host, future_tokens)
        device = self._model.device
        batch = Batch.of(plan, self._block_size, self._num_groups, device, with_lengths=self._model.rotary is not None)
        if future_tokens is not None:
            future_tokens.write_to(batch.input_ids)
        if self._tile_rows is not None:
            return self._forward_in_tiles(batch, self._tile_rows)
        return self._forward(batch)

    @torch.inference_mode()
    def execute_steps(
        self,
        plan: StepPlan,
        replies: Sequence[MultiStepRow],
        max_steps: int,
        host: Host | None = None,
    ) -> MultiStepOutput:
        """Computes a plan of at most :attr:`max_native_tokens`, samples from it, and decodes further in C++.

        Args:
            replies: one for each chunk that samples.
            max_steps: including the plan's own step, at least 1.
            host: has its part in the sampling of the replies that need Python.
        """
        assert self._decoder is not None
        self._copy(plan.copies)
        batch = Batch.of(plan, self._block_size, self._num_groups, self._model.device)
        return self._decoder.execute_steps(batch, replies, max_steps, host)

    def _forward_in_tiles(self, batch: Batch, num_rows: int) -> Tensor:
        collected: Tensor | None = None
        for tile in tiles(batch, num_rows):
            logits = self._forward(tile.batch)
            if collected is None:
                collected = logits.new_empty(len(batch.logits_rows), logits.shape[-1])
            if len(tile.outputs):
                collected[tile.outputs] = logits[tile.rows]
        assert collected is not None, "a step computes at least one token"
        return collected

    def _forward(self, batch: Batch) -> Tensor:
        if self._decoder is not None and batch.input_ids.shape[1] <= self._decoder.max_rows:
            return self._decoder.logits(batch)
        prepared = [self._kernel.prepare(sequences, self._model.device) for sequences in batch.sequences]
        if self._lora is None or not batch.adapters:
            return self._compute(batch, prepared)
        with self._lora.applied(batch.adapters, batch.input_ids.shape[1], self._model.device):
            return self._compute(batch, prepared)

    def _compute(self, batch: Batch, prepared: Sequence[Any]) -> Tensor:
        metadata = PagedMetadata(
            kernel=self._kernel,
            layers=self.layers,
            group_of_layer=self._group_of_layer,
            groups=tuple(GroupStep(slots, step) for slots, step in zip(batch.slots, prepared, strict=True)),
            calls=itertools.count() if self._model.layer_per_call else None,
        )
        return self._model.logits(batch.input_ids, batch.position_ids, batch.logits_rows, metadata, batch.lengths)
