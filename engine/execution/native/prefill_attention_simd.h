// Prefill attention over the paged cache on SIMD registers: many consecutive queries of one sequence, one kv head.
//
// The sibling of prefill_attention.h for processors without AMX, and for float32. FlashAttention-2 (arXiv 2307.08691):
// blocks of kSimdPrefillRows rows meet kSimdPrefillKeys keys at a time, and rescale their sums as the softmax's maximum
// grows. A row is one query of one of the heads that share the kv head: row = query * heads_per_kv + head. microkernel.h
// computes both products: queries are rows and keys panels, then probs are rows and values panels.
//
// Memory, all in the thread's AttentionScratch; a word holds kPerWord numbers:
//   queries  [rows, head_dim / kPerWord], of one block
//   keys     panels [num_packed / 16, head_dim / kPerWord, 16 keys]
//   values   panels [head_dim / 16, num_packed / kPerWord, 16 numbers]
//   scores   float32 [rows, kSimdPrefillKeys]
//   probs    [rows, kSimdPrefillKeys / kPerWord]
//   sums     float32 [rows, head_dim], unnormalized output
//   scales   float32 [2, num_packed], of keys and values in an int8 cache: scores and probs are multiplied with them
// Keys and values are packed once for all blocks of rows; for one block of rows, which the few queries of a step beside
// decodes are, a block of keys at a time, so that they stay in the cache.
//
// Blocks of keys start at multiples of kSimdPrefillKeys of the sequence, and a row's result does not depend on the other
// rows, so the chunks of a prompt do not change a bit. A token that a row does not see adds nothing to it, even if its
// key or value is NaN or infinite.
//
// Precision: scores and sums are float32. A bfloat16 cache with AVX512-BF16 rounds queries and probs to bfloat16, as in
// decode_attention.h; otherwise all is float32.
// Threads: each attends kv heads and sequences of its own, with its own scratch.
#pragma once

#include <algorithm>
#include <type_traits>

#include "attention.h"
#include "int8_cache.h"
#include "microkernel.h"

constexpr int64_t kMinSimdPrefillQueries = 8;  // fewest queries of a chunk; packing does not pay for fewer
constexpr int64_t kSimdPrefillKeys = 256;
constexpr int64_t kSimdPrefillRows = 48;  // rows of a block
static_assert(kSimdPrefillRows % kKernelRows == 0 && kSimdPrefillKeys % (kKernelPanels * kLanes) == 0);

// Cache: of keys and values. Compute: dtype of the products, where it is not widened; that of the cache, or the model's
// if the cache is int8, whose numbers are exact in bfloat16, too.
template <typename Cache, typename Compute = Cache>
class SimdPrefillAttention {
   public:
    // cache: from kv_head on. position: of the first of num_queries queries, whose own keys and values are in the cache.
    SimdPrefillAttention(const Model& model, const Layer& layer, const PagedKV<Cache>& cache, int64_t kv_head,
                         int64_t position, int64_t num_queries, AttentionScratch& scratch)
        : layer_(layer),
          cache_(cache),
          scratch_(scratch),
          kv_head_(kv_head),
          position_(position),
          heads_per_kv_(model.num_heads / model.num_kv_heads),
          num_rows_(num_queries * heads_per_kv_),
          dim_(model.head_dim),
          query_words_(model.head_dim / kPerWord),
          first_key_(window_start(layer, position) / kSimdPrefillKeys * kSimdPrefillKeys),
          num_keys_((position + num_queries - first_key_ + kKeyUnit - 1) / kKeyUnit * kKeyUnit) {}

    // queries: float32 [num_queries, stride], from the first of the heads on. Calls store_output(query, number,
    // attended) with sixteen numbers of a query's output, from number on, counted from the first of the heads.
    template <typename StoreOutput>
    void attend(const float* queries, int64_t stride, const StoreOutput& store_output) {
        scratch_.is_finite.assign((num_keys_ + kSimdPrefillKeys - 1) / kSimdPrefillKeys, true);
        if (num_rows_ > kSimdPrefillRows) pack(0, num_keys_);
        ensure_size(scratch_.queries, kSimdPrefillRows * query_words_);
        ensure_size(scratch_.scores, kSimdPrefillRows * kSimdPrefillKeys);
        ensure_size(scratch_.probs, kSimdPrefillRows * kSimdPrefillKeys / kPerWord);
        ensure_size(scratch_.sums, kSimdPrefillRows * dim_);
        for (int64_t row = 0; row < num_rows_; row += kSimdPrefillRows)
            attend_block(row, queries, stride, store_output);
    }

   private:
#if defined(__AVX512BF16__)
    using Number = Compute;
#else
    using Number = float;
#endif
    static constexpr bool kIsInt8 = std::is_same_v<Cache, int8_t>;
    static constexpr int64_t kPerWord = WeightFormat<Number>::kPerWord;
    static constexpr int64_t kKeyUnit = kKernelPanels * kLanes;  // keys are padded with zeros to a multiple of this

