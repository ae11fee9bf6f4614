// The barrier of a team of threads, in a program of its own. The threads write, wait, and look at what the others wrote;
// some of them are late, by less than a thread spins and by more, and in one team all share one processor. Prints the
// rounds of each team, and how often a thread slept; exit status 1 if a thread went on too soon, or if none slept.
#include <sched.h>
#include <sys/resource.h>

#include <chrono>
#include <cstdio>
#include <thread>
#include <vector>

#include "team_barrier.h"

namespace {

// Returns whether every thread saw what all others had written before each of its waits.
bool keeps_together(int64_t num_threads, int64_t rounds, int64_t late_every) {
    TeamBarrier barrier;
    std::vector<int64_t> written(num_threads * 8), wrong(num_threads);
    const auto work = [&](int64_t thread) {
        int64_t patience = kMaxPatience;
        for (int64_t round = 1; round <= rounds; ++round) {
            if ((round + thread) % late_every == 0)
                std::this_thread::sleep_for(std::chrono::nanoseconds(round % 2 ? 2 * kMaxPatience : kMaxPatience / 4));
            written[thread * 8] = round;  // no atomic: the barrier must publish it
            barrier.wait(num_threads, patience);
            for (int64_t other = 0; other < num_threads; ++other) wrong[thread] += written[other * 8] != round;
            barrier.wait(num_threads, patience);
            wrong[thread] += patience < kMinPatience || patience > kMaxPatience;
        }
    };
    std::vector<std::thread> team;
    for (int64_t thread = 0; thread < num_threads; ++thread) team.emplace_back(work, thread);
    for (std::thread& thread : team) thread.join();
    for (const int64_t count : wrong)
        if (count) return false;
    return true;
}

int64_t sleeps() {
    rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_nvcsw;
}

}  // namespace

int main() {
    bool is_right = true;
    for (const int64_t num_threads : {1, 2, 3, 8}) {
        const int64_t rounds = 400, before = sleeps();
        is_right = keeps_together(num_threads, rounds, 7) && is_right;
        std::printf("%lld threads: %lld rounds, %lld sleeps\n", (long long)num_threads, (long long)rounds,
                    (long long)(sleeps() - before));
    }
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    sched_setaffinity(0, sizeof one, &one);
    // A thread that spins keeps the processor from the one it waits for, so the threads of a round must sleep in turn.
    const int64_t rounds = 2000, before = sleeps();
    is_right = keeps_together(2, rounds, rounds + 2) && is_right;
    const int64_t slept = sleeps() - before;
    std::printf("one processor: %lld rounds, %lld sleeps\n", (long long)rounds, (long long)slept);
    return is_right && slept >= rounds ? 0 : 1;
}
