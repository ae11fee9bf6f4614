// Prefill attention over the paged cache: many consecutive queries of one sequence, one kv head, on AMX tiles.
//
// FlashAttention-2 (arXiv 2307.08691): queries are attended in blocks of 32 rows, which keep the scores of
// kPrefillKeyBlock keys at a time and rescale their sums as the softmax's maximum grows. A row is one query of one of
// the heads that share the kv head: row = query * heads_per_kv + head.
//
// Memory, all in the thread's AttentionScratch; a word holds two bfloat16, so a row of head_dim numbers, padded to 32,
// has query_words words:
//   queries  left tiles [2 row tiles, query_words / 16, 16 rows, 16 words], of one block
//   keys     right tiles [num_keys / 16, query_words, 16 keys]: word d of sixteen keys, for all blocks
//   values   right tiles [head_dim / 16, num_keys / 2, 16 numbers]: a word has the numbers of two keys, for all blocks
//   scores   float32 [32 rows, kPrefillKeyBlock], sums of products of tiles
//   probs    left tiles [2 row tiles, kPrefillKeyBlock / 32, 16 rows, 16 words]
//   sums     float32 [32 rows, head_dim], unnormalized output
// Keys are those that any of the queries sees, padded with zeros to a multiple of 32.
//
// Precision: scores and sums are float32; queries and probs are rounded to bfloat16.
// Threads: each attends kv heads and sequences of its own, with its own scratch and tile registers.
// Instruction sets: AMX only. Without it this file is empty, and decode_attention.h attends every row of a prompt.
#pragma once

#include "amx.h"
#include "attention.h"

#ifdef DESKMATE_AMX

constexpr int64_t kMinPrefillQueries = 4;  // fewest queries of a chunk; packing keys and values does not pay for fewer
constexpr int64_t kPrefillKeyBlock = 256;
constexpr int64_t kPrefillRows = 2 * kTileRows;  // rows of a block

class PrefillAttention {
   public:
    // cache: from kv_head on. position: of the first of num_queries queries, whose own keys and values are in the cache.
    PrefillAttention(const Model& model, const Layer& layer, const PagedKV<bf16>& cache, int64_t kv_head,
                     int64_t position, int64_t num_queries, AttentionScratch& scratch)
        : model_(model),
          layer_(layer),
          cache_(cache),
          scratch_(scratch),
          kv_head_(kv_head),
          position_(position),
          num_rows_(num_queries * (model.num_heads / model.num_kv_heads)),
          heads_per_kv_(model.num_heads / model.num_kv_heads),
          dim_(model.head_dim),
          query_words_((model.head_dim + 31) / 32 * kTileWords),
          first_key_(window_start(layer, position)),
          num_seen_(position + num_queries - first_key_),
          num_keys_((num_seen_ + 31) / 32 * 32) {}

    // queries: float32 [num_queries, stride], from the first of the heads on. Calls store_output(query, number,
    // attended) with sixteen numbers of a query's output, from number on, counted from the first of the heads.
    template <typename StoreOutput>
    void attend(const float* queries, int64_t stride, TileConfig& tiles, const StoreOutput& store_output) {
        pack_keys();
        pack_values();
        ensure_size(scratch_.queries, kPrefillRows * query_words_);
        ensure_size(scratch_.scores, kPrefillRows * kPrefillKeyBlock);
        ensure_size(scratch_.probs, kPrefillRows * kPrefillKeyBlock / 2);
        ensure_size(scratch_.sums, kPrefillRows * dim_);
        tiles.configure(kTileRows, kTileRows);
        for (int64_t row = 0; row < num_rows_; row += kPrefillRows) attend_block(row, queries, stride, store_output);
    }

   private:
    // Positions of keys and queries are absolute; indices of keys count from first_key_.
    int64_t position(int64_t row) const { return position_ + row / heads_per_kv_; }

    // Returns where a key or value is, or null in the padding.
    const bf16* find(const bf16* numbers, int64_t key) const {
        return key < num_seen_ ? numbers + cache_.offset(first_key_ + key) : nullptr;
    }

