// Prefill attention over the paged cache: many queries of one sequence, on AMX tiles.
#pragma once

#include "attention.h"

#ifdef DESKMATE_AMX

constexpr int64_t kMinPrefillQueries = 4;  // fewest queries of a chunk; packing keys and values does not pay for fewer
constexpr int64_t kKeysInStep = 256;  // keys per iteration: scores that a block of queries keeps

// Attends many consecutive queries of all heads that share a kv head, in blocks of 32 rows, as in FlashAttention-2
// (arXiv 2307.08691), with keys and values packed for the tiles once. Scores are computed in float32; queries and probs
// are rounded to bfloat16.
class PrefillAttention {
   public:
    PrefillAttention(const Model& model, const Layer& layer, const HeadCache<bf16>& cache, int64_t position, int64_t count, Scratch& scratch)
        : model_(model),
          layer_(layer),
          cache_(cache),
          scratch_(scratch),
          position_(position),
          rows_(count * (model.num_heads / model.num_kv_heads)),
          group_(model.num_heads / model.num_kv_heads),
          dim_(model.head_dim),
          words_((model.head_dim + 31) / 32 * kTileWords),
          begin_(window_start(layer, position)),
          num_keys_((position + count - begin_ + 31) / 32 * 32) {}

    // queries: [count, stride], from the first head on. Calls use(query, number, attended) with sixteen output numbers.
    template <typename Use>
    void attend(const float* queries, int64_t stride, TileConfig& tiles, const Use& use) {
        pack_keys_and_values();
        ensure_size(scratch_.queries, 2 * kTileRows * words_);
        ensure_size(scratch_.scores, 2 * kTileRows * kKeysInStep);
        ensure_size(scratch_.probs, 2 * kTileRows * kKeysInStep / 2);
        ensure_size(scratch_.sums, 2 * kTileRows * dim_);
        tiles.configure(kTileRows, kTileRows);
        for (int64_t row = 0; row < rows_; row += 2 * kTileRows) block(row, queries, stride, use);
    }

   private:
    int64_t position(int64_t row) const { return position_ + row / group_; }
    int64_t clamp_to_sequence(int64_t key) const { return std::min(key, position_ + rows_ / group_ - begin_); }

    // Packs keys as [keys / 16, words, 16]: sixteen keys interleaved, two numbers in a word. Packs values as
    // [head_dim / 16, keys / 2, 16]: sixteen numbers, each word holding those of two keys.
    void pack_keys_and_values() {
        ensure_size(scratch_.keys, num_keys_ * words_);
        ensure_size(scratch_.values, num_keys_ / 2 * dim_);
        const int64_t count = clamp_to_sequence(num_keys_);
        for (int64_t key = 0; key < num_keys_; key += kLanes) {
            const bf16* from[kLanes];
            for (int64_t at = 0; at < kLanes; ++at)
                from[at] = key + at < count ? cache_.keys + cache_.offset(begin_ + key + at) : nullptr;
            for (int64_t word = 0; word < words_; word += kTileWords) {
                Ints rows[kLanes] = {};
                const int64_t bytes = std::min<int64_t>(64, (dim_ - 2 * word) * 2);
                for (int64_t at = 0; at < kLanes; ++at)
                    if (from[at]) std::memcpy(&rows[at], from[at] + 2 * word, bytes);
                transpose(rows);
                for (int64_t at = 0; at < kTileWords; ++at) store(rows[at], &scratch_.keys[key * words_ + (word + at) * kLanes]);
            }
        }
        for (int64_t key = 0; key < num_keys_; key += 2) {
            const bf16* even = key < count ? cache_.values + cache_.offset(begin_ + key) : nullptr;
            const bf16* odd = key + 1 < count ? cache_.values + cache_.offset(begin_ + key + 1) : nullptr;
            for (int64_t d = 0; d < dim_; d += kLanes) {
                const Ints words = (even ? widen_bits(even + d) : Ints{}) | (odd ? widen_bits(odd + d) : Ints{}) << 16;
                store(words, &scratch_.values[(d / kLanes * (num_keys_ / 2) + key / 2) * kLanes]);
            }
        }
    }

    template <typename Use>
    void block(int64_t first, const float* queries, int64_t stride, const Use& use) {
        const int64_t count = std::min(rows_ - first, 2 * kTileRows);
        auto* laid_out = reinterpret_cast<bf16*>(scratch_.queries.data());
        std::fill_n(scratch_.queries.data(), 2 * kTileRows * words_, 0);
        for (int64_t row = 0; row < count; ++row) {
            const float* from = queries + (first + row) / group_ * stride + (first + row) % group_ * dim_;
            for (int64_t d = 0; d < dim_; d += kLanes)
                store(load<Floats>(from + d), laid_out + 2 * (row / 16 * 16 * words_ + d / 32 * kTileSize + row % 16 * 16) + d % 32);
        }
        float* sums = scratch_.sums.data();
        std::fill_n(sums, 2 * kTileRows * dim_, 0.0f);
        OnlineSoftmax states[2 * kTileRows];
        const int64_t end = clamp_to_sequence(position(first + count - 1) + 1 - begin_);
        const int64_t start = (window_start(layer_, position(first)) - begin_) / 32 * 32;
        for (int64_t key = start; key < end; key += kKeysInStep) {
            const int64_t width = std::min(kKeysInStep, (end - key + 31) / 32 * 32);
            score(key, width);
            softmax(first, count, key, width, states);
            add_values(key, width);
        }
        for (int64_t row = 0; row < count; ++row)
            for (int64_t d = 0; d < dim_; d += kLanes)
                use((first + row) / group_, (first + row) % group_ * dim_ + d, load<Floats>(sums + row * dim_ + d) / states[row].row_sum);
    }

