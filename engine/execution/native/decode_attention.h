// Decode attention over the paged cache: one query row of one sequence, all heads of it, with the keys of the sequence.
//
// Split-KV (Flash-Decoding, Dao et al. 2023): the keys that a row sees are divided into splits of kKeysPerSplit, each
// attended on its own (attend_split) and combined afterwards (combine_splits). The size of a split is fixed, so that
// neither the number of threads nor other rows change the result.
//
// Memory:
//   queries   float32 [num_heads, head_dim], the row's own; converted to QueryKeyDot::Query once for each split
//   cache     Cache (float32 or bfloat16), see PagedKV in attention.h; the keys of all kv heads of a token are adjacent
//             and are read in that order, because sequential reads are faster
//   scores    float32 [num_heads, kKeyBlock], of one block of keys; probs the same in ValueAccumulator::Prob
//   result    PartialAttention: float32 [num_heads, head_dim] and the state of the softmax for each head
//
// Two query heads that share a kv head are computed at once, so that its keys and values are loaded once for both.
//
// Threads: each works on splits of its own, with an AttentionScratch and PartialAttentions of its own; queries and
// cache are only read.
// Instruction sets: a bfloat16 cache with AVX512-BF16 multiplies pairs of numbers (vdpbf16ps) with queries and probs
// rounded to bfloat16; otherwise keys and values are widened and all is float32.
#pragma once

#include <type_traits>

#include "attention.h"

constexpr int64_t kKeyBlock = 32;  // keys per iteration, of which all heads keep scores
constexpr int64_t kKeysPerSplit = 128;

// Returns the number of splits of the keys that a query at position sees.
inline int64_t num_splits(const Layer& layer, int64_t position) {
    return (position + 1 - window_start(layer, position) + kKeysPerSplit - 1) / kKeysPerSplit;
}

// The attention over one split: unnormalized sums of values, and what normalizes them.
struct PartialAttention {
    AlignedVector<float> sums;  // [heads, head_dim]
    std::vector<OnlineSoftmax> softmax;  // [heads]

    void clear(int64_t heads, int64_t dim) {
        softmax.assign(heads, OnlineSoftmax());
        std::fill_n(ensure_size(sums, heads * dim), heads * dim, 0.0f);
    }
};

// Prefetches the memory that is read next during the computation, one cache line at a time: a burst of prefetches would
// stall other loads, and without prefetches memory would be idle meanwhile.
template <typename Cache>
struct Prefetcher {
    const Cache* from;
    const int64_t* offsets;  // of the keys or values that are read next

    void fetch(int64_t key, int64_t d) const { __builtin_prefetch(from + offsets[key] + d); }
};

// ---- Number formats -------------------------------------------------------------------------------------------------

// How kNumbers numbers of a query are multiplied with those of a key, into sixteen sums. left: numbers of the head from
// there on, which may be fewer than kNumbers.
template <typename Cache>
struct QueryKeyDot {
    using Query = float;
    static constexpr int64_t kNumbers = kLanes;

    static Floats load_key(const Cache* key, int64_t) { return widen(key); }
    static Floats load_query(const Query* query, int64_t) { return load<Floats>(query); }
    static Floats add(Floats sum, Floats key, Floats query) { return multiply_add(key, query, sum); }
};

// How kSteps * kNumbers numbers of the values of a block, weighted by probs, are added to the sums of kHeads heads.
template <typename Cache>
struct ValueAccumulator {
    using Prob = float;
    static constexpr int64_t kNumbers = kLanes;

