// Matrix products of rows and weights, in float32, bfloat16, 8 bits and 4 bits.
//
// Weights are read from memory once for as many rows as stay in the cache. The sum of an output is computed in the same
// order for any number of rows and threads.
#pragma once

#include <type_traits>

#include "model.h"
#include "amx.h"

constexpr int64_t kAhead = 16;  // prefetch distance in a stream of weights, in cache lines
constexpr int64_t kGroupSize = 32;  // 4-bit weights that share a scale

struct int4;  // tag of the format: two numbers in a byte

// Weights and rows consist of words of 32 bits: one, two or four numbers, as many as a lane multiplies at once. Sixteen
// outputs are interleaved, one in each lane, so nothing is summed across lanes; sixteen such vectors make a tile.
template <typename Weight>
struct WeightFormat;

template <>
struct WeightFormat<float> {
    using Sums = Floats;
    static constexpr int64_t kPerWord = 1;
    static constexpr bool kTiles = false;

    static void add(Floats& sums, Ints weights, int32_t row) {
        float x;
        std::memcpy(&x, &row, sizeof x);
        sums += Floats(weights) * x;
    }
};

template <>
struct WeightFormat<bf16> {
    using Sums = Floats;
    static constexpr int64_t kPerWord = 2;
    static constexpr bool kTiles = true;

    static void add(Floats& sums, Ints weights, int32_t row) {
#if defined(__AVX512BF16__)
        sums = Floats(_mm512_dpbf16_ps(__m512(sums), __m512bh(weights), __m512bh(_mm512_set1_epi32(row))));
#else
        sums += Floats(weights << 16) * widen_one(bf16(row)) + Floats(weights & int32_t(0xffff0000)) * widen_one(bf16(row >> 16));
#endif
    }
};

// LLM.int8() without its treatment of outliers (arXiv 2208.07339, section 2.1): a row's scale follows its largest
// number. Rows are stored with zero point 128, as the instruction multiplies unsigned rows by signed weights.
template <>
struct WeightFormat<int8_t> {
    using Sums = Ints;
    static constexpr int64_t kPerWord = 4;
    static constexpr bool kTiles = true;
    static constexpr int32_t kZeroPoint = 128;

    static void add(Ints& sums, Ints weights, int32_t row) {
#if defined(__AVX512VNNI__)
        sums = Ints(_mm512_dpbusd_epi32(__m512i(sums), _mm512_set1_epi32(row), __m512i(weights)));
#else
        for (int shift = 0; shift < 32; shift += 8) sums += (weights << (24 - shift) >> 24) * (row >> shift & 0xff);
#endif
    }
};

// Weights are unsigned here, with zero point 8, and rows signed. The correction of the sums depends on the row alone,
// so sums start from it.
template <>
struct WeightFormat<int4> {
    using Sums = Floats;
    static constexpr int64_t kPerWord = 4;
    static constexpr bool kTiles = false;
    static constexpr int32_t kZeroPoint = 0;

    static void add(Ints& sums, Ints weights, int32_t row) {
#if defined(__AVX512VNNI__)
        sums = Ints(_mm512_dpbusd_epi32(__m512i(sums), __m512i(weights), _mm512_set1_epi32(row)));
#else
        for (int shift = 0; shift < 32; shift += 8) sums += (weights >> shift & 0xff) * (row << (24 - shift) >> 24);
#endif
    }
};

// The rows of a product, in words: row-major, or tile by tile.
template <typename Weight>
class PackedRows {
   public:
    int64_t count = 0, width = 0;  // number of rows; words of a row, padded with zeros to whole tiles

    void resize(int64_t rows, int64_t row_width) {
        count = rows;
        const int64_t words = (row_width + WeightFormat<Weight>::kPerWord - 1) / WeightFormat<Weight>::kPerWord;
        width = (words + kTileWords - 1) / kTileWords * kTileWords;
        in_tiles_ = WeightFormat<Weight>::kTiles && amx_available();
        const int64_t whole = (rows + kTileRows - 1) / kTileRows * kTileRows;
        if (int64_t(words_.size()) < whole * width) words_.resize(whole * width);
        if (int64_t(scales_.size()) < rows) scales_.resize(rows);
        if (std::is_same_v<Weight, int4> && int64_t(zero_point_correction_.size()) < rows * width / kGroupWords)
            zero_point_correction_.resize(rows * width / kGroupWords);
    }

    void fill(const float* from, int64_t row_width, int64_t row) {
        if constexpr (kDirect) {
            for (int64_t number = 0; number < row_width; number += kLanes) store_lanes(load<Floats>(from + number), row, number);
            pad(row_width, row);
        } else {
            quantize(from, row_width, row);
        }
    }