    void pack_keys() {
        int32_t* packed = ensure_size(scratch_.keys, num_keys_ * query_words_);
        const bf16 *from[kLanes], *next[kLanes];
        for (int64_t at = 0; at < kLanes; ++at) next[at] = find(cache_.keys, at);
        for (int64_t key = 0; key < num_keys_; key += kLanes) {
            for (int64_t at = 0; at < kLanes; ++at) {
                from[at] = next[at];
                next[at] = find(cache_.keys, key + kLanes + at);
            }
            for (int64_t word = 0; word < query_words_; word += kTileWords) {
                Ints rows[kLanes] = {};
                for (int64_t at = 0; at < kLanes; ++at) {
                    if (from[at]) rows[at] = row_words(from[at], dim_, word);
                    if (next[at]) __builtin_prefetch(next[at] + 2 * word);
                }
                transpose(rows);
                for (int64_t at = 0; at < kTileWords; ++at, packed += kLanes) store(rows[at], packed);
            }
        }
    }

    void pack_values() {
        int32_t* packed = ensure_size(scratch_.values, num_keys_ / 2 * dim_);
        const int64_t panel_size = num_keys_ / 2 * kLanes;
        const bf16* rows[kLanes];  // of the next sixteen keys, by key % kLanes
        for (int64_t key = 0; key < kLanes; ++key) rows[key] = find(cache_.values, key);
        for (int64_t key = 0; key < num_keys_; key += 2, packed += kLanes) {
            const bf16 *even = rows[key % kLanes], *odd = rows[key % kLanes + 1];
            for (int64_t at = 0; at < 2; ++at) {
                const bf16* next = rows[key % kLanes + at] = find(cache_.values, key + at + kLanes);
                if (next) prefetch_row(next, dim_);
            }
            for (int64_t d = 0; d < dim_; d += kLanes) {
                const Ints words = (even ? widen_bits(even + d) : Ints{}) | (odd ? widen_bits(odd + d) : Ints{}) << 16;
                store(words, packed + d / kLanes * panel_size);
            }
        }
    }

    // Attends the 32 rows from first_row on, or those that are left.
    template <typename StoreOutput>
    void attend_block(int64_t first_row, const float* queries, int64_t stride, const StoreOutput& store_output) {
        const int64_t count = std::min(num_rows_ - first_row, kPrefillRows);
        auto* packed = reinterpret_cast<bf16*>(scratch_.queries.data());
        std::fill_n(scratch_.queries.data(), kPrefillRows * query_words_, 0);
        for (int64_t row = 0; row < count; ++row) {
            const float* from =
                queries + (first_row + row) / heads_per_kv_ * stride + (first_row + row) % heads_per_kv_ * dim_;
            const int64_t tile_row = row / kTileRows * kTileRows * query_words_ + row % kTileRows * kTileWords;
            for (int64_t d = 0; d < dim_; d += kLanes)
                store(load<Floats>(from + d), packed + 2 * (tile_row + d / 32 * kTileSize) + d % 32);
        }
        float* sums = scratch_.sums.data();
        std::fill_n(sums, kPrefillRows * dim_, 0.0f);
        OnlineSoftmax states[kPrefillRows];
        for (int64_t row = 0; row < count; ++row)
            states[row] = first_softmax(layer_, kv_head_ * heads_per_kv_ + (first_row + row) % heads_per_kv_);
        const int64_t end = position(first_row + count - 1) + 1 - first_key_;
        const int64_t start = (window_start(layer_, position(first_row)) - first_key_) / 32 * 32;
        for (int64_t key = start; key < end; key += kPrefillKeyBlock) {
            const int64_t width = std::min(kPrefillKeyBlock, (end - key + 31) / 32 * 32);
            compute_scores(key, width);
            softmax(first_row, count, key, width, states);
            add_values(key, width);
        }
        for (int64_t row = 0; row < count; ++row)
            for (int64_t d = 0; d < dim_; d += kLanes) {
                const int64_t query = (first_row + row) / heads_per_kv_, head = (first_row + row) % heads_per_kv_;
                store_output(query, head * dim_ + d, load<Floats>(sums + row * dim_ + d) / states[row].row_sum);
            }
    }

    // Computes the scores of the block's rows and the keys key to key + width - 1; width is a multiple of 32.
    void compute_scores(int64_t key, int64_t width) {
        constexpr int64_t kStride = 4 * kPrefillKeyBlock;  // bytes
        tile_load_barrier();
        const int32_t *upper = scratch_.queries.data(), *lower = upper + kTileRows * query_words_;
        for (int64_t at = 0; at < width; at += 2 * kLanes) {
            const int32_t* left = scratch_.keys.data() + (key + at) * query_words_;
            const int32_t* right = left + kLanes * query_words_;
            _tile_zero(0);
            _tile_zero(1);
            _tile_zero(2);
            _tile_zero(3);
            for (int64_t tile = 0; tile < query_words_ * kLanes; tile += kTileSize) {
                _tile_loadd(4, upper + tile, kTileRowBytes);
                _tile_loadd(5, lower + tile, kTileRowBytes);
                _tile_loadd(6, left + tile, kTileRowBytes);
                _tile_loadd(7, right + tile, kTileRowBytes);
                _tile_dpbf16ps(0, 4, 6);
                _tile_dpbf16ps(1, 4, 7);
                _tile_dpbf16ps(2, 5, 6);
                _tile_dpbf16ps(3, 5, 7);
            }
            float* to = scratch_.scores.data() + at;
            _tile_stored(0, to, kStride);
            _tile_stored(1, to + kLanes, kStride);
            _tile_stored(2, to + kTileRows * kPrefillKeyBlock, kStride);
            _tile_stored(3, to + kTileRows * kPrefillKeyBlock + kLanes, kStride);
        }
    }

