// GGML's block formats as the decoder computes them: 16 outputs interleaved, codes and scales unchanged.
//
// A block holds 32 inputs of an output (Q4_0, Q4_1, Q5_0, Q5_1, Q8_0) or 256 (Q4_K, Q5_K, Q6_K), in groups of 32:
//   format  a weight is                                  codes                       scales
//   Q4_0    d (code - 8)                                 4 bits                      d
//   Q4_1    d code + m                                   4 bits                      d, m
//   Q5_0    d (code - 16)                                4 bits + 1                  d
//   Q5_1    d code + m                                   4 bits + 1                  d, m
//   Q8_0    d (code - 128)                               8 bits, offset by 128       d
//   Q4_K    d scale[group] code - dmin min[group]        4 bits                      d, dmin, 6 bits for scale and min
//   Q5_K    d scale[group] code - dmin min[group]        4 bits + 1                  d, dmin, 6 bits for scale and min
//   Q6_K    d scale[half of a group] (code - 32)         4 bits + 2                  d, 8 bits for scale
// d, dmin and m are float16. Source of the formats: ggml-common.h of llama.cpp.
//
// Memory: a matrix lies in panels of 16 outputs (Panel), each of as many bytes as its rows have in the file.
//   codes   [groups, kCodeVectors, 16 outputs], words of 32 bits, of each output's 32 inputs:
//             lower 4 bits  word i has inputs 4i to 4i + 3 in the lower halves of its bytes, and 16 more in the upper
//             1 more bit    bit w of byte b is of input 4w + b
//             2 more bits   word i: bits 2k and 2k + 1 of byte b are of input 4 (4i + k) + b
//             8 bits        word i has inputs 4i to 4i + 3
//   scales  [blocks], of each block: d [16 outputs], dmin or m [16 outputs], and the formats' integers [12 or 16, 16
//           outputs], six bits packed as in the file
//
// Instruction sets: arithmetic is on registers, parts of a panel's 16 outputs (microkernel.h). Products of bytes use
// AVX512-VNNI or AVX-VNNI (vpdpbusd), AVX2 (vpmaddubsw), ARM's DotProd (sdot), else shifts and int32 multiplies.
#pragma once

#include <type_traits>

#include "microkernel.h"
#include "simd.h"

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

struct blocks;  // names the number format in which each panel has a block format of its own

// Sixteen outputs of a matrix. Python fills in the same three numbers (engine/execution/native/block_packing.py).
struct Panel {
    uint8_t* codes;  // aligned to cache lines
    uint8_t* scales;
    int64_t format;  // GGML's number of the type
};

constexpr int64_t kGroup = 32;  // inputs whose codes lie together, and inputs of a row that share a scale
constexpr int64_t kGroupWords = kGroup / 4;

// ---- Parts of a panel -----------------------------------------------------------------------------------------------

typedef uint16_t PartHalves __attribute__((vector_size(kPartLanes * 2)));
typedef uint8_t PartBytes __attribute__((vector_size(kPartLanes)));

