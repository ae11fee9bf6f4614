// Decode attention over the paged cache: one query per row, with the keys of its sequence.
#pragma once

#include <type_traits>

#include "model.h"
#include "amx.h"

constexpr int64_t kKeysAtOnce = 32;  // keys per iteration: scores that a single query keeps
constexpr int64_t kKeysPerSplit = 128;  // keys of a split, the unit in which threads divide a query's keys

// The keys and values of a sequence, from one of its kv heads on.
template <typename Cache>
struct HeadCache {
    const Cache *keys, *values;
    const int32_t* table;
    int64_t block_size, row_size;

    HeadCache(const Model& model, const Layer& layer, const int32_t* blocks, int64_t kv_head)
        : keys(static_cast<const Cache*>(layer.keys) + kv_head * model.head_dim),
          values(static_cast<const Cache*>(layer.values) + kv_head * model.head_dim),
          table(blocks),
          block_size(model.block_size),
          row_size(model.num_kv_heads * model.head_dim) {}

    int64_t offset(int64_t position) const {
        return (int64_t(table[position / block_size]) * block_size + position % block_size) * row_size;
    }
};

inline int64_t window_start(const Layer& layer, int64_t position) {
    return layer.window ? std::max<int64_t>(0, position + 1 - layer.window) : 0;
}

// The online softmax of one query's scores, updated with each batch of keys (arXiv 1805.02867).
struct OnlineSoftmax {
    float row_max = -INFINITY, row_sum = 0;

    // Turns scores, which are padded to whole vectors, into probs relative to the running maximum; returns the factor
    // that rescales earlier sums. Calls use(at, probs) with sixteen probs.
    template <typename Use>
    float update(float* scores, int64_t count, float scale, const Use& use) {
        for (; count % kLanes; ++count) scores[count] = -INFINITY;
        Floats tops = Floats{} - INFINITY;
        for (int64_t at = 0; at < count; at += kLanes) {
            const Floats some = load<Floats>(scores + at);
            tops = some > tops ? some : tops;
        }
        float top = std::max(row_max, max_of(tops) * scale);
        const float rescale = row_max == top ? 1 : exponential(row_max - top);
        row_max = top;
        if (top == -INFINITY) top = 0;  // none of these keys is visible
        Floats total = {};
        for (int64_t at = 0; at < count; at += kLanes) {
            const Floats some = load<Floats>(scores + at);
            const Floats probs = some == -INFINITY ? Floats{} : exponential(some * scale - top);
            total += probs;
            use(at, probs);
        }
        row_sum = row_sum * rescale + sum_of(total);
        return rescale;
    }
};

// Temporary buffers of attention, reused between calls.
struct Scratch {
    AlignedVector<float> scores, sums, rescale;
    AlignedVector<int32_t> queries, keys, values, probs;
    std::vector<OnlineSoftmax> softmax;
};

// How one or two queries are multiplied with keys.
template <typename Cache>
struct QueryKeyDot {
    using Query = float;
    static constexpr int64_t kNumbers = kLanes;  // numbers of a key per iteration

    static Floats load_key(const Cache* key, int64_t) { return widen(key); }
    static Floats load_query(const Query* query, int64_t) { return load<Floats>(query); }
    static Floats add(Floats sum, Floats key, Floats query) { return sum + key * query; }
};

// Prefetches what is read next during the computation, one cache line at a time: a burst of prefetches would stall
// other loads, and without prefetches memory would be idle meanwhile.
template <typename Cache>
struct Prefetcher {
    const Cache* from;
    const int64_t* offsets;

    void fetch(int64_t at, int64_t number) const { __builtin_prefetch(from + offsets[at] + number); }
};

// Sums values weighted by probs, for kHeads query heads and kSteps * kNumbers numbers of a value at once.
template <typename Cache>
struct ValueAccumulator {
    using Prob = float;
    static constexpr int64_t kNumbers = kLanes;

