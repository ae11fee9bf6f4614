// Buffers for SIMD vectors and tiles: std::vector with aligned memory, in huge pages where that helps.
//
// Memory starts at a cache line (64 bytes), because a SIMD vector that straddles two lines is read twice. Allocations
// of 2 MiB or more start at a huge page and ask Linux for huge pages: with small pages, rows that are far apart would
// each wait for a page table walk. Elsewhere they only stay aligned.
#pragma once

#include <cstdint>
#include <new>
#include <vector>

#if defined(__linux__)
#include <sys/mman.h>
#endif

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

    static std::align_val_t alignment(size_t count) {
        return std::align_val_t(count * sizeof(T) >= kHugePage ? kHugePage : 64);
    }
};

template <typename T>
using AlignedVector = std::vector<T, AlignedAllocator<T>>;

// Grows memory to at least that size, keeping its contents; returns its data.
template <typename T>
inline T* ensure_size(AlignedVector<T>& memory, int64_t size) {
    if (int64_t(memory.size()) < size) memory.resize(size);
    return memory.data();
}
