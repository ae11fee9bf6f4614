// The model's weights, sizes and caches: structures that Python fills in, without code.
//
// engine/execution/native/decoder.py declares the same structures field by field (ctypes). All pointers are to memory
// that Python keeps alive; all but keys, values and their scales are read-only here. Dimensions in brackets, row-major and
// contiguous: the last is the fastest. Dtypes of untyped pointers follow the number format that a step function is
// compiled for:
//   number format  weights, except lm_head  lm_head   embedding, keys, values
//   float32        float32                  float32   float32
//   bfloat16       bfloat16                 bfloat16  bfloat16
//   int8           int8                     int8      bfloat16
//   int4           4 bits                   int8      bfloat16
//   blocks         GGML's block formats     the same  bfloat16; the embedding has block formats
#pragma once

#include <cstdint>

extern "C" {

// A linear layer, or several that read the same inputs, packed by engine/execution/native/weights.py. Outputs are
// padded with zeros to a multiple of 16; gemm.h describes the layout of the weight.
struct PackedLinear {
    const void* weight;  // aligned to cache lines; blocks: Panel [outputs / 16], the addresses of block_formats.h
    const void* scales;  // int8: float32 [outputs]; 4 bits: bfloat16 [outputs / 16, inputs / 32, 16]; else null
    const int32_t* weight_sums;  // int8: [outputs], the sum of each output's weights; else null
    const float* bias;  // [outputs], or null
    int64_t outputs;  // a multiple of 16
};

// A mixture of experts (arXiv 2101.03961): each token's MLP is a sum of the outputs of per_token of count MLPs, the most
// probable ones by a softmax over router . row + router_bias, weighted with these probabilities times scale.
struct Experts {
    const PackedLinear *gate_up, *down;  // [count], as in Layer
    const void* router;  // [count, hidden], in the dtype of the embedding
    const float* router_bias;  // [count], or null
    int64_t count, per_token, intermediate;
    int64_t is_normalized;  // whether the probabilities of the chosen experts are divided by their sum
    float scale;
};

struct Layer {
    const float* attention_norm;  // [hidden], of the input of attention; or null
    const float* query_norm;  // [head_dim], or over all query heads [num_heads * head_dim]; or null
    const float* key_norm;  // as query_norm, for the key heads
    const float* attention_output_norm;  // [hidden], of the output of attention before it is added; or null
    const float* mlp_norm;  // [hidden], of the input of the MLP; or null
    const float* mlp_output_norm;  // [hidden], of the output of the MLP before it is added; or null
    const float* sinks;  // [num_heads]: scores that take part in each head's softmax without a value; or null
    PackedLinear qkv;  // the outputs of all query heads, then of all key heads, then of all value heads
    PackedLinear output;
    PackedLinear gate_up;  // interleaved: sixteen outputs of the gate, then sixteen of up
    PackedLinear down;
    const Experts* experts;  // in place of gate_up and down; or null
    void *keys, *values;  // [num_blocks, block_size, num_kv_heads, head_dim]; in int8 as int8_cache.h says
    float *key_scales, *value_scales;  // [num_blocks, num_kv_heads, block_size] of an int8 cache; else null
    int64_t window;  // sliding window in tokens; 0 for none
    int64_t group;  // index of the cache group whose block tables and slots the layer uses
    int64_t rotary;  // index of the layer's rotary embedding, or -1 for none
    float attention_scale;  // of the scores
    float softcap;  // of the scaled scores: softcap * tanh(score / softcap); 0 for none
    float attention_multiplier, mlp_multiplier;  // of what attention and MLP add to the residual stream
};

// A rotary position embedding of the first 2 * num_frequencies numbers of each head.
struct Rotary {
    const float* inv_freq;  // [num_frequencies], radians per position
    int64_t num_frequencies;
    float scale;  // of cosines and sines
    int32_t is_interleaved;  // whether neighbours form a pair, instead of a number in each half
};

struct Model {
    const Layer* layers;  // [num_layers]
    const void* embedding;  // [vocab_size, hidden]
    const float* norm;  // [hidden], after the last layer
    const Rotary* rotary;  // [num_rotary]
    PackedLinear lm_head;
    int64_t num_layers, hidden, intermediate, num_heads, num_kv_heads, head_dim, vocab_size, block_size, num_rotary;
    int64_t activation;  // of the gate: kSilu or kGeluTanh of elementwise.h
    int64_t norms_all_heads;  // whether query_norm and key_norm are over all heads instead of each
    float activation_alpha, activation_limit, up_offset;  // see gated() of elementwise.h
    float epsilon;  // of all norms
    float embedding_scale;
    float logits_scale;
    float logits_softcap;  // of the scaled logits: softcap * tanh(logit / softcap); 0 for none
};
}
