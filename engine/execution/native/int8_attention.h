// Decode attention over the int8 cache: as decode_attention.h, with integer products.
//
// Queries, and the weights of the values, are rounded to 16 bits with one scale each: for a head's query, and for a
// head's keys of a split. So products are exact integers, the same with every instruction set, and the rounding is a
// hundredth of that of the cache. A weight is a prob times the scale of its value.
//
// Memory, in the thread's AttentionScratch:
//   queries  Int16Word [num_heads, head_dim / 4]; keys: Int16Query [num_heads]
//   scores   float32 [num_heads, kSplitKeys]: scores, then weights
//   probs    Int16Word [num_heads, kSplitKeys / 4]
//   values   Int16Sums [num_heads, head_dim / 16, kParts]
// Keys of a split are read in groups of sixteen, each with all its kv heads, which are adjacent in a block of sixteen;
// those of a group that the query does not see get the score -inf.
//
// Overflow: a score is at most 512 * 127 * kMaxInt16 and a value's sum kSplitKeys * 127 * kMaxInt16, less than 2^31.
// Threads: as in decode_attention.h.
// Instruction sets: Int16Word says what multiplies.
#pragma once

#include "decode_attention.h"
#include "int8_cache.h"
#include "microkernel.h"

constexpr int64_t kSplitKeys = kKeysPerSplit + kLanes;  // a split need not begin at a multiple of sixteen
constexpr float kMaxInt16 = 127 * 256;  // both bytes fit into 8 bits with their sign

// ---- Products of 16 and 8 bits --------------------------------------------------------------------------------------

// Four numbers of 16 bits, as they are multiplied with four numbers of 8 bits in a lane. Sums are of kSums registers,
// which total() adds.
#if defined(__AVX512VNNI__) && defined(__AVX512BW__)
#define DESKMATE_INT16_BYTES
constexpr bool kMultipliesUnsigned = true;  // keys and weights are unsigned
#elif defined(__ARM_FEATURE_DOTPROD)
#define DESKMATE_INT16_BYTES
constexpr bool kMultipliesUnsigned = false;
#endif

#if defined(DESKMATE_INT16_BYTES)
struct Int16Word {
    int32_t high, low;  // four bytes each: number = 256 * high + low
};
#else
struct Int16Word {
    int32_t even, odd;  // two numbers each: 0 and 2, 1 and 3
};
#endif

// Returns what numbers are multiplied with before they are rounded to 16 bits; tiny ones become zero.
inline float int16_factor(float scale) { return scale > 1e-37f ? 1 / scale : 1; }

// Rounds sixteen numbers, at most kMaxInt16, to four words. is_weight: none is negative.
inline void store_int16(Floats numbers, bool is_weight, Int16Word* to) {
    const Floats magic = Floats{} + 12582912.0f;  // 1.5 * 2^23
    const Ints rounded = Ints(numbers + magic) - Ints(magic);
#if defined(DESKMATE_INT16_BYTES)
    typedef int8_t Bytes __attribute__((vector_size(16)));
    typedef int32_t Words __attribute__((vector_size(16)));
    // vpdpbusd takes weights as unsigned, so their low byte is; else both bytes are signed.
    const Ints upper = kMultipliesUnsigned && is_weight ? rounded >> 8 : (rounded + 128) >> 8;
    const auto high = Words(__builtin_convertvector(upper, Bytes));
    const auto low = Words(__builtin_convertvector(rounded, Bytes));
    const Words words[2] = {__builtin_shuffle(high, low, Words{0, 4, 1, 5}),
                            __builtin_shuffle(high, low, Words{2, 6, 3, 7})};
    std::memcpy(to, words, sizeof words);
#else
    (void)is_weight;
    for (int64_t word = 0; word < 4; ++word) {
        const auto pair = [&](int64_t at) { return (rounded[at] & 0xffff) | rounded[at + 2] << 16; };
        to[word] = {pair(4 * word), pair(4 * word + 1)};
    }
#endif
}

// A register of int8 numbers, four in a lane, prepared once for several words.
struct Int8Register {
#if defined(DESKMATE_INT16_BYTES)
    IntPart bytes;
#else
    IntPart even, odd;  // widened to 16 bits: numbers 0 and 2, 1 and 3
#endif
};

inline IntPart multiply_add_int16(IntPart sums, IntPart numbers, int32_t pair) {
    const IntPart others = IntPart{} + pair;
#if defined(__AVX512BW__)
    return sums + IntPart(_mm512_madd_epi16(__m512i(numbers), __m512i(others)));
#elif defined(__AVX2__)
    return sums + IntPart(_mm256_madd_epi16(__m256i(numbers), __m256i(others)));
#else
    return sums + (numbers << 16 >> 16) * (others << 16 >> 16) + (numbers >> 16) * (others >> 16);
#endif
}