    template <int64_t kHeads, int64_t kSteps>
    static void add(const Cache* values, const int64_t* offsets, int64_t count, const Prob* probs, const float* rescale, int64_t dim,
                    int64_t, float* to, const Prefetcher<Cache>& next) {
        Floats sums[kHeads][kSteps];
        for (int64_t head = 0; head < kHeads; ++head)
            for (int64_t i = 0; i < kSteps; ++i) sums[head][i] = load<Floats>(to + head * dim + i * kLanes) * rescale[head];
        for (int64_t at = 0; at < count; ++at)
            for (int64_t i = 0; i < kSteps; ++i) {
                next.fetch(at, i * kNumbers);
                const Floats numbers = widen(values + offsets[at] + i * kLanes);
                for (int64_t head = 0; head < kHeads; ++head) sums[head][i] += numbers * probs[head * kKeysAtOnce + at];
            }
        for (int64_t head = 0; head < kHeads; ++head)
            for (int64_t i = 0; i < kSteps; ++i) store(sums[head][i], to + head * dim + i * kLanes);
    }
};

#if defined(__AVX512BF16__) && defined(__AVX512BW__)

inline __mmask32 first_lanes(int64_t count) { return count >= 2 * kLanes ? ~__mmask32(0) : (__mmask32(1) << count) - 1; }

template <>
struct QueryKeyDot<bf16> {
    using Query = bf16;
    static constexpr int64_t kNumbers = 2 * kLanes;

    static __m512bh load_key(const bf16* key, int64_t left) { return __m512bh(_mm512_maskz_loadu_epi16(first_lanes(left), key)); }
    static __m512bh load_query(const bf16* query, int64_t left) { return load_key(query, left); }
    static Floats add(Floats sum, __m512bh key, __m512bh query) { return Floats(_mm512_dpbf16_ps(__m512(sum), key, query)); }
};

// Processes the values of two keys at once, their numbers in pairs. Probs are rounded to bfloat16, as in prefills.
template <>
struct ValueAccumulator<bf16> {
    using Prob = bf16;
    static constexpr int64_t kNumbers = 2 * kLanes;

    template <int64_t kHeads, int64_t kSteps>
    static void add(const bf16* values, const int64_t* offsets, int64_t count, const Prob* probs, const float* rescale, int64_t dim,
                    int64_t left, float* to, const Prefetcher<bf16>& next) {
        // Pairs are formed within eight numbers: the first four of each go to one vector, the last four to the other.
        const Ints firsts = {0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27}, lasts = firsts + 4;
        const Ints lower = {0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23}, upper = lower + 8;
        Floats sums[kHeads][kSteps][2];
        for (int64_t head = 0; head < kHeads; ++head)
            for (int64_t i = 0; i < kSteps; ++i) {
                const float* own = to + head * dim + i * kNumbers;
                const Floats low = load<Floats>(own) * rescale[head];
                const Floats high = left - i * kNumbers > kLanes ? load<Floats>(own + kLanes) * rescale[head] : Floats{};
                sums[head][i][0] = __builtin_shuffle(low, high, firsts);
                sums[head][i][1] = __builtin_shuffle(low, high, lasts);
            }
        for (int64_t at = 0; at < count; at += 2)
            for (int64_t i = 0; i < kSteps; ++i) {
                const __mmask32 known = first_lanes(left - i * kNumbers);
                next.fetch(at, i * kNumbers);
                next.fetch(at + 1, i * kNumbers);
                const __m512i one = _mm512_maskz_loadu_epi16(known, values + offsets[at] + i * kNumbers);
                const __m512i other = _mm512_maskz_loadu_epi16(known, values + offsets[at + 1] + i * kNumbers);
                const __m512bh pairs[2] = {__m512bh(_mm512_unpacklo_epi16(one, other)), __m512bh(_mm512_unpackhi_epi16(one, other))};
                for (int64_t head = 0; head < kHeads; ++head) {
                    int32_t both;
                    std::memcpy(&both, probs + head * kKeysAtOnce + at, sizeof both);
                    for (int64_t half = 0; half < 2; ++half)
                        sums[head][i][half] = Floats(_mm512_dpbf16_ps(__m512(sums[head][i][half]), pairs[half], __m512bh(_mm512_set1_epi32(both))));
                }
            }
        for (int64_t head = 0; head < kHeads; ++head)
            for (int64_t i = 0; i < kSteps; ++i) {
                float* own = to + head * dim + i * kNumbers;
                store(__builtin_shuffle(sums[head][i][0], sums[head][i][1], lower), own);
                if (left - i * kNumbers > kLanes) store(__builtin_shuffle(sums[head][i][0], sums[head][i][1], upper), own + kLanes);
            }
    }
};

