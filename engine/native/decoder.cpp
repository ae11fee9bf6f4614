// One step of a decoder with rotary attention, RMS norms and a gated MLP (Llama, arXiv 2302.13971, and its kin), whole,
// for the few rows of a decode step. A framework spends more time between the operators of such a step than in them.
//
// Whatever is read from memory once is used for all rows of the step. Between the products, numbers are 32 bits wide. The
// sum behind an output runs in the same order whatever the number of rows and threads.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include <omp.h>
#if defined(__AVX512BF16__) || defined(__AVX512VNNI__)
#include <immintrin.h>
#endif

namespace {

using bf16 = uint16_t;  // bfloat16: the upper half of a float
constexpr int64_t kLanes = 16;
constexpr int64_t kAhead = 16;  // cache lines of a stream of weights that are asked for before they are needed
constexpr int64_t kKeysAtOnce = 64;  // attention keeps the scores of so many keys

typedef float Floats __attribute__((vector_size(64)));
typedef int32_t Ints __attribute__((vector_size(64)));
typedef uint16_t Halves __attribute__((vector_size(32)));

template <typename Vector, typename T>
inline Vector load(const T* from) {
    Vector vector;
    std::memcpy(&vector, from, sizeof vector);
    return vector;
}

inline Floats widen(const float* from) { return load<Floats>(from); }

inline Floats widen(const bf16* from) {
    const Ints bits = __builtin_convertvector(load<Halves>(from), Ints) << 16;
    return Floats(bits);
}

inline float widen_one(float value) { return value; }

inline float widen_one(bf16 value) {
    uint32_t bits = uint32_t(value) << 16;
    float wide;
    std::memcpy(&wide, &bits, sizeof wide);
    return wide;
}

inline Halves to_bf16(Floats values) {  // to the nearest, ties to even; NaN stays NaN
    const Ints bits = Ints(values);
    const Ints rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    return __builtin_convertvector(values == values ? rounded : Ints{} + 0x7fc0, Halves);
}

inline void put(Floats values, float* to) { std::memcpy(to, &values, sizeof values); }

inline void put(Floats values, bf16* to) {
    const Halves halves = to_bf16(values);
    std::memcpy(to, &halves, sizeof halves);
}

template <typename Vector>
inline auto sum_of(Vector vector) {  // lane with lane: quicker than one after another
    vector += __builtin_shuffle(vector, Ints{8, 9, 10, 11, 12, 13, 14, 15});
    vector += __builtin_shuffle(vector, Ints{4, 5, 6, 7});
    vector += __builtin_shuffle(vector, Ints{2, 3});
    return vector[0] + vector[1];
}

// e^x with a relative error below 2e-7 (S. Moshier, Cephes, expf); a loop over it becomes vector instructions.
inline float exponential(float x) {
    x = std::min(std::max(x, -87.0f), 88.0f);
    float n = std::floor(x * 1.44269504088896341f + 0.5f);
    float r = x - n * 0.693359375f + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    int32_t bits = (int32_t(n) + 127) << 23;
    float power;
    std::memcpy(&power, &bits, sizeof power);
    return p * power;
}

}  // namespace

// ---- what Python fills in: engine/native/decoder.py has the same structures, field by field --------------------------

extern "C" {

struct Matrix {
    const void* weight;  // words [outputs / 16, inputs / numbers in a word, 16]
    const float* scales;  // [outputs], of 8-bit weights
    const int32_t* sums;  // [outputs], of 8-bit weights: all that one output is made of
    const float* bias;  // [outputs], or null
    int64_t outputs;  // a multiple of 16
};

struct Layer {
    const float* attention_norm;  // [hidden]
    const float* query_norm;  // [head_dim], or null
    const float* key_norm;
    const float* mlp_norm;
    Matrix qkv, output, gate, up, down;
    void *keys, *values;  // [num_blocks, block_size, num_kv_heads, head_dim]
    int64_t window;  // 0: sees everything
    int64_t group;  // which block tables
};

struct Model {
    const Layer* layers;
    const void* embedding;  // [vocab_size, hidden]
    const float* norm;
    const float* frequencies;  // [head_dim / 2]
    Matrix head;
    int64_t num_layers, hidden, intermediate, num_heads, num_kv_heads, head_dim, vocab_size, block_size;
    float epsilon, attention_scale, rotary_scale;
};

struct Step {
    const int64_t *tokens, *positions;  // [num_rows]
    const int64_t* logits_rows;  // [num_logits]
    const int64_t* const* slots;  // of each group [num_rows]: where a row's key and value go
    const int32_t* const* tables;  // of each group the block tables of all sequences behind one another
    const int64_t* const* starts;  // of each group [num_rows]: where a row's table begins
    float* logits;  // [num_logits, vocab_size]
    int64_t num_rows, num_logits, num_threads;
};
}