    // values: of the kv head, from number d of it on. sums: those of the first head, from d on; head_dim (dim) apart.
    // rescale: of each head, for the sums so far. left: numbers of the head from d on.
    template <int64_t kHeads, int64_t kSteps>
    static void add(const Cache* values, const int64_t* offsets, int64_t num_keys, const Prob* probs,
                    const float* rescale, int64_t dim, int64_t /*left*/, float* sums, const Prefetcher<Cache>& next) {
        Floats sum[kHeads][kSteps];
        for (int64_t head = 0; head < kHeads; ++head)
            for (int64_t i = 0; i < kSteps; ++i)
                sum[head][i] = load<Floats>(sums + head * dim + i * kLanes) * rescale[head];
        for (int64_t key = 0; key < num_keys; ++key)
            for (int64_t i = 0; i < kSteps; ++i) {
                next.fetch(key, i * kNumbers);
                const Floats numbers = widen(values + offsets[key] + i * kLanes);
                for (int64_t head = 0; head < kHeads; ++head)
                    sum[head][i] = multiply_add(numbers, Floats{} + probs[head * kKeyBlock + key], sum[head][i]);
            }
        for (int64_t head = 0; head < kHeads; ++head)
            for (int64_t i = 0; i < kSteps; ++i) store(sum[head][i], sums + head * dim + i * kLanes);
    }
};

#if defined(__AVX512BF16__) && defined(__AVX512BW__)

inline __mmask32 first_lanes(int64_t count) {
    return count >= 2 * kLanes ? ~__mmask32(0) : (__mmask32(1) << count) - 1;
}

template <>
struct QueryKeyDot<bf16> {
    using Query = bf16;
    static constexpr int64_t kNumbers = 2 * kLanes;

    static __m512bh load_key(const bf16* key, int64_t left) {
        return __m512bh(_mm512_maskz_loadu_epi16(first_lanes(left), key));
    }
    static __m512bh load_query(const bf16* query, int64_t left) { return load_key(query, left); }
    static Floats add(Floats sum, __m512bh key, __m512bh query) {
        return Floats(_mm512_dpbf16_ps(__m512(sum), key, query));
    }
};

// Adds the values of two keys at once: number d of one and of the other form a pair, which is multiplied with the pair
// of their probs. Probs are rounded to bfloat16, as in prefills. An odd last key is paired with padding of prob 0.
template <>
struct ValueAccumulator<bf16> {
    using Prob = bf16;
    static constexpr int64_t kNumbers = 2 * kLanes;

    template <int64_t kHeads, int64_t kSteps>
    static void add(const bf16* values, const int64_t* offsets, int64_t num_keys, const Prob* probs,
                    const float* rescale, int64_t dim, int64_t left, float* sums, const Prefetcher<bf16>& next) {
        // unpacklo and unpackhi form pairs within eight numbers: of each eight, the sums of the first four are in one
        // vector and those of the last four in the other. lower and upper bring them back into order.
        const Ints firsts = {0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27}, lasts = firsts + 4;
        const Ints lower = {0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23}, upper = lower + 8;
        Floats sum[kHeads][kSteps][2];
        for (int64_t head = 0; head < kHeads; ++head)
            for (int64_t i = 0; i < kSteps; ++i) {
                const float* from = sums + head * dim + i * kNumbers;
                const Floats low = load<Floats>(from) * rescale[head];
                const Floats high =
                    left - i * kNumbers > kLanes ? load<Floats>(from + kLanes) * rescale[head] : Floats{};
                sum[head][i][0] = __builtin_shuffle(low, high, firsts);
                sum[head][i][1] = __builtin_shuffle(low, high, lasts);
            }
        for (int64_t key = 0; key < num_keys; key += 2)
            for (int64_t i = 0; i < kSteps; ++i) {
                const __mmask32 known = first_lanes(left - i * kNumbers);
                next.fetch(key, i * kNumbers);
                next.fetch(key + 1, i * kNumbers);
                const __m512i one = _mm512_maskz_loadu_epi16(known, values + offsets[key] + i * kNumbers);
                const __m512i other = _mm512_maskz_loadu_epi16(known, values + offsets[key + 1] + i * kNumbers);
                const __m512bh pairs[2] = {__m512bh(_mm512_unpacklo_epi16(one, other)),
                                           __m512bh(_mm512_unpackhi_epi16(one, other))};
                for (int64_t head = 0; head < kHeads; ++head) {
                    int32_t both;
                    std::memcpy(&both, probs + head * kKeyBlock + key, sizeof both);
                    for (int64_t half = 0; half < 2; ++half)
                        sum[head][i][half] = Floats(_mm512_dpbf16_ps(__m512(sum[head][i][half]), pairs[half],
                                                                     __m512bh(_mm512_set1_epi32(both))));
                }
            }
        for (int64_t head = 0; head < kHeads; ++head)
            for (int64_t i = 0; i < kSteps; ++i) {
                float* to = sums + head * dim + i * kNumbers;
                store(__builtin_shuffle(sum[head][i][0], sum[head][i][1], lower), to);
                if (left - i * kNumbers > kLanes)
                    store(__builtin_shuffle(sum[head][i][0], sum[head][i][1], upper), to + kLanes);
            }
    }
};