    // Positions of keys and queries are absolute; indices of keys count from first_key_.
    int64_t position(int64_t row) const { return position_ + row / heads_per_kv_; }

    // The indices of the keys that a row sees, from first to last - 1.
    struct Seen {
        int64_t first, last;
    };
    Seen seen(int64_t row) const {
        return {window_start(layer_, position(row)) - first_key_, position(row) + 1 - first_key_};
    }

    // Returns where a key or value is, or null outside of the keys that any of the queries sees.
    const Cache* find(const Cache* numbers, int64_t index) const {
        const bool is_seen = index >= seen(0).first && index < seen(num_rows_ - 1).last;
        return is_seen ? numbers + cache_.offset(first_key_ + index) : nullptr;
    }

    [[gnu::always_inline]] void prefetch(const Cache* numbers, int64_t index) const {
        if (const Cache* from = find(numbers, index)) prefetch_row(from, dim_);
    }

    // Returns sixteen words of a key, from word on, in the dtype of the products; zeros past its end.
    Ints key_words(const Cache* key, int64_t word) const {
        if constexpr (std::is_same_v<Number, bf16>) {
            return row_words(key, dim_, word);
        } else {
            return Ints(widen(key + word));
        }
    }

    // Packs the keys first to last - 1 and their values.
    void pack(int64_t first, int64_t last) {
        first_packed_ = first;
        num_packed_ = last - first;
        if constexpr (kIsInt8) {
            pack_int8();
        } else {
            pack_keys();
            pack_values();
        }
    }

    void pack_keys() {
        int32_t* packed = ensure_size(scratch_.keys, num_packed_ * query_words_);
        const int64_t end = first_packed_ + num_packed_;
        for (int64_t key = first_packed_; key < end; key += kLanes, packed += kLanes * query_words_) {
            const Cache* from[kLanes];
            for (int64_t at = 0; at < kLanes; ++at) {
                from[at] = find(cache_.keys, key + at);
                prefetch(cache_.keys, key + at + kLanes);
            }
            for (int64_t word = 0; word < query_words_; word += kLanes) {
                Ints rows[kLanes] = {};
                for (int64_t at = 0; at < kLanes; ++at)
                    if (from[at]) rows[at] = key_words(from[at], word);
                transpose(rows);
                for (int64_t at = 0; at < std::min(kLanes, query_words_ - word); ++at)
                    store(rows[at], packed + (word + at) * kLanes);
            }
        }
    }

    // Also finds out which blocks of keys have values that are NaN or infinite.
    void pack_values() {
        int32_t* packed = ensure_size(scratch_.values, num_packed_ * dim_ / kPerWord);
        const int64_t panel_size = num_packed_ / kPerWord * kLanes;
        for (int64_t key = first_packed_; key < first_packed_ + num_packed_; key += kPerWord, packed += kLanes) {
            Floats zeros = {};  // NaN after a product of 0 and a number that is not finite
            const Cache* one = find(cache_.values, key);
            [[maybe_unused]] const Cache* other = kPerWord == 2 ? find(cache_.values, key + 1) : nullptr;
            for (int64_t at = 0; at < kPerWord; ++at) prefetch(cache_.values, key + at + kLanes);
            for (int64_t d = 0; d < dim_; d += kLanes) {
                int32_t* to = packed + d / kLanes * panel_size;
                const Floats first = one ? widen(one + d) : Floats{};
                zeros += first * 0.0f;
                if constexpr (kPerWord == 2) {
                    const Floats second = other ? widen(other + d) : Floats{};
                    zeros += second * 0.0f;
                    store((Ints(first) >> 16 & 0xffff) | Ints(second), to);
                } else {
                    store(Ints(first), to);
                }
            }
            if (any_of(zeros != zeros)) scratch_.is_finite[key / kSimdPrefillKeys] = false;
        }
    }

