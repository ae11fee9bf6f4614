// The operations between the matrix products: RMS norm, rotary position embedding, SwiGLU. All float32, in the caller's
// memory.
//
// Threads: each call works on one row or head, which no other thread writes.
// Instruction sets: loops that the compiler vectorizes (omp simd), and SIMD vectors of simd.h.
#pragma once

#include <cmath>
#include <cstdint>

#include "simd.h"

// RMS norm (arXiv 1910.07467): to = x / sqrt(mean(x^2) + epsilon) * weight. x, weight and to: [width]; to may be x.
inline void rms_norm(const float* x, const float* weight, int64_t width, float epsilon, float* to) {
    float squares = 0;
#pragma omp simd reduction(+ : squares)
    for (int64_t at = 0; at < width; ++at) squares += x[at] * x[at];
    float factor = 1 / std::sqrt(squares / float(width) + epsilon);
#pragma omp simd
    for (int64_t at = 0; at < width; ++at) to[at] = x[at] * factor * weight[at];
}

// Computes the rotary angles of a position: angles [head_dim], the scaled cosines and then the scaled sines.
inline void rotary_angles(int64_t position, const float* inv_freq, float scale, int64_t head_dim, float* angles) {
    const int64_t half = head_dim / 2;
    for (int64_t at = 0; at < half; ++at) {
        const float angle = float(position) * inv_freq[at];
        angles[at] = std::cos(angle) * scale;
        angles[half + at] = std::sin(angle) * scale;
    }
}

// Rotary position embedding (arXiv 2104.09864) of a head [head_dim] in place. Number i of the first half and of the
// second half form a pair, as in GPT-NeoX and transformers.
inline void apply_rope(float* head, const float* angles, int64_t head_dim) {
    const int64_t half = head_dim / 2;
#pragma omp simd
    for (int64_t at = 0; at < half; ++at) {
        float a = head[at], b = head[at + half];
        head[at] = a * angles[at] - b * angles[at + half];
        head[at + half] = b * angles[at] + a * angles[at + half];
    }
}

// SwiGLU (arXiv 2002.05202): silu(gate) * up.
inline Floats swiglu(Floats gate, Floats up) { return gate / (1 + exponential(-gate)) * up; }