#endif

// ---- One split ------------------------------------------------------------------------------------------------------

// Computes the scores of kHeads queries and 16 / kHeads keys: sixteen sums at once, from 16 / kHeads places in memory.
// scores: [kHeads, kKeyBlock].
template <int64_t kHeads, typename Cache>
inline void score_keys(const Cache* keys, const int64_t* offsets, const typename QueryKeyDot<Cache>::Query* queries,
                       int64_t dim, float* scores, const Prefetcher<Cache>& next) {
    using Dot = QueryKeyDot<Cache>;
    constexpr int64_t kKeys = kLanes / kHeads;
    Floats sums[kLanes] = {};
    for (int64_t d = 0; d < dim; d += Dot::kNumbers)
#pragma GCC unroll 16
        for (int64_t at = 0; at < kKeys; ++at) {
            next.fetch(at, d);
            const auto key = Dot::load_key(keys + offsets[at] + d, dim - d);
#pragma GCC unroll 2
            for (int64_t head = 0; head < kHeads; ++head) {
                Floats& sum = sums[head * kKeys + at];
                sum = Dot::add(sum, key, Dot::load_query(queries + head * dim + d, dim - d));
            }
        }
    const Floats all = reduce_add_each(sums);
    for (int64_t head = 0; head < kHeads; ++head)
        std::memcpy(scores + head * kKeyBlock, reinterpret_cast<const float*>(&all) + head * kKeys,
                    kKeys * sizeof(float));
}

