// AMX: permission to use the tile registers, and their shapes (Intel 64 Architectures Manual, vol. 1, ch. 18).
//
// A thread has eight tile registers of up to 16 rows of 64 bytes. One instruction adds the product of a left tile and
// a right tile to a sum: _tile_dpbf16ps (bfloat16, float32 sums) and _tile_dpbusd (uint8 x int8, int32 sums).
//   left   [rows][16 words], row-major: the rows that are multiplied
//   right  [16 words][16 outputs]: word i holds the numbers that word i of a left row is multiplied with
//   sum    [rows][16 outputs], float32 or int32
// A word is 32 bits: two bfloat16 or four 8-bit numbers. Left and right tiles lie in memory as they are in the
// register, their rows kTileRowBytes apart and aligned to cache lines; sums may have another stride.
//
// Threads: permission is the process's, the shapes are a thread's own.
// Instruction sets: needs AMX-TILE, AMX-BF16 and AMX-INT8 at compile time and Linux's permission at run time; without
// them DESKMATE_AMX is undefined or amx_available() false, and callers take their SIMD paths.
#pragma once

#include <cstdint>

constexpr int64_t kTileRows = 16;
constexpr int64_t kTileWords = 16;  // in a row; TILE_WORDS of weights.py
constexpr int64_t kTileSize = kTileRows * kTileWords;  // words of a tile
constexpr int64_t kTileRowBytes = 4 * kTileWords;

#if defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__AMX_INT8__) && defined(__linux__)
#define DESKMATE_AMX 1

#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

// Asks the kernel for permission to use the tile registers. It holds for the process, including threads started later.
inline bool amx_available() {
    constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    static const bool is_allowed = syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
    return is_allowed;
}

// The shapes of this thread's tile registers. All kernels here use them in the same way, for up to 32 rows: an upper
// tile of rows and a lower one, multiplied with two right tiles.
//   0, 1  sums of the upper rows    4  the upper rows
//   2, 3  sums of the lower rows    5  the lower rows    6, 7  right tiles
// Kernels of one tile of rows use the other registers for more outputs, and configure as many lower rows as upper ones.
class TileConfig {
   public:
    ~TileConfig() {
        if (upper_rows_) _tile_release();
    }

    // upper_rows, lower_rows: rows of the upper and the lower tiles, 1 to 16. Cheap if they are already configured.
    void configure(int64_t upper_rows, int64_t lower_rows) {
        if (upper_rows == upper_rows_ && lower_rows == lower_rows_) return;
        struct alignas(64) {
            uint8_t palette = 1, first_row = 0, reserved[14] = {};
            uint16_t row_bytes[16] = {};
            uint8_t rows[16] = {};
        } config;
        const int64_t rows[8] = {upper_rows, upper_rows, lower_rows, lower_rows,
                                 upper_rows, lower_rows, kTileRows,  kTileRows};
        for (int64_t tile = 0; tile < 8; ++tile) {
            config.rows[tile] = uint8_t(rows[tile]);
            config.row_bytes[tile] = kTileRowBytes;
        }
        asm volatile("ldtilecfg %0" ::"m"(config));
        upper_rows_ = upper_rows;
        lower_rows_ = lower_rows;
    }

   private:
    int64_t upper_rows_ = 0, lower_rows_ = 0;
};

// GCC does not know which memory a tile load reads, so earlier writes must be complete before it.
inline void tile_load_barrier() { asm volatile("" ::: "memory"); }

#else

inline bool amx_available() { return false; }
struct TileConfig {};

#endif
