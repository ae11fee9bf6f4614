// Samples tokens from scores, row by row, as engine/sampling/cpu.py does in NumPy, but all rows of a step in one call.
#pragma once

#include <functional>

#include "simd.h"

constexpr int64_t kSetsForEach = 16;  // sets of tokens per token that top-k keeps; a set's highest score represents it
constexpr float kMaxExponentRange = 80;  // exponents down to this far below the highest give distinguishable weights
constexpr float kLowestExponent = -87;  // the results of lower exponents would be denormal
constexpr int64_t kBlock = 64;  // weights per block; only the block where the running sum passes its target is searched

typedef float EightFloats __attribute__((vector_size(32)));
typedef double Doubles __attribute__((vector_size(64)));

struct Filters {  // sampling parameters of one row, in the order of engine/parameter_table.py
    double temperature, top_p;
    int64_t top_k;
    double min_p, uniform;
    float highest;  // highest score of the row
};

struct Candidates {  // reused from row to row
    std::vector<float> tops, ordered, scores, weights;
    std::vector<int32_t> tokens;  // token of each weight; empty if the weights are those of the whole vocabulary
};

// Returns the highest score; NaN if any score is NaN.
inline float highest_score(const float* scores, int64_t count) {
    Floats highest = Floats{} - INFINITY, unknown = Floats{};
    int64_t at = 0;
    for (; at + kLanes <= count; at += kLanes) {
        const Floats some = load<Floats>(scores + at);
        highest = some > highest ? some : highest;
        unknown += some != some ? Floats{} + 1.0f : Floats{};
    }
    float best = max_of(highest), number_unknown = sum_of(unknown);
    for (; at < count; ++at) {
        best = std::max(best, scores[at]);
        number_unknown += std::isnan(scores[at]);
    }
    return number_unknown > 0 ? NAN : best;
}

// Returns a lower bound of the k-th highest score without sorting the vocabulary: k sets of tokens each hold a score at
// least as high.
inline float top_k_lower_bound(const float* scores, int64_t count, int64_t k, std::vector<float>& tops) {
    const int64_t set_size = count / std::max(kSetsForEach * k, int64_t(256));
    if (set_size < 2) return -INFINITY;
    const int64_t sets = count / set_size;
    tops.assign(scores, scores + sets);
    for (int64_t one = 1; one < set_size; ++one) {
        const float* others = scores + one * sets;
        for (int64_t set = 0; set < sets; ++set) tops[set] = std::max(tops[set], others[set]);
    }
    std::nth_element(tops.begin(), tops.begin() + k - 1, tops.end(), std::greater<float>());
    return tops[k - 1];
}

