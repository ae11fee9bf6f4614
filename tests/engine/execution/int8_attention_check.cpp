// Attention over the int8 cache, of decodes and of prompts, against a slow reference on what the cache holds, in a
// program of its own: it runs under QEMU, too, as processors that are not here. Prints the largest error of each kernel;
// exit status 1 if one is too large.
#include <cmath>
#include <cstdio>
#include <random>

#include "int8_attention.h"
#include "prefill_attention_simd.h"

namespace {

struct Case {
    int64_t position, num_queries, num_heads, num_kv_heads, dim, window, block_size;
    float softcap;
};

// A cache with random keys and values up to the last query's own. All other scales are NaN, so none of them may be used.
struct Cache {
    Model model{};
    Layer layer{};
    std::vector<int8_t> keys, values;
    std::vector<float> key_scales, value_scales, queries;
    std::vector<int32_t> table;
    Case shape;

    explicit Cache(const Case& given) : shape(given) {
        std::mt19937 dice(1);
        std::normal_distribution<float> draw;
        const int64_t length = given.position + given.num_queries, size = given.block_size,
                      blocks = (length + size - 1) / size + 1, numbers = blocks * size * given.num_kv_heads;
        keys.assign(numbers * given.dim, 77);
        values.assign(numbers * given.dim, 77);
        key_scales.assign(numbers, NAN);
        value_scales.assign(numbers, NAN);
        for (int64_t block = blocks; block-- > 0;) table.push_back(int32_t(block));
        model.num_heads = given.num_heads, model.num_kv_heads = given.num_kv_heads;
        model.head_dim = given.dim, model.block_size = size;
        layer.keys = keys.data(), layer.values = values.data();
        layer.key_scales = key_scales.data(), layer.value_scales = value_scales.data();
        layer.window = given.window, layer.softcap = given.softcap;
        layer.attention_scale = 1 / std::sqrt(float(given.dim));
        std::vector<float> head(given.dim);
        for (int64_t at = 0; at < length; ++at)
            for (int64_t kv_head = 0; kv_head < given.num_kv_heads; ++kv_head)
                for (const bool is_key : {true, false}) {
                    for (float& number : head) number = draw(dice);
                    store_int8(head.data(), given.dim, is_key, table[at / size] * size + at % size, kv_head, model,
                               is_key ? keys.data() : values.data(), is_key ? key_scales.data() : value_scales.data());
                }
        queries.resize(given.num_queries * given.num_heads * given.dim);
        for (float& number : queries) number = draw(dice);
    }

    int64_t scale_at(int64_t position, int64_t kv_head) const {
        const int64_t size = shape.block_size;
        return (table[position / size] * shape.num_kv_heads + kv_head) * size + position % size;
    }
    // Numbers of the key and of the value at a position, as int8_cache.h arranges them.
    double key(int64_t position, int64_t kv_head, int64_t d) const {
        const int64_t at = scale_at(position, kv_head), in_block = position % shape.block_size;
        const int64_t first = (at - in_block) * shape.dim;
        return keys[first + ((in_block / 16 * shape.dim / 4 + d / 4) * 16 + in_block % 16) * 4 + d % 4] *
               double(key_scales[at]);
    }
    double value(int64_t position, int64_t kv_head, int64_t d) const {
        const int64_t at = scale_at(position, kv_head), in_block = position % shape.block_size;
        const int64_t first = (at - in_block) * shape.dim;
        return values[first + ((in_block / 4 * shape.dim / 16 + d / 16) * 16 + d % 16) * 4 + in_block % 4] *
               double(value_scales[at]);
    }

    std::vector<double> expected() const {
        std::vector<double> result(queries.size());
        for (int64_t row = 0; row < shape.num_queries; ++row)
            for (int64_t head = 0; head < shape.num_heads; ++head) {
                const int64_t kv_head = head / (shape.num_heads / shape.num_kv_heads), last = shape.position + row;
                const float* query = queries.data() + (row * shape.num_heads + head) * shape.dim;
                double* out = result.data() + (row * shape.num_heads + head) * shape.dim;
                double sum = 0;
                for (int64_t at = window_start(layer, last); at <= last; ++at) {
                    double score = 0;
                    for (int64_t d = 0; d < shape.dim; ++d) score += query[d] * key(at, kv_head, d);
                    score *= layer.attention_scale;
                    if (layer.softcap != 0) score = layer.softcap * std::tanh(score / layer.softcap);
                    const double prob = std::exp(score);
                    sum += prob;
                    for (int64_t d = 0; d < shape.dim; ++d) out[d] += prob * value(at, kv_head, d);
                }
                for (int64_t d = 0; d < shape.dim; ++d) out[d] /= sum;
            }
        return result;
    }

