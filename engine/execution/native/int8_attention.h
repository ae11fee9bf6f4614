// Decode attention over the int8 cache: as decode_attention.h, with integer products.
//
// Queries, and the weights of the values, are rounded to 16 bits with one scale each: for a head's query, and for a
// head's keys of a split. So products are exact integers, the same with every instruction set, and the rounding is a
// hundredth of that of the cache. A weight is a prob times the scale of its value.
//
// Memory, in the thread's AttentionScratch:
//   queries  Int16Word [num_heads, head_dim / 4]
//   scores   float32 [heads of a kv head, kSplitKeys]: scores, then weights
//   probs    Int16Word [heads of a kv head, kSplitKeys / 4]
// Keys of a split are read in groups of sixteen; those of a group that the query does not see get the score -inf.
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

// Rounds sixteen numbers, at most kMaxInt16, to four words. is_weight: none is negative.
inline void store_int16(Floats numbers, bool is_weight, Int16Word* to) {
    const Floats magic = Floats{} + 12582912.0f;  // 1.5 * 2^23
    const Ints rounded = Ints(numbers + magic) - Ints(magic);
#if defined(DESKMATE_INT16_BYTES)
    typedef int8_t Bytes __attribute__((vector_size(16)));
    // vpdpbusd takes weights as unsigned, so their low byte is; else both bytes are signed.
    const Ints upper = kMultipliesUnsigned && is_weight ? rounded >> 8 : (rounded + 128) >> 8;
    const Bytes high = __builtin_convertvector(upper, Bytes), low = __builtin_convertvector(rounded, Bytes);
    int32_t words[2][4];
    std::memcpy(words[0], &high, sizeof high);
    std::memcpy(words[1], &low, sizeof low);
    for (int64_t word = 0; word < 4; ++word) to[word] = {words[0][word], words[1][word]};
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
    const float scale = reduce_max(largest) / kMaxInt16 + reduce_add(zeros), divisor = scale > 0 ? scale : 1;
    Ints sums = {};
    for (int64_t d = 0; d < dim; d += kLanes) {
        const Floats magic = Floats{} + 12582912.0f, numbers = load<Floats>(query + d) / divisor;
        sums += Ints(numbers + magic) - Ints(magic);
        store_int16(numbers, false, words + d / kWordBytes);
    }
    int32_t sum = 0;
    for (int64_t lane = 0; lane < kLanes; ++lane) sum += sums[lane];
    return {scale, kMultipliesUnsigned ? int32_t(128 * uint32_t(sum)) : 0};
}

// Computes the scores of kHeads queries and kGroups groups of sixteen keys. queries: [kHeads, dim / 4]; scores: of the
// first group, [kHeads, kSplitKeys]. Prefetches the groups' values.
template <int64_t kHeads, int64_t kGroups>
inline void score_int8_keys(const int8_t* const* keys, const int8_t* const* values, const float* const* scales,
                            const Int16Word* queries, const Int16Query* of_heads, int64_t dim, float* scores) {
    Int16Sums sums[kHeads][kGroups][kParts];
    const int64_t num_words = dim / kWordBytes;
    for (int64_t word = 0; word < num_words; ++word)
#pragma GCC unroll 2
        for (int64_t group = 0; group < kGroups; ++group) {
            __builtin_prefetch(values[group] + word * kLanes * kWordBytes);
#pragma GCC unroll 4
            for (int64_t part = 0; part < kParts; ++part) {
                const auto numbers =
                    Int16Sums::prepare<true>(keys[group] + word * kLanes * kWordBytes + part * kRegisterBytes);
#pragma GCC unroll 4
                for (int64_t head = 0; head < kHeads; ++head)
                    sums[head][group][part].template add<true>(numbers, queries[head * num_words + word]);
            }
        }
    for (int64_t head = 0; head < kHeads; ++head)
        for (int64_t group = 0; group < kGroups; ++group)
            for (int64_t part = 0; part < kParts; ++part) {
                const IntPart total = sums[head][group][part].total(of_heads[head].offset);
                const FloatPart products = __builtin_convertvector(total, FloatPart);
                const FloatPart score = products * load<FloatPart>(scales[group] + part * kPartLanes) *
                                          of_heads[head].scale;
                std::memcpy(scores + head * kSplitKeys + group * kLanes + part * kPartLanes, &score, sizeof score);
            }
}