#endif

// Multiplies kHeads queries with 16 / kHeads keys: computes sixteen sums at once, from 16 / kHeads places in memory.
template <int64_t kHeads, typename Cache>
inline void multiply_keys(const Cache* keys, const int64_t* offsets, const typename QueryKeyDot<Cache>::Query* queries, int64_t dim, float* scores,
                          const Prefetcher<Cache>& next) {
    constexpr int64_t kKeys = kLanes / kHeads;
    Floats sums[kLanes] = {};
    for (int64_t d = 0; d < dim; d += QueryKeyDot<Cache>::kNumbers)
#pragma GCC unroll 16
        for (int64_t at = 0; at < kKeys; ++at) {
            next.fetch(at, d);
            const auto key = QueryKeyDot<Cache>::load_key(keys + offsets[at] + d, dim - d);
#pragma GCC unroll 2
            for (int64_t head = 0; head < kHeads; ++head) {
                Floats& sum = sums[head * kKeys + at];
                sum = QueryKeyDot<Cache>::add(sum, key, QueryKeyDot<Cache>::load_query(queries + head * dim + d, dim - d));
            }
        }
    const Floats all = sums_of(sums);
    for (int64_t head = 0; head < kHeads; ++head)
        std::memcpy(scores + head * kKeysAtOnce, reinterpret_cast<const float*>(&all) + head * kKeys, kKeys * sizeof(float));
}

// Returns the number of splits. Their size is fixed, so that neither threads nor other rows change the result.
inline int64_t num_splits(const Layer& layer, int64_t position) {
    return (position + 1 - window_start(layer, position) + kKeysPerSplit - 1) / kKeysPerSplit;
}

// The attention over one split of the keys, for one query of each head.
struct PartialAttention {
    AlignedVector<float> sums;  // [heads, dim]
    std::vector<OnlineSoftmax> softmax;

    void clear(int64_t heads, int64_t dim) {
        softmax.assign(heads, OnlineSoftmax());
        std::fill_n(ensure_size(sums, heads * dim), heads * dim, 0.0f);
    }
};