    // Masks scores and turns them into probs, and rescales the sums so far. The probs of rows beyond count are not
    // written; their sums are not read.
    void softmax(int64_t first_row, int64_t count, int64_t key, int64_t width, OnlineSoftmax* states) {
        auto* probs = reinterpret_cast<bf16*>(scratch_.probs.data());
        for (int64_t row = 0; row < count; ++row) {
            float* scores = scratch_.scores.data() + row * kPrefillKeyBlock;
            const int64_t first_seen = window_start(layer_, position(first_row + row)) - first_key_ - key;
            const int64_t seen_end = position(first_row + row) + 1 - first_key_ - key;
            std::fill(scores, scores + std::clamp<int64_t>(first_seen, 0, width), -INFINITY);
            std::fill(scores + std::clamp<int64_t>(seen_end, 0, width), scores + width, -INFINITY);
            bf16* to =
                probs + 2 * (row / kTileRows * kTileRows * (kPrefillKeyBlock / 2) + row % kTileRows * kTileWords);
            const float rescale = states[row].update(
                scores, width, layer_,
                [&](int64_t at, Floats some) { store(some, to + 2 * (at / 32 * kTileSize) + at % 32); });
            float* sums = scratch_.sums.data() + row * dim_;
            if (rescale != 1)
                for (int64_t d = 0; d < dim_; d += kLanes) store(load<Floats>(sums + d) * rescale, sums + d);
        }
    }

    // Adds the values of the keys key to key + width - 1, weighted by the probs, to the sums.
    void add_values(int64_t key, int64_t width) {
        tile_load_barrier();
        const int32_t *upper = scratch_.probs.data(), *lower = upper + kTileRows * (kPrefillKeyBlock / 2);
        const int64_t stride = 4 * dim_;  // bytes
        for (int64_t d = 0; d < dim_; d += 2 * kLanes) {
            const bool has_right = d + kLanes < dim_;
            float* sums = scratch_.sums.data() + d;
            const int32_t* left = scratch_.values.data() + (d / kLanes * (num_keys_ / 2) + key / 2) * kLanes;
            const int32_t* right = left + num_keys_ / 2 * kLanes;
            _tile_loadd(0, sums, stride);
            _tile_loadd(2, sums + kTileRows * dim_, stride);
            if (has_right) {
                _tile_loadd(1, sums + kLanes, stride);
                _tile_loadd(3, sums + kTileRows * dim_ + kLanes, stride);
            }
            for (int64_t tile = 0; tile < width / 2 * kLanes; tile += kTileSize) {
                _tile_loadd(4, upper + tile, kTileRowBytes);
                _tile_loadd(5, lower + tile, kTileRowBytes);
                _tile_loadd(6, left + tile, kTileRowBytes);
                _tile_dpbf16ps(0, 4, 6);
                _tile_dpbf16ps(2, 5, 6);
                if (has_right) {
                    _tile_loadd(7, right + tile, kTileRowBytes);
                    _tile_dpbf16ps(1, 4, 7);
                    _tile_dpbf16ps(3, 5, 7);
                }
            }
            _tile_stored(0, sums, stride);
            _tile_stored(2, sums + kTileRows * dim_, stride);
            if (has_right) {
                _tile_stored(1, sums + kLanes, stride);
                _tile_stored(3, sums + kTileRows * dim_ + kLanes, stride);
            }
        }
    }

    const Model& model_;
    const Layer& layer_;
    const PagedKV<bf16>& cache_;
    AttentionScratch& scratch_;
    int64_t kv_head_, position_, num_rows_, heads_per_kv_, dim_, query_words_;
    int64_t first_key_, num_seen_, num_keys_;  // the keys that any of the queries sees; num_keys_ includes the padding
};

#endif