namespace {

// ---- products ---------------------------------------------------------------------------------------------------------

// Weights and rows are made of words of 32 bits: one number, two or four, as many as a lane multiplies at once. Sixteen
// outputs lie beside one another, one in each lane, so that nothing is summed across lanes.
template <typename Weight>
struct Format;

template <>
struct Format<float> {
    using Sums = Floats;

    static void add(Floats& sums, Ints weights, int32_t row) {
        float x;
        std::memcpy(&x, &row, sizeof x);
        sums += Floats(weights) * x;
    }
};

template <>
struct Format<bf16> {
    using Sums = Floats;

    static void add(Floats& sums, Ints weights, int32_t row) {
#if defined(__AVX512BF16__)
        sums = Floats(_mm512_dpbf16_ps(__m512(sums), __m512bh(weights), __m512bh(_mm512_set1_epi32(row))));
#else
        sums += Floats(weights << 16) * widen_one(bf16(row)) + Floats(weights & int32_t(0xffff0000)) * widen_one(bf16(row >> 16));
#endif
    }
};

template <>
struct Format<int8_t> {
    using Sums = Ints;

    static void add(Ints& sums, Ints weights, int32_t row) {
#if defined(__AVX512VNNI__)
        sums = Ints(_mm512_dpbusd_epi32(__m512i(sums), _mm512_set1_epi32(row), __m512i(weights)));
#else
        for (int shift = 0; shift < 32; shift += 8) sums += (weights << (24 - shift) >> 24) * (row >> shift & 0xff);
#endif
    }
};

// The rows of a product, in words. Each thread has its own: made anew is quicker than waited for.
template <typename Weight>
struct Rows {
    std::vector<int32_t> words;
    std::vector<float> scales;  // [num_rows], of 8-bit rows
    int64_t num_rows = 0, width = 0;  // words of a row

    void take(const float* rows, int64_t count, int64_t row_width) {
        num_rows = count;
        width = row_width * int64_t(sizeof(Weight)) / 4;
        if (int64_t(words.size()) < count * width) words.resize(count * width);
        if (int64_t(scales.size()) < count) scales.resize(count);
        for (int64_t row = 0; row < count; ++row) fill(rows + row * row_width, row_width, row);
    }

