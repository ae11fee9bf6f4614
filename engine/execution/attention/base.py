"""The interface of attention kernels: each declares its capabilities and prepares its own metadata per step."""

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
    """The geometry of one packed step, as plain numbers. Index ``i`` is the i-th chunk of the plan.

    The queries of all chunks are packed one after another: chunk ``i`` has ``query_lens[i]`` rows, the last of which
    is position ``kv_lens[i] - 1`` of its sequence.
    """

    query_lens: tuple[int, ...]
    kv_lens: tuple[int, ...]  #: tokens up to the last query, itself included
    block_tables: tuple[tuple[int, ...], ...]
    block_size: int

    def token_by_token(self) -> Sequences:
        """Returns each query as its own sequence that ends with it."""
        kv_lens: list[int] = []
        tables: list[tuple[int, ...]] = []
        for query_len, kv_len, table in zip(self.query_lens, self.kv_lens, self.block_tables, strict=True):
            kv_lens += range(kv_len - query_len + 1, kv_len + 1)
            tables += [table] * query_len
        return replace(self, query_lens=(1,) * len(kv_lens), kv_lens=tuple(kv_lens), block_tables=tuple(tables))


@dataclass(frozen=True, slots=True)
class LayerCache:
    """Keys and values of one layer."""

    keys: Tensor  #: ``[num_blocks, block_size, num_kv_heads, head_dim]``
    values: Tensor  #: ``[num_blocks, block_size, num_kv_heads, value_head_dim]``

    @classmethod
    def zeros(
        cls, shape: LayerShape, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> LayerCache:
        """Allocates a zeroed cache: kernels may read padding, and NaN in uninitialised memory would spread."""
        size = (num_blocks, block_size, shape.num_kv_heads)
        return cls(
            keys=zeros((*size, shape.head_dim), dtype, device),
            values=zeros((*size, shape.value_head_dim), dtype, device),
        )

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All that is stored of a token; the first dimension is the block."""
        return self.keys, self.values

    @property
    def block_size(self) -> int:
        """Tokens in a block."""
        return self.keys.shape[1]

    @property
    def value_head_dim(self) -> int:
        return self.values.shape[-1]

    @property
    def copies_whole_blocks(self) -> bool:
        """Whether the tokens of a block are interleaved, so that a copy of some of them is a copy of the block."""
        return False

    def store(self, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """Stores the keys and values of a step.

        Args:
            slots: int64 ``[num_tokens]``, ``block * block_size + offset``.
            keys, values: ``[num_tokens, num_kv_heads, head_dim]``.
        """
        self.keys.flatten(0, 1).index_copy_(0, slots, keys)
        self.values.flatten(0, 1).index_copy_(0, slots, values)


def zeros(size: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Returns zeros for a cache."""
    if device.type != "cpu":
        return torch.zeros(size, dtype=dtype, device=device)
    # NumPy maps zeroed pages, which take memory only once they are written. torch.zeros writes them all: seconds of
    # start-up, and gigabytes held for chats that do not exist yet.
    return torch.from_numpy(np.zeros(math.prod(size) * dtype.itemsize, dtype=np.uint8)).view(dtype).view(size)


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """One layer's attention in one step: what a kernel computes, whatever its metadata.

    All tensors are on one device; query and cache have one dtype, the model's, unless the cache is quantized.
    """

    query: Tensor  #: ``[num_tokens, num_heads, head_dim]``, packed; the last dimension has stride 1
    cache: LayerCache  #: already holds the step's keys and values
    scale: float  #: factor on the scores
    sliding_window: int | None = None  #: positions that a query attends to, itself included; None for all
    softcap: float | None = None
    """Scores ``s`` become ``softcap * tanh(s / softcap)`` (Gemma 2, arXiv 2408.00118); None for no cap."""
    sinks: Tensor | None = None
    """``[num_heads]``: one more score per head that takes its share of the softmax and adds no value (gpt-oss; arXiv
    2309.17453)."""


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
    reads_int8_cache: ClassVar[bool] = False  #: see :mod:`engine.execution.attention.int8_cache`
    prefers_contiguous: ClassVar[bool] = False  #: a sequence is read faster if its blocks are contiguous
    supports_graphs: ClassVar[bool] = False  #: decodes can be recorded as a CUDA graph, see :meth:`refill`

    @classmethod
    def unavailable_reason(cls, device: torch.device) -> str | None:
        """Returns why the kernel cannot run here (missing package, wrong device); None if it can."""
        if device.type not in cls.device_types:
            return f"it runs on {', '.join(sorted(cls.device_types))}, not on {device.type}"
        return None

    @classmethod
    def unsupported_reason(cls, needs: AttentionNeeds) -> str | None:
        """Returns what the model needs and the kernel lacks; None if it supports the model."""
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
        """Returns the kernel's state for a step, made once and passed to :meth:`forward` in every layer."""

    def refill(self, prepared: Any, sequences: Sequences) -> None:
        """Overwrites a prepared state in place with another step of as many decodes, for a CUDA graph.

        ``prepared`` was made for the longest sequences. Only for kernels with :attr:`supports_graphs`.
        """
        raise NotImplementedError(f"{self.name} cannot be recorded")

    @abstractmethod
    def forward(self, call: AttentionCall, prepared: Any) -> Tensor:
        """Computes causal attention of packed queries over the cache.

        Args:
            call: the layer's queries, cache and options.
            prepared: what :meth:`prepare` returned for this step.

        Returns:
            ``[num_tokens, num_heads, value_head_dim]``.
        """


@dataclass(frozen=True, slots=True)
class GroupStep:
    """One step for the layers of one group, which share block tables."""

    slots: Tensor  #: int64 ``[num_tokens]``: where each token's key and value go, ``block * block_size + offset``
    prepared: Any  #: the kernel's prepared state for the group's block tables


@dataclass(frozen=True, slots=True)
class PagedMetadata:
    """One step as the registered attention function receives it: an explicit forward argument, no globals."""

    kernel: AttentionKernel
    layers: Sequence[LayerCache]
    group_of_layer: Sequence[int]
    groups: Sequence[GroupStep]
    calls: Iterator[int] | None = None  #: counts attention calls if each has its own cache layer, see ``LoadedModel``
