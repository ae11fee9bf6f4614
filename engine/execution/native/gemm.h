// Matrix products of packed rows and packed weights (linear layers), in float32, bfloat16, 8 bits and 4 bits.
//
//   products[row, output] = sum over inputs of rows[row, input] * weight[output, input], dequantized, plus the bias
//
// Weights (PackedLinear.weight, packed by engine/execution/native/weights.py) lie in panels of 16 outputs, as words of
// 32 bits (packed_rows.h) with the same padding as the rows:
//   float, bf16, int8_t  [outputs / 16, words_per_row, 16 outputs]
//   int4                 [outputs / 16, words_per_row / 8, 4, 16 outputs]: of each output's group of 32 inputs, the
//                        lower halves of the bytes are inputs 0 to 15, the upper halves inputs 16 to 31
// Sixteen outputs are interleaved, one in each lane, so nothing is summed across lanes; a panel's next sixteen words
// are also a right-hand tile of AMX.
//
// Blocking: weights are read from memory once for as many rows as stay in the cache. Products leave through an epilogue
// in registers, sixteen outputs of a row at a time, and are never stored here.
//
// Threads: each calls gemm() for outputs of its own, with rows that all of them read. The sum of an output is computed
// in the order of its inputs for any number of rows and threads, so neither changes a bit.
//
// Instruction sets: tiled rows go through the AMX kernels, all others through the SIMD kernels, whose arithmetic is
// WeightFormat::add.
#pragma once

#include "model.h"
#include "packed_rows.h"

// ---- Epilogue -------------------------------------------------------------------------------------------------------

// Returns the products [16] of a row that integer sums, or the sums of scaled integers, stand for.
inline Floats dequantize(const PackedLinear&, const PackedRows<float>&, int64_t, int64_t, Floats sums) { return sums; }
inline Floats dequantize(const PackedLinear&, const PackedRows<bf16>&, int64_t, int64_t, Floats sums) { return sums; }
inline Floats dequantize(const PackedLinear&, const PackedRows<int4>& rows, int64_t row, int64_t, Floats sums) {
    return sums * rows.scale(row);
}
inline Floats dequantize(const PackedLinear& linear, const PackedRows<int8_t>& rows, int64_t row, int64_t output,
                         Ints sums) {
    const Ints products = sums - load<Ints>(linear.weight_sums + output) * WeightFormat<int8_t>::kZeroPoint;
    const Floats scales = load<Floats>(static_cast<const float*>(linear.scales) + output);
    return __builtin_convertvector(products, Floats) * scales * rows.scale(row);
}

template <typename Weight, typename Epilogue>
inline void apply_epilogue(const PackedLinear& linear, const PackedRows<Weight>& rows, int64_t row, int64_t output,
                           typename WeightFormat<Weight>::Sums sums, const Epilogue& epilogue) {
    Floats products = dequantize(linear, rows, row, output, sums);
    if (linear.bias) products += load<Floats>(linear.bias + output);
    epilogue(row, output, products);
}

// ---- SIMD kernels ---------------------------------------------------------------------------------------------------

// Prefetch distances in a stream of weights, in vectors, which are cache lines: into the L1 and into the L2 cache.
constexpr int64_t kPrefetchVectors = 16, kFarPrefetchVectors = 64;
constexpr int64_t kCachedOutputs = 8 * kLanes;  // outputs whose weights all rows use before the next weights are read

// Registers of a panel that are multiplied in one pass over its weights, and the sums that registers hold beside them.
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int64_t kPassRegisters = 1, kMaxSums = 24;  // of 32 registers
#elif defined(__AVX2__)
constexpr int64_t kPassRegisters = 2, kMaxSums = 12;  // of 16 registers
#else
constexpr int64_t kPassRegisters = 1, kMaxSums = 12;
#endif

// Rows that are multiplied at once. The sums of 4-bit weights are added in memory, once for each group of inputs.
template <typename Weight>
constexpr int64_t kRowsAtOnce = kPassRegisters == 2 && !std::is_same_v<Weight, int4> ? 6 : 12;