// Sums the values of a split, weighted, for kHeads heads and kVectors times sixteen numbers from d on.
//   values   [num_groups] groups of sixteen
//   weights  [kHeads, kSplitKeys / 4]
//   scales   [kHeads], of the weights
//   sums     of the first head, from d on; dim apart
//   next     [num_groups], keys that are read next: as many bytes of each are prefetched
template <int64_t kHeads, int64_t kVectors>
inline void add_int8_values(const int8_t* const* values, const int8_t* const* next, int64_t num_groups,
                            const Int16Word* weights, const float* scales, int64_t dim, int64_t d, float* to) {
    Int16Sums sums[kHeads][kVectors][kParts];
    for (int64_t group = 0; group < num_groups; ++group)
        for (int64_t word = 0; word < kLanes / kWordBytes; ++word) {
            const int8_t* from = values[group] + (word * dim + d) * kWordBytes;
            const Int16Word* own = weights + group * (kLanes / kWordBytes) + word;
            const int8_t* const fetched = next[group] + (word * dim + d) * kWordBytes;
#pragma GCC unroll 4
            for (int64_t vector = 0; vector < kVectors; ++vector) {
                __builtin_prefetch(fetched + vector * kLanes * kWordBytes);
#pragma GCC unroll 4
                for (int64_t part = 0; part < kParts; ++part) {
                    const auto numbers =
                        Int16Sums::prepare<false>(from + vector * kLanes * kWordBytes + part * kRegisterBytes);
#pragma GCC unroll 4
                    for (int64_t head = 0; head < kHeads; ++head)
                        sums[head][vector][part].template add<false>(numbers, own[head * (kSplitKeys / kWordBytes)]);
                }
            }
        }
    for (int64_t head = 0; head < kHeads; ++head)
        for (int64_t vector = 0; vector < kVectors; ++vector)
            for (int64_t part = 0; part < kParts; ++part) {
                const FloatPart sum =
                    __builtin_convertvector(sums[head][vector][part].total(0), FloatPart) * scales[head];
                std::memcpy(to + head * dim + d + vector * kLanes + part * kPartLanes, &sum, sizeof sum);
            }
}

#if defined(__AVX512F__)
constexpr int64_t kInt8Heads = 4, kInt8Groups = 2, kInt8Vectors = 2;  // 16 sums of 32 registers
#else
constexpr int64_t kInt8Heads = 2, kInt8Groups = 1, kInt8Vectors = 1;
#endif

// The keys of a split, from a multiple of sixteen on.
struct Int8Split {
    int64_t first, last;  // positions that the query sees
    int64_t start, num_groups;
    int64_t offsets[kSplitKeys / kLanes];  // of the groups, see PagedKV
    int64_t next_offsets[kSplitKeys / kLanes];  // of the next split's groups, of which the last is repeated
};

// Attends kHeads queries, which share the kv head of cache, to the keys of a split.
template <int64_t kHeads>
void attend_int8_heads(const Layer& layer, const PagedKV<int8_t>& cache, const Int8Split& split,
                       const int8_t* const* next_keys, const Int16Word* queries, const Int16Query* of_heads,
                       AttentionScratch& scratch, OnlineSoftmax* states, float* sums) {
    const int8_t *keys[kSplitKeys / kLanes], *values[kSplitKeys / kLanes];
    const float *key_scales[kSplitKeys / kLanes], *value_scales[kSplitKeys / kLanes];
    for (int64_t group = 0; group < split.num_groups; ++group) {
        const int64_t offset = split.offsets[group];
        // A block begins at block_size * dim bytes, and a group in it at its first position times dim.
        keys[group] = cache.keys + offset * cache.dim;
        values[group] = cache.values + offset * cache.dim;
        key_scales[group] = cache.key_scales + offset;
        value_scales[group] = cache.value_scales + offset;
    }
    float* const scores = ensure_size(scratch.scores, kInt8Heads * kSplitKeys);
    auto* weights = reinterpret_cast<Int16Word*>(ensure_size(scratch.probs, kInt8Heads * kSplitKeys / 2));
    int64_t group = 0;
    for (; group + kInt8Groups <= split.num_groups; group += kInt8Groups)
        score_int8_keys<kHeads, kInt8Groups>(keys + group, values + group, key_scales + group, queries, of_heads,
                                             cache.dim, scores + group * kLanes);
    for (; group < split.num_groups; ++group)
        score_int8_keys<kHeads, 1>(keys + group, values + group, key_scales + group, queries, of_heads, cache.dim,
                                   scores + group * kLanes);
    float weight_scales[kHeads];
    for (int64_t head = 0; head < kHeads; ++head) {
        float* own = scores + head * kSplitKeys;
        std::fill(own, own + (split.first - split.start), -INFINITY);
        std::fill(own + (split.last - split.start), own + split.num_groups * kLanes, -INFINITY);
        Floats largest = {}, zeros = {};
        states[head].update(own, split.num_groups * kLanes, layer, [&](int64_t at, Floats probs) {
            const Floats scales = load<Floats>(value_scales[at / kLanes]);
            const Floats products = probs == 0 ? Floats{} : probs * scales;  // an unseen value's scale may be NaN
            store(products, own + at);
            largest = lane_max(largest, products);
            zeros += products * 0.0f;
        });
        const float scale = reduce_max(largest) / kMaxInt16 + reduce_add(zeros), divisor = scale > 0 ? scale : 1;
        for (int64_t at = 0; at < split.num_groups * kLanes; at += kLanes)
            store_int16(load<Floats>(own + at) / divisor, true,
                        weights + (head * kSplitKeys + at) / kWordBytes);
        weight_scales[head] = scale;
    }
    int64_t d = 0;
    for (; d + kInt8Vectors * kLanes <= cache.dim; d += kInt8Vectors * kLanes)
        add_int8_values<kHeads, kInt8Vectors>(values, next_keys, split.num_groups, weights, weight_scales, cache.dim, d,
                                              sums);
    for (; d < cache.dim; d += kLanes)
        add_int8_values<kHeads, 1>(values, next_keys, split.num_groups, weights, weight_scales, cache.dim, d, sums);
}