inline IntPart widen_bytes(const uint8_t* from) {
#if defined(__AVX512F__)
    return IntPart(_mm512_cvtepu8_epi32(__m128i(load<PartBytes>(from))));
#elif defined(__AVX2__)
    return IntPart(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
#else
    return __builtin_convertvector(load<PartBytes>(from), IntPart);
#endif
}

inline FloatPart to_floats(IntPart numbers) { return __builtin_convertvector(numbers, FloatPart); }
inline FloatPart bytes_to_floats(const uint8_t* from) { return to_floats(widen_bytes(from)); }
inline FloatPart signed_bytes_to_floats(const uint8_t* from) { return to_floats(widen_bytes(from) << 24 >> 24); }

// Returns float16 numbers as float32.
inline FloatPart halves_to_floats(const uint8_t* from) {
#if defined(__AVX512F__)
    return FloatPart(_mm512_cvtph_ps(__m256i(load<PartHalves>(from))));
#elif defined(__AVX2__) && defined(__F16C__)
    return FloatPart(_mm256_cvtph_ps(__m128i(load<PartHalves>(from))));
#else
    const IntPart bits = __builtin_convertvector(load<PartHalves>(from), IntPart);
    const IntPart magnitude = (bits & 0x7fff) << 13;
    const IntPart finite = IntPart(FloatPart(magnitude) * 0x1p112f);  // moves the exponent, of denormals too
    const IntPart infinite = IntPart{} + 0x7f800000 + (magnitude & 0x007fffff);
    return FloatPart(((bits & 0x7c00) == 0x7c00 ? infinite : finite) | (bits & 0x8000) << 16);
#endif
}

// ---- Products of bytes ----------------------------------------------------------------------------------------------

// With the instruction for unsigned times signed bytes, 8-bit codes stay offset by 128; elsewhere they become signed.
#if (defined(__AVX512F__) && defined(__AVX512VNNI__)) || (!defined(__AVX512F__) && defined(__AVXVNNI__))
constexpr bool kHasUnsignedCodes = true;
#else
constexpr bool kHasUnsignedCodes = false;
#endif

// Adds the products of each output's four codes with four numbers of a row (int8, -127 to 127). Codes are unsigned and
// at most 127, or 8 bits as kHasUnsignedCodes says.
template <bool kIs8Bit>
inline void add_products(IntPart& sums, IntPart codes, int32_t row) {
#if defined(__AVX512F__) && defined(__AVX512VNNI__)
    sums = IntPart(_mm512_dpbusd_epi32(__m512i(sums), __m512i(codes), _mm512_set1_epi32(row)));
#elif !defined(__AVX512F__) && defined(__AVXVNNI__)
    sums = IntPart(_mm256_dpbusd_avx_epi32(__m256i(sums), __m256i(codes), _mm256_set1_epi32(row)));
#elif defined(__AVX2__) && !defined(__AVX512F__)
    __m256i left = __m256i(codes), right = _mm256_set1_epi32(row);
    if constexpr (kIs8Bit) {  // -128 becomes 128: two products add up to at most 2 * 128 * 127, which int16 holds
        right = _mm256_sign_epi8(right, left);
        left = _mm256_abs_epi8(left);
    }
    const __m256i pairs = _mm256_maddubs_epi16(left, right);
    sums += IntPart(_mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
#elif defined(__ARM_FEATURE_DOTPROD)
    sums = IntPart(vdotq_s32(int32x4_t(sums), int8x16_t(codes), int8x16_t(vdupq_n_s32(row))));
#else
    for (int shift = 0; shift < 32; shift += 8) {
        const IntPart code = kIs8Bit ? codes << (24 - shift) >> 24 : codes >> shift & 0xff;
        sums += code * (row << (24 - shift) >> 24);
    }
#endif
}

// ---- Codes ----------------------------------------------------------------------------------------------------------

// How a group's codes are unpacked to words of four: from is the part's first word.
constexpr int64_t kVectorBytes = kLanes * 4;

inline IntPart load_codes(const uint8_t* from, int64_t vector) { return load<IntPart>(from + vector * kVectorBytes); }

template <int64_t kHighBits>
struct NibbleCodes {
    static constexpr bool kIs8Bit = false;
    static constexpr int64_t kCodeVectors = 4 + kHighBits;

    static void unpack(const uint8_t* from, IntPart (&words)[kGroupWords]) {
        for (int64_t i = 0; i < kGroupWords / 2; ++i) {
            const IntPart both = load_codes(from, i);
            words[i] = both & 0x0f0f0f0f;
            words[i + kGroupWords / 2] = both >> 4 & 0x0f0f0f0f;
        }
        if constexpr (kHighBits == 1) {
            const IntPart bits = load_codes(from, 4);
#pragma GCC unroll 8
            for (int64_t w = 0; w < kGroupWords; ++w)
                words[w] |= (w < 4 ? bits << (4 - w) : bits >> (w - 4)) & 0x10101010;
        }
        if constexpr (kHighBits == 2)
#pragma GCC unroll 8
            for (int64_t w = 0; w < kGroupWords; ++w) {
                const IntPart bits = load_codes(from, 4 + w / 4);
                const int64_t shift = 2 * (w % 4);
                words[w] |= (shift < 4 ? bits << (4 - shift) : bits >> (shift - 4)) & 0x30303030;
            }
    }
};

struct ByteCodes {
    static constexpr bool kIs8Bit = true;
    static constexpr int64_t kCodeVectors = 8;

    static void unpack(const uint8_t* from, IntPart (&words)[kGroupWords]) {
        for (int64_t i = 0; i < kGroupWords; ++i)
            words[i] = load_codes(from, i) ^ (kHasUnsignedCodes ? 0 : int32_t(0x80808080));
    }
};

// ---- Scales ---------------------------------------------------------------------------------------------------------

// The scales of a block of a part: scale(group, half), and offset(group), which is added to each of a group's weights.
template <bool kHasMin>
class FloatScales {
   public:
    static constexpr int64_t kScaleBytes = (1 + kHasMin) * kLanes * 2;  // of a block of a panel
    static constexpr int64_t kGroups = 1;  // of a block
    static constexpr int64_t kHalves = 1;  // of a group, with a scale each
    static constexpr bool kHasOffset = kHasMin;

    FloatScales(const uint8_t* from, int64_t part) {
        scale_ = halves_to_floats(from + part * kPartLanes * 2);
        if constexpr (kHasMin) offset_ = halves_to_floats(from + kLanes * 2 + part * kPartLanes * 2);
    }
    FloatPart scale(int64_t, int64_t) const { return scale_; }
    FloatPart offset(int64_t) const { return offset_; }

   private:
    FloatPart scale_, offset_;
};

// Six bits for each scale and min, in 12 bytes of each output [12, 16 outputs]: those of the first four groups in the
// lower six bits of bytes 0 to 3 and 4 to 7; of the others the lower four bits in bytes 8 to 11, the upper two in the
// upper bits of the bytes before.
class SixBitScales {
   public:
    static constexpr int64_t kScaleBytes = 2 * kLanes * 2 + 12 * kLanes;
    static constexpr int64_t kGroups = 8;
    static constexpr int64_t kHalves = 1;
    static constexpr bool kHasOffset = true;

    SixBitScales(const uint8_t* from, int64_t part)
        : d_(halves_to_floats(from + part * kPartLanes * 2)),
          minus_dmin_(-halves_to_floats(from + kLanes * 2 + part * kPartLanes * 2)),
          first_lane_(part * kPartLanes) {
        const uint8_t* packed = from + 2 * kLanes * 2;
        const Ints first = load<Ints>(packed), second = load<Ints>(packed + 64), third = load<Ints>(packed + 128);
        const Ints scales[2] = {first & 0x3f3f3f3f, (third & 0x0f0f0f0f) | (first >> 2 & 0x30303030)};
        const Ints mins[2] = {second & 0x3f3f3f3f, (third >> 4 & 0x0f0f0f0f) | (second >> 2 & 0x30303030)};
        std::memcpy(scales_, scales, sizeof scales);
        std::memcpy(mins_, mins, sizeof mins);
    }
    FloatPart scale(int64_t group, int64_t) const {
        return d_ * bytes_to_floats(scales_ + group * kLanes + first_lane_);
    }
    FloatPart offset(int64_t group) const {
        return minus_dmin_ * bytes_to_floats(mins_ + group * kLanes + first_lane_);
    }

   private:
    FloatPart d_, minus_dmin_;
    int64_t first_lane_;
    alignas(64) uint8_t scales_[8 * kLanes], mins_[8 * kLanes];
};

// A signed byte for each half of a group.
class ByteScales {
   public:
    static constexpr int64_t kScaleBytes = kLanes * 2 + 16 * kLanes;
    static constexpr int64_t kGroups = 8;
    static constexpr int64_t kHalves = 2;
    static constexpr bool kHasOffset = false;

    ByteScales(const uint8_t* from, int64_t part)
        : d_(halves_to_floats(from + part * kPartLanes * 2)), bytes_(from + kLanes * 2 + part * kPartLanes) {}
    FloatPart scale(int64_t group, int64_t half) const {
        return d_ * signed_bytes_to_floats(bytes_ + (2 * group + half) * kLanes);
    }
    FloatPart offset(int64_t) const { return FloatPart{}; }

   private:
    FloatPart d_;
    const uint8_t* bytes_;
};

// ---- Formats --------------------------------------------------------------------------------------------------------

// kNumber: GGML's, of the type. kBytes: of one output's block, in the file.
template <int64_t kTypeNumber, int64_t kBlockBytes, typename CodesOfFormat, typename ScalesOfFormat,
          int32_t kZeroPointOfCodes>
struct BlockFormat {
    using Codes = CodesOfFormat;
    using Scales = ScalesOfFormat;
    static constexpr int64_t kNumber = kTypeNumber;
    static constexpr int64_t kBytes = kBlockBytes;
    static constexpr int32_t kZeroPoint = kZeroPointOfCodes;
    static_assert(Scales::kGroups * Codes::kCodeVectors * kVectorBytes + Scales::kScaleBytes == kLanes * kBytes,
                  "a panel has the bytes of its rows in the file");
};

using Q4_0 = BlockFormat<2, 18, NibbleCodes<0>, FloatScales<false>, 8>;
using Q4_1 = BlockFormat<3, 20, NibbleCodes<0>, FloatScales<true>, 0>;
using Q5_0 = BlockFormat<6, 22, NibbleCodes<1>, FloatScales<false>, 16>;
using Q5_1 = BlockFormat<7, 24, NibbleCodes<1>, FloatScales<true>, 0>;
using Q8_0 = BlockFormat<8, 34, ByteCodes, FloatScales<false>, kHasUnsignedCodes ? 128 : 0>;
using Q4_K = BlockFormat<12, 144, NibbleCodes<0>, SixBitScales, 0>;
using Q5_K = BlockFormat<13, 176, NibbleCodes<1>, SixBitScales, 0>;
using Q6_K = BlockFormat<14, 210, NibbleCodes<2>, ByteScales, 32>;

// Calls run(Format()) for the format of that number.
template <typename Run>
inline void with_format(int64_t number, const Run& run) {
    switch (number) {
        case Q4_0::kNumber: return run(Q4_0());
        case Q4_1::kNumber: return run(Q4_1());
        case Q5_0::kNumber: return run(Q5_0());
        case Q5_1::kNumber: return run(Q5_1());
        case Q8_0::kNumber: return run(Q8_0());
        case Q4_K::kNumber: return run(Q4_K());
        case Q5_K::kNumber: return run(Q5_K());
        default: return run(Q6_K());
    }
}
