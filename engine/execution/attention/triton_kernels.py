"""Triton kernels of :mod:`engine.execution.attention.triton_paged`. Imports triton, which only GPU machines have.

``attend`` is FlashAttention (arXiv 2205.14135, algorithm 1) over pages (arXiv 2309.06180, section 4.3): it reads tile
after tile of keys through the block table, and keeps the softmax as a running maximum ``m`` and a running sum ``l``
(online softmax, arXiv 1805.02867)::

    m' = max(m, max_j s_j)        l' = l 2^(m - m') + sum_j 2^(s_j - m')
    o' = o 2^(m - m') + sum_j 2^(s_j - m') v_j              at last  o / l

Scores are in base 2, multiplied by log2(e), because the hardware's exponential is 2^x.

Few queries over many keys leave most of a GPU idle, so the keys may be split among programs (flash-decoding,
https://pytorch.org/blog/flash-decoding/). Each program stores its normalised output ``o_i`` and
``L_i = m_i + log2(l_i)``, and ``merge_splits`` combines them into
``sum_i 2^(L_i - max L) o_i / sum_i 2^(L_i - max L)``. Each sequence's keys are split separately; a short sequence
leaves most programs without a split, and those return at once.
"""

import triton
import triton.language as tl

# Arguments that vary from step to step. Triton would compile again for a 1, and for multiples of 16.
_VARYING = ("table_width", "num_splits")


