// One step's rows, block tables and adapters: a structure that Python fills in (_Step of decoder.py), or multi_step.h.
//
// A row is one token of one sequence. The rows of a sequence are adjacent and in order of their positions; sequences
// follow one another. Memory is the caller's; only the logits are written.
#pragma once

#include <cstdint>

extern "C" {

// The low-rank update of linear layers that are packed as one; lora.h describes it, lora.py packs it.
struct LoraLinear {
    const float* a;  // [num_shrunk, num_inputs]
    const float* b;  // [outputs / 16, rank, 16]
    const int32_t* first;  // [outputs / 16]: of the shrunk numbers that a panel reads; -1 for a panel without an update
    int64_t num_inputs, num_shrunk, rank;  // num_shrunk is a multiple of rank, which is one of 8; all 0 for no update
};

struct LoraLayer {
    LoraLinear qkv, output, gate_up, down;
};

struct Step {
    const int64_t *tokens, *positions;  // [num_rows]
    const int64_t* logits_rows;  // [num_logits]: the rows whose logits are computed
    const int64_t* query_lens;  // [num_sequences]: rows of each sequence
    const int64_t* const* slots;  // for each cache group [num_rows]: block * block_size + offset, of a row in the cache
    const int32_t* const* block_tables;  // for each cache group: the block tables of all sequences, one after another
    const int64_t* const* table_offsets;  // for each cache group [num_sequences]: start of a sequence's block table
    const LoraLayer* const* adapters;  // [num_rows]: the layers of a row's adapter, or null; null if no row has one
    float* logits;  // [num_logits, vocab_size]
    int64_t num_rows, num_logits, num_sequences, num_threads;
    int64_t max_shrunk;  // the largest num_shrunk of the adapters
};
}