#if defined(DESKMATE_INT16_BYTES)
struct Int16Sums {
    IntPart high = {}, low = {};

    template <bool kIsKey>
    static Int8Register prepare(const int8_t* from) {
        const IntPart bytes = load<IntPart>(from);
        return {kIsKey && kMultipliesUnsigned ? bytes ^ int32_t(0x80808080) : bytes};
    }
    template <bool kIsKey>
    void add(const Int8Register& numbers, const Int16Word& word) {
        high = dot<kIsKey>(high, numbers.bytes, word.high);
        low = dot<kIsKey>(low, numbers.bytes, word.low);
    }
    // offset: what the sums have too much, because keys became unsigned.
    IntPart total(int32_t offset) const { return (high << 8) + low - offset; }

   private:
    template <bool kIsKey>
    static IntPart dot(IntPart sums, IntPart bytes, int32_t word) {
#if defined(__AVX512VNNI__)
        const __m512i broadcast = _mm512_set1_epi32(word);
        return kIsKey ? IntPart(_mm512_dpbusd_epi32(__m512i(sums), __m512i(bytes), broadcast))
                      : IntPart(_mm512_dpbusd_epi32(__m512i(sums), broadcast, __m512i(bytes)));
#else
        return IntPart(vdotq_s32(int32x4_t(sums), int8x16_t(bytes), vreinterpretq_s8_s32(vdupq_n_s32(word))));
#endif
    }
};
#else
constexpr bool kMultipliesUnsigned = false;

struct Int16Sums {
    IntPart sums = {};

    template <bool kIsKey>
    static Int8Register prepare(const int8_t* from) {
        typedef int16_t ShortPart __attribute__((vector_size(kRegisterBytes)));
        const auto bytes = load<ShortPart>(from);
        return {IntPart(bytes << 8 >> 8), IntPart(bytes >> 8)};
    }
    template <bool kIsKey>
    void add(const Int8Register& numbers, const Int16Word& word) {
        sums = multiply_add_int16(sums, numbers.even, word.even);
        sums = multiply_add_int16(sums, numbers.odd, word.odd);
    }
    IntPart total(int32_t) const { return sums; }
};
#endif

#if defined(__AVX512F__)
constexpr int64_t kInt8Heads = 4;  // computed at once
#else
constexpr int64_t kInt8Heads = 2;
#endif

// ---- One split ------------------------------------------------------------------------------------------------------

// A head's query in 16 bits.
struct Int16Query {
    float scale;
    int32_t offset;  // of its products with keys that became unsigned, see Int16Sums::total
};

// Quantizes a query, float32 [dim], to words.
inline Int16Query quantize_query(const float* query, int64_t dim, Int16Word* words) {
    Floats largest = {}, zeros = {};  // zeros: NaN if a number is not finite
    for (int64_t d = 0; d < dim; d += kLanes) {
        const Floats some = load<Floats>(query + d);
        largest = lane_max(largest, lane_max(some, -some));
        zeros += some * 0.0f;
    }
    const float scale = reduce_max(largest) / kMaxInt16 + reduce_add(zeros), factor = int16_factor(scale);
    Ints sums = {};
    for (int64_t d = 0; d < dim; d += kLanes) {
        const Floats magic = Floats{} + 12582912.0f, numbers = load<Floats>(query + d) * factor;
        sums += Ints(numbers + magic) - Ints(magic);
        store_int16(numbers, false, words + d / kWordBytes);
    }
    int32_t sum = 0;
    for (int64_t lane = 0; lane < kLanes; ++lane) sum += sums[lane];
    return {scale, kMultipliesUnsigned ? int32_t(128 * uint32_t(sum)) : 0};
}

// Computes the scores of kHeads queries and a group of sixteen keys. queries: [kHeads, dim / 4]; scores: [kHeads,
// kSplitKeys].
template <int64_t kHeads>
inline void score_int8_keys(const int8_t* keys, const float* key_scales, const Int16Word* queries,
                            const Int16Query* of_heads, int64_t dim, float* scores, Prefetcher& prefetcher) {
    Prefetcher own = prefetcher;
    Int16Sums sums[kHeads][kParts];
    const int64_t num_words = dim / kWordBytes;
    for (int64_t word = 0; word < num_words; ++word) {
        own.fetch(kLanes * kWordBytes);
#pragma GCC unroll 4
        for (int64_t part = 0; part < kParts; ++part) {
            const auto numbers = Int16Sums::prepare<true>(keys + word * kLanes * kWordBytes + part * kRegisterBytes);
#pragma GCC unroll 4
            for (int64_t head = 0; head < kHeads; ++head)
                sums[head][part].template add<true>(numbers, queries[head * num_words + word]);
        }
    }
    for (int64_t head = 0; head < kHeads; ++head)
        for (int64_t part = 0; part < kParts; ++part) {
            const IntPart total = sums[head][part].total(of_heads[head].offset);
            const FloatPart products = __builtin_convertvector(total, FloatPart);
            const FloatPart score = products * load<FloatPart>(key_scales + part * kPartLanes) * of_heads[head].scale;
            std::memcpy(scores + head * kSplitKeys + part * kPartLanes, &score, sizeof score);
        }
    prefetcher = own;
}