@triton.jit(do_not_specialize=_VARYING)
def attend(
    output,  # [num_tokens, num_heads, VALUE_DIM]
    partial_output,  # fp32 [num_tiles * QUERIES, num_heads, num_splits, VALUE_DIM]; only if SPLIT
    partial_log_sum,  # fp32 [num_tiles * QUERIES, num_heads, num_splits]; only if SPLIT
    query,  # [num_tokens, num_heads, HEAD_DIM]
    key_cache,  # [num_blocks, BLOCK_SIZE, num_kv_heads, HEAD_DIM]
    value_cache,  # [num_blocks, BLOCK_SIZE, num_kv_heads, VALUE_DIM]
    sinks,  # [num_heads]; only if SINKS
    query_starts,  # int32 [batch + 1]: first packed row of each sequence, and the number of rows
    kv_lens,  # int32 [batch]
    block_table,  # int32 [batch, table_width]
    tile_sequence,  # int32 [num_tiles]: which sequence a tile belongs to
    tile_start,  # int32 [num_tiles]: its first query, counted from the sequence's first query in this step
    scale,
    softcap,
    query_row_stride,
    query_head_stride,
    key_block_stride,
    key_slot_stride,
    key_head_stride,
    value_block_stride,
    value_slot_stride,
    value_head_stride,
    table_width,
    num_splits,
    GROUP: tl.constexpr,  # query heads that share a kv head
    HEAD_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    HEAD_DIM_PADDED: tl.constexpr,  # a power of two, at least 16
    VALUE_DIM_PADDED: tl.constexpr,  # likewise
    BLOCK_SIZE: tl.constexpr,
    QUERIES: tl.constexpr,  # queries of a tile
    ROWS: tl.constexpr,  # rows of a tile: GROUP rows for each query, padded to a power of two
    KEYS: tl.constexpr,  # keys read at once
    MIN_SHARE: tl.constexpr,  # fewest keys of a split, a multiple of KEYS
    WINDOW: tl.constexpr,  # 0 for none
    SOFTCAP: tl.constexpr,
    SINKS: tl.constexpr,
    SPLIT: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """One program: a tile of queries of one sequence, all heads that share one kv head, one split of the keys."""
    LOG2_E: tl.constexpr = 1.4426950408889634
    tile, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    sequence = tl.load(tile_sequence + tile).to(tl.int64)
    first_query = tl.load(tile_start + tile)
    first_row = tl.load(query_starts + sequence)
    query_len = tl.load(query_starts + sequence + 1) - first_row
    first_position = tl.load(kv_lens + sequence) - query_len

    row = tl.arange(0, ROWS)
    query_index = first_query + row // GROUP
    head = kv_head * GROUP + row % GROUP
    is_row = (row < QUERIES * GROUP) & (query_index < query_len)
    position = first_position + query_index
    token = (first_row + query_index).to(tl.int64)
    dim = tl.arange(0, HEAD_DIM_PADDED)
    value_dim = tl.arange(0, VALUE_DIM_PADDED)
    is_dim = dim < HEAD_DIM
    is_value_dim = value_dim < VALUE_DIM
    queries = tl.load(
        query + (token * query_row_stride + head * query_head_stride)[:, None] + dim[None, :],
        mask=is_row[:, None] & is_dim[None, :],
        other=0.0,
    )
    if UPCAST:
        queries = queries.to(tl.float32)

    # The keys that the tile's queries see together, then this program's split of them. Other keys are never read.
    visible_end = first_position + tl.minimum(first_query + QUERIES, query_len)
    visible_start = 0
    if WINDOW:
        visible_start = tl.maximum(first_position + first_query - WINDOW + 1, 0)
    share = visible_end - visible_start
    if SPLIT:
        share = tl.maximum(tl.cdiv(tl.cdiv(share, KEYS), num_splits) * KEYS, MIN_SHARE)
    start = visible_start + split * share
    end = tl.minimum(start + share, visible_end)

    highest = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    attended = tl.zeros([ROWS, VALUE_DIM_PADDED], tl.float32)
    if SINKS:  # one more score, without a value, in the first split only
        sink = tl.load(sinks + head, mask=is_row, other=0.0).to(tl.float32) * LOG2_E
        highest = tl.where(split == 0, sink, highest)
        total = tl.where(split == 0, 1.0, total)

    for first_key in range(start, end, KEYS):
        key = first_key + tl.arange(0, KEYS)
        is_key = key < end
        block = tl.load(block_table + sequence * table_width + key // BLOCK_SIZE, mask=is_key, other=0).to(tl.int64)
        slot = key % BLOCK_SIZE
        keys = tl.load(
            key_cache
            + (block * key_block_stride + slot * key_slot_stride + kv_head * key_head_stride)[:, None]
            + dim[None, :],
            mask=is_key[:, None] & is_dim[None, :],
            other=0.0,
        )
        values = tl.load(
            value_cache
            + (block * value_block_stride + slot * value_slot_stride + kv_head * value_head_stride)[:, None]
            + value_dim[None, :],
            mask=is_key[:, None] & is_value_dim[None, :],
            other=0.0,
        )
        if UPCAST:
            keys = keys.to(tl.float32)
            values = values.to(tl.float32)

        scores = tl.dot(queries, tl.trans(keys), input_precision="ieee") * scale
        if SOFTCAP:  # tanh(x) = 2 sigmoid(2x) - 1
            scores = softcap * (2 * tl.sigmoid(2 * scores / softcap) - 1)
        visible = key[None, :] <= position[:, None]  # also masks the keys after the sequence's end
        if WINDOW:
            visible &= key[None, :] > position[:, None] - WINDOW
        scores = tl.where(visible, scores * LOG2_E, float("-inf"))

        raised = tl.maximum(highest, tl.max(scores, 1))
        # For a row that has seen no key yet, -inf - -inf would be NaN.
        reference = tl.where(raised == float("-inf"), 0.0, raised)
        weights = tl.exp2(scores - reference[:, None])
        fade = tl.exp2(highest - reference)
        total = total * fade + tl.sum(weights, 1)
        attended = attended * fade[:, None] + tl.dot(weights.to(values.dtype), values, input_precision="ieee")
        highest = raised

    total = tl.where(total == 0.0, 1.0, total)  # a row without keys
    attended = attended / total[:, None]
    num_heads = tl.num_programs(1) * GROUP
    if SPLIT:
        part = ((tile * QUERIES + row // GROUP) * num_heads + head).to(tl.int64) * num_splits + split
        tl.store(partial_log_sum + part, highest + tl.log2(total), mask=is_row)
        if (start < end) | (split == 0):  # otherwise merge_splits skips it; the first split may hold just a sink
            tl.store(
                partial_output + part[:, None] * VALUE_DIM + value_dim[None, :],
                attended,
                mask=is_row[:, None] & is_value_dim[None, :],
            )
    else:
        tl.store(
            output + (token * num_heads + head)[:, None] * VALUE_DIM + value_dim[None, :],
            attended.to(output.dtype.element_ty),
            mask=is_row[:, None] & is_value_dim[None, :],
        )


@triton.jit
def merge_splits(
    output,
    partial_output,
    partial_log_sum,
    query_starts,
    tile_sequence,
    tile_start,
    num_splits,
    VALUE_DIM: tl.constexpr,
    VALUE_DIM_PADDED: tl.constexpr,
    QUERIES: tl.constexpr,
    SPLITS_PADDED: tl.constexpr,
):
    """One program: merges the splits of one head of one query. Arguments as for :func:`attend`."""
    tile, query_of_tile, head = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    num_heads = tl.num_programs(2)
    sequence = tl.load(tile_sequence + tile)
    first_row = tl.load(query_starts + sequence)
    row = first_row + tl.load(tile_start + tile) + query_of_tile
    if row < tl.load(query_starts + sequence + 1):
        split = tl.arange(0, SPLITS_PADDED)
        is_split = split < num_splits
        value_dim = tl.arange(0, VALUE_DIM_PADDED)
        is_value_dim = value_dim < VALUE_DIM
        part = ((tile * QUERIES + query_of_tile) * num_heads + head).to(tl.int64) * num_splits + split
        log_sums = tl.load(partial_log_sum + part, mask=is_split, other=float("-inf"))
        outputs = tl.load(
            partial_output + part[:, None] * VALUE_DIM + value_dim[None, :],
            mask=(log_sums > float("-inf"))[:, None] & is_value_dim[None, :],  # the rest may be uninitialised
            other=0.0,
        )
        highest = tl.max(log_sums, 0)
        weights = tl.exp2(log_sums - tl.where(highest == float("-inf"), 0.0, highest))
        total = tl.sum(weights, 0)
        merged = tl.sum(weights[:, None] * outputs, 0) / tl.where(total == 0.0, 1.0, total)
        tl.store(
            output + (row.to(tl.int64) * num_heads + head) * VALUE_DIM + value_dim,
            merged.to(output.dtype.element_ty),
            mask=is_value_dim,
        )
