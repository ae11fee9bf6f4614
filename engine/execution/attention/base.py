"""What an attention kernel is: one file per family, each says what it can do and prepares its own metadata."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from engine.model.attention_hook import AttentionNeeds
from engine.scheduling.cache_layout import LayerShape


@dataclass(frozen=True, slots=True)
class Sequences:
    """The geometry of one packed step, as plain numbers. Row ``i`` belongs to the i-th chunk of the plan.

    Queries of all chunks lie behind one another: chunk ``i`` owns ``query_lens[i]`` rows, the last of which is
    position ``kv_lens[i] - 1`` of its sequence.
    """

    query_lens: tuple[int, ...]
    kv_lens: tuple[int, ...]  #: tokens visible to the last query, itself included
    block_tables: tuple[tuple[int, ...], ...]
    block_size: int

    def token_by_token(self) -> Sequences:
        """Each query as a sequence of its own that ends with it."""
        kv_lens: list[int] = []
        tables: list[tuple[int, ...]] = []
        for query_len, kv_len, table in zip(self.query_lens, self.kv_lens, self.block_tables, strict=True):
            kv_lens += range(kv_len - query_len + 1, kv_len + 1)
            tables += [table] * query_len
        return replace(self, query_lens=(1,) * len(kv_lens), kv_lens=tuple(kv_lens), block_tables=tuple(tables))


class AttentionKernel(ABC):
    """Paged attention over blocks ``[num_blocks, block_size, num_kv_heads, head_dim]``."""

    name: ClassVar[str]
    device_types: ClassVar[frozenset[str]]
    supports_sliding_window: ClassVar[bool]
    supports_softcap: ClassVar[bool]
    supports_sinks: ClassVar[bool]
    page_multiple: ClassVar[int]  #: the block size must be a multiple of this
    dtypes: ClassVar[frozenset[torch.dtype] | None] = None  #: None for all
    max_head_dim: ClassVar[int | None] = None  #: None for no limit
    prefers_contiguous: ClassVar[bool] = False  #: a sequence is read faster when its blocks lie behind one another
    supports_graphs: ClassVar[bool] = False  #: decodes can be recorded as a CUDA graph, see :meth:`refill`

    @classmethod
    def unavailable_reason(cls, device: torch.device) -> str | None:
        """Why the kernel cannot run here (missing package, wrong device); None when it can."""
        if device.type not in cls.device_types:
            return f"it runs on {', '.join(sorted(cls.device_types))}, not on {device.type}"
        return None

    @classmethod
    def unsupported_reason(cls, needs: AttentionNeeds) -> str | None:
        """What the model needs and the kernel cannot do; None when it can all."""
        if needs.softcap and not cls.supports_softcap:
            return "the model caps its attention scores (soft-capping), which this kernel cannot do"
        if needs.sinks and not cls.supports_sinks:
            return "the model uses attention sinks, which this kernel cannot do"
        if needs.sliding_window and not cls.supports_sliding_window:
            return "the model uses a sliding window, which this kernel cannot do"
        if cls.dtypes is not None and needs.dtype not in cls.dtypes:
            return f"it cannot compute in {str(needs.dtype).removeprefix('torch.')}"
        if cls.max_head_dim is not None and needs.head_dim > cls.max_head_dim:
            return f"the model's heads are {needs.head_dim} wide, more than {cls.max_head_dim}"
        return None

    @abstractmethod
    def prepare(self, sequences: Sequences, device: torch.device) -> Any:
        """Whatever the kernel needs in every layer of a step, made once per step."""

    def refill(self, prepared: Any, sequences: Sequences) -> None:
        """Write another step into what was prepared for as many decodes of the longest length, for a CUDA graph.

        Only where :attr:`supports_graphs`.
        """
        raise NotImplementedError(f"{self.name} cannot be recorded")

    @abstractmethod
    def forward(
        self,
        query: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        prepared: Any,
        *,
        scale: float,
        sliding_window: int | None,
        softcap: float | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """Causal attention of packed queries over the cache, which already holds this step's keys and values.

        Args:
            query: ``[num_tokens, num_heads, head_dim]``.
            key_cache, value_cache: ``[num_blocks, block_size, num_kv_heads, head_dim]``.
            prepared: what :meth:`prepare` returned for this step.
            scale: factor on the scores.
            sliding_window: a query sees this many positions, itself included; None for all.
            softcap: scores ``s`` become ``softcap * tanh(s / softcap)`` (Gemma 2, arXiv 2408.00118).
            sinks: ``[num_heads]``, one more score per head that takes its share of the softmax and gives no
                value (gpt-oss; arXiv 2309.17453).

        Returns:
            ``[num_tokens, num_heads, value_head_dim]``.
        """


@dataclass(frozen=True, slots=True)
class LayerCache:
    """Keys and values of one layer, ``[num_blocks, block_size, num_kv_heads, head_dim]`` each."""

    keys: Tensor
    values: Tensor

    @classmethod
    def zeros(
        cls, shape: LayerShape, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> LayerCache:
        """Zeroed, because kernels may read padding and the NaN of uninitialised memory would spread."""
        size = (num_blocks, block_size, shape.num_kv_heads)
        return cls(
            keys=_zeros((*size, shape.head_dim), dtype, device),
            values=_zeros((*size, shape.value_head_dim), dtype, device),
        )


def _zeros(size: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    if device.type != "cpu":
        return torch.zeros(size, dtype=dtype, device=device)
    # NumPy asks the system for zeroed pages, which take memory only once they are written. torch.zeros writes
    # them all: seconds of start-up, and gigabytes held for chats that nobody has.
    return torch.from_numpy(np.zeros(math.prod(size) * dtype.itemsize, dtype=np.uint8)).view(dtype).view(size)


@dataclass(frozen=True, slots=True)
class GroupStep:
    """One step in the layers of one group, which share block tables."""

    slots: Tensor  #: int64 ``[num_tokens]``: where each token's key and value go, ``block * block_size + offset``
    prepared: Any  #: what the kernel made of the group's block tables


@dataclass(frozen=True, slots=True)
class PagedMetadata:
    """One step, as the registered attention function receives it: an explicit forward argument, no globals."""

    kernel: AttentionKernel
    layers: Sequence[LayerCache]
    group_of_layer: Sequence[int]
    groups: Sequence[GroupStep]
    calls: Iterator[int] | None = None  #: counts calls where each has a layer of the cache, see ``LoadedModel.layers``