    // Whether numbers can be stored one vector at a time: no scale of the whole row is needed first.
    static constexpr bool kDirect = std::is_same_v<Weight, float> || std::is_same_v<Weight, bf16>;

    // Stores sixteen numbers from index number on, a multiple of sixteen.
    void store_lanes(Floats numbers, int64_t row, int64_t number) {
        static_assert(kDirect);
        constexpr int64_t kPerRow = kTileWords * WeightFormat<Weight>::kPerWord;
        store(numbers, reinterpret_cast<Weight*>(at(row, number / kPerRow * kTileWords)) + number % kPerRow);
    }

    // Writes zeros after the numbers of a row.
    void pad(int64_t row_width, int64_t row) {
        for (int64_t number = row_width; number < width * WeightFormat<Weight>::kPerWord; number += kLanes) store_lanes(Floats{}, row, number);
    }

    // In tiles, the tiles of the same sixteen rows follow one another, column by column.
    int32_t* at(int64_t row, int64_t word) {
        if (!in_tiles_) return &words_[row * width + word];
        return &words_[row / kTileRows * kTileRows * width + word * kTileRows + row % kTileRows * kTileWords];
    }

    bool in_tiles() const { return in_tiles_; }
    float scale(int64_t row) const { return scales_[row]; }
    // Eight times the sum of a row's numbers, for each group.
    const int32_t* zero_point_correction(int64_t row) const { return &zero_point_correction_[row * width / kGroupWords]; }

   private:
    static constexpr int64_t kGroupWords = kGroupSize / 4;

    void quantize(const float* from, int64_t row_width, int64_t row) {
        float largest = 1e-12f;
#pragma omp simd reduction(max : largest)
        for (int64_t i = 0; i < row_width; ++i) largest = std::max(largest, std::fabs(from[i]));
        scales_[row] = largest / 127;
        const float steps = 127 / largest;
        int8_t bytes[kTileWords * 4];
        for (int64_t word = 0; word < width; word += kTileWords) {
            const int64_t numbers = std::clamp<int64_t>(row_width - word * 4, 0, sizeof bytes);
            std::memset(bytes, 0, sizeof bytes);
#pragma omp simd
            for (int64_t i = 0; i < numbers; ++i)
                bytes[i] = int8_t(int32_t(std::nearbyint(from[word * 4 + i] * steps)) + WeightFormat<Weight>::kZeroPoint);
            std::memcpy(at(row, word), bytes, sizeof bytes);
            if constexpr (std::is_same_v<Weight, int4>)
                for (int64_t group = 0; group < int64_t(sizeof bytes) / kGroupSize; ++group) {
                    int32_t sum = 0;
                    for (int64_t i = 0; i < kGroupSize; ++i) sum += bytes[group * kGroupSize + i];
                    zero_point_correction_[row * width / kGroupWords + word / kGroupWords + group] = 8 * sum;
                }
        }
    }

    AlignedVector<int32_t> words_;
    std::vector<int32_t> zero_point_correction_;
    std::vector<float> scales_;
    bool in_tiles_ = false;
};

inline Floats dequantize(const PackedLinear&, const PackedRows<float>&, int64_t, int64_t, Floats sums) { return sums; }
inline Floats dequantize(const PackedLinear&, const PackedRows<bf16>&, int64_t, int64_t, Floats sums) { return sums; }
inline Floats dequantize(const PackedLinear&, const PackedRows<int4>& rows, int64_t row, int64_t, Floats sums) { return sums * rows.scale(row); }
inline Floats dequantize(const PackedLinear& matrix, const PackedRows<int8_t>& rows, int64_t row, int64_t output, Ints sums) {
    const Ints products = sums - load<Ints>(matrix.sums + output) * WeightFormat<int8_t>::kZeroPoint;
    const Floats scales = load<Floats>(static_cast<const float*>(matrix.scales) + output);
    return __builtin_convertvector(products, Floats) * scales * rows.scale(row);
}

template <typename Weight, typename Use>
inline void apply_epilogue(const PackedLinear& matrix, const PackedRows<Weight>& rows, int64_t row, int64_t output,
                      typename WeightFormat<Weight>::Sums sums, const Use& use) {
    Floats products = dequantize(matrix, rows, row, output, sums);
    if (matrix.bias) products += load<Floats>(matrix.bias + output);
    use(row, output, products);
}

// ---- SIMD kernels ---------------------------------------------------------------------------------------------------

