// Vectors of sixteen 32-bit lanes: types, loads and stores, conversions, reductions, transposition, e^x.
//
// Types: Floats are 16 float32 and Ints 16 int32 (64 bytes), Halves 16 bfloat16 or other 16-bit numbers (32 bytes).
// They are GCC's vector extensions, so +, *, <, ?: and __builtin_shuffle work lane by lane; a comparison gives Ints
// with -1 in each lane that is true and 0 elsewhere.
//
// Memory: loads and stores take any alignment (those of aligned_vector.h start at cache lines) and always move whole
// vectors; callers pad their data to sixteen numbers.
//
// Instruction sets: a vector is one AVX-512 register, two of AVX2 or four of SSE or NEON, as the compiler chooses.
// Where GCC generates slow code, an intrinsic is used instead, with the portable code as the fallback:
//   __AVX512F__     widen_bits, widen_register, any_of, exponential_register
//   __AVX512DQ__    probability
//   __AVX512BF16__  to_bf16, round_to_bf16
//   __AVX2__        lane_max, lane_min, to_bf16, exponential_register, reduce_add_each, transpose
// Other instruction sets may give another last bit, by fused multiply-adds and denormals. No threads here.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

using bf16 = uint16_t;  // bfloat16: the upper half of a float32
constexpr int64_t kLanes = 16;  // numbers in a vector; LANES of structure.py

typedef float Floats __attribute__((vector_size(64)));
typedef int32_t Ints __attribute__((vector_size(64)));
typedef uint16_t Halves __attribute__((vector_size(32)));

// A vector of sixteen lanes is kRegisters registers. Arithmetic in a loop is on registers, because GCC keeps vectors
// that are wider in memory.
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
typedef int16_t ShortRegister __attribute__((vector_size(4 * kRegisterLanes)));
typedef uint16_t HalfRegister __attribute__((vector_size(2 * kRegisterLanes)));

// Returns a * b + c of float32 vectors, rounded once if they fill a register of a processor that can. Compiled without
// contraction (-ffp-contract=off), all other arithmetic rounds each operation: the compiler's own choice may differ
// between kernels of different numbers of rows, and a row's bits would depend on the rows beside it.
template <typename Vector>
inline Vector multiply_add(Vector a, Vector b, Vector c) {
#if defined(__AVX512F__)
    if constexpr (sizeof(Vector) == 64) return Vector(_mm512_fmadd_ps(__m512(a), __m512(b), __m512(c)));
#endif
#if defined(__AVX2__) && defined(__FMA__)
    if constexpr (sizeof(Vector) == 32) return Vector(_mm256_fmadd_ps(__m256(a), __m256(b), __m256(c)));
#elif defined(__aarch64__)
    if constexpr (sizeof(Vector) == 16)
        return Vector(vfmaq_f32(float32x4_t(c), float32x4_t(a), float32x4_t(b)));
#endif
    return a * b + c;
}

#if defined(__AVX2__) && !defined(__AVX512F__)
typedef __m256 Eight;
struct Eights {  // a vector's registers
    Eight lower, upper;
};

// Transposes an 8 x 8 matrix in place.
inline void transpose_8(Eight (&rows)[8]) {
    Eight pairs[8], fours[8];
    for (int i = 0; i < 8; i += 2) {
        pairs[i] = _mm256_unpacklo_ps(rows[i], rows[i + 1]);
        pairs[i + 1] = _mm256_unpackhi_ps(rows[i], rows[i + 1]);
    }
    for (int i = 0; i < 8; i += 4)
        for (int high = 0; high < 2; ++high) {
            fours[i + 2 * high] = _mm256_shuffle_ps(pairs[i + high], pairs[i + high + 2], 0x44);
            fours[i + 2 * high + 1] = _mm256_shuffle_ps(pairs[i + high], pairs[i + high + 2], 0xee);
        }
    for (int i = 0; i < 4; ++i) {
        rows[i] = _mm256_permute2f128_ps(fours[i], fours[i + 4], 0x20);
        rows[i + 4] = _mm256_permute2f128_ps(fours[i], fours[i + 4], 0x31);
    }
}
#endif

template <typename Vector, typename T>
inline Vector load(const T* from) {
    Vector vector;
    std::memcpy(&vector, from, sizeof vector);
    return vector;
}

// Returns what call(register) makes of each register of a vector. GCC compares vectors that are wider than a register
// lane by lane.
template <typename Call>
inline Floats map_registers(Floats vector, const Call& call) {
    FloatRegister registers[kRegisters];
    std::memcpy(registers, &vector, sizeof registers);
#pragma GCC unroll 4
    for (FloatRegister& one : registers) one = call(one);
    return load<Floats>(registers);
}

