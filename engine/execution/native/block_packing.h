// Packs matrices in GGML's block formats from their files: reads rows of blocks, writes panels (block_formats.h).
//
// Codes and scales keep their bits; they only move, so that one lane has one output. Reads each byte of the file once.
//
// Threads: each packs panels of its own.
// Instruction sets: vector code of simd.h.
#pragma once

#include "block_formats.h"

using BlocksOf16 = const uint8_t* const (&)[kLanes];  // a block of each of a panel's outputs, in the file

// Returns 32 bits of each output's block, from that byte on.
inline Ints gather_words(BlocksOf16 from, int64_t byte) {
    Ints words;
    for (int64_t lane = 0; lane < kLanes; ++lane) {
        int32_t word;
        std::memcpy(&word, from[lane] + byte, sizeof word);
        words[lane] = word;
    }
    return words;
}

// Copies some bytes of each output's block to [count, 16 outputs], numbers of kSize bytes.
template <int64_t kSize>
inline void interleave(BlocksOf16 from, int64_t byte, int64_t count, uint8_t* to) {
    for (int64_t at = 0; at < count; ++at)
        for (int64_t lane = 0; lane < kLanes; ++lane)
            std::memcpy(to + (at * kLanes + lane) * kSize, from[lane] + byte + at * kSize, kSize);
}

// Stores 32 inputs' lower four bits: words of four codes each.
inline void store_nibbles(const Ints (&words)[kGroupWords], uint8_t* to) {
    for (int64_t i = 0; i < kGroupWords / 2; ++i) {
        const Ints both = words[i] | words[i + kGroupWords / 2] << 4;
        std::memcpy(to + i * kVectorBytes, &both, sizeof both);
    }
}

// Stores kBits more bits of 32 inputs: words of four codes each, shifted to bit 0.
template <int64_t kBits>
inline void store_high_bits(const Ints (&words)[kGroupWords], uint8_t* to) {
    constexpr int64_t kWords = 8 / kBits;  // whose bits fit a byte
    for (int64_t i = 0; i < kBits; ++i) {
        Ints bits = {};
        for (int64_t k = 0; k < kWords; ++k) bits |= words[i * kWords + k] << int32_t(kBits * k);
        std::memcpy(to + i * kVectorBytes, &bits, sizeof bits);
    }
}

// Blocks of 32 inputs with four bits: d, m if there is one, a bit more of each input in the formats of five, codes.
template <bool kHasMin, bool kHasHighBit>
inline void pack_nibble_block(BlocksOf16 from, uint8_t* codes, uint8_t* scales) {
    constexpr int64_t kBits = kHasMin ? 4 : 2, kCodes = kBits + (kHasHighBit ? 4 : 0);
    interleave<2>(from, 0, 1 + kHasMin, scales);
    for (int64_t i = 0; i < 4; ++i) {
        const Ints words = gather_words(from, kCodes + 4 * i);
        std::memcpy(codes + i * kVectorBytes, &words, sizeof words);
    }
    if constexpr (kHasHighBit) {  // bit n is of input n
        const Ints bits = gather_words(from, kBits);
        Ints words[kGroupWords];
        for (int32_t w = 0; w < kGroupWords; ++w) {
            const Ints four = bits >> (4 * w) & 0xf;
            words[w] = (four & 1) | (four & 2) << 7 | (four & 4) << 14 | (four & 8) << 21;
        }
        store_high_bits<1>(words, codes + 4 * kVectorBytes);
    }
}

inline void pack_block(Q4_0, BlocksOf16 from, uint8_t* codes, uint8_t* scales) {
    pack_nibble_block<false, false>(from, codes, scales);
}
inline void pack_block(Q4_1, BlocksOf16 from, uint8_t* codes, uint8_t* scales) {
    pack_nibble_block<true, false>(from, codes, scales);
}
inline void pack_block(Q5_0, BlocksOf16 from, uint8_t* codes, uint8_t* scales) {
    pack_nibble_block<false, true>(from, codes, scales);
}
inline void pack_block(Q5_1, BlocksOf16 from, uint8_t* codes, uint8_t* scales) {
    pack_nibble_block<true, true>(from, codes, scales);
}

inline void pack_block(Q8_0, BlocksOf16 from, uint8_t* codes, uint8_t* scales) {
    interleave<2>(from, 0, 1, scales);
    for (int64_t i = 0; i < kGroupWords; ++i) {
        const Ints words = gather_words(from, 2 + 4 * i) ^ int32_t(0x80808080);
        std::memcpy(codes + i * kVectorBytes, &words, sizeof words);
    }
}

