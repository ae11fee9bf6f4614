// Chooses the experts of each row, and lists the rows of each expert.
//
// A route is one row's use of one expert. Routes are numbered expert after expert, those of an expert in the order of
// their rows, so an expert's rows are consecutive routes.
//
// Threads: each makes the whole Routing for itself from the same scores, which is faster than a barrier.
#pragma once

#include <cstdint>
#include <vector>

#include "elementwise.h"
#include "model.h"

struct Route {
    int64_t row;
    float weight;  // of the expert's output
};

class Routing {
   public:
    std::vector<Route> routes;  // [num_rows * per_token]
    std::vector<int64_t> starts;  // [count + 1]: the first route of each expert

    // scores: [num_rows, count], before the softmax. Scores that are not numbers choose any experts, and their weights
    // are NaN.
    void choose(const Experts& experts, const float* scores, int64_t num_rows) {
        chosen_.resize(num_rows * experts.per_token);
        starts.assign(experts.count + 1, 0);
        for (int64_t row = 0; row < num_rows; ++row) {
            choose_row(experts, scores + row * experts.count, chosen_.data() + row * experts.per_token);
            for (int64_t at = 0; at < experts.per_token; ++at) ++starts[chosen_[row * experts.per_token + at].expert + 1];
        }
        for (int64_t expert = 0; expert < experts.count; ++expert) starts[expert + 1] += starts[expert];
        routes.resize(chosen_.size());
        next_ = starts;
        for (int64_t row = 0; row < num_rows; ++row)
            for (int64_t at = 0; at < experts.per_token; ++at) {
                const Choice& choice = chosen_[row * experts.per_token + at];
                routes[next_[choice.expert]++] = {row, choice.weight};
            }
    }

   private:
    struct Choice {
        int64_t expert;
        float weight;
    };

    // Chooses the experts with the highest scores, the first of equals.
    void choose_row(const Experts& experts, const float* scores, Choice* chosen) {
        is_chosen_.assign(experts.count, false);
        for (int64_t at = 0; at < experts.per_token; ++at) {
            int64_t best = -1;
            for (int64_t expert = 0; expert < experts.count; ++expert)
                if (!is_chosen_[expert] && (best < 0 || scores[expert] > scores[best])) best = expert;
            is_chosen_[best] = true;
            chosen[at].expert = best;
            chosen[at].weight = exponential(scores[best] - scores[chosen[0].expert]);
        }
        float sum = 0, sum_of_chosen = 0;
        for (int64_t expert = 0; expert < experts.count; ++expert)
            sum += exponential(scores[expert] - scores[chosen[0].expert]);
        for (int64_t at = 0; at < experts.per_token; ++at) sum_of_chosen += chosen[at].weight;
        const float factor = experts.scale / (experts.is_normalized ? sum_of_chosen : sum);
        for (int64_t at = 0; at < experts.per_token; ++at) chosen[at].weight *= factor;
    }

    std::vector<Choice> chosen_;  // [num_rows, per_token]
    std::vector<int64_t> next_;
    std::vector<char> is_chosen_;  // [count], of one row
};