// Returns sixteen 16-bit numbers in the lower halves of 32-bit lanes.
inline Ints widen_bits(const bf16* from) {
#if defined(__AVX512F__)
    return Ints(_mm512_cvtepu16_epi32(__m256i(load<Halves>(from))));  // one instruction, where GCC generates four
#else
    return __builtin_convertvector(load<Halves>(from), Ints);
#endif
}

// Returns sixteen numbers as float32.
inline Floats widen(const float* from) { return load<Floats>(from); }
inline Floats widen(const bf16* from) { return Floats(widen_bits(from) << 16); }

// Returns a register of numbers as float32.
inline FloatRegister widen_register(const float* from) { return load<FloatRegister>(from); }
inline FloatRegister widen_register(const bf16* from) {
#if defined(__AVX512F__)
    return widen(from);
#else
    return FloatRegister(__builtin_convertvector(load<HalfRegister>(from), IntRegister) << 16);
#endif
}

// Returns a register with this number in every lane: 0 + x would be an addition, because it changes the sign of -0.
inline FloatRegister broadcast(float value) {
    int32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return FloatRegister(IntRegister{} + bits);
}

inline float widen_one(float value) { return value; }

inline float widen_one(bf16 value) {
    uint32_t bits = uint32_t(value) << 16;
    float wide;
    std::memcpy(&wide, &bits, sizeof wide);
    return wide;
}

// Rounds to the nearest bfloat16, ties to even, as float32; NaN stays NaN.
inline Floats round_to_bf16(Floats values) {
#if defined(__AVX512BF16__)
    return Floats(_mm512_cvtepu16_epi32(__m256i(_mm512_cvtneps_pbh(__m512(values)))) << 16);  // denormals become zero
#else
    return map_registers(values, [](FloatRegister some) {
        const IntRegister bits = IntRegister(some);
        const IntRegister rounded = bits + 0x7fff + (bits >> 16 & 1);
        return FloatRegister((some == some ? rounded : IntRegister{} + 0x7fc00000) & int32_t(0xffff0000));
    });
#endif
}

// The same as bfloat16.
inline Halves to_bf16(Floats values) {
#if defined(__AVX512BF16__)
    return Halves(_mm512_cvtneps_pbh(__m512(values)));
#else
    const Floats rounded = round_to_bf16(values);
#if defined(__AVX2__) && !defined(__AVX512F__)
    const Eights both = load<Eights>(&rounded);
    const __m256i lower = _mm256_srli_epi32(__m256i(both.lower), 16);
    const __m256i upper = _mm256_srli_epi32(__m256i(both.upper), 16);
    return Halves(_mm256_permute4x64_epi64(_mm256_packus_epi32(lower, upper), 0xd8));  // which packs within 128 bits
#else
    return __builtin_convertvector(Ints(rounded) >> 16, Halves);
#endif
#endif
}

inline void store(Ints values, int32_t* to) { std::memcpy(to, &values, sizeof values); }
inline void store(Floats values, float* to) { std::memcpy(to, &values, sizeof values); }

inline void store(Floats values, bf16* to) {
    const Halves halves = to_bf16(values);
    std::memcpy(to, &halves, sizeof halves);
}

// The larger and the smaller of each lane; a if either is NaN. On AVX2, GCC would compare and choose lane by lane.
inline Floats lane_max(Floats a, Floats b) {
#if defined(__AVX2__) && !defined(__AVX512F__)
    const Eights x = load<Eights>(&a), y = load<Eights>(&b);
    const Eights both = {_mm256_max_ps(y.lower, x.lower), _mm256_max_ps(y.upper, x.upper)};
    return load<Floats>(&both);
#else
    return b > a ? b : a;
#endif
}
inline Floats lane_min(Floats a, Floats b) {
#if defined(__AVX2__) && !defined(__AVX512F__)
    const Eights x = load<Eights>(&a), y = load<Eights>(&b);
    const Eights both = {_mm256_min_ps(y.lower, x.lower), _mm256_min_ps(y.upper, x.upper)};
    return load<Floats>(&both);
#else
    return b < a ? b : a;
#endif
}

// Returns the sum of the lanes, added pairwise, which is faster than one lane after another.
inline float reduce_add(Floats vector) {
    vector += __builtin_shuffle(vector, Ints{8, 9, 10, 11, 12, 13, 14, 15});
    vector += __builtin_shuffle(vector, Ints{4, 5, 6, 7});
    vector += __builtin_shuffle(vector, Ints{2, 3});
    return vector[0] + vector[1];
}

