// Bias, penalties and bans of stop tokens of a reply, applied to its scores before its token is sampled.
//
// The arithmetic is that of engine/sampling/cpu.py (adjust_row) to the last bit: a reply may go from C++ to NumPy and
// back at any token. The cost grows with the number of distinct tokens of the text, not with the vocabulary, but for
// one copy of the scores.
//
// Memory: a request's Adjustments are the caller's arrays, read once; TokenCounts grows with the reply.
// Threads: a request's counts are used by one thread at a time.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

extern "C" {

// What is adjusted of a request's scores. engine/execution/native/multi_step.py fills it in (_Adjustments).
struct Adjustments {
    const int64_t* bias_ids;  // [num_bias]
    const float* bias_values;  // [num_bias]
    const int64_t* counted_ids;  // [num_counted]: the distinct tokens of prompt and reply, if they are penalized
    const float* num_in_reply;  // [num_counted]: how often each of them is in the reply
    const int64_t* stop_ids;  // [num_stop_ids]: banned while the reply is shorter than min_tokens
    int64_t num_bias, num_counted, num_stop_ids, min_tokens;
    int64_t is_penalized;
    double presence_penalty;
    float repetition_penalty, frequency_penalty;
};
}

// Whether an id has a score. Others are ignored: nothing outside the row may be written.
inline bool is_token(int64_t id, int64_t vocab_size) { return uint64_t(id) < uint64_t(vocab_size); }

// The tokens of one request, counted as it goes on.
class TokenCounts {
   public:
    TokenCounts() = default;
    explicit TokenCounts(const Adjustments& adjustments)
        : ids_(adjustments.counted_ids, adjustments.counted_ids + adjustments.num_counted),
          num_in_reply_(adjustments.num_in_reply, adjustments.num_in_reply + adjustments.num_counted) {}

    // Counts one more token of the reply.
    void add(int64_t token) {
        const auto found = std::find(ids_.begin(), ids_.end(), token);
        if (found == ids_.end()) {
            ids_.push_back(token);
            num_in_reply_.push_back(1);
        } else {
            num_in_reply_[found - ids_.begin()] += 1;
        }
    }

    // Penalizes the counted tokens in place.
    void penalize(const Adjustments& adjustments, float* scores, int64_t vocab_size) const {
        for (size_t index = 0; index < ids_.size(); ++index) {
            if (!is_token(ids_[index], vocab_size)) continue;
            float score = scores[ids_[index]];
            score = score < 0 ? score * adjustments.repetition_penalty : score / adjustments.repetition_penalty;
            score -= adjustments.frequency_penalty * num_in_reply_[index];
            scores[ids_[index]] = float(double(score) - (num_in_reply_[index] > 0 ? adjustments.presence_penalty : 0.0));
        }
    }

   private:
    std::vector<int64_t> ids_;  // distinct
    std::vector<float> num_in_reply_;  // [ids_]
};

// Adjusts a row's scores, [vocab_size], in place. position: tokens of the reply so far.
inline void adjust_scores(const Adjustments& adjustments, const TokenCounts& counts, int64_t position, float* scores,
                          int64_t vocab_size) {
    for (int64_t at = 0; at < adjustments.num_bias; ++at)
        if (is_token(adjustments.bias_ids[at], vocab_size))
            scores[adjustments.bias_ids[at]] += adjustments.bias_values[at];
    if (adjustments.is_penalized) counts.penalize(adjustments, scores, vocab_size);
    if (position >= adjustments.min_tokens) return;
    for (int64_t at = 0; at < adjustments.num_stop_ids; ++at)
        if (is_token(adjustments.stop_ids[at], vocab_size)) scores[adjustments.stop_ids[at]] = -INFINITY;
}
