// Decode attention over the paged cache: one query row of one sequence, all heads of it, with the keys of the sequence.
//
// Split-KV (Flash-Decoding, Dao et al. 2023): the keys that a row sees are divided into splits of kKeysPerSplit, each
// attended on its own (attend_split) and combined afterwards (combine_splits). The size of a split is fixed, so that
// neither the number of threads nor other rows change the result.
//
// Memory:
//   queries   float32 [num_heads, head_dim], the row's own; converted to QueryKeyDot::Query once for each split
//   cache     Cache (float32 or bfloat16), see PagedKV in attention.h; the keys of all kv heads of a token are adjacent
//   scores    float32 [num_heads, kKeysPerSplit]; probs the same in ValueAccumulator::Prob
//   sums      float32 [num_heads, head_dim rounded up to ValueAccumulator::kNumbers], in the accumulator's order
//   result    PartialAttention: float32 [num_heads, head_dim] and the state of the softmax for each head
//
// Memory bounds the speed of long contexts, so the cache is read once and in the order of its addresses: all keys of a
// split, then all its values, kKeyBlock tokens at a time with all their kv heads. Within a block, kernels read several
// tokens in turn; Prefetcher goes ahead of them in the order of the addresses. Up to four query heads that share a kv
// head are computed at once.
//
// Threads: each works on splits of its own, with an AttentionScratch and PartialAttentions of its own; queries and
// cache are only read.
// Instruction sets: a bfloat16 cache with AVX512-BF16 multiplies pairs of numbers (vdpbf16ps) with queries and probs
// rounded to bfloat16; otherwise keys and values are widened and all is float32. What is computed at once fits the
// registers, of which there are 16 or 32.
#pragma once

#include <type_traits>

#include "attention.h"

constexpr int64_t kKeyBlock = 16;  // keys, or values, of which all heads are read before the next ones
constexpr int64_t kKeysPerSplit = 128;
constexpr int64_t kPrefetchDistance = 8 << 10;  // bytes; softmax, which reads no memory, adds to it

// Returns the number of splits of the keys that a query at position sees.
inline int64_t num_splits(const Layer& layer, int64_t position) {
    return (position + 1 - window_start(layer, position) + kKeysPerSplit - 1) / kKeysPerSplit;
}

// The attention over one split: unnormalized sums of values, and what normalizes them.
struct PartialAttention {
    AlignedVector<float> sums;  // [heads, head_dim]
    std::vector<OnlineSoftmax> softmax;  // [heads]

    void resize(int64_t heads, int64_t dim) {
        softmax.assign(heads, OnlineSoftmax());
        ensure_size(sums, heads * dim);
    }
};

// Prefetches pieces of memory one after another, as many bytes as are read elsewhere meanwhile. The processor's own
// prefetcher does not follow kernels that read several places in turn; a burst of prefetches would stall other loads.
class Prefetcher {
 public:
    // pieces: [num_pieces], at least one, of piece_bytes each; the last is prefetched again and again.
    Prefetcher(const char* const* pieces, int64_t num_pieces, int64_t piece_bytes)
        : at_(pieces[0]), end_(at_ + piece_bytes), next_(pieces + 1), last_(pieces + num_pieces), bytes_(piece_bytes) {}

    void fetch(int64_t bytes) {

        __builtin_prefetch(at_);
        at_ += bytes;
        if (at_ < end_) return;
        at_ = next_ < last_ ? *next_++ : end_ - bytes_;
        end_ = at_ + bytes_;
    }

 private:
    const char *at_, *end_;
    const char *const *next_, *const *last_;
    int64_t bytes_;
};

// ---- Number formats -------------------------------------------------------------------------------------------------

// How a register of kRegisterNumbers numbers of a query is multiplied with that of a key; kNumbers of a key are read
// before the next key. left: numbers of the head from there on, which may be fewer than kRegisterNumbers.
template <typename Cache>
struct QueryKeyDot {
    using Query = float;
    static constexpr int64_t kNumbers = kLanes, kRegisterNumbers = kRegisterLanes;

    static FloatRegister load_key(const Cache* key, int64_t) { return widen_register(key); }
    static FloatRegister load_query(const Query* query, int64_t) { return load<FloatRegister>(query); }
    static FloatRegister add(FloatRegister sum, FloatRegister key, FloatRegister query) {
        return multiply_add(key, query, sum);
    }
};