// Returns the largest lane.
inline float reduce_max(Floats vector) {
    for (const Ints& other : {Ints{8, 9, 10, 11, 12, 13, 14, 15}, Ints{4, 5, 6, 7}, Ints{2, 3}, Ints{1}}) {
        const Floats moved = __builtin_shuffle(vector, other);
        vector = moved > vector ? moved : vector;
    }
    return vector[0];
}

// Whether a comparison is true in any lane.
inline bool any_of(Ints mask) {
#if defined(__AVX512F__)
    return _mm512_test_epi32_mask(__m512i(mask), __m512i(mask)) != 0;
#else
    int32_t bits = 0;
    for (int64_t lane = 0; lane < kLanes; ++lane) bits |= mask[lane];
    return bits != 0;
#endif
}

// Stores reduce_add of each register, for a multiple of kRegisterLanes registers; overwrites them. Halves their number
// again and again, as a transposition does: with all lanes busy, where separate sums would leave most of them idle.
template <int64_t kCount>
inline void reduce_add_each(FloatRegister (&rows)[kCount], float* to) {
    static_assert(kCount % kRegisterLanes == 0);
#pragma GCC unroll 4
    for (int64_t first = 0; first < kCount; first += kRegisterLanes) {
        FloatRegister* const own = rows + first;
#if defined(__AVX2__) && !defined(__AVX512F__)
        const __m256 a = _mm256_hadd_ps(_mm256_hadd_ps(own[0], own[1]), _mm256_hadd_ps(own[2], own[3]));
        const __m256 b = _mm256_hadd_ps(_mm256_hadd_ps(own[4], own[5]), _mm256_hadd_ps(own[6], own[7]));
        own[0] = _mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
#else
        const Ints all_lanes = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
        const IntRegister lanes = load<IntRegister>(&all_lanes);
#pragma GCC unroll 4
        for (int32_t size = kRegisterLanes / 2; size > 0; size /= 2) {
            const IntRegister is_right = (lanes & size) != 0;
            const IntRegister near = is_right ? lanes + int32_t(kRegisterLanes) : lanes;
            const IntRegister far = is_right ? lanes - size + int32_t(kRegisterLanes) : lanes + size;
#pragma GCC unroll 8
            for (int32_t row = 0; row < size; ++row)
                own[row] = __builtin_shuffle(own[row], own[row + size], near) +
                           __builtin_shuffle(own[row], own[row + size], far);
        }
#endif
        std::memcpy(to + first, own, sizeof *own);
    }
}

// Transposes a 16 x 16 matrix of words in place: swaps the off-diagonal blocks of size 8, then 4, 2 and 1.
inline void transpose(Ints (&rows)[kLanes]) {
#if defined(__AVX2__) && !defined(__AVX512F__)
    auto* words = reinterpret_cast<float*>(rows);
    for (int64_t row = 0; row < kLanes; row += 8)
        for (int64_t column = row; column < kLanes; column += 8) {
            Eight upper[8], lower[8];  // the blocks above and below the diagonal, which change places
            for (int64_t i = 0; i < 8; ++i) {
                upper[i] = load<Eight>(words + (row + i) * kLanes + column);
                lower[i] = load<Eight>(words + (column + i) * kLanes + row);
            }
            transpose_8(upper);
            transpose_8(lower);
            for (int64_t i = 0; i < 8; ++i) {
                std::memcpy(words + (column + i) * kLanes + row, &upper[i], sizeof upper[i]);
                std::memcpy(words + (row + i) * kLanes + column, &lower[i], sizeof lower[i]);
            }
        }
#else
    const Ints lanes = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    for (int32_t size = 8; size > 0; size /= 2) {
        const Ints is_right = (lanes & size) != 0;
        const Ints upper = is_right ? lanes - size + 16 : lanes;
        const Ints lower = is_right ? lanes + 16 : lanes + size;
        for (int64_t row = 0; row < kLanes; ++row) {
            if (row & size) continue;
            const Ints above = rows[row], below = rows[row + size];
            rows[row] = __builtin_shuffle(above, below, upper);
            rows[row + size] = __builtin_shuffle(above, below, lower);
        }
    }
#endif
}

