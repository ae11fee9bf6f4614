// The inner loop of matrix products on SIMD registers: some rows times some panels, sums in registers.
//
// A panel is sixteen outputs' words (packed_rows.h), one output in each lane: [words, 16]. gemm.h multiplies rows with
// weights here, prefill_attention_simd.h queries with keys and probs with values.
//
// A panel's vector is kParts registers: one of AVX-512, two of AVX2, four of SSE or NEON. They are spelled out, because
// GCC keeps vectors that are wider than a register in memory. kKernelRows rows and kKernelPanels panels fill the
// registers: each word of a panel is loaded once for all rows, each word of a row broadcast once for all panels.
//
// Sums are added in the order of the words for any number of rows and panels, so neither changes a bit.
// Threads: none here; reads rows and panels, writes sums.
// Instruction sets: Product says what multiplies a word.
#pragma once

#include "packed_rows.h"

#if defined(__AVX512F__)
constexpr int64_t kRegisterBytes = 64;
constexpr int64_t kKernelRows = 12, kKernelPanels = 2;  // 24 sums, 2 panels and a row's word of 32 registers
#elif defined(__AVX__)
constexpr int64_t kRegisterBytes = 32;
constexpr int64_t kKernelRows = 6, kKernelPanels = 1;  // 12 sums, 2 halves of a panel and a row's word of 16
#elif defined(__aarch64__)
constexpr int64_t kRegisterBytes = 16;
constexpr int64_t kKernelRows = 6, kKernelPanels = 1;  // 24 sums, 4 quarters of a panel and a row's word of 32
#else
constexpr int64_t kRegisterBytes = 16;
constexpr int64_t kKernelRows = 2, kKernelPanels = 1;  // 8 sums, 4 quarters of a panel and a row's word of 16
#endif
constexpr int64_t kParts = 4 * kLanes / kRegisterBytes;  // registers of a vector
constexpr int64_t kPartLanes = kLanes / kParts;

typedef float FloatPart __attribute__((vector_size(kRegisterBytes)));
typedef int32_t IntPart __attribute__((vector_size(kRegisterBytes)));

// How a word of a row is multiplied with a register of a panel's words, which widen() prepares once for all rows.
template <typename Weight>
struct Product;

template <>
struct Product<float> {
    using Sum = FloatPart;
    using Wide = FloatPart;

    static Wide widen(IntPart words) { return FloatPart(words); }
    static void add(Sum& sum, const Wide& words, int32_t row) {
        // Broadcast as an integer: 0 + x of floats is an addition, because it changes the sign of -0.
        sum = multiply_add(words, FloatPart(IntPart{} + row), sum);
    }
};

template <>
struct Product<bf16> {
    using Sum = FloatPart;
#if defined(__AVX512BF16__)
    using Wide = IntPart;

    static Wide widen(IntPart words) { return words; }
    static void add(Sum& sum, const Wide& words, int32_t row) {
        sum = FloatPart(_mm512_dpbf16_ps(__m512(sum), __m512bh(words), __m512bh(_mm512_set1_epi32(row))));
    }
#else
    struct Wide {
        FloatPart first, second;
    };

    static Wide widen(IntPart words) { return {FloatPart(words << 16), FloatPart(words & int32_t(0xffff0000))}; }
    static void add(Sum& sum, const Wide& words, int32_t row) {
        const Wide x = widen(IntPart{} + row);
        sum = multiply_add(words.first, x.first, sum);
        sum = multiply_add(words.second, x.second, sum);
    }
#endif
};

// The sums of kRows rows and kPanels panels.
template <typename Weight, int64_t kPanels, int64_t kRows>
struct KernelSums {
    using Part = typename Product<Weight>::Sum;
    Part parts[kPanels][kRows][kParts] = {};

    // Adds the products of num_words words.
    //   rows    a row's words, row_stride words from one row to the next
    //   panels  [kPanels, num_words, 16], panel_stride words from one panel to the next
    void add(const int32_t* rows, int64_t row_stride, const int32_t* panels, int64_t panel_stride, int64_t num_words) {
        constexpr int64_t kPrefetchWords = 16;  // distance, in words of a panel, which are cache lines
        // Three rows share a pointer, as addresses are a pointer and none, one or two strides: there are few registers.
        const int32_t* of_three[(kRows + 2) / 3];
        for (int64_t row = 0; row < kRows; row += 3) of_three[row / 3] = rows + row * row_stride;
        for (int64_t word = 0; word < num_words; ++word) {
            typename Product<Weight>::Wide wide[kPanels][kParts];
#pragma GCC unroll 4
            for (int64_t panel = 0; panel < kPanels; ++panel) {
                const int32_t* from = panels + panel * panel_stride + word * kLanes;
                __builtin_prefetch(from + kPrefetchWords * kLanes);
#pragma GCC unroll 4
                for (int64_t part = 0; part < kParts; ++part)
                    wide[panel][part] = Product<Weight>::widen(load<IntPart>(from + part * kPartLanes));
            }
#pragma GCC unroll 12
            for (int64_t row = 0; row < kRows; ++row) {
                const int32_t x = of_three[row / 3][row % 3 * row_stride];
#pragma GCC unroll 4
                for (int64_t panel = 0; panel < kPanels; ++panel)
#pragma GCC unroll 4
                    for (int64_t part = 0; part < kParts; ++part)
                        Product<Weight>::add(parts[panel][row][part], wide[panel][part], x);
            }
#pragma GCC unroll 4
            for (const int32_t*& pointer : of_three) ++pointer;
        }
    }

    // Loads and stores sums from memory: of a row and a panel sixteen, row_stride numbers from one row to the next.
    void load_all(const float* from, int64_t row_stride) {
#pragma GCC unroll 12
        for (int64_t row = 0; row < kRows; ++row)
#pragma GCC unroll 4
            for (int64_t panel = 0; panel < kPanels; ++panel)
#pragma GCC unroll 4
                for (int64_t part = 0; part < kParts; ++part)
                    parts[panel][row][part] =
                        load<Part>(from + row * row_stride + panel * kLanes + part * kPartLanes);
    }
    void store_all(float* to, int64_t row_stride) const {
#pragma GCC unroll 12
        for (int64_t row = 0; row < kRows; ++row)
#pragma GCC unroll 4
            for (int64_t panel = 0; panel < kPanels; ++panel)
#pragma GCC unroll 4
                for (int64_t part = 0; part < kParts; ++part)
                    std::memcpy(to + row * row_stride + panel * kLanes + part * kPartLanes, &parts[panel][row][part],
                                sizeof(Part));
    }
};
