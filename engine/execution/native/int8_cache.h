// The int8 KV cache: a key or value x of a token and kv head is round(x / scale), scale its largest magnitude / 127.
// engine/execution/attention/int8_cache.py has the same in Python.
//
// Memory, for each block and kv head, so that a vector's lanes are keys, or numbers of values, and no sum crosses lanes:
//   keys    [block_size / 16, head_dim / 4, 16 keys, 4 numbers]
//   values  [block_size / 4, head_dim / 16, 16 numbers, 4 values]
//   scales  float32 [block_size], of keys and of values
// block_size is a multiple of sixteen.
//
// Threads: each writes heads of its own; no two heads share a byte.
// Instruction sets: SIMD vectors, see simd.h.
#pragma once

#include "attention.h"

constexpr int64_t kWordBytes = 4;

// The int8 keys and values of one sequence and one kv head.
template <>
struct PagedKV<int8_t> {
    const int8_t *keys, *values;  // of the kv head, in block 0
    const float *key_scales, *value_scales;
    const int32_t* block_table;
    int64_t block_size, dim, num_kv_heads;

    PagedKV(const Model& model, const Layer& layer, const int32_t* table, int64_t kv_head)
        : keys(static_cast<const int8_t*>(layer.keys) + kv_head * model.block_size * model.head_dim),
          values(static_cast<const int8_t*>(layer.values) + kv_head * model.block_size * model.head_dim),
          key_scales(layer.key_scales + kv_head * model.block_size),
          value_scales(layer.value_scales + kv_head * model.block_size),
          block_table(table),
          block_size(model.block_size),
          dim(model.head_dim),
          num_kv_heads(model.num_kv_heads) {}

    // Returns where the scale of a position is, in numbers from the scales on. The keys, and the values, of the sixteen
    // positions from a multiple of sixteen on are dim times as far.
    int64_t offset(int64_t position) const {
        return int64_t(block_table[position / block_size]) * num_kv_heads * block_size + position % block_size;
    }
};

// Quantizes a key or a value, float32 [dim], and stores it. numbers and scales: of the whole layer.
inline void store_int8(const float* head, int64_t dim, bool is_key, int64_t slot, int64_t kv_head, const Model& model,
                       int8_t* numbers, float* scales) {
    Floats largest = {}, zeros = {};  // zeros: NaN if a number is not finite
    for (int64_t d = 0; d < dim; d += kLanes) {
        const Floats some = load<Floats>(head + d);
        largest = lane_max(largest, lane_max(some, -some));
        zeros += some * 0.0f;
    }
    const float scale = reduce_max(largest) / 127 + reduce_add(zeros), divisor = scale > 0 ? scale : 1;
    const int64_t size = model.block_size, offset = slot % size;
    const int64_t first = (slot / size * model.num_kv_heads + kv_head) * size;
    scales[first + offset] = scale;
    alignas(64) int8_t quantized[kLanes];
    int8_t* const to = numbers + first * dim;
    for (int64_t d = 0; d < dim; d += kLanes) {
        const Floats magic = Floats{} + 12582912.0f;  // 1.5 * 2^23: its sum with a small number is rounded to even
        const Ints rounded = Ints(load<Floats>(head + d) / divisor + magic) - Ints(magic);
        for (int64_t lane = 0; lane < kLanes; ++lane) quantized[lane] = int8_t(rounded[lane]);
        if (is_key) {
            int8_t* word = to + (offset / kLanes * dim + d) * kLanes + offset % kLanes * kWordBytes;
            for (int64_t lane = 0; lane < kLanes; lane += kWordBytes)
                std::memcpy(word + lane * kLanes, quantized + lane, kWordBytes);
        } else {
            int8_t* bytes = to + (offset / kWordBytes * dim + d) * kWordBytes + offset % kWordBytes;
            for (int64_t lane = 0; lane < kLanes; ++lane) bytes[lane * kWordBytes] = quantized[lane];
        }
    }
}