// Not inlined, so that the sums stay in registers.
template <typename Weight, int64_t kGroups, int64_t kRows, typename Use>
[[gnu::noinline]] void lane_kernel(const PackedLinear& matrix, PackedRows<Weight>& rows, int64_t row, int64_t output, const Use& use) {
    const int64_t width = rows.width;
    const int32_t* words = rows.at(row, 0);
    typename WeightFormat<Weight>::Sums sums[kGroups][kRows] = {};
    if constexpr (std::is_same_v<Weight, int4>) {
        constexpr int64_t kWords = kGroupSize / 4;
        const auto* weights = static_cast<const int32_t*>(matrix.weight) + output * width / 2;
        const auto* scales = static_cast<const bf16*>(matrix.scales) + output * width / kWords;
        for (int64_t group = 0; group < kGroups; ++group)
            for (int64_t word = 0; word < width; word += kWords) {
                const int32_t* from = weights + (group * width + word) / 2 * kLanes;
                const Floats scale = widen(scales + (group * width + word) / kWords * kLanes);
                Ints lanes[kWords];
                for (int64_t i = 0; i < kWords / 2; ++i) {
                    __builtin_prefetch(from + (i + kAhead) * kLanes);
                    const Ints both = load<Ints>(from + i * kLanes);
                    lanes[i] = both & 0x0f0f0f0f;
                    lanes[i + kWords / 2] = both >> 4 & 0x0f0f0f0f;
                }
                for (int64_t r = 0; r < kRows; ++r) {
                    Ints even = Ints{} - rows.zero_point_correction(row + r)[word / kWords], odd = {};
                    for (int64_t i = 0; i < kWords; i += 2) {
                        WeightFormat<int4>::add(even, lanes[i], words[r * width + word + i]);
                        WeightFormat<int4>::add(odd, lanes[i + 1], words[r * width + word + i + 1]);
                    }
                    sums[group][r] += __builtin_convertvector(even + odd, Floats) * scale;
                }
            }
    } else {
        const auto* weights = static_cast<const int32_t*>(matrix.weight) + output * width;
        for (int64_t word = 0; word < width; ++word) {
            Ints lanes[kGroups];
            for (int64_t group = 0; group < kGroups; ++group) {
                const int32_t* from = weights + (group * width + word) * kLanes;
                __builtin_prefetch(from + kAhead * kLanes);
                lanes[group] = load<Ints>(from);
            }
            for (int64_t r = 0; r < kRows; ++r)
                for (int64_t group = 0; group < kGroups; ++group)
                    WeightFormat<Weight>::add(sums[group][r], lanes[group], words[r * width + word]);
        }
    }
    for (int64_t group = 0; group < kGroups; ++group)
        for (int64_t r = 0; r < kRows; ++r) apply_epilogue(matrix, rows, row + r, output + group * kLanes, sums[group][r], use);
}

template <typename Weight, int64_t kGroups, int64_t kRows, typename Use>
inline void lane_kernels(const PackedLinear& matrix, PackedRows<Weight>& rows, int64_t row, int64_t first, int64_t last, const Use& use) {
    int64_t output = first;
    for (; output + kGroups * kLanes <= last; output += kGroups * kLanes)
        lane_kernel<Weight, kGroups, kRows>(matrix, rows, row, output, use);
    for (; output < last; output += kLanes) lane_kernel<Weight, 1, kRows>(matrix, rows, row, output, use);
}

template <typename Weight, typename Use>
void gemm_simd(const PackedLinear& matrix, PackedRows<Weight>& rows, int64_t first, int64_t last, const Use& use) {
    constexpr int64_t kAtOnce = 8 * kLanes;  // outputs whose weights all rows use before the next weights are read
    for (int64_t output = first; output < last; output += kAtOnce) {
        const int64_t stop = std::min(last, output + kAtOnce);
        int64_t row = 0;
        for (; row + 12 <= rows.count; row += 12) lane_kernels<Weight, 2, 12>(matrix, rows, row, output, stop, use);
        for (; row + 4 <= rows.count; row += 4) lane_kernels<Weight, 4, 4>(matrix, rows, row, output, stop, use);
        for (; row < rows.count; ++row) lane_kernels<Weight, 8, 1>(matrix, rows, row, output, stop, use);
    }
}

// ---- AMX kernels ---------------------------------------------------------------------------------------------------

#ifdef DESKMATE_AMX

constexpr int64_t kTilesAhead = 2;  // prefetch distance
constexpr int64_t kRowsInCache = 192 * 1024;  // words of rows that stay in the L2 cache next to weights

// Adds the product of the rows in tile register A and the weights in B to C. Registers must be literals.
#define ADD_PRODUCT(C, A, B)                                                     \
    if constexpr (std::is_same_v<Weight, bf16>) _tile_dpbf16ps(C, A, B);         \
    else _tile_dpbusd(C, A, B)

