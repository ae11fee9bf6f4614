// The number formats of linear layers, and the packing of their inputs (activations).
//
// Words: weights and rows consist of words of 32 bits, each of as many consecutive inputs as a lane multiplies at once:
//   format    inputs in a word  a row's numbers                        sums
//   float     1                 float32                                float32
//   bf16      2                 bfloat16                               float32
//   int8_t    4                 8 bits with kZeroPoint, one scale      int32
//   int4      4                 int8, one scale                        int32 in a group of inputs, float32 beyond
// Rows for weights in GGML's block formats are in block_rows.h.
// A row of inputs is padded with zeros to whole tiles, that is to a multiple of kTileWords words.
//
// Rows [num_rows, words_per_row] lie in memory
//   row-major, for the SIMD kernels, which multiply up to twelve at once, some of them after num_rows; or
//   tile by tile [num_rows / 16, words_per_row / 16, 16, 16], for AMX: bf16 and int8_t, if amx_available(). The rows
//   after num_rows have any numbers, and their sums are not read.
// Where no instruction multiplies pairs of bfloat16, or bytes, rows are row-major and widened, once for all outputs: a
// word of weights meets kRowWords = 2 words of a row,
//   bf16      float32 of its first and of its second input, rounded to bfloat16
//   int8_t    int16 of its inputs 0 and 2, and of 1 and 3
//
// Threads: each packs rows of its own; different threads may write different rows of one PackedRows, and the caller
// places the barrier before they are read.
// Instruction sets: float32 multiply-add everywhere; bfloat16 products with AVX512-BF16 (vdpbf16ps, which flushes
// denormals) or ARM's BF16 (bfdot, the same), else widened to float32; 8-bit products with AVX512-VNNI or AVX-VNNI
// (vpdpbusd) or ARM's DotProd (sdot), else widened to 16 bits (vpmaddwd); 4-bit products as 8-bit ones, with AVX2 by
// vpmaddubsw.
#pragma once

#include <type_traits>
#include <vector>

#include "aligned_vector.h"
#include "amx.h"
#include "simd.h"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

constexpr int64_t kInt4Group = 32;  // inputs that share a scale in 4-bit weights; INT4_GROUP of linears.py
constexpr int64_t kInt4GroupWords = kInt4Group / 4;
constexpr int64_t kConflictWords = 512;  // rows so far apart, 2 KiB, lie in two of the L1 cache's groups of sets

// Whether 8-bit products are of unsigned rows and signed weights.
#if defined(__AVX512VNNI__) || (defined(__AVXVNNI__) && !defined(__AVX512F__))
constexpr bool kHasUnsignedProducts = true;
#else
constexpr bool kHasUnsignedProducts = false;
#endif

// Whether an instruction multiplies four bytes of each lane, and two bfloat16.
#if defined(__ARM_FEATURE_DOTPROD)
constexpr bool kHasByteProducts = true;
#else
constexpr bool kHasByteProducts = kHasUnsignedProducts;
#endif
#if defined(__AVX512BF16__) || defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
constexpr bool kHasBf16Products = true;
#else
constexpr bool kHasBf16Products = false;
#endif

struct int4;  // names the format: 4-bit weights, two in a byte

// Adds the products of the int16 in the lower halves of the lanes, and of those in the upper halves.
inline IntRegister add_int16_products(IntRegister sums, IntRegister weights, IntRegister row) {
#if defined(__AVX512F__) && defined(__AVX512BW__)
    return sums + IntRegister(_mm512_madd_epi16(__m512i(weights), __m512i(row)));
#elif defined(__AVX2__) && !defined(__AVX512F__)
    return sums + IntRegister(_mm256_madd_epi16(__m256i(weights), __m256i(row)));
#elif defined(__SSE2__) && !defined(__AVX2__)
    return sums + IntRegister(_mm_madd_epi16(__m128i(weights), __m128i(row)));
#else
    return sums + (weights << 16 >> 16) * (row << 16 >> 16) + (weights >> 16) * (row >> 16);
#endif
}

// Whether an instruction multiplies unsigned bytes with signed ones, and adds their products in pairs.
#if (defined(__AVX2__) && !defined(__AVX512F__)) || defined(__AVX512BW__)
constexpr bool kHasPairProducts = !kHasByteProducts;
#else
constexpr bool kHasPairProducts = false;
#endif

// Returns the sums of each two products of unsigned bytes of weights and the signed bytes of a row's word.
inline ShortRegister pair_products(IntRegister weights, int32_t row) {
#if defined(__AVX512BW__)
    return ShortRegister(_mm512_maddubs_epi16(__m512i(weights), _mm512_set1_epi32(row)));
#elif defined(__AVX2__) && !defined(__AVX512F__)
    return ShortRegister(_mm256_maddubs_epi16(__m256i(weights), _mm256_set1_epi32(row)));
#else
    return ShortRegister(weights) * int16_t(row);  // never called
#endif
}