// Returns the panels that are multiplied at once with those rows: a power of two, at most 8.
constexpr int64_t panels_at_once(int64_t num_rows) {
    int64_t panels = 1;
    while (panels < 8 && 2 * panels * num_rows * kPassRegisters <= kMaxSums) panels *= 2;
    return panels;
}

// Adds the products of kRows rows and kPanels panels to sums, for the registers of one pass.
template <typename Weight, int64_t kPanels, int64_t kRows>
inline __attribute__((always_inline)) void add_products(
    const PackedLinear& linear, PackedRows<Weight>& rows, int64_t row, int64_t output, int64_t first_register,
    typename WeightFormat<Weight>::RegisterSums (&sums)[kPanels][kRows][kPassRegisters]) {
    using Format = WeightFormat<Weight>;
    const int64_t width = rows.words_per_row, stride = rows.row_stride;
    const int32_t* words = rows.at(row, 0);
    const auto* all_weights = static_cast<const int32_t*>(linear.weight) + first_register * kRegisterLanes;
    if constexpr (std::is_same_v<Weight, int4>) {
        constexpr int64_t kWords = kInt4GroupWords;
        const int64_t num_groups = width / kWords;
        const int32_t* const corrections = rows.zero_point_correction(row);
        const auto* weights = all_weights + output * width / 2;
        const auto* scales =
            static_cast<const bf16*>(linear.scales) + output * width / kWords + first_register * kRegisterLanes;
        for (int64_t panel = 0; panel < kPanels; ++panel)
            for (int64_t word = 0; word < width; word += kWords) {
                const int32_t* from = weights + (panel * width + word) / 2 * kLanes;
                for (int64_t i = 0; i < kWords / 2; ++i) {
                    __builtin_prefetch(from + (i + kPrefetchVectors) * kLanes);
                    __builtin_prefetch(from + (i + kFarPrefetchVectors) * kLanes, 0, 2);
                }
                for (int64_t part = 0; part < kPassRegisters; ++part) {
                    const FloatRegister scale = widen_register(scales + (panel * width + word) / kWords * kLanes +
                                                               part * kRegisterLanes);
                    IntRegister unpacked[kWords];
                    for (int64_t i = 0; i < kWords / 2; ++i) {
                        const IntRegister both = load<IntRegister>(from + i * kLanes + part * kRegisterLanes);
                        unpacked[i] = both & 0x0f0f0f0f;
                        unpacked[i + kWords / 2] = both >> 4 & 0x0f0f0f0f;
                    }
                    for (int64_t r = 0; r < kRows; ++r) {
                        const IntRegister products = Format::add_group(corrections[r * num_groups + word / kWords],
                                                                       unpacked, words + r * stride + word);
                        sums[panel][r][part] = multiply_add(__builtin_convertvector(products, FloatRegister), scale,
                                                            sums[panel][r][part]);
                    }
                }
            }
    } else {
        const auto* weights = all_weights + output * width;
        // Three rows share a pointer, as addresses are a pointer and none, one or two strides: there are few registers.
        const int32_t* of_three[(kRows + 2) / 3];
        for (int64_t r = 0; r < kRows; r += 3) of_three[r / 3] = words + r * stride;
        for (int64_t word = 0; word < width; ++word) {
            for (int64_t panel = 0; panel < kPanels; ++panel) {
                const int32_t* from = weights + (panel * width + word) * kLanes;
                __builtin_prefetch(from + kPrefetchVectors * kLanes);
                __builtin_prefetch(from + kFarPrefetchVectors * kLanes, 0, 2);
            }
            const auto multiply = [&](auto row_word) __attribute__((always_inline)) {
                constexpr int64_t kRowWord = decltype(row_word)::value;
                decltype(Format::template widen<kRowWord>(IntRegister{})) wide[kPanels][kPassRegisters];
#pragma GCC unroll 8
                for (int64_t panel = 0; panel < kPanels; ++panel)
#pragma GCC unroll 2
                    for (int64_t part = 0; part < kPassRegisters; ++part)
                        wide[panel][part] = Format::template widen<kRowWord>(
                            load<IntRegister>(weights + (panel * width + word) * kLanes + part * kRegisterLanes));
#pragma GCC unroll 12
                for (int64_t r = 0; r < kRows; ++r) {
                    const int32_t x = of_three[r / 3][r % 3 * stride + kRowWord];
#pragma GCC unroll 8
                    for (int64_t panel = 0; panel < kPanels; ++panel)
#pragma GCC unroll 2
                        for (int64_t part = 0; part < kPassRegisters; ++part)
                            Format::add(sums[panel][r][part], wide[panel][part], x);
                }
            };
            multiply(std::integral_constant<int64_t, 0>());
            if constexpr (Format::kRowWords == 2) multiply(std::integral_constant<int64_t, 1>());
#pragma GCC unroll 4
            for (const int32_t*& pointer : of_three) pointer += Format::kRowWords;
        }
    }
}

