// The model's weights, sizes and caches: structures that Python fills in, without code.
//
// engine/execution/native/decoder.py declares the same structures field by field (ctypes). All pointers are to memory
// that Python keeps alive; all but keys and values are read-only here. Dimensions in brackets, row-major and
// contiguous: the last is the fastest. Dtypes of untyped pointers follow the number format that a step function is
// compiled for:
//   number format  weights, except lm_head  lm_head   embedding, keys, values
//   float32        float32                  float32   float32
//   bfloat16       bfloat16                 bfloat16  bfloat16
//   int8           int8                     int8      bfloat16
//   int4           4 bits                   int8      bfloat16
#pragma once

#include <cstdint>

extern "C" {

// A linear layer, or several that read the same inputs, packed by engine/execution/native/weights.py. Outputs are
// padded with zeros to a multiple of 16; gemm.h describes the layout of the weight.
struct PackedLinear {
    const void* weight;  // aligned to cache lines
    const void* scales;  // int8: float32 [outputs]; 4 bits: bfloat16 [outputs / 16, inputs / 32, 16]; else null
    const int32_t* weight_sums;  // int8: [outputs], the sum of each output's weights; else null
    const float* bias;  // [outputs], or null
    int64_t outputs;  // a multiple of 16
};

struct Layer {
    const float* attention_norm;  // [hidden]
    const float* query_norm;  // [head_dim], or null
    const float* key_norm;  // [head_dim], or null
    const float* mlp_norm;  // [hidden]
    PackedLinear qkv;  // the outputs of all query heads, then of all key heads, then of all value heads
    PackedLinear output;
    PackedLinear gate_up;  // interleaved: sixteen outputs of the gate, then sixteen of up
    PackedLinear down;
    void *keys, *values;  // [num_blocks, block_size, num_kv_heads, head_dim]
    int64_t window;  // sliding window in tokens; 0 for none
    int64_t group;  // index of the cache group whose block tables and slots the layer uses
};

struct Model {
    const Layer* layers;  // [num_layers]
    const void* embedding;  // [vocab_size, hidden]
    const float* norm;  // [hidden], after the last layer
    const float* inv_freq;  // [head_dim / 2], radians per position
    PackedLinear lm_head;
    int64_t num_layers, hidden, intermediate, num_heads, num_kv_heads, head_dim, vocab_size, block_size;
    float epsilon, attention_scale, rotary_scale;
};
}