// How a word of the weights of a register of outputs is multiplied with the kRowWords words of a row that belong to it:
// widen<i>() prepares the weights for the i-th of them, once for several rows; add() adds the products to their sums.
template <typename Weight>
struct WeightFormat;

template <>
struct WeightFormat<float> {
    using Sums = Floats;
    using RegisterSums = FloatRegister;
    static constexpr int64_t kPerWord = 1, kRowWords = 1;
    static constexpr bool kHasTiles = false;

    template <int64_t kRowWord>
    static FloatRegister widen(IntRegister weights) {
        return FloatRegister(weights);
    }
    static void add(FloatRegister& sums, FloatRegister weights, int32_t row) {
        // Broadcast as an integer: 0 + x of floats is an addition, because it changes the sign of -0.
        sums = multiply_add(weights, FloatRegister(IntRegister{} + row), sums);
    }
};

template <>
struct WeightFormat<bf16> {
    using Sums = Floats;
    using RegisterSums = FloatRegister;
    static constexpr int64_t kPerWord = 2, kRowWords = kHasBf16Products ? 1 : 2;
    static constexpr bool kHasTiles = kHasBf16Products;

    template <int64_t kRowWord>
    static IntRegister widen(IntRegister weights) {
        if constexpr (kHasBf16Products) return weights;
        if constexpr (kRowWord == 0) return weights << 16;
#if defined(__AVX2__) && !defined(__AVX512F__)
        return IntRegister(_mm256_slli_epi32(_mm256_srli_epi32(__m256i(weights), 16), 16));
#else
        return weights & int32_t(0xffff0000);
#endif
    }
    static void add(FloatRegister& sums, IntRegister weights, int32_t row) {
#if defined(__AVX512BF16__)
        sums = FloatRegister(_mm512_dpbf16_ps(__m512(sums), __m512bh(weights), __m512bh(_mm512_set1_epi32(row))));
#elif defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
        sums = FloatRegister(vbfdotq_f32(float32x4_t(sums), bfloat16x8_t(weights), bfloat16x8_t(vdupq_n_s32(row))));
#else
        WeightFormat<float>::add(sums, FloatRegister(weights), row);
#endif
    }
};

// LLM.int8() without its treatment of outliers (arXiv 2208.07339, section 2.1): a row's scale follows its largest
// number. Where the instruction multiplies unsigned rows by signed weights, as VNNI and AMX do, rows are stored with zero
// point 128, and PackedLinear.weight_sums correct the sums for it; elsewhere rows are signed.
template <>
struct WeightFormat<int8_t> {
    using Sums = Ints;
    using RegisterSums = IntRegister;
    static constexpr int64_t kPerWord = 4, kRowWords = kHasByteProducts ? 1 : 2;
    static constexpr bool kHasTiles = kHasUnsignedProducts;
    static constexpr int32_t kZeroPoint = kHasUnsignedProducts ? 128 : 0;

    template <int64_t kRowWord>
    static IntRegister widen(IntRegister weights) {
        if constexpr (kHasByteProducts) return weights;
        return IntRegister(kRowWord == 0 ? ShortRegister(weights) << 8 >> 8 : ShortRegister(weights) >> 8);
    }
    static void add(IntRegister& sums, IntRegister weights, int32_t row) {
#if defined(__AVX512VNNI__)
        sums = IntRegister(_mm512_dpbusd_epi32(__m512i(sums), _mm512_set1_epi32(row), __m512i(weights)));
#elif defined(__AVXVNNI__) && !defined(__AVX512F__)
        sums = IntRegister(_mm256_dpbusd_avx_epi32(__m256i(sums), _mm256_set1_epi32(row), __m256i(weights)));
#elif defined(__ARM_FEATURE_DOTPROD)
        sums = IntRegister(vdotq_s32(int32x4_t(sums), int8x16_t(weights), int8x16_t(vdupq_n_s32(row))));
#else
        IntRegister added = add_int16_products(sums, weights, IntRegister{} + row);
#if defined(__AVX2__)
        asm("" : "+x"(added));  // GCC would add in another order, with more products than there are registers
#endif
        sums = added;
#endif
    }
};

// Weights are unsigned here, with zero point 8, and rows signed. The correction of the sums depends on the row alone,
// so sums start from it (PackedRows::zero_point_correction).
template <>
struct WeightFormat<int4> {
    using Sums = Floats;
    using RegisterSums = FloatRegister;
    static constexpr int64_t kPerWord = 4, kRowWords = 1;
    static constexpr bool kHasTiles = false;
    static constexpr int32_t kZeroPoint = 0;