inline void prefetch_tile(const int32_t* from) {
    for (int64_t line = 0; line < kTileRows; ++line) __builtin_prefetch(from + line * kTileWords);
}

// Up to 32 rows, one or two groups of outputs. With each tile, prefetches some cache lines of later weights, from ahead
// on, into the L2 cache.
template <typename Weight, int64_t kGroups>
inline void tile_pair(const int32_t* rows, const int32_t* weights, int64_t width, const int32_t* ahead, int64_t lines, int32_t* sums) {
    const int64_t line = 4 * kTileWords;
    const int32_t* lower_rows = rows + kTileRows * width;
    const int32_t* right = weights + kTileRows * width;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t word = 0; word < width; word += kTileWords) {
        const int64_t at = word * kTileRows;
        for (const int32_t* end = ahead + lines * kTileWords; ahead < end; ahead += kTileWords) __builtin_prefetch(ahead, 0, 2);
        _tile_loadd(4, rows + at, line);
        _tile_loadd(6, weights + at, line);
        prefetch_tile(weights + at + kTilesAhead * kTileSize);
        prefetch_tile(rows + at + kTileSize);
        prefetch_tile(lower_rows + at + kTileSize);
        ADD_PRODUCT(0, 4, 6);
        if constexpr (kGroups == 2) {
            _tile_loadd(7, right + at, line);
            prefetch_tile(right + at + kTilesAhead * kTileSize);
            ADD_PRODUCT(1, 4, 7);
        }
        _tile_loadd(5, lower_rows + at, line);
        ADD_PRODUCT(2, 5, 6);
        if constexpr (kGroups == 2) ADD_PRODUCT(3, 5, 7);
    }
    _tile_stored(0, sums, line);
    _tile_stored(2, sums + kTileSize, line);
    if constexpr (kGroups == 2) {
        _tile_stored(1, sums + 2 * kTileSize, line);
        _tile_stored(3, sums + 3 * kTileSize, line);
    }
}

// Up to 16 rows, one or four groups of outputs.
template <typename Weight, int64_t kGroups>
inline void tile_single(const int32_t* rows, const int32_t* weights, int64_t width, int64_t next_panel, int32_t* sums) {
    const int64_t line = 4 * kTileWords, group = kTileRows * width;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t word = 0; word < width; word += kTileWords) {
        const int64_t at = word * kTileRows;
        const int64_t ahead = word + kTilesAhead * kTileWords;
        const int64_t next = (ahead < width ? ahead : ahead - width + next_panel * width) * kTileRows;
        _tile_loadd(4, rows + at, line);
        _tile_loadd(6, weights + at, line);
        prefetch_tile(weights + next);
        ADD_PRODUCT(0, 4, 6);
        if constexpr (kGroups == 4) {
            _tile_loadd(7, weights + group + at, line);
            prefetch_tile(weights + group + next);
            ADD_PRODUCT(1, 4, 7);
            _tile_loadd(6, weights + 2 * group + at, line);
            prefetch_tile(weights + 2 * group + next);
            ADD_PRODUCT(2, 4, 6);
            _tile_loadd(7, weights + 3 * group + at, line);
            prefetch_tile(weights + 3 * group + next);
            ADD_PRODUCT(3, 4, 7);
        }
    }
    _tile_stored(0, sums, line);
    if constexpr (kGroups == 4) {
        _tile_stored(1, sums + kTileSize, line);
        _tile_stored(2, sums + 2 * kTileSize, line);
        _tile_stored(3, sums + 3 * kTileSize, line);
    }
}

template <typename Weight, typename Use>
inline void apply_tile_epilogue(const PackedLinear& matrix, const PackedRows<Weight>& rows, int64_t row, int64_t count, int64_t output,
                           const int32_t* sums, const Use& use) {
    using Sums = typename WeightFormat<Weight>::Sums;
    for (int64_t r = 0; r < count; ++r) apply_epilogue(matrix, rows, row + r, output, load<Sums>(sums + r * kTileWords), use);
}

template <typename Weight, int64_t kGroups, typename Use>
[[gnu::noinline]] void pair_of_rows(const PackedLinear& matrix, PackedRows<Weight>& rows, int64_t row, int64_t lower, int64_t output,
                                    const int32_t* ahead, int64_t lines, const Use& use) {
    alignas(64) int32_t sums[4 * kTileSize];
    const auto* weights = static_cast<const int32_t*>(matrix.weight) + output * rows.width;
    tile_pair<Weight, kGroups>(rows.at(row, 0), weights, rows.width, ahead, lines, sums);
    for (int64_t group = 0; group < kGroups; ++group) {
        const int64_t first = output + group * kLanes;
        apply_tile_epilogue(matrix, rows, row, kTileRows, first, sums + 2 * group * kTileSize, use);
        apply_tile_epilogue(matrix, rows, row + kTileRows, lower, first, sums + (2 * group + 1) * kTileSize, use);
    }
}

