// Low-rank updates of linear layers (LoRA, arXiv 2106.09685), for the rows whose requests chose an adapter:
//
//   shrunk[row] = a . input[row]        products[row] += b . shrunk[row]
//
// a and b are float32, b multiplied with the adapter's scale. The inputs are the packed ones of the layer's own
// product, so inputs that are quantized there are quantized here, too. Layers that are packed as one (q, k and v; gate
// and up) have an update each: their factors a lie one after another, and each panel of outputs reads its part of the
// shrunk row.
//
// Threads: shrunk rows are shared. All threads call shrink() for their part of them, and a barrier follows; the other
// product is added in the epilogue of gemm(), in registers. The sum of an output is computed in the same order for any
// number of rows and threads.
#pragma once

#include "block_rows.h"
#include "packed_rows.h"
#include "simd.h"
#include "step.h"

constexpr int64_t kRankStep = 8;  // ranks are padded to a multiple; RANK_STEP of lora.py

// Returns sixteen inputs of a packed row; input is a multiple of 16.
template <typename Weight>
inline Floats unpack_lanes(PackedRows<Weight>& rows, int64_t row, int64_t input) {
    return rows.load_lanes(row, input);
}

inline Floats unpack_lanes(PackedRows<blocks>& rows, int64_t row, int64_t input) {
    typedef int8_t Bytes __attribute__((vector_size(16)));
    const RowGroup& group = rows.at(row)[input / kGroup * rows.block_rows(row)];
    const Bytes bytes = load<Bytes>(reinterpret_cast<const int8_t*>(group.words) + input % kGroup);
    return __builtin_convertvector(__builtin_convertvector(bytes, Ints), Floats) * group.scale;
}

// Computes kRankStep numbers of a shrunk row. a: [kRankStep, num_inputs].
template <typename Rows>
inline void shrink_row(Rows& rows, int64_t row, const float* a, int64_t num_inputs, float* shrunk) {
    Floats sums[kRankStep] = {};
    for (int64_t input = 0; input < num_inputs; input += kLanes) {
        const Floats numbers = unpack_lanes(rows, row, input);
        for (int64_t rank = 0; rank < kRankStep; ++rank)
            sums[rank] = multiply_add(numbers, load<Floats>(a + rank * num_inputs + input), sums[rank]);
    }
    for (int64_t rank = 0; rank < kRankStep; ++rank) shrunk[rank] = reduce_add(sums[rank]);
}

// The updates of one group of linear layers in a step; without an adapter in the step, nothing.
class StepUpdates {
   public:
    explicit StepUpdates(const Step& step) : StepUpdates(step, nullptr, 0, nullptr) {}  // none

    // shrunk: [num_rows, max_shrunk]
    StepUpdates(const Step& step, const LoraLinear LoraLayer::*linear, int64_t layer, float* shrunk)
        : step_(step), linear_(linear), layer_(layer), shrunk_(shrunk) {
        for (int64_t row = 0; linear && step.adapters && row < step.num_rows && !is_needed_; ++row)
            is_needed_ = step.adapters[row] && of(row).rank;
    }

    // Whether any row of the step has an update.
    bool is_needed() const { return is_needed_; }

    // Shrinks this thread's share of the rows: the parts first to last - 1 of num_parts().
    template <typename Rows>
    void shrink(Rows& rows, int64_t first, int64_t last) const {
        for (int64_t part = first; part < last; ++part) {
            const int64_t row = part % step_.num_rows, rank = part / step_.num_rows * kRankStep;
            if (!step_.adapters[row]) continue;
            const LoraLinear& linear = of(row);
            if (rank >= linear.num_shrunk) continue;
            shrink_row(rows, row, linear.a + rank * linear.num_inputs, linear.num_inputs,
                       shrunk_ + row * step_.max_shrunk + rank);
        }
    }
    int64_t num_parts() const { return step_.num_rows * step_.max_shrunk / kRankStep; }

    // Returns the products of a row's sixteen outputs with the row's update added.
    Floats add(int64_t row, int64_t output, Floats products) const {
        if (!step_.adapters[row]) return products;
        const LoraLinear& linear = of(row);
        if (linear.rank == 0 || linear.first[output / kLanes] < 0) return products;
        const float* shrunk = shrunk_ + row * step_.max_shrunk + linear.first[output / kLanes];
        const float* b = linear.b + output * linear.rank;
        Floats sums[4] = {};  // several, because a multiply-add waits for the one before it
        for (int64_t rank = 0; rank < linear.rank; rank += 4)
            for (int64_t i = 0; i < 4; ++i)
                sums[i] = multiply_add(Floats{} + shrunk[rank + i], load<Floats>(b + (rank + i) * kLanes), sums[i]);
        return products + ((sums[0] + sums[1]) + (sums[2] + sums[3]));
    }

   private:
    const LoraLinear& of(int64_t row) const { return step_.adapters[row][layer_].*linear_; }

    const Step& step_;
    const LoraLinear LoraLayer::*const linear_;
    const int64_t layer_;
    float* const shrunk_;
    bool is_needed_ = false;
};
