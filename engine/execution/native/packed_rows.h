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
//
// Threads: each packs rows of its own; different threads may write different rows of one PackedRows, and the caller
// places the barrier before they are read.
// Instruction sets: float32 multiply-add everywhere; bfloat16 products with AVX512-BF16 (vdpbf16ps, which flushes
// denormals) or ARM's BF16 (bfdot, the same), else widened to float32; 8-bit products with AVX512-VNNI or AVX-VNNI
// (vpdpbusd), AVX2 (vpmaddubsw), ARM's DotProd (sdot), else by shifts and int32 multiplies.
#pragma once

#include <type_traits>
#include <vector>

#include "aligned_vector.h"
#include "amx.h"
#include "simd.h"

#if defined(__AVX2__)
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

struct int4;  // names the format: 4-bit weights, two in a byte

// A vector of sixteen lanes is kRegisters registers. Arithmetic in a loop is on registers, because GCC keeps vectors that
// are wider in memory.
#if defined(__AVX512F__)
constexpr int64_t kRegisters = 1;
#elif defined(__AVX2__)
constexpr int64_t kRegisters = 2;
#else
constexpr int64_t kRegisters = 4;
#endif
constexpr int64_t kRegisterLanes = kLanes / kRegisters;
typedef float FloatRegister __attribute__((vector_size(4 * kRegisterLanes)));
typedef int32_t IntRegister __attribute__((vector_size(4 * kRegisterLanes)));
typedef uint16_t HalfRegister __attribute__((vector_size(2 * kRegisterLanes)));

// Returns a register of bfloat16 numbers as float32.
inline FloatRegister widen_register(const bf16* from) {
#if defined(__AVX512F__)
    return widen(from);
#else
    return FloatRegister(__builtin_convertvector(load<HalfRegister>(from), IntRegister) << 16);
#endif
}

// How a word of the weights of a register of outputs is multiplied with a word of a row: add() adds the products to
// their sums.
template <typename Weight>
struct WeightFormat;

template <>
struct WeightFormat<float> {
    using Sums = Floats;
    static constexpr int64_t kPerWord = 1;
    static constexpr bool kHasTiles = false;

    static void add(FloatRegister& sums, IntRegister weights, int32_t row) {
        float x;
        std::memcpy(&x, &row, sizeof x);
        sums = multiply_add(FloatRegister(weights), FloatRegister{} + x, sums);
    }
};

template <>
struct WeightFormat<bf16> {
    using Sums = Floats;
    static constexpr int64_t kPerWord = 2;
    static constexpr bool kHasTiles = true;

    static void add(FloatRegister& sums, IntRegister weights, int32_t row) {
#if defined(__AVX512BF16__)
        sums = FloatRegister(_mm512_dpbf16_ps(__m512(sums), __m512bh(weights), __m512bh(_mm512_set1_epi32(row))));
#elif defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
        sums = FloatRegister(vbfdotq_f32(float32x4_t(sums), bfloat16x8_t(weights), bfloat16x8_t(vdupq_n_s32(row))));
#else
        const FloatRegister first = FloatRegister{} + widen_one(bf16(row));
        const FloatRegister second = FloatRegister{} + widen_one(bf16(row >> 16));
        sums = multiply_add(FloatRegister(weights << 16), first, sums);
        sums = multiply_add(FloatRegister(weights & int32_t(0xffff0000)), second, sums);
#endif
    }
};

// LLM.int8() without its treatment of outliers (arXiv 2208.07339, section 2.1): a row's scale follows its largest
// number. Where the instruction multiplies unsigned rows by signed weights, as VNNI and AMX do, rows are stored with zero
// point 128, and PackedLinear.weight_sums correct the sums for it; elsewhere rows are signed.
template <>
struct WeightFormat<int8_t> {
    using Sums = Ints;
    static constexpr int64_t kPerWord = 4;
    static constexpr bool kHasTiles = true;
    static constexpr int32_t kZeroPoint = kHasUnsignedProducts ? 128 : 0;

    static void add(IntRegister& sums, IntRegister weights, int32_t row) {
#if defined(__AVX512VNNI__)
        sums = IntRegister(_mm512_dpbusd_epi32(__m512i(sums), _mm512_set1_epi32(row), __m512i(weights)));
#elif defined(__AVXVNNI__) && !defined(__AVX512F__)
        sums = IntRegister(_mm256_dpbusd_avx_epi32(__m256i(sums), _mm256_set1_epi32(row), __m256i(weights)));
#elif defined(__AVX2__) && !defined(__AVX512F__)
        // Two products add up to at most 2 * 128 * 127, which int16 holds: rows have no -128.
        const __m256i signed_row = _mm256_sign_epi8(_mm256_set1_epi32(row), __m256i(weights));
        const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(__m256i(weights)), signed_row);
        sums += IntRegister(_mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
#elif defined(__ARM_FEATURE_DOTPROD)
        sums = IntRegister(vdotq_s32(int32x4_t(sums), int8x16_t(weights), int8x16_t(vdupq_n_s32(row))));
#else
        for (int shift = 0; shift < 32; shift += 8)
            sums += (weights << (24 - shift) >> 24) * (row << (24 - shift) >> 24);
#endif
    }
};

