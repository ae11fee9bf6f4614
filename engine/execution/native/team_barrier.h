// A barrier of a team of threads, for a machine that has other work, too.
//
// OpenMP's own spins for milliseconds. Next to other programs, a thread of the team often loses its processor, and those
// that wait for it spin away the time that the scheduler grants them: a small model nearly stands still, and slows the
// other programs down. A thread that sleeps keeps its share, but waking it takes longer than most waits, which are
// microseconds between the phases of a step. So a thread spins as long as it has found worthwhile: every wait that was
// short lengthens its patience a little, and one that was long cuts it to a quarter.
//
// Threads: each calls wait() with a patience of its own; what a thread wrote before is seen by all after it.
// Systems: sleeps in a futex on Linux, and yields the processor elsewhere.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <climits>
#include <cstdint>
#include <thread>

#ifdef __linux__
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

// How long a thread spins, in nanoseconds.
constexpr int64_t kMinPatience = 1'000, kMaxPatience = 200'000, kMorePatience = 1'000;

class TeamBarrier {
   public:
    // Returns when num_threads threads have called this. patience is the calling thread's, from one wait to the next.
    void wait(int64_t num_threads, int64_t& patience) {
        if (num_threads == 1) return;
        const uint32_t round = round_.load(std::memory_order_relaxed);  // changes when this thread has arrived, too
        if (num_arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == num_threads) {
            num_arrived_.store(0, std::memory_order_relaxed);
            round_.store(round + 1);
            if (num_asleep_.load() > 0) wake_all();
            return;
        }
        const auto began = std::chrono::steady_clock::now();
        const auto waited = [&] {
            return std::chrono::nanoseconds(std::chrono::steady_clock::now() - began).count();
        };
        bool is_over = false;
        do {
            for (int i = 0; i < kSpinsPerLook && !is_over; ++i) {
                relax();
                is_over = round_.load(std::memory_order_acquire) != round;
            }
        } while (!is_over && waited() < patience);
        if (!is_over) {
            num_asleep_.fetch_add(1);
            while (round_.load() == round) sleep(round);
            num_asleep_.fetch_sub(1);
        }
        if (is_over || waited() <= kMaxPatience) patience = std::min(patience + kMorePatience, kMaxPatience);
        else patience = std::max(patience / 4, kMinPatience);
    }

   private:
    static constexpr int kSpinsPerLook = 16;  // between two looks at the clock

    static void relax() {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#elif defined(__aarch64__)
        asm volatile("yield");
#endif
    }

    // Sleeps while the round is this one; may return early.
    void sleep([[maybe_unused]] uint32_t round) {
#ifdef __linux__
        syscall(SYS_futex, &round_, FUTEX_WAIT_PRIVATE, round, nullptr, nullptr, 0);
#else
        std::this_thread::yield();
#endif
    }

    void wake_all() {
#ifdef __linux__
        syscall(SYS_futex, &round_, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
#endif
    }

    alignas(64) std::atomic<int64_t> num_arrived_{0};
    alignas(64) std::atomic<uint32_t> round_{0};
    alignas(64) std::atomic<int64_t> num_asleep_{0};
};