// Attends one query of each head to the keys of one split.
inline void attend_int8_split(const Model& model, const Layer& layer, const int32_t* block_table, int64_t position,
                              int64_t number, const float* queries, AttentionScratch& scratch,
                              PartialAttention& partial) {
    const int64_t first = window_start(layer, position) + number * kKeysPerSplit,
                  last = std::min(position + 1, first + kKeysPerSplit), start = first / kLanes * kLanes;
    Int8Split split = {first, last, start, (last - start + kLanes - 1) / kLanes, {}, {}};
    const PagedKV<int8_t> all(model, layer, block_table, 0);
    for (int64_t group = 0; group < split.num_groups; ++group) {
        const int64_t at = start + group * kLanes;
        split.offsets[group] = all.offset(at);
        split.next_offsets[group] = all.offset(std::min(at + kKeysPerSplit, position / kLanes * kLanes));
    }
    const int64_t dim = model.head_dim, heads = model.num_heads, heads_per_kv = heads / model.num_kv_heads;
    auto* words = reinterpret_cast<Int16Word*>(ensure_size(scratch.queries, kInt8Heads * dim / 2));
    partial.clear(heads, dim);
    if (number == 0)
        for (int64_t head = 0; head < heads; ++head) partial.softmax[head] = first_softmax(layer, head);
    for (int64_t head = 0, count; head < heads; head += count) {
        const int64_t kv_head = head / heads_per_kv;
        count = std::min(kInt8Heads, (kv_head + 1) * heads_per_kv - head);
        Int16Query of_heads[kInt8Heads];
        for (int64_t at = 0; at < count; ++at)
            of_heads[at] = quantize_query(queries + (head + at) * dim, dim, words + at * dim / kWordBytes);
        const PagedKV<int8_t> cache(model, layer, block_table, kv_head);
        // The next keys are this kv head's again if it has more heads, the next kv head's, or the next split's.
        const int64_t next_head = head + count < heads ? (head + count) / heads_per_kv : 0;
        const PagedKV<int8_t> next(model, layer, block_table, next_head);
        const int8_t* next_keys[kSplitKeys / kLanes];
        for (int64_t group = 0; group < split.num_groups; ++group)
            next_keys[group] =
                next.keys + (head + count < heads ? split.offsets : split.next_offsets)[group] * dim;
        const auto attend = [&](auto number_of_heads) {
            attend_int8_heads<decltype(number_of_heads)::value>(layer, cache, split, next_keys, words, of_heads,
                                                                scratch, partial.softmax.data() + head,
                                                                partial.sums.data() + head * dim);
        };
        if (count == 1) attend(std::integral_constant<int64_t, 1>());
        if (count == 2) attend(std::integral_constant<int64_t, 2>());
        if constexpr (kInt8Heads > 2) {
            if (count == 3) attend(std::integral_constant<int64_t, 3>());
            if (count == 4) attend(std::integral_constant<int64_t, 4>());
        }
    }
}
