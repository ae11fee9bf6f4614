// Multi-step decoding: several steps in one call, each from the tokens that the previous one sampled, without Python.
#pragma once

#include <algorithm>
#include <chrono>
#include <vector>

#include "model.h"
#include "sampling.h"

// A request that a step samples a token for, and how far it may go.
struct DecodeRequest {
    Filters filters;  // except the uniform number and the highest score, which are set in each step
    int32_t is_greedy;
    uint64_t seed;  // of the noise
    int64_t position;  // of the noise: tokens generated so far
    int64_t max_tokens;  // tokens that may be sampled, at least 1
    const int64_t* stop_token_ids;  // tokens that end the request
    int64_t num_stop_token_ids, sequence;  // sequence: its index in the first step
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

// Samples the tokens of the active requests from their scores, [count, vocab_size]; returns false if any row's scores
// are unusable.
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

// Builds steps of one token for each active request.
class StepBuilder {
   public:
    StepBuilder(const Model& model, const Step& first, const DecodeRequest* requests, int64_t num_groups)
        : model_(model), first_(first), requests_(requests), slots_(num_groups), table_offsets_(num_groups), slots_of_(num_groups), starts_of_(num_groups) {}

    // number: steps that are done. tokens: what the last of them sampled.
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

// Returns the number of completed steps: at most max_steps, fewer if all requests end or scores are unusable.
// tokens: [max_steps, requests], -1 for requests without a token in a step. seconds: [max_steps], from the call until
// each step's tokens were known.
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