    // Returns start plus the products of a group's weights with those words of a row.
    static IntRegister add_group(int32_t start, const IntRegister (&weights)[kInt4GroupWords], const int32_t* row) {
        if constexpr (kHasPairProducts) {
            // The pairs of a group add up to at most 8 * 2 * 15 * 127, which int16 holds.
            ShortRegister even = pair_products(weights[0], row[0]), odd = pair_products(weights[1], row[1]);
#pragma GCC unroll 8
            for (int64_t i = 2; i < kInt4GroupWords; i += 2) {
                even += pair_products(weights[i], row[i]);
                odd += pair_products(weights[i + 1], row[i + 1]);
            }
            return add_int16_products(IntRegister{} + start, IntRegister(even + odd), IntRegister{} + 0x00010001);
        }
        IntRegister even = IntRegister{} + start, odd = {};
#pragma GCC unroll 8
        for (int64_t i = 0; i < kInt4GroupWords; i += 2) {
            add(even, weights[i], row[i]);
            add(odd, weights[i + 1], row[i + 1]);
        }
        return even + odd;
    }

   private:
    static void add(IntRegister& sums, IntRegister weights, int32_t row) {
#if defined(__AVX512VNNI__)
        sums = IntRegister(_mm512_dpbusd_epi32(__m512i(sums), __m512i(weights), _mm512_set1_epi32(row)));
#elif defined(__AVXVNNI__) && !defined(__AVX512F__)
        sums = IntRegister(_mm256_dpbusd_avx_epi32(__m256i(sums), __m256i(weights), _mm256_set1_epi32(row)));
#elif defined(__ARM_FEATURE_DOTPROD)  // weights are 0 to 15, so they are signed, too
        sums = IntRegister(vdotq_s32(int32x4_t(sums), int8x16_t(weights), int8x16_t(vdupq_n_s32(row))));
#else
        for (int shift = 0; shift < 32; shift += 8) sums += (weights >> shift & 0xff) * (row << (24 - shift) >> 24);
#endif
    }
};

// The inputs of a matrix product.
template <typename Weight>
class PackedRows {
   public:
    int64_t num_rows = 0, words_per_row = 0;  // words_per_row: of weights; includes the padding
    int64_t row_stride = 0;  // words of rows from one row to the next, row-major

    static constexpr int64_t kRowWords = WeightFormat<Weight>::kRowWords;
    // Whether sixteen numbers at a time can be stored: a quantized row needs its scale first.
    static constexpr bool kIsDirect = std::is_same_v<Weight, float> || std::is_same_v<Weight, bf16>;

    // Makes room for rows of num_inputs numbers; their contents are undefined.
    void resize(int64_t rows, int64_t num_inputs) {
        num_rows = rows;
        const int64_t words = (num_inputs + WeightFormat<Weight>::kPerWord - 1) / WeightFormat<Weight>::kPerWord;
        words_per_row = (words + kTileWords - 1) / kTileWords * kTileWords;
        is_tiled_ = WeightFormat<Weight>::kHasTiles && amx_available();
        // Rows a power of two apart would share few sets of the L1 cache.
        row_stride = words_per_row * kRowWords;
        if (!is_tiled_ && row_stride % kConflictWords == 0) row_stride += kTileWords;
        const int64_t padded_rows = (rows + kTileRows - 1) / kTileRows * kTileRows;
        if (int64_t(words_.size()) < padded_rows * row_stride) words_.resize(padded_rows * row_stride);
        if (int64_t(scales_.size()) < rows) scales_.resize(rows);
        const int64_t groups = std::is_same_v<Weight, int4> ? padded_rows * words_per_row / kInt4GroupWords : 0;
        if (int64_t(zero_point_correction_.size()) < groups) zero_point_correction_.resize(groups);
    }

    // Converts a row from float32 [num_inputs], and pads it.
    void pack(const float* from, int64_t num_inputs, int64_t row) {
        if constexpr (kIsDirect) {
            for (int64_t input = 0; input < num_inputs; input += kLanes)
                store_lanes(load<Floats>(from + input), row, input);
            pad(num_inputs, row);
        } else {
            quantize(from, num_inputs, row);
        }
    }

    // Stores the inputs first_input to first_input + 15 of a row; first_input is a multiple of 16.
    void store_lanes(Floats numbers, int64_t row, int64_t first_input) {
        static_assert(kIsDirect);
        if constexpr (!std::is_same_v<Number, Weight>) numbers = round_to_bf16(numbers);
        store(numbers, number(row, first_input));
    }

