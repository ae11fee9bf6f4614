// One step's rows and block tables: a structure that Python fills in (_Step of decoder.py), or multi_step.h.
//
// A row is one token of one sequence. The rows of a sequence are adjacent and in order of their positions; sequences
// follow one another. Memory is the caller's; only the logits are written.
#pragma once

#include <cstdint>

extern "C" {

struct Step {
    const int64_t *tokens, *positions;  // [num_rows]
    const int64_t* logits_rows;  // [num_logits]: the rows whose logits are computed
    const int64_t* query_lens;  // [num_sequences]: rows of each sequence
    const int64_t* const* slots;  // for each cache group [num_rows]: block * block_size + offset, of a row in the cache
    const int32_t* const* block_tables;  // for each cache group: the block tables of all sequences, one after another
    const int64_t* const* table_offsets;  // for each cache group [num_sequences]: start of a sequence's block table
    float* logits;  // [num_logits, vocab_size]
    int64_t num_rows, num_logits, num_sequences, num_threads;
};
}