template <typename Weight, typename Use>
[[gnu::noinline]] void up_to_a_tile(const PackedLinear& matrix, PackedRows<Weight>& rows, int64_t row, int64_t count, int64_t output,
                                    int64_t groups, const Use& use) {
    alignas(64) int32_t sums[4 * kTileSize];
    const int64_t width = rows.width;
    const auto* weights = static_cast<const int32_t*>(matrix.weight) + output * width;
    if (groups == 4) {
        tile_single<Weight, 4>(rows.at(row, 0), weights, width, 4, sums);
        for (int64_t group = 0; group < 4; ++group)
            apply_tile_epilogue(matrix, rows, row, count, output + group * kLanes, sums + group * kTileSize, use);
        return;
    }
    for (int64_t group = 0; group < groups; ++group) {
        tile_single<Weight, 1>(rows.at(row, 0), weights + group * kLanes * width, width, 1, sums);
        apply_tile_epilogue(matrix, rows, row, count, output + group * kLanes, sums, use);
    }
}

template <typename Weight, int64_t kGroups, typename Use>
void pairs_of_rows(const PackedLinear& matrix, PackedRows<Weight>& rows, int64_t first, int64_t last, int64_t output, const Use& use, TileConfig& tiles) {
    // While the rows are multiplied with these weights, the next weights are prefetched a few lines at a time.
    const int64_t times = (last - first + 2 * kTileRows - 1) / (2 * kTileRows), panel = kGroups * kLanes * rows.width;
    const int64_t lines = (kGroups * kTileRows + times - 1) / times, at_once = lines * rows.width;
    const int32_t* ahead = static_cast<const int32_t*>(matrix.weight) + output * rows.width + panel;
    for (int64_t row = first; row < last; row += 2 * kTileRows, ahead += at_once) {
        const int64_t lower = std::min(last - row - kTileRows, kTileRows);
        tiles.configure(kTileRows, lower);
        pair_of_rows<Weight, kGroups>(matrix, rows, row, lower, output, ahead, lines, use);
    }
}

template <typename Weight, typename Use>
void gemm_amx(const PackedLinear& matrix, PackedRows<Weight>& rows, int64_t first, int64_t last, const Use& use, TileConfig& tiles) {
    constexpr int64_t kPair = 2 * kTileRows;
    tile_load_barrier();
    const int64_t at_once = std::max<int64_t>(1, kRowsInCache / rows.width / kPair) * kPair;
    for (int64_t begin = 0; begin < rows.count; begin += at_once) {
        const int64_t end = std::min(rows.count, begin + at_once);
        const int64_t left_over = (end - begin) % kPair <= kTileRows ? (end - begin) % kPair : 0;
        const int64_t single = end - left_over;
        for (int64_t output = first; output < last; output += 4 * kLanes) {
            const int64_t groups = std::min<int64_t>(4, (last - output) / kLanes);
            for (int64_t group = 0; group < groups && begin < single; group += 2) {
                if (group + 1 < groups) pairs_of_rows<Weight, 2>(matrix, rows, begin, single, output + group * kLanes, use, tiles);
                else pairs_of_rows<Weight, 1>(matrix, rows, begin, single, output + group * kLanes, use, tiles);
            }
            if (left_over == 0) continue;
            tiles.configure(left_over, left_over);
            up_to_a_tile(matrix, rows, single, left_over, output, groups, use);
        }
    }
}

#undef ADD_PRODUCT
#endif

constexpr int64_t kMaxRowBlock = 32;

// Calls use(row, output, products) for every row and the outputs first to last - 1, sixteen at once; first is a
// multiple of 16. If the outputs are an even number of sixteens, they come in pairs: the first sixteen for at most
// kMaxRowBlock rows, then the second sixteen for the same rows.
template <typename Weight, typename Use>
void gemm(const PackedLinear& matrix, PackedRows<Weight>& rows, int64_t first, int64_t last, const Use& use, TileConfig& tiles) {
#ifdef DESKMATE_AMX
    if constexpr (WeightFormat<Weight>::kTiles)
        if (rows.in_tiles()) return gemm_amx(matrix, rows, first, last, use, tiles);
#endif
    (void)tiles;
    gemm_simd(matrix, rows, first, last, use);
}
