// The inputs (activations) of products with weights in block formats: int8, with a scale for each group of 32 inputs.
//
// One scale for a whole row, as other 8-bit formats have it, would lose the small numbers beside the few large ones that
// activations have.
//
// Memory: groups [num_rows / kRowBlock, groups, rows of the block], a cache line each, so that the rows that a kernel
// multiplies at once lie side by side.
//
// Threads: as for all PackedRows, different threads may write different rows.
#pragma once

#include "aligned_vector.h"
#include "block_formats.h"
#include "packed_rows.h"

constexpr int64_t kRowBlock = 32;  // rows whose groups lie together

// 32 inputs of a row. A number is scale * code; a group that has NaN or infinity has the scale NaN.
struct alignas(64) RowGroup {
    int32_t words[kGroupWords];  // codes, int8, -127 to 127
    float scale;
    float sum;  // of the numbers
    // Minus the sum of the codes, multiplied with the zero points 8, 16 and 128, and those of both halves with 32.
    int32_t minus_8, minus_16, minus_128, minus_32[2];

    // What the sums of codes' products start from.
    template <int32_t kZeroPoint>
    int32_t correction(int64_t half) const {
        if constexpr (kZeroPoint == 8) return minus_8;
        if constexpr (kZeroPoint == 16) return minus_16;
        if constexpr (kZeroPoint == 128) return minus_128;
        if constexpr (kZeroPoint == 32) return minus_32[half];
        return 0;
    }
};

template <>
class PackedRows<blocks> {
   public:
    int64_t num_rows = 0, num_groups = 0;

    static constexpr bool kIsDirect = false;

    // num_inputs: a multiple of 32. The contents are undefined.
    void resize(int64_t rows, int64_t num_inputs) {
        num_rows = rows;
        num_groups = num_inputs / kGroup;
        ensure_size(groups_, rows * num_groups);
    }

    // Converts a row from float32 [num_inputs].
    void pack(const float* from, int64_t, int64_t row) {
        RowGroup* to = at(row);
        const int64_t stride = block_rows(row);
        for (int64_t group = 0; group < num_groups; ++group, to += stride, from += kGroup) quantize(from, *to);
    }

    // Returns a row's first group; the next one is block_rows(row) further.
    RowGroup* at(int64_t row) {
        return &groups_[row / kRowBlock * kRowBlock * num_groups + row % kRowBlock];
    }

    // Returns the number of rows that lie side by side with this one.
    int64_t block_rows(int64_t row) const { return std::min(kRowBlock, num_rows - row / kRowBlock * kRowBlock); }

   private:
    static void quantize(const float* from, RowGroup& to) {
        const Floats left = load<Floats>(from), right = load<Floats>(from + kLanes);
        const Floats left_size = Floats(Ints(left) & 0x7fffffff), right_size = Floats(Ints(right) & 0x7fffffff);
        const float largest = std::max(reduce_max(left_size > right_size ? left_size : right_size), 1e-30f);
        const bool is_finite = !any_of((left - left != 0) | (right - right != 0));
        const float inverse_scale = 127 / largest;
        const Ints codes[2] = {round(left * inverse_scale), round(right * inverse_scale)};
        int32_t sums[2];
        for (int64_t half = 0; half < 2; ++half) {
            typedef int8_t Bytes __attribute__((vector_size(16)));
            const Bytes bytes = __builtin_convertvector(codes[half], Bytes);
            std::memcpy(to.words + half * kGroupWords / 2, &bytes, sizeof bytes);
            sums[half] = int32_t(reduce_add(__builtin_convertvector(codes[half], Floats)));
        }
        const int32_t sum = sums[0] + sums[1];
        to.scale = is_finite ? largest / 127 : __builtin_nanf("");
        to.sum = to.scale * float(sum);
        to.minus_8 = -8 * sum;
        to.minus_16 = -16 * sum;
        to.minus_128 = -128 * sum;
        to.minus_32[0] = -32 * sums[0];
        to.minus_32[1] = -32 * sums[1];
    }

    // Rounds to the nearest integer, ties to even; numbers of at most 127. NaN and infinity give any code of a byte.
    static Ints round(Floats numbers) { return (Ints(numbers + 0x1.8p23f) - 0x4b400000) << 24 >> 24; }

    AlignedVector<RowGroup> groups_;
};