    // Packs keys, values and their scales from an int8 cache, sixteen tokens at a time: those that no query sees have
    // scores -inf, and zeros if there are no others beside them.
    void pack_int8() {
        int32_t* const keys = ensure_size(scratch_.keys, num_packed_ * query_words_);
        int32_t* const values = ensure_size(scratch_.values, num_packed_ * dim_ / kPerWord);
        float* const scales = ensure_size(scratch_.scales, 2 * num_packed_);
        const int64_t panel_size = num_packed_ / kPerWord * kLanes;
        for (int64_t key = 0; key < num_packed_; key += kLanes) {
            const int64_t index = first_packed_ + key;
            const bool is_seen = index + kLanes > seen(0).first && index < seen(num_rows_ - 1).last;
            const int64_t offset = is_seen ? cache_.offset(first_key_ + index) : 0;
            store(is_seen ? load<Floats>(cache_.key_scales + offset) : Floats{}, scales + key);
            store(is_seen ? load<Floats>(cache_.value_scales + offset) : Floats{}, scales + num_packed_ + key);
            for (int64_t d = 0; d < dim_; d += kWordBytes)
                widen_int8(is_seen ? load<Ints>(cache_.keys + offset * dim_ + d * kLanes) : Ints{},
                           keys + key * query_words_ + d / kPerWord * kLanes);
            for (int64_t word = 0; word < kLanes; word += kWordBytes)
                for (int64_t d = 0; d < dim_; d += kLanes)
                    widen_int8(is_seen ? load<Ints>(cache_.values + offset * dim_ + word * dim_ + d * kWordBytes)
                                       : Ints{},
                               values + d / kLanes * panel_size + (key + word) / kPerWord * kLanes);
        }
    }

    // Widens four int8 in each lane to Number: 4 / kPerWord vectors.
    static void widen_int8(Ints bytes, int32_t* to) {
        const auto number = [&](int at) { return Ints(__builtin_convertvector(bytes << (24 - 8 * at) >> 24, Floats)); };
        for (int at = 0; at < kWordBytes; at += kPerWord) {
            const Ints first = number(at);
            if constexpr (kPerWord == 2) store((first >> 16 & 0xffff) | number(at + 1), to + at / 2 * kLanes);
            else store(first, to + at * kLanes);
        }
    }

    // Attends the rows of a block, from first_row on.
    template <typename StoreOutput>
    void attend_block(int64_t first_row, const float* queries, int64_t stride, const StoreOutput& store_output) {
        const int64_t count = std::min(num_rows_ - first_row, kSimdPrefillRows);
        const int64_t padded = (count + kKernelRows - 1) / kKernelRows * kKernelRows;
        auto* packed = reinterpret_cast<Number*>(scratch_.queries.data());
        std::fill_n(scratch_.queries.data(), padded * query_words_, 0);
        for (int64_t row = 0; row < count; ++row) {
            const int64_t query = (first_row + row) / heads_per_kv_, head = (first_row + row) % heads_per_kv_;
            for (int64_t d = 0; d < dim_; d += kLanes)
                store(load<Floats>(queries + query * stride + head * dim_ + d), packed + row * dim_ + d);
        }
        float* const sums = scratch_.sums.data();
        std::fill_n(sums, padded * dim_, 0.0f);
        std::fill_n(scratch_.probs.data(), padded * kSimdPrefillKeys / kPerWord, 0);
        OnlineSoftmax states[kSimdPrefillRows];
        for (int64_t row = 0; row < count; ++row)
            states[row] = first_softmax(layer_, kv_head_ * heads_per_kv_ + (first_row + row) % heads_per_kv_);
        const int64_t end = seen(first_row + count - 1).last;
        const int64_t start = seen(first_row).first / kSimdPrefillKeys * kSimdPrefillKeys;
        for (int64_t key = start; key < end; key += kSimdPrefillKeys) {
            const int64_t width = std::min(kSimdPrefillKeys, (end - key + kKeyUnit - 1) / kKeyUnit * kKeyUnit);
            if (num_rows_ <= kSimdPrefillRows) pack(key, key + width);
            compute_scores(padded, key, width);
            softmax(first_row, count, key, width, states);
            const bool all_see_all = seen(first_row + count - 1).first <= key && seen(first_row).last >= key + width;
            if (all_see_all || scratch_.is_finite[key / kSimdPrefillKeys]) add_values(padded, key, width);
            else add_seen_values(first_row, count, key, width);
        }
        for (int64_t row = 0; row < count; ++row)
            for (int64_t d = 0; d < dim_; d += kLanes) {
                const int64_t query = (first_row + row) / heads_per_kv_, head = (first_row + row) % heads_per_kv_;
                store_output(query, head * dim_ + d, load<Floats>(sums + row * dim_ + d) / states[row].row_sum);
            }
    }

    // Computes the scores of the block's rows and the keys key to key + width - 1.
    void compute_scores(int64_t rows, int64_t key, int64_t width) {
        const int64_t panel_size = query_words_ * kLanes;
        for (int64_t at = 0; at < width; at += kKeyUnit)
            for (int64_t row = 0; row < rows; row += kKernelRows)
                score(scratch_.queries.data() + row * query_words_,
                      scratch_.keys.data() + (key - first_packed_ + at) / kLanes * panel_size,
                      scratch_.scores.data() + row * kSimdPrefillKeys + at);
    }