// Multiplies num_rows rows, at most kRows, with kPanels panels. Rows after them, whose memory PackedRows has, are
// multiplied too: one pass over weights that come from memory takes less time than one for each row that is left over.
// Not inlined, so that the sums stay in registers.
template <typename Weight, int64_t kPanels, int64_t kRows, typename Epilogue>
[[gnu::noinline]] void simd_microkernel(const PackedLinear& linear, PackedRows<Weight>& rows, int64_t row,
                                        int64_t num_rows, int64_t output, const Epilogue& epilogue) {
    using Sums = typename WeightFormat<Weight>::Sums;
    using RegisterSums = typename WeightFormat<Weight>::RegisterSums;
    RegisterSums sums[kPanels][kRows][kRegisters];
    for (int64_t first = 0; first < kRegisters; first += kPassRegisters) {
        RegisterSums of_pass[kPanels][kRows][kPassRegisters] = {};
        add_products<Weight, kPanels, kRows>(linear, rows, row, output, first, of_pass);
        for (int64_t panel = 0; panel < kPanels; ++panel)
            for (int64_t r = 0; r < kRows; ++r)
                std::memcpy(&sums[panel][r][first], of_pass[panel][r], sizeof of_pass[panel][r]);
    }
    for (int64_t panel = 0; panel < kPanels; ++panel)
        for (int64_t r = 0; r < num_rows; ++r)
            apply_epilogue(linear, rows, row + r, output + panel * kLanes, load<Sums>(sums[panel][r]), epilogue);
}

// Multiplies up to kRows rows, from row on, with the outputs first to last - 1, some panels at once and the rest one by
// one.
template <typename Weight, int64_t kRows, typename Epilogue>
inline void simd_rows(const PackedLinear& linear, PackedRows<Weight>& rows, int64_t row, int64_t first, int64_t last,
                      const Epilogue& epilogue) {
    constexpr int64_t kPanels = panels_at_once(kRows);
    const int64_t num_rows = std::min(kRows, rows.num_rows - row);
    int64_t output = first;
    for (; output + kPanels * kLanes <= last; output += kPanels * kLanes)
        simd_microkernel<Weight, kPanels, kRows>(linear, rows, row, num_rows, output, epilogue);
    for (; output < last; output += kLanes)
        simd_microkernel<Weight, 1, kRows>(linear, rows, row, num_rows, output, epilogue);
}

// Row-major rows.
template <typename Weight, typename Epilogue>
void gemm_simd(const PackedLinear& linear, PackedRows<Weight>& rows, int64_t first, int64_t last,
               const Epilogue& epilogue) {
    constexpr int64_t kMost = kRowsAtOnce<Weight>, kSome = kMost == 12 ? 8 : 4, kFew = kMost == 12 ? 4 : 2;
    for (int64_t output = first; output < last; output += kCachedOutputs) {
        const int64_t stop = std::min(last, output + kCachedOutputs);
        for (int64_t row = 0; row < rows.num_rows; row += kMost) {
            const int64_t left = rows.num_rows - row;
            if (left > kSome) simd_rows<Weight, kMost>(linear, rows, row, output, stop, epilogue);
            else if (left > kFew) simd_rows<Weight, kSome>(linear, rows, row, output, stop, epilogue);
            else if (left > 1) simd_rows<Weight, kFew>(linear, rows, row, output, stop, epilogue);
            else simd_rows<Weight, 1>(linear, rows, row, output, stop, epilogue);
        }
    }
}

