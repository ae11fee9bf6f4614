"""Fakes of the FlashAttention functions that the adapters call: real signatures and checks, plain arithmetic.

Signatures and checks are those of flash-attn 2.8.3 (``flash_attn_interface.py``, ``csrc/flash_attn/flash_api.cpp``),
of FlashAttention 3 (``hopper/flash_attn_interface.py``, ``hopper/flash_api.cpp``) and of torch 2.13
(``torch/nn/attention/varlen.py``).
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
from torch import Tensor

HALF = (torch.float16, torch.bfloat16)


def flash_attn_2() -> ModuleType:
    """Fakes the package ``flash_attn``."""
    module = ModuleType("flash_attn")
    vars(module)["flash_attn_varlen_func"] = _flash_attn_varlen_func
    return module


def flash_attn_3() -> ModuleType:
    """Fakes the module ``flash_attn_interface``."""
    module = ModuleType("flash_attn_interface")
    vars(module)["flash_attn_with_kvcache"] = _flash_attn_with_kvcache
    return module


def varlen_attn(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    *,
    return_aux: Any = None,
    scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
    enable_gqa: bool = False,
    seqused_k: Tensor | None = None,
    block_table: Tensor | None = None,
    num_splits: int | None = None,
) -> Tensor:
    """Fakes ``torch.nn.attention.varlen.varlen_attn``."""
    assert return_aux is None
    assert seqused_k is not None, "block_table requires seqused_k"
    assert enable_gqa or query.shape[1] == key.shape[2], "Try setting enable_gqa=True for GQA"
    assert key.shape[1] % 256 == 0, "Paged KV cache block size must be divisible by 256"
    _check_cumulative(cu_seq_k, seqused_k)
    return _attend(query, key, value, cu_seq_q, seqused_k, block_table, max_q, max_k, scale, window_size, 0.0)


def _flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Tensor | None = None,
) -> Tensor:
    assert (dropout_p, alibi_slopes, return_attn_probs) == (0.0, None, False)
    assert k.shape[1] % 256 == 0, "Paged KV cache block size must be divisible by 256"
    assert causal
    lengths = cu_seqlens_k.diff()
    _check_cumulative(cu_seqlens_k, lengths)
    return _attend(
        q, k, v, cu_seqlens_q, lengths, block_table, max_seqlen_q, max_seqlen_k, softmax_scale, window_size, softcap
    )


def _flash_attn_with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Tensor | None = None,
    v: Tensor | None = None,
    qv: Tensor | None = None,
    rotary_cos: Tensor | None = None,
    rotary_sin: Tensor | None = None,
    cache_seqlens: Tensor | int | None = None,
    cache_batch_idx: Tensor | None = None,
    cache_leftpad: Tensor | None = None,
    page_table: Tensor | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k_new: Tensor | None = None,
    max_seqlen_q: int | None = None,
    rotary_seqlens: Tensor | None = None,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    scheduler_metadata: Tensor | None = None,
    num_splits: int = 0,
    pack_gqa: bool | None = None,
    sm_margin: int = 0,
    return_softmax_lse: bool = False,
) -> Tensor:
    assert all(unused is None for unused in (k, v, qv, rotary_cos, rotary_sin, cache_batch_idx, cache_leftpad))
    assert all(unused is None for unused in (cu_seqlens_k_new, rotary_seqlens, q_descale, k_descale, v_descale))
    assert causal
    assert not return_softmax_lse
    assert isinstance(cache_seqlens, Tensor)
    assert cu_seqlens_q is not None, "packed queries need cu_seqlens_q"
    assert max_seqlen_q is not None, "max_seqlen_q must be provided if cu_seqlens_q is provided"
    longest = page_table.shape[1] * k_cache.shape[1] if page_table is not None else 0
    return _attend(
        q,
        k_cache,
        v_cache,
        cu_seqlens_q,
        cache_seqlens,
        page_table,
        max_seqlen_q,
        longest,
        softmax_scale,
        window_size,
        softcap,
    )


def _check_cumulative(cumulative: Tensor | None, lengths: Tensor) -> None:
    assert cumulative is not None
    assert cumulative.dtype is torch.int32
    assert cumulative.is_contiguous()
    assert cumulative[0] == 0
    assert torch.equal(cumulative.diff(), lengths)


def _attend(
    query: Tensor,
    key_pages: Tensor,
    value_pages: Tensor,
    cu_seqlens_q: Tensor,
    kv_lens: Tensor,
    block_table: Tensor | None,
    max_seqlen_q: int,
    max_seqlen_k: int,
    scale: float | None,
    window_size: tuple[int, int],
    softcap: float,
) -> Tensor:
    """Checks what the kernels check, then attends in fp32; the last query of a sequence sees its last key."""
    assert query.dtype in HALF, "FlashAttention only supports fp16 and bf16 data type"
    assert key_pages.dtype == value_pages.dtype == query.dtype, "query, key and value must have the same dtype"
    num_tokens, num_heads, head_dim = query.shape
    num_pages, page_size, num_kv_heads, key_dim = key_pages.shape
    assert value_pages.shape == key_pages.shape
    assert key_dim == head_dim <= 256
    assert head_dim % 8 == 0
    assert num_heads % num_kv_heads == 0
    for tensor in (query, key_pages, value_pages):
        assert tensor.stride(-1) == 1, "Input tensor must have contiguous last dimension"
    assert block_table is not None
    for tensor in (cu_seqlens_q, kv_lens, block_table):
        assert tensor.dtype is torch.int32
        assert tensor.stride(-1) == 1
        assert tensor.device == query.device
    batch = len(kv_lens)
    assert cu_seqlens_q.shape == (batch + 1,)
    query_lens = cu_seqlens_q.diff()
    assert cu_seqlens_q[0] == 0
    assert int(query_lens.min()) >= 1, "lengths must grow"
    assert cu_seqlens_q[-1] == num_tokens
    assert max_seqlen_q >= int(query_lens.max())
    assert max_seqlen_k >= int(kv_lens.max())
    assert bool((query_lens <= kv_lens).all())
    assert block_table.shape[0] == batch
    assert block_table.shape[1] * page_size >= int(kv_lens.max())
    assert 0 <= int(block_table.min()) <= int(block_table.max()) < num_pages, "a page outside of the cache"
    left, right = window_size
    assert right == 0, "not causal"
    assert left >= -1
    assert softcap >= 0.0
    assert isinstance(scale, float), "no scale: the kernel's own is not the model's"

    groups = num_heads // num_kv_heads
    outputs = []
    for index in range(batch):
        length, count = int(kv_lens[index]), int(query_lens[index])
        pages = block_table[index, : -(-length // page_size)].long()
        keys = key_pages[pages].flatten(0, 1)[:length].float().repeat_interleave(groups, dim=1)
        values = value_pages[pages].flatten(0, 1)[:length].float().repeat_interleave(groups, dim=1)
        start = int(cu_seqlens_q[index])
        scores = torch.einsum("qhd,khd->hqk", query[start : start + count].float(), keys) * scale
        if softcap > 0.0:
            scores = softcap * (scores / softcap).tanh()
        position = torch.arange(length - count, length)[:, None] - torch.arange(length)[None, :]
        hidden = position < 0
        if left >= 0:
            hidden |= position > left
        probabilities = scores.masked_fill(hidden, float("-inf")).softmax(-1)
        outputs.append(torch.einsum("hqk,khd->qhd", probabilities, values))
    return torch.cat(outputs).to(query.dtype)