// e^x with a relative error below 2e-7 (S. Moshier, Cephes, expf): 2^n e^r, where n is the nearest integer to x / ln 2,
// and e^r a polynomial. ln 2 is subtracted in two parts, so that r keeps its bits. Saturates: exponents beyond the
// range of float32 give the largest and smallest results, with AVX-512 infinity and denormals or zero; NaN stays NaN.
inline FloatRegister exponential_register(FloatRegister x) {
    const FloatRegister zero = {};
#if defined(__AVX512F__)
    x = Floats(_mm512_min_ps(_mm512_set1_ps(89), _mm512_max_ps(_mm512_set1_ps(-106), __m512(x))));  // NaN stays NaN
    const Floats n = Floats(_mm512_roundscale_ps(__m512(x * 1.44269504088896341f), 0));
#else
    x = x < -87.0f ? zero - 87.0f : x;
    x = x > 88.0f ? zero + 88.0f : x;
#if defined(__AVX2__)
    constexpr int kToNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    const FloatRegister n = _mm256_round_ps(__m256(x * 1.44269504088896341f), kToNearest);
#else
    const FloatRegister nearest = x * 1.44269504088896341f + 0.5f;
    const FloatRegister cut_off = __builtin_convertvector(__builtin_convertvector(nearest, IntRegister), FloatRegister);
    const FloatRegister n = cut_off - FloatRegister(IntRegister(zero + 1.0f) & (cut_off > nearest));
#endif
#endif
    const FloatRegister r = multiply_add(n, zero + 2.12194440e-4f, multiply_add(n, zero - 0.693359375f, x));
    FloatRegister p = zero + 1.9875691500e-4f;
    p = multiply_add(p, r, zero + 1.3981999507e-3f);
    p = multiply_add(p, r, zero + 8.3334519073e-3f);
    p = multiply_add(p, r, zero + 4.1665795894e-2f);
    p = multiply_add(p, r, zero + 1.6666665459e-1f);
    p = multiply_add(p, r, zero + 5.0000001201e-1f);
    p = multiply_add(p * r, r, r + 1.0f);
#if defined(__AVX512F__)
    return Floats(_mm512_scalef_ps(__m512(p), __m512(n)));
#else
    return p * FloatRegister((__builtin_convertvector(n, IntRegister) + 127) << 23);
#endif
}

inline Floats exponential(Floats x) { return map_registers(x, exponential_register); }
inline float exponential(float x) { return exponential_register(FloatRegister{} + x)[0]; }

// e^x for probabilities: x is at most 0, and -infinity gives 0. NaN stays NaN. With AVX-512 2^floor(t) 2^r, where
// t = x log2 e, and 2^r a polynomial for r from 0 to 1 that is 1 at 0 (relative error 8e-8, by Lawson's algorithm), in half
// the instructions of exponential(). The rounding of t adds |x| 6e-8 to the relative error.
inline Floats probability(Floats x) {
#if defined(__AVX512F__) && defined(__AVX512DQ__)
    constexpr int kFromFloor = 1;
    const Floats zero = {}, t = x * 1.44269504088896341f;
    const Floats r = Floats(_mm512_reduce_ps(__m512(t), kFromFloor));  // of -infinity: 0
    Floats p = zero + 1.8671444850e-3f;
    p = multiply_add(p, r, zero + 9.0169999748e-3f);
    p = multiply_add(p, r, zero + 5.5799935013e-2f);
    p = multiply_add(p, r, zero + 2.4016444385e-1f);
    p = multiply_add(p, r, zero + 6.9315129519e-1f);
    p = multiply_add(p, r, zero + 1.0f);
    return Floats(_mm512_scalef_ps(__m512(p), __m512(t)));
#else
    return map_registers(x, [](FloatRegister some) {
        return FloatRegister(IntRegister(exponential_register(some)) & (some != -INFINITY));
    });
#endif
}

// tanh(x) with a relative error below 3e-7 (S. Moshier, Cephes, tanhf): a polynomial for small numbers, where
// 1 - 2 / (e^2x + 1) would lose their bits. NaN stays NaN.
inline Floats hyperbolic_tangent(Floats x) {
    return map_registers(x, [](FloatRegister some) {
        const FloatRegister squared = some * some;
        FloatRegister p = FloatRegister{} - 5.70498872745e-3f;
        p = p * squared + 2.06390887954e-2f;
        p = p * squared - 5.37397155531e-2f;
        p = p * squared + 1.33314422036e-1f;
        p = p * squared - 3.33332819422e-1f;
        const FloatRegister of_large = 1.0f - 2.0f / (exponential_register(some + some) + 1.0f);
        return squared < 0.625f * 0.625f ? p * squared * some + some : of_large;
    });
}

// Soft-capping (Gemma 2, arXiv 2408.00118): cap * tanh(x / cap).
inline Floats soft_cap(Floats x, float cap) { return cap * hyperbolic_tangent(x * (1 / cap)); }