    [[gnu::noinline]] void score(const int32_t* queries, const int32_t* keys, float* to) const {
        KernelSums<Number, kKernelPanels, kKernelRows> sums;
        sums.add(queries, query_words_, keys, query_words_ * kLanes, query_words_);
        sums.store_all(to, kSimdPrefillKeys);
    }

    // Masks scores and turns them into probs, and rescales the sums so far.
    void softmax(int64_t first_row, int64_t count, int64_t key, int64_t width, OnlineSoftmax* states) {
        auto* probs = reinterpret_cast<Number*>(scratch_.probs.data());
        [[maybe_unused]] const float* scales = kIsInt8 ? scratch_.scales.data() + key - first_packed_ : nullptr;
        for (int64_t row = 0; row < count; ++row) {
            float* scores = scratch_.scores.data() + row * kSimdPrefillKeys;
            const Seen own = seen(first_row + row);
            if constexpr (kIsInt8)
                for (int64_t at = 0; at < width; at += kLanes)
                    store(load<Floats>(scores + at) * load<Floats>(scales + at), scores + at);
            std::fill(scores, scores + std::clamp<int64_t>(own.first - key, 0, width), -INFINITY);
            std::fill(scores + std::clamp<int64_t>(own.last - key, 0, width), scores + width, -INFINITY);
            const float rescale = states[row].update(scores, width, layer_, [&](int64_t at, Floats some) {
                if constexpr (kIsInt8) {  // the scale of a value that the row does not see may be NaN
                    some = some == 0 ? Floats{} : some * load<Floats>(scales + num_packed_ + at);
                }
                store(some, probs + row * kSimdPrefillKeys + at);
            });
            float* sums = scratch_.sums.data() + row * dim_;
            if (rescale != 1)
                for (int64_t d = 0; d < dim_; d += kLanes) store(load<Floats>(sums + d) * rescale, sums + d);
        }
    }

    // Adds the values of the keys key to key + width - 1, weighted by the probs, to the sums.
    void add_values(int64_t rows, int64_t key, int64_t width) {
        const int64_t panel_size = num_packed_ / kPerWord * kLanes;
        const int32_t* values = scratch_.values.data() + (key - first_packed_) / kPerWord * kLanes;
        int64_t d = 0;
        for (; d + kKernelPanels * kLanes <= dim_; d += kKernelPanels * kLanes, values += kKernelPanels * panel_size)
            for (int64_t row = 0; row < rows; row += kKernelRows)
                add_panels<kKernelPanels, kKernelRows>(row, d, values, panel_size, width);
        for (; d < dim_; d += kLanes, values += panel_size)
            for (int64_t row = 0; row < rows; row += kKernelRows)
                add_panels<1, kKernelRows>(row, d, values, panel_size, width);
    }

    // The same, for values that are not finite: multiplied with the probs 0 of rows that do not see them, they would be
    // NaN. Each row gets a copy of the values with zeros instead.
    void add_seen_values(int64_t first_row, int64_t count, int64_t key, int64_t width) {
        std::vector<Number> numbers(width * kLanes);
        const int64_t panel_size = num_packed_ * kLanes;
        for (int64_t row = 0; row < count; ++row)
            for (int64_t d = 0; d < dim_; d += kLanes) {
                const auto* from = reinterpret_cast<const Number*>(scratch_.values.data()) + d / kLanes * panel_size;
                std::copy_n(from + (key - first_packed_) * kLanes, width * kLanes, numbers.data());
                const Seen own = seen(first_row + row);
                for (int64_t at = 0; at < width; ++at)
                    if (key + at < own.first || key + at >= own.last)
                        for (int64_t lane = 0; lane < kLanes; ++lane)
                            numbers[(at / kPerWord * kLanes + lane) * kPerWord + at % kPerWord] = 0;
                add_panels<1, 1>(row, d, reinterpret_cast<const int32_t*>(numbers.data()), 0, width);
            }
    }

    template <int64_t kPanels, int64_t kRows>
    [[gnu::noinline]] void add_panels(int64_t row, int64_t d, const int32_t* values, int64_t panel_size,
                                      int64_t width) {
        constexpr int64_t kProbWords = kSimdPrefillKeys / kPerWord;
        float* const to = scratch_.sums.data() + row * dim_ + d;
        KernelSums<Number, kPanels, kRows> sums;
        sums.load_all(to, dim_);
        sums.add(scratch_.probs.data() + row * kProbWords, kProbWords, values, panel_size, width / kPerWord);
        sums.store_all(to, dim_);
    }

    const Layer& layer_;
    const PagedKV<Cache>& cache_;
    AttentionScratch& scratch_;
    int64_t kv_head_, position_, heads_per_kv_, num_rows_, dim_, query_words_;
    int64_t first_key_, num_keys_;  // the keys that any of the queries sees, from a block's start on, with padding
    int64_t first_packed_ = 0, num_packed_ = 0;  // those that are packed, as indices
};
