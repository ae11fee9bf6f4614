// Vectors of sixteen numbers: GCC's vector extensions, which compile to AVX-512 where available and run everywhere.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <new>
#include <vector>

#if defined(__AVX512F__) || defined(__AMX_TILE__)
#include <immintrin.h>
#endif
#if defined(__linux__)
#include <sys/mman.h>
#endif

using bf16 = uint16_t;  // bfloat16: the upper half of a float
constexpr int64_t kLanes = 16;

typedef float Floats __attribute__((vector_size(64)));
typedef int32_t Ints __attribute__((vector_size(64)));
typedef uint16_t Halves __attribute__((vector_size(32)));

template <typename Vector, typename T>
inline Vector load(const T* from) {
    Vector vector;
    std::memcpy(&vector, from, sizeof vector);
    return vector;
}

inline Ints widen_bits(const bf16* from) {
#if defined(__AVX512F__)
    return Ints(_mm512_cvtepu16_epi32(__m256i(load<Halves>(from))));  // one instruction, where GCC generates four
#else
    return __builtin_convertvector(load<Halves>(from), Ints);
#endif
}

inline Floats widen(const float* from) { return load<Floats>(from); }
inline Floats widen(const bf16* from) { return Floats(widen_bits(from) << 16); }

inline float widen_one(float value) { return value; }

inline float widen_one(bf16 value) {
    uint32_t bits = uint32_t(value) << 16;
    float wide;
    std::memcpy(&wide, &bits, sizeof wide);
    return wide;
}

inline Halves to_bf16(Floats values) {  // to the nearest, ties to even; NaN stays NaN
#if defined(__AVX512BF16__)
    return Halves(_mm512_cvtneps_pbh(__m512(values)));  // denormals become zero
#else
    const Ints bits = Ints(values);
    const Ints rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    return __builtin_convertvector(values == values ? rounded : Ints{} + 0x7fc0, Halves);
#endif
}

inline void store(Ints values, int32_t* to) { std::memcpy(to, &values, sizeof values); }
inline void store(Floats values, float* to) { std::memcpy(to, &values, sizeof values); }

inline void store(Floats values, bf16* to) {
    const Halves halves = to_bf16(values);
    std::memcpy(to, &halves, sizeof halves);
}

inline float sum_of(Floats vector) {  // pairwise, which is faster than one lane after another
    vector += __builtin_shuffle(vector, Ints{8, 9, 10, 11, 12, 13, 14, 15});
    vector += __builtin_shuffle(vector, Ints{4, 5, 6, 7});
    vector += __builtin_shuffle(vector, Ints{2, 3});
    return vector[0] + vector[1];
}

inline float max_of(Floats vector) {
    for (const Ints& other : {Ints{8, 9, 10, 11, 12, 13, 14, 15}, Ints{4, 5, 6, 7}, Ints{2, 3}, Ints{1}}) {
        const Floats moved = __builtin_shuffle(vector, other);
        vector = moved > vector ? moved : vector;
    }
    return vector[0];
}

inline bool any_of(Ints is) {
#if defined(__AVX512F__)
    return _mm512_test_epi32_mask(__m512i(is), __m512i(is)) != 0;
#else
    int32_t together = 0;
    for (int64_t lane = 0; lane < kLanes; ++lane) together |= is[lane];
    return together != 0;
#endif
}

// Returns the sums of sixteen vectors, that of vector i in lane i. Adds pairwise: as many additions as for one vector
// after another, but with all lanes busy.
inline Floats sums_of(Floats (&rows)[kLanes]) {
    const Ints lanes = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
#pragma GCC unroll 4
    for (int32_t size = 8; size > 0; size /= 2) {
        const Ints is_right = (lanes & size) != 0;
        const Ints near = is_right ? lanes + 16 : lanes, far = is_right ? lanes - size + 16 : lanes + size;
#pragma GCC unroll 8
        for (int32_t row = 0; row < size; ++row)
            rows[row] = __builtin_shuffle(rows[row], rows[row + size], near) + __builtin_shuffle(rows[row], rows[row + size], far);
    }
    return rows[0];
}

// Transposes a 16 x 16 matrix: swaps blocks of size 8, 4, 2 and 1.
inline void transpose(Ints (&rows)[kLanes]) {
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
}

// e^x with a relative error below 2e-7 (S. Moshier, Cephes, expf): 2^n times a polynomial of the remainder of x.
inline Floats exponential(Floats x) {
#if defined(__AVX512F__)
    x = Floats(_mm512_min_ps(_mm512_set1_ps(89), _mm512_max_ps(_mm512_set1_ps(-106), __m512(x))));  // NaN stays NaN
    const Floats n = Floats(_mm512_roundscale_ps(__m512(x * 1.44269504088896341f), 0));
#else
    x = x < -87.0f ? Floats{} - 87.0f : x;
    x = x > 88.0f ? Floats{} + 88.0f : x;
    const Floats nearest = x * 1.44269504088896341f + 0.5f;
    const Floats cut_off = __builtin_convertvector(__builtin_convertvector(nearest, Ints), Floats);
    const Floats n = cut_off > nearest ? cut_off - 1.0f : cut_off;
#endif
    const Floats r = x - n * 0.693359375f + n * 2.12194440e-4f;
    Floats p = Floats{} + 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
#if defined(__AVX512F__)
    return Floats(_mm512_scalef_ps(__m512(p), __m512(n)));
#else
    return p * Floats((__builtin_convertvector(n, Ints) + 127) << 23);
#endif
}

inline float exponential(float x) { return exponential(Floats{} + x)[0]; }

// Allocates memory aligned to cache lines: a vector that straddles two lines is read twice. Large allocations use huge
// pages: with small pages, rows that are far apart would each wait for a page table walk.
template <typename T>
struct AlignedAllocator {
    using value_type = T;

    AlignedAllocator() = default;
    template <typename Other>
    AlignedAllocator(const AlignedAllocator<Other>&) {}

    T* allocate(size_t count) {
        const size_t size = count * sizeof(T);
        void* memory = ::operator new(size, alignment(count));
#if defined(__linux__)
        if (size >= kHugePage) madvise(memory, size, MADV_HUGEPAGE);  // may fail; memory is only slower then
#endif
        return static_cast<T*>(memory);
    }
    void deallocate(T* memory, size_t count) { ::operator delete(memory, alignment(count)); }
    bool operator==(const AlignedAllocator&) const { return true; }
    bool operator!=(const AlignedAllocator&) const { return false; }

   private:
    static constexpr size_t kHugePage = size_t(2) << 20;

    static std::align_val_t alignment(size_t count) { return std::align_val_t(count * sizeof(T) >= kHugePage ? kHugePage : 64); }
};

template <typename T>
using AlignedVector = std::vector<T, AlignedAllocator<T>>;

// Grows memory to at least that size, keeping its contents; returns its data.
template <typename T>
inline T* ensure_size(AlignedVector<T>& memory, int64_t size) {
    if (int64_t(memory.size()) < size) memory.resize(size);
    return memory.data();
}