// ---- AMX kernels ----------------------------------------------------------------------------------------------------

#ifdef DESKMATE_AMX

constexpr int64_t kPrefetchTiles = 2;  // prefetch distance, in tiles of a panel
constexpr int64_t kCachedRowWords = 192 * 1024;  // words of rows that stay in the L2 cache next to weights
constexpr int64_t kRowPair = 2 * kTileRows;  // rows of an upper and a lower tile

// Adds the product of the rows in tile register A and the weights in B to C. Registers must be literals.
#define ADD_PRODUCT(C, A, B)                                             \
    if constexpr (std::is_same_v<Weight, bf16>) _tile_dpbf16ps(C, A, B); \
    else _tile_dpbusd(C, A, B)

inline void prefetch_tile(const int32_t* from) {
    for (int64_t line = 0; line < kTileRows; ++line) __builtin_prefetch(from + line * kTileWords);
}

// Multiplies 17 to 32 rows (two tiles of rows) with one or two panels. sums: [panels, 2 tiles of rows, 16, 16]. With
// each tile, prefetches some cache lines of later weights, from next_weights on, into the L2 cache.
template <typename Weight, int64_t kPanels>
inline void amx_microkernel_2_row_tiles(const int32_t* rows, const int32_t* weights, int64_t width,
                                        const int32_t* next_weights, int64_t next_lines, int32_t* sums) {
    const int32_t* lower_rows = rows + kTileRows * width;
    const int32_t* second_panel = weights + kLanes * width;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t word = 0; word < width; word += kTileWords) {
        const int64_t tile = word * kTileRows;  // offset of a tile in its rows or panel
        for (const int32_t* end = next_weights + next_lines * kTileWords; next_weights < end;
             next_weights += kTileWords)
            __builtin_prefetch(next_weights, 0, 2);
        _tile_loadd(4, rows + tile, kTileRowBytes);
        _tile_loadd(6, weights + tile, kTileRowBytes);
        prefetch_tile(weights + tile + kPrefetchTiles * kTileSize);
        prefetch_tile(rows + tile + kTileSize);
        prefetch_tile(lower_rows + tile + kTileSize);
        ADD_PRODUCT(0, 4, 6);
        if constexpr (kPanels == 2) {
            _tile_loadd(7, second_panel + tile, kTileRowBytes);
            prefetch_tile(second_panel + tile + kPrefetchTiles * kTileSize);
            ADD_PRODUCT(1, 4, 7);
        }
        _tile_loadd(5, lower_rows + tile, kTileRowBytes);
        ADD_PRODUCT(2, 5, 6);
        if constexpr (kPanels == 2) {
            ADD_PRODUCT(3, 5, 7);
        }
    }
    _tile_stored(0, sums, kTileRowBytes);
    _tile_stored(2, sums + kTileSize, kTileRowBytes);
    if constexpr (kPanels == 2) {
        _tile_stored(1, sums + 2 * kTileSize, kTileRowBytes);
        _tile_stored(3, sums + 3 * kTileSize, kTileRowBytes);
    }
}