// How kSteps * kNumbers numbers of the values of some keys, weighted by probs, are added to the sums of kHeads heads.
template <typename Cache>
struct ValueAccumulator {
    using Prob = float;
    static constexpr int64_t kNumbers = kLanes;
    template <int64_t kHeads>  // whose sums fit the registers
    static constexpr int64_t kStepsAtOnce = kRegisters > 1 ? 4 / kHeads : kHeads == 4 ? 2 : 4;

    // values: of the kv head, from number d of it on. probs: those of the first head, kKeysPerSplit apart. sums: those
    // of the first head, from d on; width apart. left: numbers of the head from d on. is_first: there are no sums yet.
    template <int64_t kHeads, int64_t kSteps>
    static void add(const Cache* values, const int64_t* offsets, int64_t num_keys, const Prob* probs, int64_t width,
                    int64_t /*left*/, bool is_first, float* sums, Prefetcher& prefetcher) {
        Prefetcher own = prefetcher;
        FloatRegister sum[kHeads][kSteps * kRegisters] = {};
        const auto for_sums = [&](const auto& call) {
#pragma GCC unroll 4
            for (int64_t head = 0; head < kHeads; ++head)
#pragma GCC unroll 16
                for (int64_t i = 0; i < kSteps * kRegisters; ++i)
                    call(sum[head][i], sums + head * width + i * kRegisterLanes);
        };
        if (!is_first) for_sums([](FloatRegister& one, const float* from) { one = load<FloatRegister>(from); });
        for (int64_t key = 0; key < num_keys; ++key) {
            FloatRegister prob[kHeads];
#pragma GCC unroll 4
            for (int64_t head = 0; head < kHeads; ++head) prob[head] = broadcast(probs[head * kKeysPerSplit + key]);
#pragma GCC unroll 16
            for (int64_t i = 0; i < kSteps * kRegisters; ++i) {
                if (i % kRegisters == 0) own.fetch(kNumbers * sizeof(Cache));
                const FloatRegister numbers = widen_register(values + offsets[key] + i * kRegisterLanes);
#pragma GCC unroll 4
                for (int64_t head = 0; head < kHeads; ++head)
                    sum[head][i] = multiply_add(numbers, prob[head], sum[head][i]);
            }
        }
        for_sums([](const FloatRegister& one, float* to) { std::memcpy(to, &one, sizeof one); });
        prefetcher = own;
    }

    // Stores a head's sums in order.
    static void finish(const float* sums, int64_t dim, float* to) { std::copy(sums, sums + dim, to); }
};

#if defined(__AVX512BF16__) && defined(__AVX512BW__)

inline __mmask32 first_lanes(int64_t count) {
    return count >= 2 * kLanes ? ~__mmask32(0) : (__mmask32(1) << count) - 1;
}

template <>
struct QueryKeyDot<bf16> {
    using Query = bf16;
    static constexpr int64_t kNumbers = 2 * kLanes, kRegisterNumbers = kNumbers;

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
//
// unpacklo and unpackhi form pairs within eight numbers: of each eight, the sums of the first four are in one vector
// and those of the last four in the other. finish() brings them back into order.
template <>
struct ValueAccumulator<bf16> {
    using Prob = bf16;
    static constexpr int64_t kNumbers = 2 * kLanes;
    template <int64_t kHeads>
    static constexpr int64_t kStepsAtOnce = kHeads == 4 ? 2 : 4;

    template <int64_t kHeads, int64_t kSteps>
    static void add(const bf16* values, const int64_t* offsets, int64_t num_keys, const Prob* probs, int64_t width,
                    int64_t left, bool is_first, float* sums, Prefetcher& prefetcher) {
        Prefetcher own = prefetcher;
        Floats sum[kHeads][kSteps][2] = {};
        if (!is_first)
            for (int64_t head = 0; head < kHeads; ++head)
                for (int64_t i = 0; i < 2 * kSteps; ++i)
                    sum[head][i / 2][i % 2] = load<Floats>(sums + head * width + i * kLanes);
        for (int64_t key = 0; key < num_keys; key += 2)
            for (int64_t i = 0; i < kSteps; ++i) {
                const __mmask32 known = first_lanes(left - i * kNumbers);
                own.fetch(kNumbers * sizeof(bf16));
                own.fetch(kNumbers * sizeof(bf16));
                const __m512i one = _mm512_maskz_loadu_epi16(known, values + offsets[key] + i * kNumbers);
                const __m512i other = _mm512_maskz_loadu_epi16(known, values + offsets[key + 1] + i * kNumbers);
                const __m512bh pairs[2] = {__m512bh(_mm512_unpacklo_epi16(one, other)),
                                           __m512bh(_mm512_unpackhi_epi16(one, other))};
                for (int64_t head = 0; head < kHeads; ++head) {
                    int32_t both;
                    std::memcpy(&both, probs + head * kKeysPerSplit + key, sizeof both);
                    for (int64_t half = 0; half < 2; ++half)
                        sum[head][i][half] = Floats(_mm512_dpbf16_ps(__m512(sum[head][i][half]), pairs[half],
                                                                     __m512bh(_mm512_set1_epi32(both))));
                }
            }
        for (int64_t head = 0; head < kHeads; ++head)
            for (int64_t i = 0; i < 2 * kSteps; ++i)
                store(sum[head][i / 2][i % 2], sums + head * width + i * kLanes);
        prefetcher = own;
    }