// Attends one query of each head to one split of its keys. The keys of all heads are adjacent and are read in that
// order, because sequential reads are faster.
template <typename Cache>
void attend(const Model& model, const Layer& layer, const HeadCache<Cache>& cache, int64_t position, int64_t number, const float* queries,
            Scratch& scratch, PartialAttention& part) {
    const int64_t first = window_start(layer, position) + number * kKeysPerSplit, last = std::min(position + 1, first + kKeysPerSplit);
    using Query = typename QueryKeyDot<Cache>::Query;
    using Prob = typename ValueAccumulator<Cache>::Prob;
    const int64_t dim = model.head_dim, heads = model.num_heads, group = heads / model.num_kv_heads;
    float* scores = ensure_size(scratch.scores, heads * kKeysAtOnce);
    float* rescale = ensure_size(scratch.rescale, heads);
    auto* own = reinterpret_cast<Query*>(ensure_size(scratch.queries, heads * dim));
    auto* probs = reinterpret_cast<Prob*>(ensure_size(scratch.probs, heads * kKeysAtOnce));
    for (int64_t at = 0; at < heads * dim; at += kLanes) store(load<Floats>(queries + at), own + at);
    part.clear(heads, dim);
    float* const sums = part.sums.data();
    int64_t two_offsets[2][kKeysAtOnce], *offsets = two_offsets[0], *next_offsets = two_offsets[1];
    // Past the end, the last key is repeated as padding; it gets no weight.
    const auto find = [&](int64_t start, int64_t* to) {
        for (int64_t at = 0; at < kKeysAtOnce; ++at) to[at] = cache.offset(std::min(start + at, last - 1));
    };
    find(first, offsets);
    for (int64_t start = first, stop; start < last; start = stop) {
        stop = std::min(last, start + kKeysAtOnce);
        find(stop, next_offsets);
        const int64_t count = stop - start;
        for (int64_t head = 0; head < heads;) {
            const bool two = (head + 1) / group == head / group;
            const int64_t place = head / group * dim;
            for (int64_t at = 0; at < count; at += two ? kLanes / 2 : kLanes) {
                const Prefetcher<Cache> next = {cache.values + place, offsets + at};
                float* to = scores + head * kKeysAtOnce + at;
                if (two) multiply_keys<2>(cache.keys + place, offsets + at, own + head * dim, dim, to, next);
                else multiply_keys<1>(cache.keys + place, offsets + at, own + head * dim, dim, to, next);
            }
            head += 1 + two;
        }
        for (int64_t head = 0; head < heads; ++head)
            rescale[head] = part.softmax[head].update(scores + head * kKeysAtOnce, count, model.attention_scale, [&](int64_t at, Floats some) {
                store(some, probs + head * kKeysAtOnce + at);
            });
        for (int64_t head = 0; head < heads;) {
            const bool two = (head + 1) / group == head / group;
            const int64_t place = head / group * dim;
            const auto add = [&](auto number_of_steps, int64_t d) {
                constexpr int64_t kSteps = decltype(number_of_steps)::value;
                const Cache* values = cache.values + place + d;
                const Prob* some = probs + head * kKeysAtOnce;
                float* to = sums + head * dim + d;
                const Prefetcher<Cache> next = {cache.keys + place + d, next_offsets};
                if (two) ValueAccumulator<Cache>::template add<2, kSteps>(values, offsets, count, some, rescale + head, dim, dim - d, to, next);
                else ValueAccumulator<Cache>::template add<1, kSteps>(values, offsets, count, some, rescale + head, dim, dim - d, to, next);
            };
            constexpr int64_t kNumbers = ValueAccumulator<Cache>::kNumbers;
            int64_t d = 0;
            for (; d + 4 * kNumbers <= dim; d += 4 * kNumbers) add(std::integral_constant<int64_t, 4>(), d);
            for (; d < dim; d += kNumbers) add(std::integral_constant<int64_t, 1>(), d);
            head += 1 + two;
        }
        std::swap(offsets, next_offsets);
    }
}

// Combines all splits of a head. Calls use(number, attended) with sixteen numbers.
template <typename Use>
void combine_splits(const PartialAttention* parts, int64_t count, int64_t head, int64_t dim, Scratch& scratch, const Use& use) {
    float* weights = ensure_size(scratch.rescale, count);
    float row_max = -INFINITY, row_sum = 0;
    for (int64_t part = 0; part < count; ++part) row_max = std::max(row_max, parts[part].softmax[head].row_max);
    for (int64_t part = 0; part < count; ++part) {
        const OnlineSoftmax& own = parts[part].softmax[head];
        weights[part] = own.row_max == row_max ? 1 : exponential(own.row_max - row_max);
        row_sum += weights[part] * own.row_sum;
    }
    for (int64_t d = 0; d < dim; d += kLanes) {
        Floats sum = {};
        for (int64_t part = 0; part < count; ++part) sum += weights[part] * load<Floats>(parts[part].sums.data() + head * dim + d);
        use(d, sum / row_sum);
    }
}