   private:
    void fill(const float* from, int64_t count, int64_t row);
};

template <>
void Rows<float>::fill(const float* from, int64_t count, int64_t row) {
    std::memcpy(&words[row * width], from, count * sizeof *from);
}

template <>
void Rows<bf16>::fill(const float* from, int64_t count, int64_t row) {
    auto* to = reinterpret_cast<bf16*>(&words[row * width]);
    for (int64_t at = 0; at < count; at += kLanes) put(load<Floats>(from + at), to + at);
}

// LLM.int8() without its outliers (arXiv 2208.07339, section 2.1): a row's scale follows its largest number. It is stored
// around 128, as the processor multiplies unsigned rows by signed weights.
template <>
void Rows<int8_t>::fill(const float* from, int64_t count, int64_t row) {
    float largest = 1e-12f;
    for (int64_t at = 0; at < count; ++at) largest = std::max(largest, std::fabs(from[at]));
    scales[row] = largest / 127;
    const float steps = 127 / largest;
    auto* to = reinterpret_cast<uint8_t*>(&words[row * width]);
    for (int64_t at = 0; at < count; ++at) to[at] = uint8_t(int32_t(std::nearbyint(from[at] * steps)) + 128);
}

inline Floats scaled(const Matrix&, const Rows<float>&, int64_t, int64_t, Floats sums) { return sums; }
inline Floats scaled(const Matrix&, const Rows<bf16>&, int64_t, int64_t, Floats sums) { return sums; }
inline Floats scaled(const Matrix& matrix, const Rows<int8_t>& rows, int64_t row, int64_t output, Ints sums) {
    const Ints products = sums - load<Ints>(matrix.sums + output) * 128;
    return __builtin_convertvector(products, Floats) * load<Floats>(matrix.scales + output) * rows.scales[row];
}

// Not inlined: by itself, its sums stay in registers.
template <typename Weight, int64_t kGroups, int64_t kRows, typename Use>
[[gnu::noinline]] void tile(const Matrix& matrix, const Rows<Weight>& rows, int64_t row, int64_t output, const Use& use) {
    const int64_t width = rows.width;
    const int32_t* words = rows.words.data() + row * width;
    const auto* weights = static_cast<const int32_t*>(matrix.weight) + output * width;
    typename Format<Weight>::Sums sums[kGroups][kRows] = {};
    for (int64_t word = 0; word < width; ++word) {
        Ints lanes[kGroups];
        for (int64_t group = 0; group < kGroups; ++group) {
            const int32_t* from = weights + (group * width + word) * kLanes;
            __builtin_prefetch(from + kAhead * kLanes);
            lanes[group] = load<Ints>(from);
        }
        for (int64_t r = 0; r < kRows; ++r)
            for (int64_t group = 0; group < kGroups; ++group)
                Format<Weight>::add(sums[group][r], lanes[group], words[r * width + word]);
    }
    for (int64_t group = 0; group < kGroups; ++group)
        for (int64_t r = 0; r < kRows; ++r) {
            const int64_t first = output + group * kLanes;
            Floats products = scaled(matrix, rows, row + r, first, sums[group][r]);
            if (matrix.bias) products += load<Floats>(matrix.bias + first);
            use(row + r, first, products);
        }
}

template <typename Weight, int64_t kGroups, int64_t kRows, typename Use>
inline void tiles(const Matrix& matrix, const Rows<Weight>& rows, int64_t row, int64_t first, int64_t last, const Use& use) {
    int64_t output = first;
    for (; output + kGroups * kLanes <= last; output += kGroups * kLanes)
        tile<Weight, kGroups, kRows>(matrix, rows, row, output, use);
    for (; output < last; output += kLanes) tile<Weight, 1, kRows>(matrix, rows, row, output, use);
}

// use(row, output, products) for every row and the outputs first to last - 1, sixteen at once; first is a multiple of 16.
template <typename Weight, typename Use>
void multiply(const Matrix& matrix, const Rows<Weight>& rows, int64_t first, int64_t last, const Use& use) {
    constexpr int64_t kAtOnce = 8 * kLanes;  // what all rows use of the weights before the next comes from memory
    for (int64_t output = first; output < last; output += kAtOnce) {
        const int64_t stop = std::min(last, output + kAtOnce);
        int64_t row = 0;
        for (; row + 12 <= rows.num_rows; row += 12) tiles<Weight, 2, 12>(matrix, rows, row, output, stop, use);
        for (; row + 4 <= rows.num_rows; row += 4) tiles<Weight, 4, 4>(matrix, rows, row, output, stop, use);
        for (; row < rows.num_rows; ++row) tiles<Weight, 8, 1>(matrix, rows, row, output, stop, use);
    }
}

// ---- between the products ----------------------------------------------------------------------------------------------

// RMS norm (arXiv 1910.07467): to = x / sqrt(mean(x^2) + epsilon) * weight.
void norm(const float* x, const float* weight, int64_t width, float epsilon, float* to) {
    float squares = 0;
#pragma omp simd reduction(+ : squares)
    for (int64_t at = 0; at < width; ++at) squares += x[at] * x[at];
    float factor = 1 / std::sqrt(squares / float(width) + epsilon);
#pragma omp simd
    for (int64_t at = 0; at < width; ++at) to[at] = x[at] * factor * weight[at];
}

// Rotary positions (arXiv 2104.09864) for a head whose halves make the pairs. angles: [cosines, sines].
void turn(float* head, const float* angles, int64_t head_dim) {
    const int64_t half = head_dim / 2;
#pragma omp simd
    for (int64_t at = 0; at < half; ++at) {
        float a = head[at], b = head[at + half];
        head[at] = a * angles[at] - b * angles[at + half];
        head[at + half] = b * angles[at] + a * angles[at + half];
    }
}

// Attention of the queries that share one head of keys, with a softmax that goes on from block to block (arXiv 1805.02867).
template <typename Cache>
void attend(const Model& model, const Layer& layer, const int32_t* table, int64_t position, int64_t kv_head,
            const float* queries, float* to, std::vector<float>& space) {
    const int64_t dim = model.head_dim, group = model.num_heads / model.num_kv_heads;
    const int64_t row_size = model.num_kv_heads * dim;
    const auto* keys = static_cast<const Cache*>(layer.keys) + kv_head * dim;
    const auto* values = static_cast<const Cache*>(layer.values) + kv_head * dim;
    space.resize(std::max<size_t>(space.size(), group * kKeysAtOnce));
    float* scores = space.data();
    std::vector<float> highest(group, -INFINITY), mass(group, 0.0f);
    std::fill(to, to + group * dim, 0.0f);
    const int64_t end = position + 1;
    for (int64_t start = layer.window ? std::max<int64_t>(0, end - layer.window) : 0; start < end;) {
        const int64_t stop = std::min(end, start + kKeysAtOnce), count = stop - start;
        const Cache* key_of[kKeysAtOnce];
        const Cache* value_of[kKeysAtOnce];
        for (int64_t at = 0; at < count; ++at) {
            const int64_t key = start + at;
            const int64_t slot = int64_t(table[key / model.block_size]) * model.block_size + key % model.block_size;
            key_of[at] = keys + slot * row_size;
            value_of[at] = values + slot * row_size;
        }
        for (int64_t at = 0; at < count; ++at)
            for (int64_t head = 0; head < group; ++head) {
                Floats sum = {};
                for (int64_t d = 0; d < dim; d += kLanes) sum += widen(key_of[at] + d) * widen(queries + head * dim + d);
                scores[head * kKeysAtOnce + at] = sum_of(sum) * model.attention_scale;
            }
        for (int64_t head = 0; head < group; ++head) {
            float* own = scores + head * kKeysAtOnce;
            float* sums = to + head * dim;
            float top = highest[head];
            for (int64_t at = 0; at < count; ++at) top = std::max(top, own[at]);
            const float shrink = highest[head] == -INFINITY ? 0.0f : exponential(highest[head] - top);
            highest[head] = top;
            float total = 0;
#pragma omp simd reduction(+ : total)
            for (int64_t at = 0; at < count; ++at) total += own[at] = exponential(own[at] - top);
            mass[head] = mass[head] * shrink + total;
            for (int64_t d = 0; d < dim; d += kLanes) {
                Floats sum = widen(sums + d) * shrink;
                for (int64_t at = 0; at < count; ++at) sum += widen(value_of[at] + d) * own[at];
                std::memcpy(sums + d, &sum, sizeof sum);
            }
        }
        start = stop;
    }
    for (int64_t head = 0; head < group; ++head)
        for (int64_t d = 0; d < dim; ++d) to[head * dim + d] /= mass[head];
}

struct Range {
    int64_t first, last;
};

// A thread's share of count things, in whole units.
Range share(int64_t count, int64_t unit, int64_t thread, int64_t num_threads) {
    const int64_t units = (count + unit - 1) / unit;
    return {std::min(count, units * thread / num_threads * unit), std::min(count, units * (thread + 1) / num_threads * unit)};
}

template <typename Weight, typename Cache>
void run(const Model& model, const Step& step) {
    const int64_t rows = step.num_rows, hidden = model.hidden, dim = model.head_dim;
    const int64_t query_size = model.num_heads * dim, group = model.num_heads / model.num_kv_heads;
    std::vector<float> x(rows * hidden), queries(rows * query_size), attended(rows * query_size);
    std::vector<float> gated(rows * model.intermediate), angles(rows * dim), last(step.num_logits * hidden);
    const auto* embedding = static_cast<const Cache*>(model.embedding);
    for (int64_t row = 0; row < rows; ++row) {
        for (int64_t at = 0; at < hidden; ++at) x[row * hidden + at] = widen_one(embedding[step.tokens[row] * hidden + at]);
        for (int64_t at = 0; at < dim / 2; ++at) {
            const float angle = float(step.positions[row]) * model.frequencies[at];
            angles[row * dim + at] = std::cos(angle) * model.rotary_scale;
            angles[row * dim + dim / 2 + at] = std::sin(angle) * model.rotary_scale;
        }
    }

#pragma omp parallel num_threads(step.num_threads)
    {
        const int64_t thread = omp_get_thread_num(), threads = omp_get_num_threads();
        std::vector<float> normed(rows * hidden), heads(rows * dim), space;
        Rows<Weight> input;
        const auto normed_rows = [&](const float* weight) {
            for (int64_t row = 0; row < rows; ++row)
                norm(&x[row * hidden], weight, hidden, model.epsilon, &normed[row * hidden]);
            input.take(normed.data(), rows, hidden);
        };
        const auto add = [&](int64_t row, int64_t output, Floats products) {
            float* to = &x[row * hidden + output];
            put(load<Floats>(to) + products, to);
        };

        for (int64_t index = 0; index < model.num_layers; ++index) {
            const Layer& layer = model.layers[index];
            auto* keys = static_cast<Cache*>(layer.keys);
            auto* values = static_cast<Cache*>(layer.values);
            const int64_t* slots = step.slots[layer.group];

            normed_rows(layer.attention_norm);
            const Range own = share(model.num_heads + 2 * model.num_kv_heads, 1, thread, threads);
            for (int64_t head = own.first; head < own.last; ++head) {
                const int64_t first = head * dim;
                multiply(layer.qkv, input, first, first + dim, [&](int64_t row, int64_t output, Floats products) {
                    put(products, &heads[row * dim + output - first]);
                });
                const bool is_query = head < model.num_heads, is_key = !is_query && head < model.num_heads + model.num_kv_heads;
                const float* weight = is_query ? layer.query_norm : is_key ? layer.key_norm : nullptr;
                for (int64_t row = 0; row < rows; ++row) {
                    float* one = &heads[row * dim];
                    if (weight) norm(one, weight, dim, model.epsilon, one);
                    if (is_query || is_key) turn(one, &angles[row * dim], dim);
                    if (is_query) {
                        std::copy(one, one + dim, &queries[row * query_size + head * dim]);
                    } else {
                        const int64_t kv_head = (head - model.num_heads) % model.num_kv_heads;
                        Cache* to = (is_key ? keys : values) + (slots[row] * model.num_kv_heads + kv_head) * dim;
                        for (int64_t at = 0; at < dim; at += kLanes) put(load<Floats>(one + at), to + at);
                    }
                }
            }
#pragma omp barrier
#pragma omp for schedule(dynamic)
            for (int64_t task = 0; task < rows * model.num_kv_heads; ++task) {
                const int64_t row = task / model.num_kv_heads, kv_head = task % model.num_kv_heads;
                const int64_t at = row * query_size + kv_head * group * dim;
                attend<Cache>(model, layer, step.tables[layer.group] + step.starts[layer.group][row], step.positions[row], kv_head,
                              &queries[at], &attended[at], space);
            }
            const Range outputs = share(hidden, kLanes, thread, threads);
            input.take(attended.data(), rows, query_size);
            multiply(layer.output, input, outputs.first, outputs.last, add);
#pragma omp barrier
            normed_rows(layer.mlp_norm);
            const Range inner = share(model.intermediate, kLanes, thread, threads);
            const int64_t width = model.intermediate;
            multiply(layer.gate, input, inner.first, inner.last, [&](int64_t row, int64_t output, Floats products) {
                put(products, &gated[row * width + output]);
            });
            multiply(layer.up, input, inner.first, inner.last, [&](int64_t row, int64_t output, Floats products) {
                float* gate = &gated[row * width + output];
                for (int64_t lane = 0; lane < kLanes; ++lane)  // SwiGLU (arXiv 2002.05202)
                    gate[lane] = gate[lane] / (1 + exponential(-gate[lane])) * products[lane];
            });
#pragma omp barrier
            input.take(gated.data(), rows, width);
            multiply(layer.down, input, outputs.first, outputs.last, add);
#pragma omp barrier
        }

#pragma omp for
        for (int64_t row = 0; row < step.num_logits; ++row)
            norm(&x[step.logits_rows[row] * hidden], model.norm, hidden, model.epsilon, &last[row * hidden]);
        input.take(last.data(), step.num_logits, hidden);
        const Range words = share(model.head.outputs, kLanes, thread, threads);
        multiply(model.head, input, words.first, words.last, [&](int64_t row, int64_t output, Floats products) {
            const int64_t count = std::min(kLanes, model.vocab_size - output);
            std::memcpy(step.logits + row * model.vocab_size + output, &products, count * sizeof(float));
        });
    }
}

}  // namespace

extern "C" {

void deskmate_step_float32(const Model* model, const Step* step) { run<float, float>(*model, *step); }
void deskmate_step_bfloat16(const Model* model, const Step* step) { run<bf16, bf16>(*model, *step); }
void deskmate_step_int8(const Model* model, const Step* step) { run<int8_t, bf16>(*model, *step); }
}