    std::vector<double> decoded() const {
        std::vector<double> result(queries.size());
        AttentionScratch scratch;
        for (int64_t row = 0; row < shape.num_queries; ++row) {
            const int64_t position = shape.position + row, splits = num_splits(layer, position);
            std::vector<PartialAttention> partials(splits);
            const int64_t size = shape.num_heads * shape.dim;
            for (int64_t split = 0; split < splits; ++split)
                attend_int8_split(model, layer, table.data(), position, split, queries.data() + row * size, scratch,
                                  partials[split]);
            for (int64_t head = 0; head < shape.num_heads; ++head) {
                double highest = -INFINITY, sum = 0;
                for (const auto& one : partials) highest = std::max(highest, double(one.softmax[head].row_max));
                double* out = result.data() + row * size + head * shape.dim;
                for (const auto& one : partials) {
                    const double weight = std::exp(one.softmax[head].row_max - highest);
                    sum += weight * one.softmax[head].row_sum;
                    for (int64_t d = 0; d < shape.dim; ++d) out[d] += weight * one.sums[head * shape.dim + d];
                }
                for (int64_t d = 0; d < shape.dim; ++d) out[d] /= sum;
            }
        }
        return result;
    }

    template <typename Compute>
    std::vector<double> prefilled() const {
        std::vector<double> result(queries.size());
        AttentionScratch scratch;
        const int64_t size = shape.num_heads * shape.dim, heads = shape.num_heads / shape.num_kv_heads;
        for (int64_t kv_head = 0; kv_head < shape.num_kv_heads; ++kv_head) {
            const PagedKV<int8_t> cache(model, layer, table.data(), kv_head);
            SimdPrefillAttention<int8_t, Compute> prefill(model, layer, cache, kv_head, shape.position,
                                                          shape.num_queries, scratch);
            const int64_t first = kv_head * heads * shape.dim;
            prefill.attend(queries.data() + first, size, [&](int64_t query, int64_t number, Floats attended) {
                for (int64_t lane = 0; lane < kLanes; ++lane)
                    result[query * size + first + number + lane] = attended[lane];
            });
        }
        return result;
    }
};

double error(const std::vector<double>& found, const std::vector<double>& expected) {
    double difference = 0, size = 0;
    for (size_t at = 0; at < expected.size(); ++at) {
        difference += (found[at] - expected[at]) * (found[at] - expected[at]);
        size += expected[at] * expected[at];
    }
    return std::sqrt(difference / size);
}

}  // namespace

int main() {
    const Case cases[] = {
        {0, 9, 1, 1, 16, 0, 16, 0},     {37, 12, 4, 2, 64, 0, 16, 0},    {250, 20, 6, 2, 48, 0, 32, 0},
        {300, 33, 9, 3, 64, 0, 16, 0},  {300, 10, 8, 1, 80, 100, 16, 0}, {129, 8, 3, 1, 128, 7, 48, 5},
        {500, 9, 10, 2, 256, 0, 16, 2},
    };
    double decode = 0, prefill = 0, rounded = 0;
    for (const Case& one : cases) {
        const Cache cache(one);
        const auto expected = cache.expected();
        const auto larger = [](double worst, double found) { return found <= worst ? worst : found; };  // NaN is larger
        decode = larger(decode, error(cache.decoded(), expected));
        prefill = larger(prefill, error(cache.prefilled<float>(), expected));
        rounded = larger(rounded, error(cache.prefilled<bf16>(), expected));
    }
    std::printf("decode %.1e\nprefill %.1e\nbfloat16 %.1e\n", decode, prefill, rounded);
    return decode < 3e-4 && prefill < 1e-5 && rounded < 1e-2 ? 0 : 1;
}
