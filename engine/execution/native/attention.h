// What decode_attention.h, prefill_attention.h and prefill_attention_simd.h share: the paged cache and how its rows are
// fetched, the sliding window, the online softmax.
//
// Memory: a layer's keys and values are [num_blocks, block_size, num_kv_heads, head_dim], float32 or bfloat16. A block
// table gives the block of each block_size positions of a sequence; the keys of all kv heads of a token are adjacent.
//
// Threads: each has an AttentionScratch of its own; the cache is only read, after the barrier that follows the writing
// of the step's own keys and values.
// Instruction sets: SIMD vectors, see simd.h.
#pragma once

#include <vector>

#include "aligned_vector.h"
#include "model.h"
#include "simd.h"

// The keys and values of one sequence, from one of its kv heads on.
template <typename Cache>
struct PagedKV {
    const Cache *keys, *values;  // of the kv head, in block 0
    const int32_t* block_table;
    int64_t block_size, token_stride;  // numbers from one token of a block to the next

    PagedKV(const Model& model, const Layer& layer, const int32_t* table, int64_t kv_head)
        : keys(static_cast<const Cache*>(layer.keys) + kv_head * model.head_dim),
          values(static_cast<const Cache*>(layer.values) + kv_head * model.head_dim),
          block_table(table),
          block_size(model.block_size),
          token_stride(model.num_kv_heads * model.head_dim) {}

    // Returns where the key and the value of a position are, in numbers from keys and values on.
    int64_t offset(int64_t position) const {
        const uint32_t at = uint32_t(position), size = uint32_t(block_size);  // 64 bits are divided more slowly
        return (int64_t(block_table[at / size]) * size + at % size) * token_stride;
    }
};

// Prefetches a key or value of dim numbers: a token's lie far from the next one's, so the processor's own prefetching
// does not find them. Always inlined: GCC takes a function that only prefetches for one without effect, and drops its
// calls.
template <typename Cache>
[[gnu::always_inline]] inline void prefetch_row(const Cache* row, int64_t dim) {
    for (int64_t d = 0; d < dim; d += 64 / int64_t(sizeof(Cache))) __builtin_prefetch(row + d);
}

// Returns sixteen words of a row of dim bfloat16, two numbers each, from word on; zeros past its end. A copy of known
// length is a load; others would be calls.
inline Ints row_words(const bf16* row, int64_t dim, int64_t word) {
    if (dim - 2 * word >= 2 * kLanes) return load<Ints>(row + 2 * word);
    Ints words = {};
    std::memcpy(&words, row + 2 * word, (dim - 2 * word) * sizeof(bf16));
    return words;
}

// Returns the first position that a query at position sees.
inline int64_t window_start(const Layer& layer, int64_t position) {
    return layer.window ? std::max<int64_t>(0, position + 1 - layer.window) : 0;
}

// Scales and caps scores in place if the layer caps them; returns the scale that is left to apply. -inf stays -inf.
inline float cap_scores(float* scores, int64_t count, const Layer& layer) {
    if (layer.softcap == 0) return layer.attention_scale;
    for (int64_t key = 0; key < count; key += kLanes) {
        const Floats some = load<Floats>(scores + key);
        const Floats capped = soft_cap(some * layer.attention_scale, layer.softcap);
        store(some == -INFINITY ? some : capped, scores + key);
    }
    return 1;
}

// The online softmax of one query's scores, updated with each block of keys (arXiv 1805.02867).
struct OnlineSoftmax {
    float row_max = -INFINITY, row_sum = 0;

    // Turns scores into probs relative to the running maximum; returns the factor that rescales earlier sums. Calls
    // store_probs(key, probs) with sixteen probs.
    //   scores  [count], before the layer's scale and soft-capping; -inf for keys that are not visible. Padded here to
    //           whole vectors, so there must be room for a multiple of sixteen.
    template <typename StoreProbs>
    float update(float* scores, int64_t count, const Layer& layer, const StoreProbs& store_probs) {
        for (; count % kLanes; ++count) scores[count] = -INFINITY;
        const float scale = cap_scores(scores, count, layer);
        Floats highest = Floats{} - INFINITY;
        for (int64_t key = 0; key < count; key += kLanes) {
            const Floats some = load<Floats>(scores + key);
            highest = lane_max(highest, some);
        }
        float new_max = std::max(row_max, reduce_max(highest) * scale);
        const float rescale = row_max == new_max ? 1 : exponential(row_max - new_max);
        row_max = new_max;
        if (new_max == -INFINITY) new_max = 0;  // none of these keys is visible
        Floats sums = {};
        for (int64_t key = 0; key < count; key += kLanes) {
            const Floats probs = probability(load<Floats>(scores + key) * scale - new_max);
            sums += probs;
            store_probs(key, probs);
        }
        row_sum = row_sum * rescale + reduce_add(sums);
        return rescale;
    }
};

// Returns the softmax of a head before any key: a sink is a score without a value.
inline OnlineSoftmax first_softmax(const Layer& layer, int64_t head) {
    return layer.sinks ? OnlineSoftmax{layer.sinks[head], 1} : OnlineSoftmax();
}

// A thread's temporary buffers, reused between calls. Integers hold words of 32 bits: numbers of the cache's dtype, or
// pairs of bfloat16. The kernels say how each is laid out.
struct AttentionScratch {
    AlignedVector<float> scores, sums, rescale, scales;
    AlignedVector<int32_t> queries, keys, values, probs;
    std::vector<const char*> pieces;  // of the cache, in the order in which they are prefetched
    std::vector<bool> is_finite;  // of blocks of keys: whether all their values are
};