// Adds a group of sixteen values, weighted, to the sums of kHeads heads.
//   weights   [kHeads, kSplitKeys / 4], from the group on
//   sums      [kHeads, dim / 16, kParts]
//   is_first  there are no sums so far
template <int64_t kHeads>
inline void add_int8_values(const int8_t* values, const Int16Word* weights, int64_t dim, bool is_first, Int16Sums* sums,
                            Prefetcher& prefetcher) {
    constexpr int64_t kWords = kLanes / kWordBytes;
    Prefetcher own = prefetcher;
    for (int64_t d = 0; d < dim; d += kLanes) {
        Int16Sums* const of_first_head = sums + d / kLanes * kParts;
        Int16Sums added[kHeads][kParts];
        if (!is_first)
            for (int64_t head = 0; head < kHeads; ++head)
                for (int64_t part = 0; part < kParts; ++part)
                    added[head][part] = of_first_head[head * (dim / kLanes) * kParts + part];
#pragma GCC unroll 4
        for (int64_t word = 0; word < kWords; ++word) {
            own.fetch(kLanes * kWordBytes);
#pragma GCC unroll 4
            for (int64_t part = 0; part < kParts; ++part) {
                const auto numbers =
                    Int16Sums::prepare<false>(values + (word * dim + d) * kWordBytes + part * kRegisterBytes);
#pragma GCC unroll 4
                for (int64_t head = 0; head < kHeads; ++head)
                    added[head][part].template add<false>(numbers, weights[head * (kSplitKeys / kWordBytes) + word]);
            }
        }
        for (int64_t head = 0; head < kHeads; ++head)
            for (int64_t part = 0; part < kParts; ++part)
                of_first_head[head * (dim / kLanes) * kParts + part] = added[head][part];
    }
    prefetcher = own;
}

// Weights the values of a split: turns a head's scores into weights of 16 bits and returns their scale. Prefetches, so
// that memory is busy meanwhile.
//   scores  [num_groups * 16]; those of keys that the query does not see are -inf
//   scales  of the values of each group
inline float weigh_int8_values(float* scores, const float* const* scales, int64_t num_groups, const Layer& layer,
                               OnlineSoftmax& softmax, Int16Word* weights, Prefetcher& prefetcher) {
    Prefetcher own = prefetcher;
    Floats largest = {}, zeros = {};
    softmax.update(scores, num_groups * kLanes, layer, [&](int64_t at, Floats probs) {
        own.fetch(kLanes * kWordBytes);
        // The scale of a value that is not seen may be NaN.
        const Floats products = probs == 0 ? Floats{} : probs * load<Floats>(scales[at / kLanes]);
        store(products, scores + at);
        largest = lane_max(largest, products);
        zeros += products * 0.0f;
    });
    const float scale = reduce_max(largest) / kMaxInt16 + reduce_add(zeros), factor = int16_factor(scale);
    for (int64_t at = 0; at < num_groups * kLanes; at += kLanes) {
        own.fetch(kLanes * kWordBytes);
        store_int16(load<Floats>(scores + at) * factor, true, weights + at / kWordBytes);
    }
    prefetcher = own;
    return scale;
}

