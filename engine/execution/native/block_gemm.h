// Matrix products with weights in GGML's block formats, and rows of an embedding in them.
//
//   products[row, output] = sum over inputs of rows[row, input] * weight[output, input], plus the bias
//
// Weights have exactly the values of the file; only the rows are quantized (block_rows.h). PackedLinear.weight is the
// table of its panels [outputs / 16], so that each may have another format: a layer's queries, keys and values, or the
// gate and up that lie in turn.
//
// The sums of the codes of 32 inputs are exact integers. They are scaled and added in float32, in the order of the
// inputs and by the same instructions for any number of rows and threads, so neither changes a bit.
//
// Memory: a group's codes are unpacked once, in registers, for up to kMaxKernelRows rows; panels are read from memory
// once for all rows, and then from the cache.
#pragma once

#include "block_rows.h"
#include "gemm.h"

#if defined(__AVX512F__)
constexpr int64_t kMaxKernelRows = 16;  // their sums, eight words of codes and the scales fit 32 registers
#else
constexpr int64_t kMaxKernelRows = 4;
#endif
constexpr int64_t kPrefetchBytes = 1536;  // prefetch distance in a panel's codes
constexpr int64_t kCachedPanels = 8;  // panels that all rows use before the next ones are read

// Multiplies kRows rows with a panel. sums: [kRows, 16]. Not inlined, so that the sums stay in registers.
template <typename Format, int64_t kRows>
[[gnu::noinline]] void block_microkernel(const Panel& panel, const RowGroup* rows, int64_t row_stride,
                                         int64_t num_groups, float* sums) {
    using Codes = typename Format::Codes;
    using Scales = typename Format::Scales;
    constexpr int64_t kHalfWords = kGroupWords / Scales::kHalves;
    for (int64_t part = 0; part < kLanes / kPartLanes; ++part) {
        const uint8_t* codes = panel.codes + part * kPartLanes * 4;
        const uint8_t* scale_bytes = panel.scales;
        const RowGroup* row = rows;
        FloatPart added[kRows] = {};
        for (int64_t block = 0; block < num_groups / Scales::kGroups; ++block, scale_bytes += Scales::kScaleBytes) {
            const Scales scales(scale_bytes, part);
            for (int64_t group = 0; group < Scales::kGroups; ++group, row += row_stride) {
                IntPart words[kGroupWords];
                Codes::unpack(codes, words);
                for (int64_t vector = 0; vector < Codes::kCodeVectors && part == 0; ++vector)
                    __builtin_prefetch(codes + kPrefetchBytes + vector * kVectorBytes);
                codes += Codes::kCodeVectors * kVectorBytes;
                FloatPart scale[Scales::kHalves], offset;
                for (int64_t half = 0; half < Scales::kHalves; ++half) scale[half] = scales.scale(group, half);
                if constexpr (Scales::kHasOffset) offset = scales.offset(group);
#pragma GCC unroll 16
                for (int64_t r = 0; r < kRows; ++r) {
                    FloatPart products = {};
#pragma GCC unroll 2
                    for (int64_t half = 0; half < Scales::kHalves; ++half) {
                        IntPart sum = IntPart{} + row[r].template correction<Format::kZeroPoint>(half);
#pragma GCC unroll 8
                        for (int64_t i = half * kHalfWords; i < (half + 1) * kHalfWords; ++i)
                            add_products<Codes::kIs8Bit>(sum, words[i], row[r].words[i]);
                        if (half == 0) products = to_floats(sum) * scale[0];
                        else products = multiply_add(to_floats(sum), scale[half], products);
                    }
                    added[r] = multiply_add(products, FloatPart{} + row[r].scale, added[r]);
                    if constexpr (Scales::kHasOffset)
                        added[r] = multiply_add(offset, FloatPart{} + row[r].sum, added[r]);
                }
            }
        }
        for (int64_t r = 0; r < kRows; ++r)
            std::memcpy(sums + r * kLanes + part * kPartLanes, &added[r], sizeof added[r]);
    }
}

// Multiplies as many of the rows as possible kRows at a time, and the rest fewer at a time.
template <typename Format, int64_t kRows = kMaxKernelRows>
inline void multiply_panel(const Panel& panel, const RowGroup* rows, int64_t num_rows, int64_t row_stride,
                           int64_t num_groups, float* sums) {
    for (; num_rows >= kRows; num_rows -= kRows, rows += kRows, sums += kRows * kLanes)
        block_microkernel<Format, kRows>(panel, rows, row_stride, num_groups, sums);
    if constexpr (kRows > 1)
        if (num_rows > 0) multiply_panel<Format, kRows / 2>(panel, rows, num_rows, row_stride, num_groups, sums);
}

// As gemm() of other formats: panels come in pairs for at most kMaxRowBlock rows.
template <typename Epilogue>
void gemm(const PackedLinear& linear, PackedRows<blocks>& rows, int64_t first, int64_t last, TileConfig&,
          const Epilogue& epilogue) {
    static_assert(kRowBlock == kMaxRowBlock);
    alignas(64) float sums[kRowBlock * kLanes];
    const auto* panels = static_cast<const Panel*>(linear.weight);
    for (int64_t begin = first; begin < last; begin += kCachedPanels * kLanes) {
        const int64_t end = std::min(last, begin + kCachedPanels * kLanes);
        for (int64_t row = 0; row < rows.num_rows; row += kRowBlock) {
            const int64_t num_rows = rows.block_rows(row);
            for (int64_t output = begin; output < end; output += kLanes) {
                const Panel& panel = panels[output / kLanes];
                with_format(panel.format, [&](auto format) {
                    multiply_panel<decltype(format)>(panel, rows.at(row), num_rows, num_rows, rows.num_groups, sums);
                });
                const Floats bias = linear.bias ? load<Floats>(linear.bias + output) : Floats{};
                for (int64_t r = 0; r < num_rows; ++r)
                    epilogue(row + r, output, load<Floats>(sums + r * kLanes) + bias);
            }
        }
    }
}

// Dequantizes an output's weights: to [num_inputs].
inline void dequantize_output(const Panel* panels, int64_t output, int64_t num_inputs, float* to) {
    const Panel& panel = panels[output / kLanes];
    const int64_t part = output % kLanes / kPartLanes, lane = output % kPartLanes;
    with_format(panel.format, [&](auto format) {
        using Format = decltype(format);
        using Scales = typename Format::Scales;
        constexpr bool kIsSigned = Format::Codes::kIs8Bit && !kHasUnsignedCodes;
        const uint8_t* codes = panel.codes + part * kPartLanes * 4;
        for (int64_t input = 0; input < num_inputs; input += kGroup) {
            const int64_t block = input / (Scales::kGroups * kGroup), group = input / kGroup % Scales::kGroups;
            const Scales scales(panel.scales + block * Scales::kScaleBytes, part);
            IntPart words[kGroupWords];
            Format::Codes::unpack(codes + input / kGroup * Format::Codes::kCodeVectors * kVectorBytes, words);
            for (int64_t i = 0; i < kGroup; ++i) {
                const int32_t byte = words[i / 4][lane] >> 8 * (i % 4) & 0xff;
                const int32_t code = (kIsSigned ? int8_t(byte) : byte) - Format::kZeroPoint;
                to[input + i] = scales.scale(group, i * Scales::kHalves / kGroup)[lane] * float(code);
                if constexpr (Scales::kHasOffset) to[input + i] += scales.offset(group)[lane];
            }
        }
    });
}