// Attends one query of each head to the keys of one split.
template <typename Cache>
void attend_split(const Model& model, const Layer& layer, const PagedKV<Cache>& cache, int64_t position, int64_t split,
                  const float* queries, AttentionScratch& scratch, PartialAttention& partial) {
    const int64_t first = window_start(layer, position) + split * kKeysPerSplit,
                  last = std::min(position + 1, first + kKeysPerSplit);
    using Query = typename QueryKeyDot<Cache>::Query;
    using Prob = typename ValueAccumulator<Cache>::Prob;
    const int64_t dim = model.head_dim, heads = model.num_heads, heads_per_kv = heads / model.num_kv_heads;
    float* scores = ensure_size(scratch.scores, heads * kKeyBlock);
    float* rescale = ensure_size(scratch.rescale, heads);
    auto* converted = reinterpret_cast<Query*>(ensure_size(scratch.queries, heads * dim));
    auto* probs = reinterpret_cast<Prob*>(ensure_size(scratch.probs, heads * kKeyBlock));
    for (int64_t at = 0; at < heads * dim; at += kLanes) store(load<Floats>(queries + at), converted + at);
    partial.clear(heads, dim);
    if (split == 0)
        for (int64_t head = 0; head < heads; ++head) partial.softmax[head] = first_softmax(layer, head);
    float* const sums = partial.sums.data();
    int64_t two_offsets[2][kKeyBlock], *offsets = two_offsets[0], *next_offsets = two_offsets[1];
    // Past the end, the last key is repeated as padding; its prob is 0.
    const auto find_keys = [&](int64_t start, int64_t* to) {
        for (int64_t at = 0; at < kKeyBlock; ++at) to[at] = cache.offset(std::min(start + at, last - 1));
    };
    find_keys(first, offsets);
    for (int64_t start = first, stop; start < last; start = stop) {
        stop = std::min(last, start + kKeyBlock);
        find_keys(stop, next_offsets);
        const int64_t num_keys = stop - start;
        for (int64_t head = 0; head < heads;) {  // scores; prefetches this block's values
            const bool is_pair = (head + 1) / heads_per_kv == head / heads_per_kv;
            const int64_t kv_head = head / heads_per_kv * dim;
            for (int64_t at = 0; at < num_keys; at += is_pair ? kLanes / 2 : kLanes) {
                const Prefetcher<Cache> next = {cache.values + kv_head, offsets + at};
                float* to = scores + head * kKeyBlock + at;
                if (is_pair) score_keys<2>(cache.keys + kv_head, offsets + at, converted + head * dim, dim, to, next);
                else score_keys<1>(cache.keys + kv_head, offsets + at, converted + head * dim, dim, to, next);
            }
            head += 1 + is_pair;
        }
        for (int64_t head = 0; head < heads; ++head)
            rescale[head] = partial.softmax[head].update(
                scores + head * kKeyBlock, num_keys, layer,
                [&](int64_t at, Floats some) { store(some, probs + head * kKeyBlock + at); });
        for (int64_t head = 0; head < heads;) {  // sums of values; prefetches the next block's keys
            const bool is_pair = (head + 1) / heads_per_kv == head / heads_per_kv;
            const int64_t kv_head = head / heads_per_kv * dim;
            const auto add_values = [&](auto number_of_steps, int64_t d) {
                constexpr int64_t kSteps = decltype(number_of_steps)::value;
                using Values = ValueAccumulator<Cache>;
                const Cache* values = cache.values + kv_head + d;
                const Prob* own = probs + head * kKeyBlock;
                float* to = sums + head * dim + d;
                const Prefetcher<Cache> next = {cache.keys + kv_head + d, next_offsets};
                if (is_pair)
                    Values::template add<2, kSteps>(values, offsets, num_keys, own, rescale + head, dim, dim - d, to,
                                                    next);
                else
                    Values::template add<1, kSteps>(values, offsets, num_keys, own, rescale + head, dim, dim - d, to,
                                                    next);
            };
            constexpr int64_t kNumbers = ValueAccumulator<Cache>::kNumbers;
            int64_t d = 0;
            for (; d + 4 * kNumbers <= dim; d += 4 * kNumbers) add_values(std::integral_constant<int64_t, 4>(), d);
            for (; d < dim; d += kNumbers) add_values(std::integral_constant<int64_t, 1>(), d);
            head += 1 + is_pair;
        }
        std::swap(offsets, next_offsets);
    }
}

// ---- All splits -----------------------------------------------------------------------------------------------------

// Combines the splits of one head. Calls store_output(d, attended) with numbers d to d + 15 of the head's output.
template <typename StoreOutput>
void combine_splits(const PartialAttention* partials, int64_t num_splits, int64_t head, int64_t dim,
                    AttentionScratch& scratch, const StoreOutput& store_output) {
    float* weights = ensure_size(scratch.rescale, num_splits);
    float row_max = -INFINITY, row_sum = 0;
    for (int64_t split = 0; split < num_splits; ++split)
        row_max = std::max(row_max, partials[split].softmax[head].row_max);
    for (int64_t split = 0; split < num_splits; ++split) {
        const OnlineSoftmax& own = partials[split].softmax[head];
        weights[split] = own.row_max == row_max ? 1 : exponential(own.row_max - row_max);
        row_sum += weights[split] * own.row_sum;
    }
    for (int64_t d = 0; d < dim; d += kLanes) {
        Floats sum = {};
        for (int64_t split = 0; split < num_splits; ++split)
            sum += weights[split] * load<Floats>(partials[split].sums.data() + head * dim + d);
        store_output(d, sum / row_sum);
    }
}