// Returns the sum of the weights that are at least the lowest. In double precision, or the error would grow with the
// size of the vocabulary.
inline double sum_of(const float* weights, int64_t count, float lowest) {
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

// Calls take with the index of each number that is at least ``least``; fast if few are.
template <typename Take>
inline void for_each_at_least(const float* numbers, int64_t count, float least, Take take) {
    for (int64_t first = 0; first < count; first += kLanes) {
        const int64_t end = std::min(first + kLanes, count);
        if (end - first == kLanes && !any_of(load<Floats>(numbers + first) >= least)) continue;
        for (int64_t at = first; at < end; ++at)
            if (numbers[at] >= least) take(at);
    }
}

// Computes unnormalised softmax weights of the tokens that top-k may keep, or of all: e^((score - highest) /
// temperature), so the highest score has weight 1.
inline void unnormalized_softmax(const float* scores, int64_t count, const Filters& row, Candidates& found) {
    const float* chosen = scores;
    int64_t number = count;
    found.tokens.clear();
    if (row.top_k > 0 && row.top_k < count) {
        const double bound = top_k_lower_bound(scores, count, row.top_k, found.tops);
        if (row.highest - bound <= kMaxExponentRange * row.temperature) {
            // The margin ensures that the weights of lower scores are lower even after rounding.
            const float least = float(bound - 1e-4 * row.temperature - 1e-6 * (row.highest - bound));
            found.scores.clear();
            for_each_at_least(scores, count, least, [&](int64_t token) {
                found.tokens.push_back(int32_t(token));
                found.scores.push_back(scores[token]);
            });
            chosen = found.scores.data();
            number = int64_t(found.scores.size());
        }
    }
    const float temperature = float(row.temperature);
    found.weights.resize(number);
    const auto weight = [&](Floats some) {
        const Floats exponents = (some - row.highest) / temperature;
        return exponents < kLowestExponent ? Floats{} : exponential(exponents);
    };
    int64_t at = 0;
    for (; at + kLanes <= number; at += kLanes) store(weight(load<Floats>(chosen + at)), found.weights.data() + at);
    if (at < number) {  // the rest, with the same arithmetic
        Floats rest = Floats{} - INFINITY;
        std::memcpy(&rest, chosen + at, (number - at) * sizeof(float));
        rest = weight(rest);
        std::memcpy(found.weights.data() + at, &rest, (number - at) * sizeof(float));
    }
}

// Returns the weight of the last token in the top-p nucleus: from the heaviest down (weight 1), the token at which the
// sum reaches the share top_p.
inline float top_p_threshold(const std::vector<float>& weights, float kth, double top_p, std::vector<float>& ordered) {
    const double total = sum_of(weights.data(), int64_t(weights.size()), kth), share = top_p * total;
    if (share <= 1) return 1;
    // All tokens up to this weight add up to less than the nucleus leaves out, so none of them can end it.
    const double negligible = (total - share) / (2 * double(weights.size()));
    ordered.clear();
    for_each_at_least(weights.data(), int64_t(weights.size()), std::max(kth, float(negligible)), [&](int64_t at) { ordered.push_back(weights[at]); });
    // Quickselect by sums instead of counts: the sum of all weights above a pivot, and that of its equals.
    float *first = ordered.data(), *last = first + ordered.size();
    for (double missing = share;;) {
        const float one = *first, other = first[(last - first) / 2], another = last[-1];
        const float pivot = std::max(std::min(one, other), std::min(std::max(one, other), another));
        float* equals = std::partition(first, last, [&](float weight) { return weight > pivot; });
        float* lighter = std::partition(equals, last, [&](float weight) { return weight == pivot; });
        const double heavier = sum_of(first, equals - first, 0), same = double(pivot) * double(lighter - equals);
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

// Returns the lowest weight that passes top-k, top-p and min-p. Tokens of equal weight pass or fail together.
inline float kept_threshold(const Filters& row, Candidates& found) {
    const std::vector<float>& weights = found.weights;
    float kth = 0;
    if (row.top_k > 0 && row.top_k < int64_t(weights.size())) {
        found.ordered = weights;
        std::nth_element(found.ordered.begin(), found.ordered.begin() + row.top_k - 1, found.ordered.end(), std::greater<float>());
        kth = found.ordered[row.top_k - 1];
    }
    const float lowest = std::max(float(row.min_p), kth);
    return row.top_p < 1 ? std::max(lowest, top_p_threshold(weights, kth, row.top_p, found.ordered)) : lowest;
}

// Samples a token: the one at which the running sum of the kept weights, in vocabulary order, passes the row's uniform
// number.
inline int64_t draw(const float* scores, int64_t count, const Filters& row, Candidates& found) {
    unnormalized_softmax(scores, count, row, found);
    const std::vector<float>& weights = found.weights;
    const float lowest = kept_threshold(row, found);
    const int64_t number = int64_t(weights.size());
    const double total = sum_of(weights.data(), number, lowest), target = std::min(row.uniform * total, std::nextafter(total, 0.0));
    const auto is_kept = [&](int64_t at) { return weights[at] > 0 && weights[at] >= lowest; };
    double sum = 0;
    int64_t passed = number;  // index of the sampled weight
    for (int64_t first = 0; first < number && passed == number; first += kBlock) {
        const int64_t end = std::min(first + kBlock, number);
        const double after = sum + sum_of(weights.data() + first, end - first, lowest);
        if (after <= target) {
            sum = after;
            continue;
        }
        for (int64_t at = first; at < end && passed == number; ++at) {
            if (!is_kept(at)) continue;
            sum += weights[at];
            if (sum > target) passed = at;
        }
    }
    if (passed == number)  // only by rounding: take the last kept token
        do --passed;
        while (passed > 0 && !is_kept(passed));
    return found.tokens.empty() ? passed : found.tokens[passed];
}
