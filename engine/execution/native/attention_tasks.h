// Divides the attention of a step among its threads.
//
// A task is one of
//   a prefill chunk: the queries of one sequence and one kv head (prefill_attention.h, prefill_attention_simd.h)
//   a row: one query, all heads, all of its splits (decode_attention.h)
//   a split of a row: if a step has few rows, threads divide the keys of each
// Tasks are the same for all layers of a cache group. One thread lists them; threads take them one by one.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "decode_attention.h"
#include "int8_attention.h"
#include "prefill_attention.h"
#include "prefill_attention_simd.h"
#include "step.h"

constexpr int64_t kAllSplits = -1;

struct AttentionTask {
    int64_t row, num_rows;  // rows of the step
    int64_t position;  // of the first row
    int64_t kv_head;  // of a prefill chunk, else 0
    int64_t split;  // of a row, or kAllSplits
    const int32_t* block_table;
};

// Returns the fewest rows of a sequence that make a prefill chunk.
template <typename Cache>
int64_t min_prefill_queries([[maybe_unused]] const Layer& layer) {
#ifdef DESKMATE_AMX
    if (std::is_same_v<Cache, bf16> && !layer.key_scales && amx_available()) return kMinPrefillQueries;
#endif
    return kMinSimdPrefillQueries;
}

// Whether threads divide the keys of each row, because the rows are too few to divide.
inline bool uses_split_kv(const Step& step) { return step.num_rows < 2 * step.num_threads; }

// Lists the attention tasks of a step for the layers of a cache group; long chunks first, so that short ones balance
// the load between the threads. The splits of a row are adjacent and in order; a sliding window may leave some of them
// empty.
template <typename Cache>
void list_attention_tasks(const Model& model, const Step& step, int64_t cache_group,
                          std::vector<AttentionTask>& tasks) {
    tasks.clear();
    for (int64_t sequence = 0, first = 0; sequence < step.num_sequences; first += step.query_lens[sequence++]) {
        const int64_t length = step.query_lens[sequence];
        const int32_t* table = step.block_tables[cache_group] + step.table_offsets[cache_group][sequence];
        if (length >= min_prefill_queries<Cache>(model.layers[0])) {
            for (int64_t head = 0; head < model.num_kv_heads; ++head)
                tasks.push_back({first, length, step.positions[first], head, kAllSplits, table});
            continue;
        }
        for (int64_t row = first; row < first + length; ++row) {
            const int64_t position = step.positions[row];
            if (!uses_split_kv(step)) {
                tasks.push_back({row, 1, position, 0, kAllSplits, table});
                continue;
            }
            for (int64_t split = 0; split <= position / kKeysPerSplit; ++split)
                tasks.push_back({row, 1, position, 0, split, table});
        }
    }
    std::stable_sort(tasks.begin(), tasks.end(),
                     [](const AttentionTask& a, const AttentionTask& b) { return a.num_rows > b.num_rows; });
}
