// Draws tokens from scores, row by row, as engine/sampling/cpu.py does in NumPy, but all rows of a step in one call.
//
// A row goes through
//   drop_beyond_sigma     top-n-sigma, the one filter on scores
//   unnormalized_softmax  weights e^((score - highest) / temperature), of the candidates that top-k may keep, or of all
//   kept_threshold        the lowest weight that passes every filter: one function for each filter
//   draw                  inverts the running sum of the kept weights at the row's uniform number
// Nothing is sorted: thresholds are found by selection (nth_element, quickselect), in time linear in the vocabulary.
//
// Memory: scores are float32 [vocab_size], only read, any alignment: after bias, penalties and bans (-inf). A row's
// parameters are its Filters, its temporary buffers SamplingBuffers.
//
// Threads: each draws rows of its own, with SamplingBuffers of its own; a row's token does not depend on the others.
// Instruction sets: SIMD vectors, see simd.h. Sums are double: in float the error would grow with the vocabulary.
#pragma once

#include <functional>
#include <vector>

#include "simd.h"

constexpr int64_t kSetsPerToken = 16;  // sets of tokens per token that top-k keeps; a set's highest score represents it
constexpr int64_t kMinSetsOfTokens = 256;  // fewest sets
constexpr float kMaxExponentRange = 80;  // exponents down to this far below the highest give distinguishable weights
constexpr float kLowestExponent = -87;  // the results of lower exponents would be denormal
constexpr int64_t kSumBlock = 64;  // weights per block; only the one where the sum passes its target is searched

typedef float EightFloats __attribute__((vector_size(32)));
typedef double Doubles __attribute__((vector_size(64)));

// What one row's token is drawn with: its parameters, in the order of engine/parameter_table.py, and two numbers of the
// step. engine/execution/native/sampling.py packs it (FILTERS_FORMAT), field by field.
struct Filters {
    double temperature, top_p;
    int64_t top_k;  // 0 for none
    double min_p;
    double top_n_sigma;  // 0 for none
    double uniform_number;  // at least 0, below 1
    float highest;  // highest score of the row
};

// A thread's buffers, reused from row to row.
struct SamplingBuffers {
    std::vector<float> set_maxima, ordered, scores;
    std::vector<float> adjusted;  // [vocab_size]: scores with a row's bias, penalties and bans
    std::vector<float> within_sigma;  // [vocab_size]: scores without those that top-n-sigma drops
    std::vector<float> weights;  // of the candidates
    std::vector<int32_t> tokens;  // [weights]: the candidates, ascending; empty if they are the whole vocabulary
};

// ---- Masking --------------------------------------------------------------------------------------------------------

// Copies a row's scores, with -inf for the tokens whose bit is 0; see deskmate_mask.
inline void copy_allowed(const float* scores, int64_t count, const uint8_t* mask, float* to) {
    if (mask == nullptr) {
        std::memcpy(to, scores, count * sizeof(float));
        return;
    }
    Ints lane_bits;
    for (int64_t lane = 0; lane < kLanes; ++lane) lane_bits[lane] = 1 << lane;
    int64_t at = 0;
    for (; at + kLanes <= count; at += kLanes) {
        const int bits = mask[at / 8] | mask[at / 8 + 1] << 8;
        const Floats some = load<Floats>(scores + at);
        store((lane_bits & (Ints{} + bits)) != 0 ? some : Floats{} - INFINITY, to + at);
    }
    for (; at < count; ++at) to[at] = mask[at / 8] >> at % 8 & 1 ? scores[at] : -INFINITY;
}

// ---- Searching and adding -------------------------------------------------------------------------------------------

// Returns the highest score; NaN if any score is NaN.
inline float highest_score(const float* scores, int64_t count) {
    Floats highest = Floats{} - INFINITY, num_nan = Floats{};
    int64_t at = 0;
    for (; at + kLanes <= count; at += kLanes) {
        const Floats some = load<Floats>(scores + at);
        highest = some > highest ? some : highest;
        num_nan += some != some ? Floats{} + 1.0f : Floats{};
    }
    float best = reduce_max(highest), total_nan = reduce_add(num_nan);
    for (; at < count; ++at) {
        best = std::max(best, scores[at]);
        total_nan += std::isnan(scores[at]);
    }
    return total_nan > 0 ? NAN : best;
}

// Returns the sum of the weights that are at least the lowest.
inline double sum_at_least(const float* weights, int64_t count, float lowest) {
    Doubles low{}, high{};
    int64_t at = 0;
    for (; at + kLanes <= count; at += kLanes) {
        const EightFloats some = load<EightFloats>(weights + at), more = load<EightFloats>(weights + at + 8);
        low += __builtin_convertvector(some >= lowest ? some : EightFloats{}, Doubles);
        high += __builtin_convertvector(more >= lowest ? more : EightFloats{}, Doubles);
    }
    low += high;
    double sum = ((low[0] + low[1]) + (low[2] + low[3])) + ((low[4] + low[5]) + (low[6] + low[7]));
    for (; at < count; ++at) sum += weights[at] >= lowest ? weights[at] : 0;
    return sum;
}