    // Computes scores [32, 256].
    void score(int64_t key, int64_t width) {
        tile_load_barrier();
        const int32_t *upper = scratch_.queries.data(), *lower = upper + kTileRows * words_;
        for (int64_t at = 0; at < width; at += 2 * kLanes) {
            const int32_t* left = scratch_.keys.data() + (key + at) * words_;
            const int32_t* right = left + kLanes * words_;
            _tile_zero(0);
            _tile_zero(1);
            _tile_zero(2);
            _tile_zero(3);
            for (int64_t word = 0; word < words_ * kLanes; word += kTileSize) {
                _tile_loadd(4, upper + word, 64);
                _tile_loadd(5, lower + word, 64);
                _tile_loadd(6, left + word, 64);
                _tile_loadd(7, right + word, 64);
                _tile_dpbf16ps(0, 4, 6);
                _tile_dpbf16ps(1, 4, 7);
                _tile_dpbf16ps(2, 5, 6);
                _tile_dpbf16ps(3, 5, 7);
            }
            float* to = scratch_.scores.data() + at;
            _tile_stored(0, to, 4 * kKeysInStep);
            _tile_stored(1, to + kLanes, 4 * kKeysInStep);
            _tile_stored(2, to + kTileRows * kKeysInStep, 4 * kKeysInStep);
            _tile_stored(3, to + kTileRows * kKeysInStep + kLanes, 4 * kKeysInStep);
        }
    }

    // Turns scores into probs, in bfloat16 tiles, and rescales the sums so far.
    void softmax(int64_t first, int64_t count, int64_t key, int64_t width, OnlineSoftmax* states) {
        auto* probs = reinterpret_cast<bf16*>(scratch_.probs.data());
        for (int64_t row = 0; row < count; ++row) {
            float* own = scratch_.scores.data() + row * kKeysInStep;
            const int64_t seen_from = window_start(layer_, position(first + row)) - begin_ - key;
            const int64_t seen_to = position(first + row) + 1 - begin_ - key;
            std::fill(own, own + std::clamp<int64_t>(seen_from, 0, width), -INFINITY);
            std::fill(own + std::clamp<int64_t>(seen_to, 0, width), own + width, -INFINITY);
            bf16* to = probs + 2 * (row / 16 * 16 * (kKeysInStep / 2) + row % 16 * 16);
            const float rescale = states[row].update(own, width, model_.attention_scale, [&](int64_t at, Floats some) {
                store(some, to + 2 * (at / 32 * kTileSize) + at % 32);
            });
            float* sums = scratch_.sums.data() + row * dim_;
            if (rescale != 1)
                for (int64_t d = 0; d < dim_; d += kLanes) store(load<Floats>(sums + d) * rescale, sums + d);
        }
    }

    void add_values(int64_t key, int64_t width) {
        tile_load_barrier();
        const int32_t *upper = scratch_.probs.data(), *lower = upper + kTileRows * (kKeysInStep / 2);
        const int64_t line = 4 * dim_;
        for (int64_t d = 0; d < dim_; d += 2 * kLanes) {
            const bool both = d + kLanes < dim_;
            float* sums = scratch_.sums.data() + d;
            const int32_t* left = scratch_.values.data() + (d / kLanes * (num_keys_ / 2) + key / 2) * kLanes;
            const int32_t* right = left + num_keys_ / 2 * kLanes;
            _tile_loadd(0, sums, line);
            _tile_loadd(2, sums + kTileRows * dim_, line);
            if (both) {
                _tile_loadd(1, sums + kLanes, line);
                _tile_loadd(3, sums + kTileRows * dim_ + kLanes, line);
            }
            for (int64_t at = 0; at < width / 2 * kLanes; at += kTileSize) {
                _tile_loadd(4, upper + at, 64);
                _tile_loadd(5, lower + at, 64);
                _tile_loadd(6, left + at, 64);
                _tile_dpbf16ps(0, 4, 6);
                _tile_dpbf16ps(2, 5, 6);
                if (both) {
                    _tile_loadd(7, right + at, 64);
                    _tile_dpbf16ps(1, 4, 7);
                    _tile_dpbf16ps(3, 5, 7);
                }
            }
            _tile_stored(0, sums, line);
            _tile_stored(2, sums + kTileRows * dim_, line);
            if (both) {
                _tile_stored(1, sums + kLanes, line);
                _tile_stored(3, sums + kTileRows * dim_ + kLanes, line);
            }
        }
    }

    const Model& model_;
    const Layer& layer_;
    const HeadCache<bf16>& cache_;
    Scratch& scratch_;
    int64_t position_, rows_, group_, dim_, words_;
    int64_t begin_, num_keys_;  // the keys that any of the queries sees, padded to whole tiles
};

#endif
