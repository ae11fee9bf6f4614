// Several steps in one call: what a step draws is what the next one begins with, and nobody has to be asked in between.
#pragma once

#include <algorithm>
#include <chrono>
#include <vector>

#include "model.h"
#include "sampling.h"

// One that a step draws a token for, and how it goes on.
struct DecodeRequest {
    Filters filters;  // but for the uniform number and the highest score, which each step has anew
    int32_t is_greedy;
    uint64_t seed;  // of the noise
    int64_t position;  // of the noise: tokens written so far
    int64_t max_tokens;  // tokens that may be drawn, at least 1
    const int64_t* stop_token_ids;  // tokens that end it
    int64_t num_stop_token_ids, sequence;  // sequence: of the first step
};

// SplitMix64 as in engine/sampling/sampler.py: the same noise.
inline uint64_t splitmix64(uint64_t value) {
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9u;
    value = (value ^ (value >> 27)) * 0x94D049BB133111EBu;
    return value ^ (value >> 31);
}

inline double uniform_number(uint64_t seed, int64_t position) {
    return double(splitmix64(splitmix64(seed) + uint64_t(position + 1) * 0x9E3779B97F4A7C15u) >> 11) * 0x1p-53;
}

// The tokens of some requests from their scores, [count, vocab_size]; false where those of one are of no use.
inline bool sample_tokens(const float* scores, int64_t vocab_size, const DecodeRequest* requests, const std::vector<int64_t>& active, int64_t number,
                   int64_t threads, int64_t* tokens) {
    const int64_t count = int64_t(active.size());
    int64_t num_invalid = 0;
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        static thread_local Candidates found;
#pragma omp for reduction(+ : num_invalid)
        for (int64_t row = 0; row < count; ++row) {
            const DecodeRequest& request = requests[active[row]];
            const float* own = scores + row * vocab_size;
            Filters filters = request.filters;
            filters.highest = highest_score(own, vocab_size);
            filters.uniform = uniform_number(request.seed, request.position + number);
            if (!std::isfinite(filters.highest)) ++num_invalid;
            else if (request.is_greedy) tokens[active[row]] = std::find(own, own + vocab_size, filters.highest) - own;
            else tokens[active[row]] = draw(own, vocab_size, filters, found);
        }
    }
    return num_invalid == 0;
}

// What a step of one token of each sequence is made of.
class StepBuilder {
   public:
    StepBuilder(const Model& model, const Step& first, const DecodeRequest* requests, int64_t num_groups)
        : model_(model), first_(first), requests_(requests), slots_(num_groups), table_offsets_(num_groups), slots_of_(num_groups), starts_of_(num_groups) {}

    // number: steps that are done. tokens: what the last of them drew.
    Step build(const std::vector<int64_t>& active, const int64_t* tokens, int64_t number) {
        const int64_t count = int64_t(active.size());
        tokens_.clear(), positions_.clear(), rows_.clear();
        query_lens_.assign(count, 1);
        for (size_t group = 0; group < slots_.size(); ++group) slots_[group].clear(), table_offsets_[group].clear();
        for (const int64_t request : active) {
            const int64_t position = first_.positions[first_.logits_rows[request]] + number;
            rows_.push_back(int64_t(tokens_.size()));
            tokens_.push_back(tokens[request]);
            positions_.push_back(position);
            for (size_t group = 0; group < slots_.size(); ++group) {
                const int64_t start = first_.table_offsets[group][requests_[request].sequence];
                const int64_t block = first_.block_tables[group][start + position / model_.block_size];
                table_offsets_[group].push_back(start);
                slots_[group].push_back(block * model_.block_size + position % model_.block_size);
            }
        }
        for (size_t group = 0; group < slots_.size(); ++group) slots_of_[group] = slots_[group].data(), starts_of_[group] = table_offsets_[group].data();
        return {tokens_.data(), positions_.data(), rows_.data(), query_lens_.data(), slots_of_.data(), first_.block_tables,
                starts_of_.data(), first_.logits, count, count, count, first_.num_threads};
    }

   private:
    const Model& model_;
    const Step& first_;
    const DecodeRequest* requests_;
    std::vector<int64_t> tokens_, positions_, rows_, query_lens_;
    std::vector<std::vector<int64_t>> slots_, table_offsets_;
    std::vector<const int64_t*> slots_of_, starts_of_;
};

// Returns how many steps there were: at most max_steps, fewer where all requests end or scores are of no use.
// tokens: [max_steps, requests], -1 where one had none. seconds: [max_steps], since the call, when each step's were known.
template <typename Compute>
int64_t run_multi_step(const Compute& compute, const Model& model, const Step& first, const DecodeRequest* requests, int64_t num_groups,
                      int64_t max_steps, int64_t* tokens, double* seconds) {
    const auto began = std::chrono::steady_clock::now();
    const int64_t count = first.num_logits;
    std::fill(tokens, tokens + max_steps * count, -1);
    std::vector<int64_t> active(count);
    for (int64_t request = 0; request < count; ++request) active[request] = request;
    StepBuilder builder(model, first, requests, num_groups);
    Step step = first;
    for (int64_t number = 0;;) {
        compute(model, step);
        int64_t* const drawn = tokens + number * count;
        if (!sample_tokens(step.logits, model.vocab_size, requests, active, number, step.num_threads, drawn)) return number;
        seconds[number++] = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
        if (number == max_steps) return number;
        const auto has_ended = [&](int64_t index) {
            const DecodeRequest& request = requests[index];
            return number >= request.max_tokens || std::find(request.stop_token_ids, request.stop_token_ids + request.num_stop_token_ids, drawn[index]) != request.stop_token_ids + request.num_stop_token_ids;
        };
        active.erase(std::remove_if(active.begin(), active.end(), has_ended), active.end());
        if (active.empty()) return number;
        step = builder.build(active, drawn, number);
    }
}