// Multiplies up to 16 rows (one tile of rows) with one or four panels. sums: [panels, 16, 16]. Past the end of a panel,
// prefetches the panel that is next_panel panels further.
template <typename Weight, int64_t kPanels>
inline void amx_microkernel_1_row_tile(const int32_t* rows, const int32_t* weights, int64_t width, int64_t next_panel,
                                       int32_t* sums) {
    const int64_t panel_size = kLanes * width;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t word = 0; word < width; word += kTileWords) {
        const int64_t tile = word * kTileRows;
        const int64_t next_word = word + kPrefetchTiles * kTileWords;
        const int64_t next = (next_word < width ? next_word : next_word - width + next_panel * width) * kTileRows;
        _tile_loadd(4, rows + tile, kTileRowBytes);
        _tile_loadd(6, weights + tile, kTileRowBytes);
        prefetch_tile(weights + next);
        ADD_PRODUCT(0, 4, 6);
        if constexpr (kPanels == 4) {
            _tile_loadd(7, weights + panel_size + tile, kTileRowBytes);
            prefetch_tile(weights + panel_size + next);
            ADD_PRODUCT(1, 4, 7);
            _tile_loadd(6, weights + 2 * panel_size + tile, kTileRowBytes);
            prefetch_tile(weights + 2 * panel_size + next);
            ADD_PRODUCT(2, 4, 6);
            _tile_loadd(7, weights + 3 * panel_size + tile, kTileRowBytes);
            prefetch_tile(weights + 3 * panel_size + next);
            ADD_PRODUCT(3, 4, 7);
        }
    }
    _tile_stored(0, sums, kTileRowBytes);
    if constexpr (kPanels == 4) {
        _tile_stored(1, sums + kTileSize, kTileRowBytes);
        _tile_stored(2, sums + 2 * kTileSize, kTileRowBytes);
        _tile_stored(3, sums + 3 * kTileSize, kTileRowBytes);
    }
}

// Applies the epilogue to num_rows rows of a tile of sums.
template <typename Weight, typename Epilogue>
inline void apply_tile_epilogue(const PackedLinear& linear, const PackedRows<Weight>& rows, int64_t row,
                                int64_t num_rows, int64_t output, const int32_t* sums, const Epilogue& epilogue) {
    using Sums = typename WeightFormat<Weight>::Sums;
    for (int64_t r = 0; r < num_rows; ++r)
        apply_epilogue(linear, rows, row + r, output, load<Sums>(sums + r * kTileWords), epilogue);
}

template <typename Weight, int64_t kPanels, typename Epilogue>
[[gnu::noinline]] void amx_2_row_tiles(const PackedLinear& linear, PackedRows<Weight>& rows, int64_t row,
                                       int64_t lower_rows, int64_t output, const int32_t* next_weights,
                                       int64_t next_lines, const Epilogue& epilogue) {
    alignas(64) int32_t sums[4 * kTileSize];
    const int64_t width = rows.words_per_row;
    const auto* weights = static_cast<const int32_t*>(linear.weight) + output * width;
    amx_microkernel_2_row_tiles<Weight, kPanels>(rows.at(row, 0), weights, width, next_weights, next_lines, sums);
    for (int64_t panel = 0; panel < kPanels; ++panel) {
        const int64_t first = output + panel * kLanes;
        apply_tile_epilogue(linear, rows, row, kTileRows, first, sums + 2 * panel * kTileSize, epilogue);
        apply_tile_epilogue(linear, rows, row + kTileRows, lower_rows, first, sums + (2 * panel + 1) * kTileSize,
                            epilogue);
    }
}

// panels: 1 to 4.
template <typename Weight, typename Epilogue>
[[gnu::noinline]] void amx_1_row_tile(const PackedLinear& linear, PackedRows<Weight>& rows, int64_t row,
                                      int64_t num_rows, int64_t output, int64_t panels, const Epilogue& epilogue) {
    alignas(64) int32_t sums[4 * kTileSize];
    const int64_t width = rows.words_per_row;
    const auto* weights = static_cast<const int32_t*>(linear.weight) + output * width;
    if (panels == 4) {
        amx_microkernel_1_row_tile<Weight, 4>(rows.at(row, 0), weights, width, 4, sums);
        for (int64_t panel = 0; panel < 4; ++panel)
            apply_tile_epilogue(linear, rows, row, num_rows, output + panel * kLanes, sums + panel * kTileSize,
                                epilogue);
        return;
    }
    for (int64_t panel = 0; panel < panels; ++panel) {
        amx_microkernel_1_row_tile<Weight, 1>(rows.at(row, 0), weights + panel * kLanes * width, width, 1, sums);
        apply_tile_epilogue(linear, rows, row, num_rows, output + panel * kLanes, sums, epilogue);
    }
}

