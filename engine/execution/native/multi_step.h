// Multi-step decoding: several steps in one call, each from the tokens that the previous one sampled. Python, the host,
// is called in a step only for requests with a mask or whose tokens it samples itself.
//
// The first step may have any rows; each later step has one row for each request that is still active. A request ends
// at max_tokens or a stop token. Block tables already cover the tokens of all steps, so nothing is allocated for a
// sequence.
//
// Memory: requests, tokens and seconds are the caller's arrays; logits are those of the first step, overwritten by
// each.
//
// Threads: one thread runs the loop and builds the steps; a step's forward pass, and the sampling of its rows, use
// num_threads. The host is called on the thread that runs the loop, while the others sample.
#pragma once

#include <algorithm>
#include <chrono>
#include <vector>

#include "model.h"
#include "sampling.h"
#include "score_adjustments.h"
#include "step.h"

// A request that a step samples a token for, and how far it may go. engine/execution/native/multi_step.py packs it
// (pack_request), field by field.
struct DecodeRequest {
    Filters filters;  // uniform_number and highest are set in each step
    int32_t is_greedy;
    uint64_t seed;  // of the noise
    int64_t position;  // of the noise: tokens generated so far
    int64_t max_tokens;  // tokens that may be sampled, at least 1
    const int64_t* stop_token_ids;  // tokens that end the request
    int64_t num_stop_token_ids;
    int64_t sequence;  // its index in the first step
    const Adjustments* adjustments;  // of its scores; or null
    float* raw_scores;  // [max_steps, vocab_size]: receives the model's scores of each of its tokens; or null
    const uint8_t* mask;  // [ceil(vocab_size / 8)]: see copy_allowed; the host fills it in each step; or null
    int64_t is_sampled_by_host;  // whether the host samples its tokens

    bool needs_host() const { return mask || is_sampled_by_host; }

    // token: sampled last, number num_sampled since the first step; negative if the host ended the request before.
    bool has_ended(int64_t token, int64_t num_sampled) const {
        const int64_t* const end = stop_token_ids + num_stop_token_ids;
        return token < 0 || num_sampled >= max_tokens || std::find(stop_token_ids, end, token) != end;
    }
};

// ---- Noise ----------------------------------------------------------------------------------------------------------

// SplitMix64 (Steele, Lea and Flood, OOPSLA 2014) as in engine/sampling/sampler.py: the same noise.
inline uint64_t splitmix64(uint64_t value) {
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9u;
    value = (value ^ (value >> 27)) * 0x94D049BB133111EBu;
    return value ^ (value >> 31);
}

// Returns a uniform number, at least 0 and below 1, in steps of 2^-53.
inline double uniform_number(uint64_t seed, int64_t position) {
    return double(splitmix64(splitmix64(seed) + uint64_t(position + 1) * 0x9E3779B97F4A7C15u) >> 11) * 0x1p-53;
}

// ---- One step -------------------------------------------------------------------------------------------------------

// The host's part of a step, for the requests that need it. It fills in their masks, and sets the tokens of those that
// it samples itself. Returns whether the step is usable.
//   num_done  steps that are done
//   rows      [requests]: the row of scores of each of these requests that is still active, -1 for all others; the host
//             sets -1 where a request had ended with the token before
using HostStep = int32_t (*)(int64_t num_done, int64_t* rows);

// Samples the token of a request from its scores, [vocab_size]; returns false if these are unusable.
//   num_sampled  tokens that it has sampled since the first step
inline bool sample_token(const float* scores, int64_t vocab_size, const DecodeRequest& request, TokenCounts& counts,
                         int64_t num_sampled, SamplingBuffers& buffers, int64_t& token) {
    const Adjustments* const adjustments = request.adjustments;
    if (adjustments || request.mask) {
        buffers.adjusted.resize(vocab_size);
        float* const adjusted = buffers.adjusted.data();
        copy_allowed(scores, vocab_size, request.mask, adjusted);
        if (adjustments)
            adjust_scores(*adjustments, counts, request.position + num_sampled, adjusted, vocab_size);
        scores = adjusted;
    }
    Filters row = request.filters;
    row.highest = highest_score(scores, vocab_size);
    if (!std::isfinite(row.highest)) return false;
    row.uniform_number = uniform_number(request.seed, request.position + num_sampled);
    token = request.is_greedy ? first_highest(scores, vocab_size, row.highest) : draw(scores, vocab_size, row, buffers);
    if (adjustments && adjustments->is_penalized) counts.add(token);
    return true;
}

// Samples the tokens of the active requests from their scores, [active, vocab_size]; returns false if any row's scores
// are unusable, or the host says so.
//   active    indices of requests
//   counts    [requests], of those with penalties; the sampled tokens are added
//   num_done  steps that are done
//   host      null if no request needs it
//   rows      [requests], for the host
//   tokens    [requests], -1: those of the active ones are set
inline bool sample_tokens(const float* scores, int64_t vocab_size, const DecodeRequest* requests,
                          const std::vector<int64_t>& active, std::vector<TokenCounts>& counts, int64_t num_done,
                          int64_t num_threads, HostStep host, std::vector<int64_t>& rows, int64_t* tokens) {
    const int64_t count = int64_t(active.size());
    std::fill(rows.begin(), rows.end(), -1);
    bool needs_host = false, is_usable = true;
    for (int64_t row = 0; row < count; ++row)
        if (requests[active[row]].needs_host()) needs_host = true, rows[active[row]] = row;
    const auto sample = [&](int64_t row, SamplingBuffers& buffers) {
        const int64_t index = active[row];
        return sample_token(scores + row * vocab_size, vocab_size, requests[index], counts[index], num_done, buffers,
                            tokens[index]);
    };
    int64_t num_invalid = 0;
#pragma omp parallel num_threads(num_threads) if (num_threads > 1 && count > 1)
    {
        static thread_local SamplingBuffers buffers;
#pragma omp master
        if (needs_host) is_usable = host(num_done, rows.data());
#pragma omp for schedule(dynamic) reduction(+ : num_invalid)
        for (int64_t row = 0; row < count; ++row) {
            const DecodeRequest& request = requests[active[row]];
            if (request.raw_scores)
                std::memcpy(request.raw_scores + num_done * vocab_size, scores + row * vocab_size,
                            vocab_size * sizeof(float));
            if (!request.needs_host()) num_invalid += !sample(row, buffers);
        }
        if (needs_host && is_usable) {  // all masks are filled in: the loop above ends with a barrier
#pragma omp for schedule(dynamic) reduction(+ : num_invalid)
            for (int64_t row = 0; row < count; ++row)
                if (requests[active[row]].mask && rows[active[row]] >= 0) num_invalid += !sample(row, buffers);
        }
    }
    return is_usable && num_invalid == 0;
}