// Attends one query of each head to the keys of one split.
inline void attend_int8_split(const Model& model, const Layer& layer, const int32_t* block_table, int64_t position,
                              int64_t number, const float* queries, AttentionScratch& scratch,
                              PartialAttention& partial) {
    const int64_t first = window_start(layer, position) + number * kKeysPerSplit,
                  last = std::min(position + 1, first + kKeysPerSplit), start = first / kLanes * kLanes,
                  num_groups = (last - start + kLanes - 1) / kLanes;
    const int64_t dim = model.head_dim, heads = model.num_heads, kv_heads = model.num_kv_heads,
                  heads_per_kv = heads / kv_heads, num_words = dim / kWordBytes;
    float* const scores = ensure_size(scratch.scores, heads * kSplitKeys);
    auto* words = reinterpret_cast<Int16Word*>(ensure_size(scratch.queries, heads * dim / 2));
    auto* of_heads = reinterpret_cast<Int16Query*>(ensure_size(scratch.keys, heads * 2));
    auto* weights = reinterpret_cast<Int16Word*>(ensure_size(scratch.probs, heads * kSplitKeys / 2));
    constexpr int64_t kSumInts = sizeof(Int16Sums) * kParts / sizeof(int32_t);
    auto* sums = reinterpret_cast<Int16Sums*>(ensure_size(scratch.values, heads * dim / kLanes * kSumInts));
    partial.resize(heads, dim);
    for (int64_t head = 0; head < heads; ++head) {
        if (number == 0) partial.softmax[head] = first_softmax(layer, head);
        of_heads[head] = quantize_query(queries + head * dim, dim, words + head * num_words);
    }

    // A block begins at block_size * dim bytes, and a group in it at its first position times dim.
    const PagedKV<int8_t> cache(model, layer, block_table, 0);
    const auto offset = [&](int64_t group, int64_t kv_head) {  // of a group's scales; dim times as far are its numbers
        return cache.offset(start + group * kLanes) + kv_head * cache.block_size;
    };
    const int64_t piece_bytes = kLanes * dim, ahead = std::max<int64_t>(1, kPrefetchDistance / piece_bytes);
    std::vector<const char*>& pieces = scratch.pieces;
    pieces.clear();
    for (const int8_t* from : {cache.keys, cache.values})
        for (int64_t group = 0; group < num_groups; ++group)
            for (int64_t kv_head = 0; kv_head < kv_heads; ++kv_head)
                pieces.push_back(reinterpret_cast<const char*>(from + offset(group, kv_head) * dim));
    for (int64_t at = 0; at < ahead && start + (num_groups + at / kv_heads) * kLanes <= position; ++at)
        pieces.push_back(reinterpret_cast<const char*>(
            cache.keys + offset(num_groups + at / kv_heads, at % kv_heads) * dim));
    const int64_t skipped = std::min<int64_t>(ahead, pieces.size() - 1);
    Prefetcher prefetcher(pieces.data() + skipped, pieces.size() - skipped, piece_bytes);
    Prefetcher no_prefetcher(pieces.data(), 1, piece_bytes);  // for heads that read a kv head once more
    const auto for_groups = [&](const auto& call) {  // call(number of heads, first of them, group, offset, prefetcher)
        for (int64_t group = 0; group < num_groups; ++group) {
            const int64_t of_group = offset(group, 0);
            for_heads<kInt8Heads>(heads, heads_per_kv, [&](auto number_of_heads, int64_t head) {
                call(number_of_heads, head, group, of_group + head / heads_per_kv * cache.block_size,
                     head % heads_per_kv == 0 ? prefetcher : no_prefetcher);
            });
        }
    };
    for_groups([&](auto number_of_heads, int64_t head, int64_t group, int64_t from, Prefetcher& own) {
        __builtin_prefetch(cache.value_scales + from);
        score_int8_keys<decltype(number_of_heads)::value>(cache.keys + from * dim, cache.key_scales + from,
                                                          words + head * num_words, of_heads + head, dim,
                                                          scores + head * kSplitKeys + group * kLanes, own);
    });
    float* const weight_scales = ensure_size(scratch.scales, heads);
    for (int64_t head = 0; head < heads; ++head) {
        const float* value_scales[kSplitKeys / kLanes];
        for (int64_t group = 0; group < num_groups; ++group)
            value_scales[group] = cache.value_scales + offset(group, head / heads_per_kv);
        float* own = scores + head * kSplitKeys;
        std::fill(own, own + (first - start), -INFINITY);
        std::fill(own + (last - start), own + num_groups * kLanes, -INFINITY);
        weight_scales[head] = weigh_int8_values(own, value_scales, num_groups, layer, partial.softmax[head],
                                                weights + head * (kSplitKeys / kWordBytes), prefetcher);
    }
    for_groups([&](auto number_of_heads, int64_t head, int64_t group, int64_t from, Prefetcher& own) {
        add_int8_values<decltype(number_of_heads)::value>(
            cache.values + from * dim, weights + (head * kSplitKeys + group * kLanes) / kWordBytes, dim, group == 0,
            sums + head * (dim / kLanes) * kParts, own);
    });
    for (int64_t head = 0; head < heads; ++head)
        for (int64_t at = 0; at < dim / kPartLanes; ++at) {
            const IntPart total = sums[head * (dim / kPartLanes) + at].total(0);
            const FloatPart sum = __builtin_convertvector(total, FloatPart) * weight_scales[head];
            std::memcpy(partial.sums.data() + head * dim + at * kPartLanes, &sum, sizeof sum);
        }
}