// Returns the sum of term(score), in double precision, over the scores that are not -inf.
template <typename Term>
inline double sum_finite(const float* scores, int64_t count, Term term) {
    Doubles sums{};
    const auto add = [&](EightFloats some) {
        const Doubles exact = __builtin_convertvector(some, Doubles);
        sums += exact > Doubles{} - double(INFINITY) ? term(exact) : Doubles{};
    };
    int64_t at = 0;
    for (; at + 8 <= count; at += 8) add(load<EightFloats>(scores + at));
    EightFloats rest = EightFloats{} - INFINITY;
    std::memcpy(&rest, scores + at, (count - at) * sizeof(float));
    add(rest);
    return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

// Calls visit(index) for each number that is at least ``least``; fast if few are.
template <typename Visit>
inline void for_each_at_least(const float* numbers, int64_t count, float least, Visit visit) {
    for (int64_t first = 0; first < count; first += kLanes) {
        const int64_t end = std::min(first + kLanes, count);
        if (end - first == kLanes && !any_of(load<Floats>(numbers + first) >= least)) continue;
        for (int64_t at = first; at < end; ++at)
            if (numbers[at] >= least) visit(at);
    }
}

// ---- Top-n-sigma ----------------------------------------------------------------------------------------------------

// Copies the scores to buffers.within_sigma, with -inf for tokens more than top_n_sigma standard deviations below the
// highest one, and returns the copy.
inline const float* drop_beyond_sigma(const float* scores, int64_t count, const Filters& row,
                                      SamplingBuffers& buffers) {
    const double num_finite = sum_finite(scores, count, [](Doubles) { return Doubles{} + 1.0; });
    const double mean = sum_finite(scores, count, [](Doubles some) { return some; }) / num_finite;
    const auto square = [&](Doubles some) { return (some - mean) * (some - mean); };
    const double variance = sum_finite(scores, count, square) / num_finite;
    const double lowest = row.highest - row.top_n_sigma * std::sqrt(variance);
    std::vector<float>& within = buffers.within_sigma;
    within.resize(count);
    for (int64_t at = 0; at < count; ++at) within[at] = scores[at] < lowest ? -INFINITY : scores[at];
    return within.data();
}

// ---- Softmax --------------------------------------------------------------------------------------------------------

// Returns a lower bound of the k-th highest score without sorting the vocabulary: the tokens are divided into sets, of
// which k have a maximum at least as high. -inf if the vocabulary is too small to divide.
inline float top_k_lower_bound(const float* scores, int64_t count, int64_t k, std::vector<float>& set_maxima) {
    const int64_t set_size = count / std::max(kSetsPerToken * k, kMinSetsOfTokens);
    if (set_size < 2) return -INFINITY;
    const int64_t sets = count / set_size;  // token t is in set t % sets
    set_maxima.assign(scores, scores + sets);
    for (int64_t member = 1; member < set_size; ++member) {
        const float* others = scores + member * sets;
        for (int64_t set = 0; set < sets; ++set) set_maxima[set] = std::max(set_maxima[set], others[set]);
    }
    std::nth_element(set_maxima.begin(), set_maxima.begin() + k - 1, set_maxima.end(), std::greater<float>());
    return set_maxima[k - 1];
}

// Computes buffers.weights and buffers.tokens: unnormalized softmax weights of the tokens that top-k may keep, or of
// all. The highest score has weight 1, so nothing overflows, however low the temperature.
inline void unnormalized_softmax(const float* scores, int64_t count, const Filters& row, SamplingBuffers& buffers) {
    const float* candidates = scores;
    int64_t num_candidates = count;
    buffers.tokens.clear();
    if (row.top_k > 0 && row.top_k < count) {
        const double bound = top_k_lower_bound(scores, count, row.top_k, buffers.set_maxima);
        if (row.highest - bound <= kMaxExponentRange * row.temperature) {
            // The margin ensures that the weights of lower scores are lower even after rounding.
            const float least = float(bound - 1e-4 * row.temperature - 1e-6 * (row.highest - bound));
            buffers.scores.clear();
            for_each_at_least(scores, count, least, [&](int64_t token) {
                buffers.tokens.push_back(int32_t(token));
                buffers.scores.push_back(scores[token]);
            });
            candidates = buffers.scores.data();
            num_candidates = int64_t(buffers.scores.size());
        }
    }
    const float temperature = float(row.temperature);
    buffers.weights.resize(num_candidates);
    const auto weight = [&](Floats some) {
        const Floats exponents = (some - row.highest) / temperature;
        return exponents < kLowestExponent ? Floats{} : exponential(exponents);
    };
    int64_t at = 0;
    for (; at + kLanes <= num_candidates; at += kLanes)
        store(weight(load<Floats>(candidates + at)), buffers.weights.data() + at);
    if (at < num_candidates) {  // the rest, with the same arithmetic
        Floats rest = Floats{} - INFINITY;
        std::memcpy(&rest, candidates + at, (num_candidates - at) * sizeof(float));
        rest = weight(rest);
        std::memcpy(buffers.weights.data() + at, &rest, (num_candidates - at) * sizeof(float));
    }
}

// ---- Filters of weights: each returns the lowest weight that passes it ----------------------------------------------

// Returns the weight of the top_k-th heaviest candidate; 0 if top-k keeps all.
inline float top_k_threshold(const Filters& row, SamplingBuffers& buffers) {
    if (row.top_k <= 0 || row.top_k >= int64_t(buffers.weights.size())) return 0;
    buffers.ordered = buffers.weights;
    std::nth_element(buffers.ordered.begin(), buffers.ordered.begin() + row.top_k - 1, buffers.ordered.end(),
                     std::greater<float>());
    return buffers.ordered[row.top_k - 1];
}

// Returns the weight of the last token in the top-p nucleus: from the heaviest down (weight 1), the token at which the
// sum reaches the share top_p of the weights that top-k keeps, those of at least kth.
inline float top_p_threshold(const Filters& row, float kth, SamplingBuffers& buffers) {
    const std::vector<float>& weights = buffers.weights;
    std::vector<float>& ordered = buffers.ordered;
    const double total = sum_at_least(weights.data(), int64_t(weights.size()), kth), share = row.top_p * total;
    if (share <= 1) return 1;
    // All tokens up to this weight add up to less than the nucleus leaves out, so none of them can end it.
    const double negligible = (total - share) / (2 * double(weights.size()));
    ordered.clear();
    for_each_at_least(weights.data(), int64_t(weights.size()), std::max(kth, float(negligible)),
                      [&](int64_t at) { ordered.push_back(weights[at]); });
    // Quickselect by sums instead of counts: the sum of all weights above a pivot, and that of its equals.
    float *first = ordered.data(), *last = first + ordered.size();
    for (double missing = share;;) {
        const float one = *first, other = first[(last - first) / 2], another = last[-1];
        const float pivot = std::max(std::min(one, other), std::min(std::max(one, other), another));
        float* equals = std::partition(first, last, [&](float weight) { return weight > pivot; });
        float* lighter = std::partition(equals, last, [&](float weight) { return weight == pivot; });
        const double heavier = sum_at_least(first, equals - first, 0), same = double(pivot) * double(lighter - equals);
        if (missing <= heavier) {
            last = equals;
        } else if (missing <= heavier + same || lighter == last) {  // the latter only by rounding
            return pivot;
        } else {
            missing -= heavier + same;
            first = lighter;
        }
    }
}

// Returns the lowest weight that passes all filters of a row. Tokens of equal weight pass or fail together.
inline float kept_threshold(const Filters& row, SamplingBuffers& buffers) {
    const float kth = top_k_threshold(row, buffers);
    const float lowest = std::max(float(row.min_p), kth);  // min-p is a share of the highest weight, which is 1
    return row.top_p < 1 ? std::max(lowest, top_p_threshold(row, kth, buffers)) : lowest;
}

// ---- Drawing --------------------------------------------------------------------------------------------------------

// Draws a token: the one at which the running sum of the kept weights, in vocabulary order, passes the row's uniform
// number.
inline int64_t draw(const float* scores, int64_t count, const Filters& row, SamplingBuffers& buffers) {
    if (row.top_n_sigma > 0) scores = drop_beyond_sigma(scores, count, row, buffers);
    unnormalized_softmax(scores, count, row, buffers);
    const std::vector<float>& weights = buffers.weights;
    const float lowest = kept_threshold(row, buffers);
    const int64_t number = int64_t(weights.size());
    const double total = sum_at_least(weights.data(), number, lowest);
    const double target = std::min(row.uniform_number * total, std::nextafter(total, 0.0));
    const auto is_kept = [&](int64_t at) { return weights[at] > 0 && weights[at] >= lowest; };
    double sum = 0;
    int64_t drawn = number;  // index of the drawn weight
    for (int64_t first = 0; first < number && drawn == number; first += kSumBlock) {
        const int64_t end = std::min(first + kSumBlock, number);
        const double after = sum + sum_at_least(weights.data() + first, end - first, lowest);
        if (after <= target) {
            sum = after;
            continue;
        }
        for (int64_t at = first; at < end && drawn == number; ++at) {
            if (!is_kept(at)) continue;
            sum += weights[at];
            if (sum > target) drawn = at;
        }
    }
    if (drawn == number)  // only by rounding: take the last kept token
        do --drawn;
        while (drawn > 0 && !is_kept(drawn));
    return buffers.tokens.empty() ? drawn : buffers.tokens[drawn];
}

// Returns the first token with the highest score, which is a number.
inline int64_t first_highest(const float* scores, int64_t count, float highest) {
    return std::find(scores, scores + count, highest) - scores;
}
