// The operations between the matrix products: RMS norm, rotary position embedding, the gate of the MLP. All float32, in the caller's
// memory.
//
// Threads: each call works on one row or head, which no other thread writes.
// Instruction sets: loops that the compiler vectorizes (omp simd), and SIMD vectors of simd.h.
#pragma once

#include <cmath>
#include <cstdint>

#include "model.h"
#include "simd.h"

// Returns 1 / sqrt(mean(x^2) + epsilon). x: [width].
inline float rms_factor(const float* x, int64_t width, float epsilon) {
    float squares = 0;
#pragma omp simd reduction(+ : squares)
    for (int64_t at = 0; at < width; ++at) squares += x[at] * x[at];
    return 1 / std::sqrt(squares / float(width) + epsilon);
}

// RMS norm (arXiv 1910.07467): to = x / sqrt(mean(x^2) + epsilon) * weight. x, weight and to: [width]; to may be x.
inline void rms_norm(const float* x, const float* weight, int64_t width, float epsilon, float* to) {
    const float factor = rms_factor(x, width, epsilon);
#pragma omp simd
    for (int64_t at = 0; at < width; ++at) to[at] = x[at] * factor * weight[at];
}

// Computes the rotary angles of a position: angles [2 * num_frequencies], the scaled cosines and then the scaled sines.
inline void rotary_angles(int64_t position, const Rotary& rotary, float* angles) {
    const int64_t half = rotary.num_frequencies;
    for (int64_t at = 0; at < half; ++at) {
        const float angle = float(position) * rotary.inv_freq[at];
        angles[at] = std::cos(angle) * rotary.scale;
        angles[half + at] = std::sin(angle) * rotary.scale;
    }
}

// Rotary position embedding (arXiv 2104.09864) of the first numbers of a head in place. Number i of the first half and of
// the second half form a pair, as in GPT-NeoX; or neighbours do, as in the paper.
inline void apply_rope(float* head, const float* angles, const Rotary& rotary) {
    const int64_t half = rotary.num_frequencies;
    if (rotary.is_interleaved) {
        for (int64_t at = 0; at < half; ++at) {
            float a = head[2 * at], b = head[2 * at + 1];
            head[2 * at] = a * angles[at] - b * angles[at + half];
            head[2 * at + 1] = b * angles[at] + a * angles[at + half];
        }
        return;
    }
#pragma omp simd
    for (int64_t at = 0; at < half; ++at) {
        float a = head[at], b = head[at + half];
        head[at] = a * angles[at] - b * angles[at + half];
        head[at + half] = b * angles[at] + a * angles[at + half];
    }
}

constexpr int64_t kSilu = 0, kGeluTanh = 1;  // activations; KINDS of activations.py

// A gated linear unit (arXiv 2002.05202): activation(gate) * (up + up_offset), with gate at most activation_limit and up
// between -activation_limit and activation_limit. Both activations are gate * sigmoid(z): SiLU with
// z = activation_alpha * gate, and GELU in its tanh approximation (arXiv 1606.08415) with
// z = 2 sqrt(2 / pi) (gate + 0.044715 gate^3).
inline Floats gated(const Model& model, Floats gate, Floats up) {
    if (const float limit = model.activation_limit; limit < INFINITY) {
        gate = gate > limit ? Floats{} + limit : gate;  // NaN stays NaN
        up = up > limit ? Floats{} + limit : up < -limit ? Floats{} - limit : up;
    }
    Floats z = gate * model.activation_alpha;
    if (model.activation == kGeluTanh) z = 1.5957691216057308f * gate * (0.044715f * gate * gate + 1.0f);
    return gate / (1 + exponential(-z)) * (up + model.up_offset);
}

// Returns the product of two rows of width numbers, a multiple of 16.
template <typename Weight>
inline float dot(const float* row, const Weight* weight, int64_t width) {
    Floats sum = {};
    for (int64_t at = 0; at < width; at += kLanes) sum += load<Floats>(row + at) * widen(weight + at);
    return reduce_add(sum);
}