    static void finish(const float* sums, int64_t dim, float* to) {
        const Ints lower = {0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23}, upper = lower + 8;
        for (int64_t d = 0; d < dim; d += kNumbers) {
            const Floats firsts = load<Floats>(sums + d), lasts = load<Floats>(sums + d + kLanes);
            store(__builtin_shuffle(firsts, lasts, lower), to + d);
            if (dim - d > kLanes) store(__builtin_shuffle(firsts, lasts, upper), to + d + kLanes);
        }
    }
};

#endif

// ---- One split ------------------------------------------------------------------------------------------------------

// Scores that are computed at once: one register each, beside those of a key and of four queries.
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int64_t kScores = 16;  // of 32 registers
#else
constexpr int64_t kScores = 8;  // of 16
#endif

// Computes the scores of kHeads queries and kScores / kHeads keys, from as many places in memory. scores: [kHeads,
// kKeysPerSplit].
template <int64_t kHeads, typename Cache>
inline void score_keys(const Cache* keys, const int64_t* offsets, const typename QueryKeyDot<Cache>::Query* queries,
                       int64_t dim, float* scores, Prefetcher& prefetcher) {
    using Dot = QueryKeyDot<Cache>;
    constexpr int64_t kKeys = kScores / kHeads;
    Prefetcher own = prefetcher;
    FloatRegister sums[kScores] = {};
    for (int64_t d = 0; d < dim; d += Dot::kNumbers)
#pragma GCC unroll 4
        for (int64_t part = 0; part < Dot::kNumbers; part += Dot::kRegisterNumbers)
#pragma GCC unroll 16
            for (int64_t at = 0; at < kKeys; ++at) {
                if (part == 0) own.fetch(Dot::kNumbers * sizeof(Cache));
                const int64_t from = d + part;
                const auto key = Dot::load_key(keys + offsets[at] + from, dim - from);
#pragma GCC unroll 4
                for (int64_t head = 0; head < kHeads; ++head) {
                    FloatRegister& sum = sums[head * kKeys + at];
                    sum = Dot::add(sum, key, Dot::load_query(queries + head * dim + from, dim - from));
                }
            }
    float all[kScores];
    reduce_add_each(sums, all);
    for (int64_t head = 0; head < kHeads; ++head)
        std::memcpy(scores + head * kKeysPerSplit, all + head * kKeys, kKeys * sizeof(float));
    prefetcher = own;
}

// Calls call(count, first) for all query heads, each time with some of one kv head. count is a compile-time constant:
// 4, if kMaxHeads is, 2 or 1.
template <int64_t kMaxHeads, typename Call>
inline void for_heads(int64_t num_heads, int64_t heads_per_kv, const Call& call) {
    for (int64_t head = 0; head < num_heads;) {
        const int64_t left = heads_per_kv - head % heads_per_kv;
        if constexpr (kMaxHeads >= 4)
            if (left >= 4) {
                call(std::integral_constant<int64_t, 4>(), head);
                head += 4;
                continue;
            }
        if (left >= 2) {
            call(std::integral_constant<int64_t, 2>(), head);
            head += 2;
        } else {
            call(std::integral_constant<int64_t, 1>(), head++);
        }
    }
}

// Attends one query of each head to the keys of one split.
template <typename Cache>
void attend_split(const Model& model, const Layer& layer, const PagedKV<Cache>& cache, int64_t position, int64_t split,
                  const float* queries, AttentionScratch& scratch, PartialAttention& partial) {
    const int64_t first = window_start(layer, position) + split * kKeysPerSplit,
                  last = std::min(position + 1, first + kKeysPerSplit), num_keys = last - first;
    using Values = ValueAccumulator<Cache>;
    using Query = typename QueryKeyDot<Cache>::Query;
    using Prob = typename Values::Prob;
    const int64_t dim = model.head_dim, heads = model.num_heads, heads_per_kv = heads / model.num_kv_heads;
    const int64_t width = (dim + Values::kNumbers - 1) / Values::kNumbers * Values::kNumbers;
    float* scores = ensure_size(scratch.scores, heads * kKeysPerSplit);
    float* sums = ensure_size(scratch.sums, heads * width);
    auto* converted = reinterpret_cast<Query*>(ensure_size(scratch.queries, heads * dim));
    auto* probs = reinterpret_cast<Prob*>(ensure_size(scratch.probs, heads * kKeysPerSplit));
    for (int64_t at = 0; at < heads * dim; at += kLanes) store(load<Floats>(queries + at), converted + at);
    partial.resize(heads, dim);
    if (split == 0)
        for (int64_t head = 0; head < heads; ++head) partial.softmax[head] = first_softmax(layer, head);

    int64_t offsets[kKeysPerSplit + kKeyBlock];  // of the keys; the last is repeated as padding, whose prob is 0
    for (int64_t at = 0; at < kKeysPerSplit + kKeyBlock; ++at)
        offsets[at] = cache.offset(std::min(first + at, last - 1));
    // A token is prefetched with all its kv heads. The next split's first keys follow the values.
    const int64_t piece_bytes = cache.token_stride * sizeof(Cache),
                  ahead = std::max(kKeyBlock, kPrefetchDistance / piece_bytes);
    std::vector<const char*>& pieces = scratch.pieces;
    pieces.clear();
    for (const Cache* from : {cache.keys, cache.values})
        for (int64_t at = 0; at < num_keys; ++at) pieces.push_back(reinterpret_cast<const char*>(from + offsets[at]));
    for (int64_t at = last; at < std::min(position + 1, last + ahead); ++at)
        pieces.push_back(reinterpret_cast<const char*>(cache.keys + cache.offset(at)));
    const int64_t skipped = std::min<int64_t>(ahead, pieces.size() - 1);
    Prefetcher prefetcher(pieces.data() + skipped, pieces.size() - skipped, piece_bytes);
    Prefetcher no_prefetcher(pieces.data(), 1, piece_bytes);  // for heads that read a kv head once more

    for (int64_t start = 0; start < num_keys; start += kKeyBlock)
        for_heads<4>(heads, heads_per_kv, [&](auto number_of_heads, int64_t head) {
            constexpr int64_t kHeads = decltype(number_of_heads)::value;
            for (int64_t at = start; at < std::min(num_keys, start + kKeyBlock); at += kScores / kHeads)
                score_keys<kHeads>(cache.keys + head / heads_per_kv * dim, offsets + at, converted + head * dim, dim,
                                   scores + head * kKeysPerSplit + at,
                                   head % heads_per_kv == 0 ? prefetcher : no_prefetcher);
        });
    for (int64_t head = 0; head < heads; ++head)
        partial.softmax[head].update(scores + head * kKeysPerSplit, num_keys, layer, [&](int64_t at, Floats some) {
            prefetcher.fetch(kLanes * sizeof(float));  // so that memory is busy meanwhile
            store(some, probs + head * kKeysPerSplit + at);
        });
    for (int64_t start = 0; start < num_keys; start += kKeyBlock)
        for_heads<4>(heads, heads_per_kv, [&](auto number_of_heads, int64_t head) {
            constexpr int64_t kHeads = decltype(number_of_heads)::value,
                              kSteps = Values::template kStepsAtOnce<kHeads>;
            const auto add_values = [&](auto number_of_steps, int64_t d) {
                Values::template add<kHeads, decltype(number_of_steps)::value>(
                    cache.values + head / heads_per_kv * dim + d, offsets + start,
                    std::min(kKeyBlock, num_keys - start), probs + head * kKeysPerSplit + start, width, dim - d,
                    start == 0, sums + head * width + d, head % heads_per_kv == 0 ? prefetcher : no_prefetcher);
            };
            int64_t d = 0;
            for (; d + kSteps * Values::kNumbers <= width; d += kSteps * Values::kNumbers)
                add_values(std::integral_constant<int64_t, kSteps>(), d);
            for (; d < width; d += Values::kNumbers) add_values(std::integral_constant<int64_t, 1>(), d);
        });
    for (int64_t head = 0; head < heads; ++head)
        Values::finish(sums + head * width, dim, partial.sums.data() + head * dim);
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