    // Returns the inputs first_input to first_input + 15 of a row; first_input is a multiple of 16.
    Floats load_lanes(int64_t row, int64_t first_input) {
        if constexpr (kIsDirect) {
            return widen(number(row, first_input));
        } else {
            Ints codes;
            if constexpr (kRowWords == 2) {
                typedef int16_t Shorts __attribute__((vector_size(2 * kLanes)));
                codes = __builtin_convertvector(load<Shorts>(number(row, first_input)), Ints);
                codes = __builtin_shuffle(codes, Ints{0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15});
            } else {
                typedef int8_t Bytes __attribute__((vector_size(kLanes)));
                codes = __builtin_convertvector(load<Bytes>(number(row, first_input)), Ints);
            }
            if constexpr (kZeroPoint != 0) codes = (codes & 0xff) - kZeroPoint;
            return __builtin_convertvector(codes, Floats) * scale(row);
        }
    }

    // Writes zeros after the inputs of a row.
    void pad(int64_t num_inputs, int64_t row) {
        for (int64_t input = num_inputs; input < words_per_row * WeightFormat<Weight>::kPerWord; input += kLanes)
            store_lanes(Floats{}, row, input);
    }

    // Returns the address of a row's numbers for sixteen words of weights; word is a multiple of 16.
    int32_t* at(int64_t row, int64_t word) {
        if (!is_tiled_) return &words_[row * row_stride + word * kRowWords];
        return &words_[row / kTileRows * kTileRows * words_per_row + word * kTileRows + row % kTileRows * kTileWords];
    }

    bool is_tiled() const { return is_tiled_; }
    float scale(int64_t row) const { return scales_[row]; }
    // int4: for each group, minus the weights' zero point times the sum of a row's numbers. [num_rows, groups]
    const int32_t* zero_point_correction(int64_t row) const {
        return &zero_point_correction_[row * words_per_row / kInt4GroupWords];
    }

   private:
    // The dtype in which a row's numbers are stored.
    using Number = std::conditional_t<
        kIsDirect, std::conditional_t<std::is_same_v<Weight, bf16> && kRowWords == 2, float, Weight>,
        std::conditional_t<kRowWords == 2, int16_t, int8_t>>;
    static constexpr int32_t kZeroPoint = [] {
        if constexpr (kIsDirect) return 0;
        else return WeightFormat<Weight>::kZeroPoint;
    }();

    // Returns the address of sixteen inputs of a row; input is a multiple of 16.
    Number* number(int64_t row, int64_t input) {
        constexpr int64_t kInputsPerTile = kTileWords * WeightFormat<Weight>::kPerWord;
        return reinterpret_cast<Number*>(at(row, input / kInputsPerTile * kTileWords)) + input % kInputsPerTile;
    }

    // Stores the codes for sixteen words of weights.
    static void store_codes(const int8_t (&bytes)[kTileWords * 4], int32_t* to) {
        if constexpr (kRowWords == 1) {
            std::memcpy(to, bytes, sizeof bytes);
        } else {
            int16_t numbers[kTileWords * 4];
            for (int64_t i = 0; i < kTileWords * 4; i += 4) {
                numbers[i] = bytes[i];
                numbers[i + 1] = bytes[i + 2];
                numbers[i + 2] = bytes[i + 1];
                numbers[i + 3] = bytes[i + 3];
            }
            std::memcpy(to, numbers, sizeof numbers);
        }
    }

    void quantize(const float* from, int64_t num_inputs, int64_t row) {
        float largest = 1e-12f;
#pragma omp simd reduction(max : largest)
        for (int64_t i = 0; i < num_inputs; ++i) largest = std::max(largest, std::fabs(from[i]));
        scales_[row] = largest / 127;
        const float inverse_scale = 127 / largest;
        int8_t bytes[kTileWords * 4];
        for (int64_t word = 0; word < words_per_row; word += kTileWords) {
            const int64_t count = std::clamp<int64_t>(num_inputs - word * 4, 0, sizeof bytes);
            std::memset(bytes, 0, sizeof bytes);
#pragma omp simd
            for (int64_t i = 0; i < count; ++i)
                bytes[i] = int8_t(int32_t(std::nearbyint(from[word * 4 + i] * inverse_scale)) + kZeroPoint);
            store_codes(bytes, at(row, word));
            if constexpr (std::is_same_v<Weight, int4>)
                for (int64_t group = 0; group < int64_t(sizeof bytes) / kInt4Group; ++group) {
                    int32_t sum = 0;
                    for (int64_t i = 0; i < kInt4Group; ++i) sum += bytes[group * kInt4Group + i];
                    zero_point_correction_[row * words_per_row / kInt4GroupWords + word / kInt4GroupWords + group] =
                        -8 * sum;
                }
        }
    }

    AlignedVector<int32_t> words_;
    std::vector<int32_t> zero_point_correction_;  // [num_rows, words_per_row / kInt4GroupWords]
    std::vector<float> scales_;  // [num_rows]
    bool is_tiled_ = false;
};
