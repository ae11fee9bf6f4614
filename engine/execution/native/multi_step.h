// Several steps in one call: what a step draws is what the next one begins with, and nobody has to be asked in between.
#pragma once

#include <algorithm>
#include <chrono>
#include <vector>

#include "model.h"
#include "sampling.h"

// One that a step draws a token for, and how it goes on.
struct Reply {
    Filters filters;  // but for the uniform number and the highest score, which each step has anew
    int32_t is_greedy;
    uint64_t seed;  // of the noise
    int64_t position;  // of the noise: tokens written so far
    int64_t most;  // tokens that may be drawn, at least 1
    const int64_t* stops;  // tokens that end it
    int64_t num_stops, sequence;  // sequence: of the first step
};

// SplitMix64 as in engine/sampling/sampler.py: the same noise.
inline uint64_t mixed(uint64_t value) {
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9u;
    value = (value ^ (value >> 27)) * 0x94D049BB133111EBu;
    return value ^ (value >> 31);
}

inline double uniform_number(uint64_t seed, int64_t position) {
    return double(mixed(mixed(seed) + uint64_t(position + 1) * 0x9E3779B97F4A7C15u) >> 11) * 0x1p-53;
}

// The tokens of some replies from their scores, [count, vocab_size]; false where those of one are of no use.
inline bool choose(const float* scores, int64_t vocab_size, const Reply* replies, const std::vector<int64_t>& going, int64_t number,
                   int64_t threads, int64_t* tokens) {
    const int64_t count = int64_t(going.size());
    int64_t useless = 0;
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        static thread_local Candidates found;
#pragma omp for reduction(+ : useless)
        for (int64_t row = 0; row < count; ++row) {
            const Reply& reply = replies[going[row]];
            const float* own = scores + row * vocab_size;
            Filters filters = reply.filters;
            filters.highest = highest_score(own, vocab_size);
            filters.uniform = uniform_number(reply.seed, reply.position + number);
            if (!std::isfinite(filters.highest)) ++useless;
            else if (reply.is_greedy) tokens[going[row]] = std::find(own, own + vocab_size, filters.highest) - own;
            else tokens[going[row]] = draw(own, vocab_size, filters, found);
        }
    }
    return useless == 0;
}

// What a step of one token of each sequence is made of.
class NextStep {
   public:
    NextStep(const Model& model, const Step& first, const Reply* replies, int64_t num_groups)
        : model_(model), first_(first), replies_(replies), slots_(num_groups), starts_(num_groups), slots_of_(num_groups), starts_of_(num_groups) {}

    // number: steps that are done. tokens: what the last of them drew.
    Step of(const std::vector<int64_t>& going, const int64_t* tokens, int64_t number) {
        const int64_t count = int64_t(going.size());
        tokens_.clear(), positions_.clear(), rows_.clear();
        lengths_.assign(count, 1);
        for (size_t group = 0; group < slots_.size(); ++group) slots_[group].clear(), starts_[group].clear();
        for (const int64_t reply : going) {
            const int64_t position = first_.positions[first_.logits_rows[reply]] + number;
            rows_.push_back(int64_t(tokens_.size()));
            tokens_.push_back(tokens[reply]);
            positions_.push_back(position);
            for (size_t group = 0; group < slots_.size(); ++group) {
                const int64_t start = first_.starts[group][replies_[reply].sequence];
                const int64_t block = first_.tables[group][start + position / model_.block_size];
                starts_[group].push_back(start);
                slots_[group].push_back(block * model_.block_size + position % model_.block_size);
            }
        }
        for (size_t group = 0; group < slots_.size(); ++group) slots_of_[group] = slots_[group].data(), starts_of_[group] = starts_[group].data();
        return {tokens_.data(), positions_.data(), rows_.data(), lengths_.data(), slots_of_.data(), first_.tables,
                starts_of_.data(), first_.logits, count, count, count, first_.num_threads};
    }

   private:
    const Model& model_;
    const Step& first_;
    const Reply* replies_;
    std::vector<int64_t> tokens_, positions_, rows_, lengths_;
    std::vector<std::vector<int64_t>> slots_, starts_;
    std::vector<const int64_t*> slots_of_, starts_of_;
};

// Returns how many steps there were: at most most_steps, fewer where all replies end or scores are of no use.
// tokens: [most_steps, replies], -1 where one had none. seconds: [most_steps], since the call, when each step's were known.
template <typename Compute>
int64_t several_steps(const Compute& compute, const Model& model, const Step& first, const Reply* replies, int64_t num_groups,
                      int64_t most_steps, int64_t* tokens, double* seconds) {
    const auto began = std::chrono::steady_clock::now();
    const int64_t count = first.num_logits;
    std::fill(tokens, tokens + most_steps * count, -1);
    std::vector<int64_t> going(count);
    for (int64_t reply = 0; reply < count; ++reply) going[reply] = reply;
    NextStep next(model, first, replies, num_groups);
    Step step = first;
    for (int64_t number = 0;;) {
        compute(model, step);
        int64_t* const drawn = tokens + number * count;
        if (!choose(step.logits, model.vocab_size, replies, going, number, step.num_threads, drawn)) return number;
        seconds[number++] = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
        if (number == most_steps) return number;
        const auto has_ended = [&](int64_t index) {
            const Reply& reply = replies[index];
            return number >= reply.most || std::find(reply.stops, reply.stops + reply.num_stops, drawn[index]) != reply.stops + reply.num_stops;
        };
        going.erase(std::remove_if(going.begin(), going.end(), has_ended), going.end());
        if (going.empty()) return number;
        step = next.of(going, drawn, number);
    }
}
