// AMX: eight tile registers of 16 rows of 64 bytes, and their products (Intel 64 Architectures Manual, vol. 1, ch. 18).
#pragma once

#include "simd.h"

constexpr int64_t kTileRows = 16;
constexpr int64_t kTileWords = 16;  // words of 32 bits in a row
constexpr int64_t kTileSize = kTileRows * kTileWords;  // words

#if defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__AMX_INT8__) && defined(__linux__)
#define DESKMATE_AMX 1

#include <sys/syscall.h>
#include <unistd.h>

// Asks the kernel for permission to use the tile registers. It holds for the process, including threads started later.
inline bool amx_available() {
    constexpr long kRequestPermission = 0x1023, kTileData = 18;
    static const bool allowed = syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
    return allowed;
}

// The shapes of this thread's tile registers: 0 and 1 hold sums of the upper rows, 2 and 3 sums of the lower rows,
// 4 the upper rows, 5 the lower rows, 6 and 7 the right-hand operands.
class TileConfig {
   public:
    ~TileConfig() {
        if (upper_) _tile_release();
    }

    void configure(int64_t upper, int64_t lower) {
        if (upper == upper_ && lower == lower_) return;
        struct alignas(64) {
            uint8_t palette = 1, first_row = 0, reserved[14] = {};
            uint16_t row_bytes[16] = {};
            uint8_t rows[16] = {};
        } config;
        const int64_t rows[8] = {upper, upper, lower, lower, upper, lower, kTileRows, kTileRows};
        for (int64_t tile = 0; tile < 8; ++tile) {
            config.rows[tile] = uint8_t(rows[tile]);
            config.row_bytes[tile] = 4 * kTileWords;
        }
        asm volatile("ldtilecfg %0" ::"m"(config));
        upper_ = upper;
        lower_ = lower;
    }

   private:
    int64_t upper_ = 0, lower_ = 0;
};

// GCC does not know which memory a tile load reads, so earlier writes must be complete before it.
inline void tile_load_barrier() { asm volatile("" ::: "memory"); }

#else

inline bool amx_available() { return false; }
struct TileConfig {};

#endif