// Multiplies the rows first to last - 1, two tiles of them at a time, with one or two panels. Meanwhile, prefetches the
// panels after those, an equal part of them with each pair of tiles.
template <typename Weight, int64_t kPanels, typename Epilogue>
void amx_row_pairs(const PackedLinear& linear, PackedRows<Weight>& rows, int64_t first, int64_t last, int64_t output,
                   const Epilogue& epilogue, TileConfig& tiles) {
    const int64_t pairs = (last - first + kRowPair - 1) / kRowPair, panels_size = kPanels * kLanes * rows.words_per_row;
    const int64_t lines = (kPanels * kTileRows + pairs - 1) / pairs, part = lines * rows.words_per_row;
    const int32_t* next_weights =
        static_cast<const int32_t*>(linear.weight) + output * rows.words_per_row + panels_size;
    for (int64_t row = first; row < last; row += kRowPair, next_weights += part) {
        const int64_t lower_rows = std::min(last - row - kTileRows, kTileRows);
        tiles.configure(kTileRows, lower_rows);
        amx_2_row_tiles<Weight, kPanels>(linear, rows, row, lower_rows, output, next_weights, lines, epilogue);
    }
}

// Tiled rows, as many at a time as stay in the L2 cache. Pairs of row tiles come first; up to 16 rows that are left
// over make a tile of their own, 17 or more a pair with an incomplete lower tile.
template <typename Weight, typename Epilogue>
void gemm_amx(const PackedLinear& linear, PackedRows<Weight>& rows, int64_t first, int64_t last,
              const Epilogue& epilogue, TileConfig& tiles) {
    tile_load_barrier();
    const int64_t cached_rows = std::max<int64_t>(1, kCachedRowWords / rows.words_per_row / kRowPair) * kRowPair;
    for (int64_t begin = 0; begin < rows.num_rows; begin += cached_rows) {
        const int64_t end = std::min(rows.num_rows, begin + cached_rows);
        const int64_t left_over = (end - begin) % kRowPair <= kTileRows ? (end - begin) % kRowPair : 0;
        const int64_t pairs_end = end - left_over;
        for (int64_t output = first; output < last; output += 4 * kLanes) {
            const int64_t panels = std::min<int64_t>(4, (last - output) / kLanes);
            for (int64_t panel = 0; panel < panels && begin < pairs_end; panel += 2) {
                const int64_t own = output + panel * kLanes;
                if (panel + 1 < panels) amx_row_pairs<Weight, 2>(linear, rows, begin, pairs_end, own, epilogue, tiles);
                else amx_row_pairs<Weight, 1>(linear, rows, begin, pairs_end, own, epilogue, tiles);
            }
            if (left_over == 0) continue;
            tiles.configure(left_over, left_over);
            amx_1_row_tile(linear, rows, pairs_end, left_over, output, panels, epilogue);
        }
    }
}

#undef ADD_PRODUCT
#endif

// ---- Entry ----------------------------------------------------------------------------------------------------------

constexpr int64_t kMaxRowBlock = 32;

// Calls epilogue(row, output, products) for every row and the outputs first to last - 1, sixteen at once; first and
// last are multiples of 16. If the outputs are an even number of panels, panels come in pairs: the first of a pair for
// at most kMaxRowBlock rows, then the second for the same rows.
template <typename Weight, typename Epilogue>
void gemm(const PackedLinear& linear, PackedRows<Weight>& rows, int64_t first, int64_t last, TileConfig& tiles,
          const Epilogue& epilogue) {
#ifdef DESKMATE_AMX
    if constexpr (WeightFormat<Weight>::kHasTiles)
        if (rows.is_tiled()) return gemm_amx(linear, rows, first, last, epilogue, tiles);
#endif
    (void)tiles;
    gemm_simd(linear, rows, first, last, epilogue);
}