// Weights are unsigned here, with zero point 8, and rows signed. The correction of the sums depends on the row alone,
// so sums start from it (PackedRows::zero_point_correction).
template <>
struct WeightFormat<int4> {
    using Sums = Floats;
    static constexpr int64_t kPerWord = 4;
    static constexpr bool kHasTiles = false;
    static constexpr int32_t kZeroPoint = 0;

    static void add(IntRegister& sums, IntRegister weights, int32_t row) {
#if defined(__AVX512VNNI__)
        sums = IntRegister(_mm512_dpbusd_epi32(__m512i(sums), __m512i(weights), _mm512_set1_epi32(row)));
#elif defined(__AVXVNNI__) && !defined(__AVX512F__)
        sums = IntRegister(_mm256_dpbusd_avx_epi32(__m256i(sums), __m256i(weights), _mm256_set1_epi32(row)));
#elif defined(__AVX2__) && !defined(__AVX512F__)
        const __m256i pairs = _mm256_maddubs_epi16(__m256i(weights), _mm256_set1_epi32(row));
        sums += IntRegister(_mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
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
    int64_t num_rows = 0, words_per_row = 0;  // words_per_row includes the padding
    int64_t row_stride = 0;  // words from one row to the next, row-major

    // Whether sixteen numbers at a time can be stored: a quantized row needs its scale first.
    static constexpr bool kIsDirect = std::is_same_v<Weight, float> || std::is_same_v<Weight, bf16>;

    // Makes room for rows of num_inputs numbers; their contents are undefined.
    void resize(int64_t rows, int64_t num_inputs) {
        num_rows = rows;
        const int64_t words = (num_inputs + WeightFormat<Weight>::kPerWord - 1) / WeightFormat<Weight>::kPerWord;
        words_per_row = (words + kTileWords - 1) / kTileWords * kTileWords;
        is_tiled_ = WeightFormat<Weight>::kHasTiles && amx_available();
        // Rows a power of two apart would share few sets of the L1 cache.
        row_stride = words_per_row + (is_tiled_ || words_per_row % kConflictWords ? 0 : kTileWords);
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
        constexpr int64_t kInputsPerTile = kTileWords * WeightFormat<Weight>::kPerWord;
        int32_t* const tile_row = at(row, first_input / kInputsPerTile * kTileWords);
        store(numbers, reinterpret_cast<Weight*>(tile_row) + first_input % kInputsPerTile);
    }

    // Writes zeros after the inputs of a row.
    void pad(int64_t num_inputs, int64_t row) {
        for (int64_t input = num_inputs; input < words_per_row * WeightFormat<Weight>::kPerWord; input += kLanes)
            store_lanes(Floats{}, row, input);
    }

    // Returns the address of sixteen words of a row; word is a multiple of 16.
    int32_t* at(int64_t row, int64_t word) {
        if (!is_tiled_) return &words_[row * row_stride + word];
        return &words_[row / kTileRows * kTileRows * words_per_row + word * kTileRows + row % kTileRows * kTileWords];
    }

    bool is_tiled() const { return is_tiled_; }
    float scale(int64_t row) const { return scales_[row]; }
    // int4: for each group, the weights' zero point times the sum of a row's numbers.
    const int32_t* zero_point_correction(int64_t row) const {
        return &zero_point_correction_[row * words_per_row / kInt4GroupWords];
    }

   private:
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
                bytes[i] = int8_t(int32_t(std::nearbyint(from[word * 4 + i] * inverse_scale)) +
                                  WeightFormat<Weight>::kZeroPoint);
            std::memcpy(at(row, word), bytes, sizeof bytes);
            if constexpr (std::is_same_v<Weight, int4>)
                for (int64_t group = 0; group < int64_t(sizeof bytes) / kInt4Group; ++group) {
                    int32_t sum = 0;
                    for (int64_t i = 0; i < kInt4Group; ++i) sum += bytes[group * kInt4Group + i];
                    zero_point_correction_[row * words_per_row / kInt4GroupWords + word / kInt4GroupWords + group] =
                        8 * sum;
                }
        }
    }

    AlignedVector<int32_t> words_;
    std::vector<int32_t> zero_point_correction_;  // [num_rows, words_per_row / kInt4GroupWords]
    std::vector<float> scales_;  // [num_rows]
    bool is_tiled_ = false;
};