// d, dmin, 12 bytes of scales; then for Q5_K 32 bytes whose bit g is of group g; then the codes of two groups in 32
// bytes, those of the first in the lower halves.
template <typename Format>
inline void pack_six_bit_block(BlocksOf16 from, uint8_t* codes, uint8_t* scales) {
    constexpr bool kHasHighBit = Format::Codes::kCodeVectors == 5;
    interleave<2>(from, 0, 2, scales);
    interleave<1>(from, 4, 12, scales + 2 * kLanes * 2);
    Ints high[kGroupWords], words[kGroupWords];
    if constexpr (kHasHighBit)
        for (int64_t w = 0; w < kGroupWords; ++w) high[w] = gather_words(from, 16 + 4 * w);
    for (int64_t pair = 0; pair < 4; ++pair) {
        Ints both[kGroupWords];
        for (int64_t w = 0; w < kGroupWords; ++w)
            both[w] = gather_words(from, (kHasHighBit ? 48 : 16) + 32 * pair + 4 * w);
        for (int32_t second = 0; second < 2; ++second, codes += Format::Codes::kCodeVectors * kVectorBytes) {
            for (int64_t w = 0; w < kGroupWords; ++w) words[w] = both[w] >> (4 * second) & 0x0f0f0f0f;
            store_nibbles(words, codes);
            if constexpr (kHasHighBit) {
                for (int64_t w = 0; w < kGroupWords; ++w)
                    words[w] = high[w] >> int32_t(2 * pair + second) & 0x01010101;
                store_high_bits<1>(words, codes + 4 * kVectorBytes);
            }
        }
    }
}

inline void pack_block(Q4_K, BlocksOf16 from, uint8_t* codes, uint8_t* scales) {
    pack_six_bit_block<Q4_K>(from, codes, scales);
}
inline void pack_block(Q5_K, BlocksOf16 from, uint8_t* codes, uint8_t* scales) {
    pack_six_bit_block<Q5_K>(from, codes, scales);
}

// For each 128 inputs, which are four groups: the lower bits of groups 0 and 2 in 32 bytes, of 1 and 3 in the next 32.
// After all of them, for each 128 inputs, the upper bits of four groups in 32 bytes; then 16 scales and d.
inline void pack_block(Q6_K, BlocksOf16 from, uint8_t* codes, uint8_t* scales) {
    interleave<2>(from, 208, 1, scales);
    interleave<1>(from, 192, 16, scales + kLanes * 2);
    Ints words[kGroupWords];
    for (int64_t half = 0; half < 2; ++half) {
        Ints low[2][kGroupWords], high[kGroupWords];
        for (int64_t w = 0; w < kGroupWords; ++w) {
            low[0][w] = gather_words(from, 64 * half + 4 * w);
            low[1][w] = gather_words(from, 64 * half + 32 + 4 * w);
            high[w] = gather_words(from, 128 + 32 * half + 4 * w);
        }
        for (int32_t group = 0; group < 4; ++group, codes += Q6_K::Codes::kCodeVectors * kVectorBytes) {
            for (int64_t w = 0; w < kGroupWords; ++w) words[w] = low[group % 2][w] >> (group / 2 * 4) & 0x0f0f0f0f;
            store_nibbles(words, codes);
            for (int64_t w = 0; w < kGroupWords; ++w) words[w] = high[w] >> (2 * group) & 0x03030303;
            store_high_bits<2>(words, codes + 4 * kVectorBytes);
        }
    }
}

// Packs a matrix into every panel_stride-th of the panels, whose formats are that of the matrix.
//   rows       [outputs, row_bytes]: each output's blocks; the rest of the last panel becomes zeros
//   row_order  [outputs]: the row of each output, or null if they are in order
inline void pack_panels(const Panel* panels, int64_t panel_stride, const uint8_t* rows, int64_t outputs,
                        int64_t row_bytes, const int64_t* row_order, int64_t num_threads) {
    with_format(panels[0].format, [&](auto format) {
        using Format = decltype(format);
        constexpr int64_t kCodeBytes = Format::Scales::kGroups * Format::Codes::kCodeVectors * kVectorBytes;
        static const uint8_t kZeros[Format::kBytes] = {};
        const int64_t num_blocks = row_bytes / Format::kBytes;
#pragma omp parallel for num_threads(num_threads)
        for (int64_t first = 0; first < outputs; first += kLanes) {
            const Panel& panel = panels[first / kLanes * panel_stride];
            for (int64_t block = 0; block < num_blocks; ++block) {
                const uint8_t* from[kLanes];
                for (int64_t lane = 0; lane < kLanes; ++lane) {
                    const int64_t output = first + lane, row = row_order && output < outputs ? row_order[output] : output;
                    from[lane] = output < outputs ? rows + row * row_bytes + block * Format::kBytes : kZeros;
                }
                pack_block(format, from, panel.codes + block * kCodeBytes,
                           panel.scales + block * Format::Scales::kScaleBytes);
            }
        }
    });
}
