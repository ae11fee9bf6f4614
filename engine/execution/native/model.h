// The structures that Python fills in; engine/execution/native/decoder.py has the same ones, field by field.
#pragma once

#include <cstdint>

extern "C" {

struct PackedLinear {
    const void* weight;  // as engine/execution/native/weights.py lays it out for each number format
    const void* scales;  // 8-bit weights: float [outputs]; 4-bit weights: bf16 [outputs / 16, inputs / 32, 16]
    const int32_t* sums;  // 8-bit weights: [outputs], the sum of each output's weights
    const float* bias;  // [outputs], or null
    int64_t outputs;  // a multiple of 16
};

struct Layer {
    const float* attention_norm;  // [hidden]
    const float* query_norm;  // [head_dim], or null
    const float* key_norm;
    const float* mlp_norm;
    PackedLinear qkv, output;
    PackedLinear gate_up;  // interleaved: sixteen outputs of the gate, then sixteen of up
    PackedLinear down;
    void *keys, *values;  // [num_blocks, block_size, num_kv_heads, head_dim]
    int64_t window;  // sliding window in tokens; 0 for none
    int64_t group;  // the group whose block tables the layer uses
};

struct Model {
    const Layer* layers;
    const void* embedding;  // [vocab_size, hidden]
    const float* norm;
    const float* inv_freq;  // [head_dim / 2]
    PackedLinear lm_head;
    int64_t num_layers, hidden, intermediate, num_heads, num_kv_heads, head_dim, vocab_size, block_size;
    float epsilon, attention_scale, rotary_scale;
};

struct Step {
    const int64_t *tokens, *positions;  // [num_rows]
    const int64_t* logits_rows;  // [num_logits]
    const int64_t* query_lens;  // [num_sequences]: number of rows of each sequence, which are packed one after another
    const int64_t* const* slots;  // for each group [num_rows]: where a row's key and value go
    const int32_t* const* block_tables;  // for each group the block tables of all sequences, one after another
    const int64_t* const* table_offsets;  // for each group [num_sequences]: where a sequence's table begins
    float* logits;  // [num_logits, vocab_size]
    int64_t num_rows, num_logits, num_sequences, num_threads;
};
}