// Builds steps of one token for each active request. A step points into its builder, and is valid until the next one.
class StepBuilder {
   public:
    StepBuilder(const Model& model, const Step& first, const DecodeRequest* requests, int64_t num_groups)
        : model_(model),
          first_(first),
          requests_(requests),
          slots_(num_groups),
          table_offsets_(num_groups),
          slots_pointers_(num_groups),
          table_offsets_pointers_(num_groups) {}

    // num_done: steps that are done. tokens: [requests], what the last of them sampled.
    Step build(const std::vector<int64_t>& active, const int64_t* tokens, int64_t num_done) {
        const int64_t count = int64_t(active.size());
        tokens_.clear(), positions_.clear(), logits_rows_.clear(), adapters_.clear();
        query_lens_.assign(count, 1);
        for (size_t group = 0; group < slots_.size(); ++group) slots_[group].clear(), table_offsets_[group].clear();
        for (const int64_t request : active) {
            const int64_t position = first_.positions[first_.logits_rows[request]] + num_done;
            logits_rows_.push_back(int64_t(tokens_.size()));
            tokens_.push_back(tokens[request]);
            positions_.push_back(position);
            if (first_.adapters) adapters_.push_back(first_.adapters[first_.logits_rows[request]]);
            for (size_t group = 0; group < slots_.size(); ++group) {
                const int64_t start = first_.table_offsets[group][requests_[request].sequence];
                const int64_t block = first_.block_tables[group][start + position / model_.block_size];
                table_offsets_[group].push_back(start);
                slots_[group].push_back(block * model_.block_size + position % model_.block_size);
            }
        }
        for (size_t group = 0; group < slots_.size(); ++group) {
            slots_pointers_[group] = slots_[group].data();
            table_offsets_pointers_[group] = table_offsets_[group].data();
        }
        Step step = first_;  // the same block tables, logits and threads
        step.tokens = tokens_.data();
        step.positions = positions_.data();
        step.logits_rows = logits_rows_.data();
        step.query_lens = query_lens_.data();
        step.slots = slots_pointers_.data();
        step.table_offsets = table_offsets_pointers_.data();
        if (first_.adapters) step.adapters = adapters_.data();
        step.num_rows = step.num_logits = step.num_sequences = count;
        return step;
    }

   private:
    const Model& model_;
    const Step& first_;
    const DecodeRequest* requests_;
    std::vector<int64_t> tokens_, positions_, logits_rows_, query_lens_;
    std::vector<const LoraLayer*> adapters_;
    std::vector<std::vector<int64_t>> slots_, table_offsets_;  // for each cache group
    std::vector<const int64_t*> slots_pointers_, table_offsets_pointers_;
};

// ---- All steps ------------------------------------------------------------------------------------------------------

// Returns the number of completed steps: at most max_steps, fewer if all requests end or scores are unusable.
//   forward   forward(model, step) computes a step's logits
//   requests  [first.num_logits], one for each row of logits
//   host      null if no request needs it
//   tokens    [max_steps, requests], -1 for requests without a token in a step
//   seconds   [max_steps], from the call until each step's tokens were known
template <typename Forward>
int64_t run_multi_step(const Forward& forward, const Model& model, const Step& first, const DecodeRequest* requests,
                       int64_t num_groups, int64_t max_steps, HostStep host, int64_t* tokens, double* seconds) {
    const auto began = std::chrono::steady_clock::now();
    const int64_t count = first.num_logits;
    std::fill(tokens, tokens + max_steps * count, -1);
    std::vector<int64_t> active(count);
    std::vector<TokenCounts> counts(count);
    for (int64_t request = 0; request < count; ++request) {
        active[request] = request;
        const Adjustments* const adjustments = requests[request].adjustments;
        if (adjustments && adjustments->is_penalized) counts[request] = TokenCounts(*adjustments);
    }
    std::vector<int64_t> rows(count);
    StepBuilder builder(model, first, requests, num_groups);
    Step step = first;
    for (int64_t num_done = 0;;) {
        forward(model, step);
        int64_t* const sampled = tokens + num_done * count;
        if (!sample_tokens(step.logits, model.vocab_size, requests, active, counts, num_done, step.num_threads, host,
                           rows, sampled))
            return num_done;
        seconds[num_done++] = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
        if (num_done == max_steps) return num_done;
        const auto has_ended = [&](int64_t index) { return requests[index].has_ended(sampled[index], num_done); };
        active.erase(std::remove_if(active.begin(), active.end(), has_ended), active.end());
        if (active.empty()) return num_done;
        step = builder.build(active, sampled, num_done);
    }
}
