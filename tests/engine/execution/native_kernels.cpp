// The decoder's kernels, one at a time, for test_native_kernels.py to compare with slow references.
#include "forward.h"

namespace {

template <typename Cache>
void attend(const Model* model, const Layer* layer, const int32_t* block_table, int64_t position, int64_t num_queries,
            const float* queries, float* output) {
    const int64_t heads_per_kv = model->num_heads / model->num_kv_heads, width = model->num_heads * model->head_dim;
    AttentionScratch scratch;
    for (int64_t kv_head = 0; kv_head < model->num_kv_heads; ++kv_head) {
        const int64_t first = kv_head * heads_per_kv * model->head_dim;
        const PagedKV<Cache> cache(*model, *layer, block_table, kv_head);
        SimdPrefillAttention<Cache> prefill(*model, *layer, cache, kv_head, position, num_queries, scratch);
        prefill.attend(queries + first, width, [&](int64_t query, int64_t number, Floats attended) {
            store(attended, output + query * width + first + number);
        });
    }
}

// One query after another, as decodes.
template <typename Cache>
void decode(const Model* model, const Layer* layer, const int32_t* block_table, int64_t position, int64_t num_queries,
            const float* queries, float* output) {
    const int64_t dim = model->head_dim, width = model->num_heads * dim;
    const PagedKV<Cache> cache(*model, *layer, block_table, 0);
    AttentionScratch scratch;
    for (int64_t query = 0; query < num_queries; ++query) {
        const int64_t splits = num_splits(*layer, position + query);
        std::vector<PartialAttention> partials(splits);
        for (int64_t split = 0; split < splits; ++split)
            attend_split<Cache>(*model, *layer, cache, position + query, split, queries + query * width, scratch,
                                partials[split]);
        for (int64_t head = 0; head < model->num_heads; ++head)
            combine_splits(partials.data(), splits, head, dim, scratch, [&](int64_t d, Floats attended) {
                store(attended, output + query * width + head * dim + d);
            });
    }
}

}  // namespace

extern "C" {

// queries and output: [num_queries, num_heads, head_dim].
void attend_float32(const Model* model, const Layer* layer, const int32_t* block_table, int64_t position,
                    int64_t num_queries, const float* queries, float* output) {
    attend<float>(model, layer, block_table, position, num_queries, queries, output);
}

void attend_bfloat16(const Model* model, const Layer* layer, const int32_t* block_table, int64_t position,
                     int64_t num_queries, const float* queries, float* output) {
    attend<bf16>(model, layer, block_table, position, num_queries, queries, output);
}

void decode_float32(const Model* model, const Layer* layer, const int32_t* block_table, int64_t position,
                    int64_t num_queries, const float* queries, float* output) {
    decode<float>(model, layer, block_table, position, num_queries, queries, output);
}

void decode_bfloat16(const Model* model, const Layer* layer, const int32_t* block_table, int64_t position,
                     int64_t num_queries, const float* queries, float* output) {
    decode<bf16>(model, layer, block_table, position, num_queries, queries, output);
}

// count: a multiple of sixteen.
void probabilities(const float* x, int64_t count, float* output) {
    for (int64_t at = 0; at < count; at += kLanes) store(probability(load<Floats>(x + at)), output + at);
}

// Whether a bfloat16 cache is multiplied in bfloat16, so that queries and probs are rounded.
bool rounds_to_bfloat16() {
#if defined(__AVX512BF16__)
    return true;
#else
    return false;
#endif
}
}
