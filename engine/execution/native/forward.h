// Computes a whole step of a decoder with rotary attention, RMS norms and a gated MLP (Llama, arXiv 2302.13971, and
// similar models). In a short step, a framework spends more time between the operators than in them.
//
// x, the residual stream, starts as embedding[token] * embedding_scale. Then, for each layer,
//   project_qkv     queries, keys, values = qkv(norm(x)); norm and rotary embedding; keys and values to the cache
//   attend          attended = attention(queries, cache)
//   project_output  x += norm(output(attended)) * attention_multiplier
//   mlp             x += norm(down(activation(gate(norm(x))) * up(norm(x)))) * mlp_multiplier; with experts, their
//                   weighted sum takes the place of down(...)
// The products of qkv, output, gate, up and down have the updates of a row's adapter added (lora.h).
// Then logits = soft_cap(lm_head(norm(x)) * logits_scale) of the rows that are asked for. Every norm but the last, and
// the rotary embedding, is left out in the layers that have none (model.h).
//
// Memory: between the products, numbers are float32, in StepBuffers: x [num_rows, hidden], queries and attended
// [num_rows, num_heads * head_dim], gated [num_rows, intermediate]. The inputs of the products are PackedRows. Weights
// and keys that were read from memory once are used for all rows of the step.
//
// Threads: all run the same phases, and a barrier (team_barrier.h) follows each phase that another thread reads from. In
// a phase,
//   rows      are divided for the embedding, and for norms and packing from kMinSharedRows rows on
//   outputs   of a product are divided: whole heads of qkv, vectors of the others, so a thread writes its columns of x
//   tasks     of attention are taken one by one (attention_tasks.h)
// Instruction sets: those of gemm.h and the attention kernels.
#pragma once

#include <omp.h>

#include "attention_tasks.h"
#include "block_gemm.h"
#include "elementwise.h"
#include "gemm.h"
#include "lora.h"
#include "model.h"
#include "routing.h"
#include "step.h"
#include "team_barrier.h"

struct Range {
    int64_t first, last;  // last is exclusive
};

// Returns a thread's share of count items, in whole units.
inline Range thread_range(int64_t count, int64_t unit, int64_t thread, int64_t num_threads) {
    const int64_t units = (count + unit - 1) / unit;
    return {std::min(count, units * thread / num_threads * unit),
            std::min(count, units * (thread + 1) / num_threads * unit)};
}

// Packs the rows that the next product reads. Each thread packs a small number of rows for itself, which is faster than
// a barrier; from kMinSharedRows on, the threads share the work.
constexpr int64_t kMinSharedRows = 17;

template <typename Weight>
class GemmInput {
   public:
    // get_row(row) returns float32 [num_inputs]; shared is already resized. own_rows: of this thread, if rows are
    // shared; then barrier() is called.
    template <typename GetRow, typename Barrier>
    PackedRows<Weight>& pack(PackedRows<Weight>& shared, int64_t num_rows, int64_t num_inputs, Range own_rows,
                             const GetRow& get_row, const Barrier& barrier) {
        if (num_rows < kMinSharedRows) {
            own_.resize(num_rows, num_inputs);
            for (int64_t row = 0; row < num_rows; ++row) own_.pack(get_row(row), num_inputs, row);
            return own_;
        }
        for (int64_t row = own_rows.first; row < own_rows.last; ++row) shared.pack(get_row(row), num_inputs, row);
        barrier();
        return shared;
    }

   private:
    PackedRows<Weight> own_;
};

// A step's buffers, shared by its threads and kept for the next step: fresh memory costs more than the computation.
template <typename Weight, typename Head>
struct StepBuffers {
    AlignedVector<float> x, queries, attended, gated;  // attended and gated are not used if they are packed directly
    AlignedVector<float> branch;  // [num_rows, hidden]: output of attention or MLP before its norm
    AlignedVector<float> unnormed;  // [num_rows, heads, head_dim]: queries, then keys, before a norm over all heads
    AlignedVector<float> angles;  // [num_rotary, num_rows, head_dim]
    AlignedVector<float> router_input;  // [num_rows, hidden], if kMinSharedRows or more
    AlignedVector<float> router_scores;  // [num_rows, count]
    AlignedVector<float> expert_gated;  // [num_rows * per_token, intermediate], a row for each route
    AlignedVector<float> final_hidden;  // [num_logits, hidden], after the last norm
    AlignedVector<float> shrunk;  // [num_rows, max_shrunk]: inputs of adapters' second factors
    PackedRows<Weight> normed_rows, attended_rows, gated_rows;
    PackedRows<Head> final_rows;
    std::vector<AttentionTask> tasks;
    std::vector<PartialAttention> partials;  // [tasks], if rows are split
    TeamBarrier barrier;

    void resize(const Model& model, const Step& step) {
        const int64_t rows = step.num_rows, query_size = model.num_heads * model.head_dim;
        ensure_size(x, rows * model.hidden);
        ensure_size(queries, rows * query_size);
        ensure_size(attended, PackedRows<Weight>::kIsDirect ? 0 : rows * query_size);
        ensure_size(gated, PackedRows<Weight>::kIsDirect ? 0 : rows * model.intermediate);
        ensure_size(branch, rows * model.hidden);
        if (model.norms_all_heads) ensure_size(unnormed, rows * (query_size + model.num_kv_heads * model.head_dim));
        ensure_size(angles, model.num_rotary * rows * model.head_dim);
        for (int64_t index = 0; index < model.num_layers; ++index)
            if (const Experts* experts = model.layers[index].experts) {
                ensure_size(router_input, rows * model.hidden);
                ensure_size(router_scores, rows * experts->count);
                ensure_size(expert_gated, rows * experts->per_token * experts->intermediate);
            }
        ensure_size(final_hidden, step.num_logits * model.hidden);
        if (step.adapters) ensure_size(shrunk, rows * step.max_shrunk);
        normed_rows.resize(rows, model.hidden);
        attended_rows.resize(rows, query_size);
        gated_rows.resize(rows, model.intermediate);
        final_rows.resize(step.num_logits, model.hidden);
    }
};

// A thread's own buffers, kept for the next step.
template <typename Weight, typename Head>
struct ThreadBuffers {
    AlignedVector<float> normed;  // [hidden]
    AlignedVector<float> head;  // [num_rows, head_dim]: one head of queries, keys or values
    AlignedVector<float> factors;  // [num_rows, 2]: of the norms over all query heads and over all key heads
    GemmInput<Weight> input;
    AlignedVector<float> router_input;  // [num_rows, hidden], if fewer than kMinSharedRows
    Routing routing;
    PackedRows<Weight> expert_rows;  // of one expert
    GemmInput<Head> final_input;
    AttentionScratch attention;
    std::vector<PartialAttention> partials;  // [splits] of one row
    int64_t patience = kMaxPatience;  // at barriers
};

// One thread's part of a step. All threads of the team call run(), which places the barriers.
//   Weight  number format of the linear layers, except lm_head
//   Head    number format of lm_head
//   Cache   dtype of the embedding, which has block formats if the layers have, and of keys and values that are not int8
template <typename Weight, typename Head, typename Cache>
class StepThread {
   public:
    StepThread(const Model& model, const Step& step, StepBuffers<Weight, Head>& shared,
               ThreadBuffers<Weight, Head>& own)
        : model_(model),
          step_(step),
          shared_(shared),
          own_(own),
          thread_(omp_get_thread_num()),
          num_threads_(omp_get_num_threads()),
          rows_(step.num_rows),
          hidden_(model.hidden),
          dim_(model.head_dim),
          query_size_(model.num_heads * model.head_dim),
          own_rows_(share(rows_, 1)),
          own_heads_(share(model.num_heads + 2 * model.num_kv_heads, 1)),
          own_hidden_(share(hidden_, kLanes)),
          x_(shared.x.data()) {
        ensure_size(own.normed, hidden_);
        ensure_size(own.head, rows_ * dim_);
        ensure_size(own.factors, rows_ * 2);
    }

    void run() {
        embed();
        barrier();
        for (int64_t index = 0; index < model_.num_layers; ++index) {
            const Layer& layer = model_.layers[index];
#pragma omp single nowait
            if (index == 0 || layer.group != model_.layers[index - 1].group) {
                list_attention_tasks<Cache>(model_, step_, layer.group, shared_.tasks);
                if (shared_.partials.size() < shared_.tasks.size()) shared_.partials.resize(shared_.tasks.size());
            }
            project_qkv(layer);
            barrier();
            attend(layer);
            project_output(layer);
            barrier();
            mlp(layer);
            barrier();
        }
        compute_logits();
    }

   private:
    using Rows = PackedRows<Weight>;

    // Waits for the other threads.
    void barrier() { shared_.barrier.wait(num_threads_, own_.patience); }

    Range share(int64_t count, int64_t unit) const { return thread_range(count, unit, thread_, num_threads_); }

    void embed() {
        for (int64_t row = own_rows_.first; row < own_rows_.last; ++row) {
            embed_token(step_.tokens[row], x_ + row * hidden_);
            for (int64_t index = 0; index < model_.num_rotary; ++index)
                rotary_angles(step_.positions[row], model_.rotary[index], angles(index, row));
            if constexpr (Rows::kIsDirect) {
                shared_.attended_rows.pad(query_size_, row);
                shared_.gated_rows.pad(model_.intermediate, row);
            }
        }
    }

    // Returns the cosines and sines of a row.
    float* angles(int64_t rotary, int64_t row) { return shared_.angles.data() + (rotary * rows_ + row) * dim_; }

    void embed_token(int64_t token, float* to) {
        if constexpr (std::is_same_v<Weight, blocks>) {
            dequantize_output(static_cast<const Panel*>(model_.embedding), token, hidden_, to);
            for (int64_t at = 0; at < hidden_; ++at) to[at] *= model_.embedding_scale;
        } else {
            const Cache* from = static_cast<const Cache*>(model_.embedding) + token * hidden_;
            for (int64_t at = 0; at < hidden_; at += kLanes) {
                Cache scaled[kLanes];  // transformers rounds to the embedding's dtype, too
                store(widen(from + at) * model_.embedding_scale, scaled);
                store(widen(scaled), to + at);
            }
        }
    }

    void project_qkv(const Layer& layer) {
        float* const heads = own_.head.data();
        const int64_t num_queries_and_keys = model_.num_heads + model_.num_kv_heads;
        Rows& input = norm_rows(layer.attention_norm);
        const StepUpdates updates = shrink(layer, &LoraLayer::qkv, input);
        for (int64_t head = own_heads_.first; head < own_heads_.last; ++head) {
            const int64_t first = head * dim_;
            multiply(layer.qkv, input, first, first + dim_, updates, [&](int64_t row, int64_t output, Floats products) {
                store(products, heads + row * dim_ + output - first);
            });
            const float* weight = head < model_.num_heads        ? layer.query_norm
                                  : head < num_queries_and_keys ? layer.key_norm
                                                                : nullptr;
            for (int64_t row = 0; row < rows_; ++row) {
                float* one = heads + row * dim_;
                if (model_.norms_all_heads && head < num_queries_and_keys) {
                    std::copy(one, one + dim_, shared_.unnormed.data() + (row * num_queries_and_keys + head) * dim_);
                    continue;
                }
                if (weight) rms_norm(one, weight, dim_, model_.epsilon, one);
                store_head(layer, head, row, one);
            }
        }
        if (!model_.norms_all_heads) return;
        barrier();
        for (int64_t row = 0; row < rows_; ++row) {
            const float* all = shared_.unnormed.data() + row * num_queries_and_keys * dim_;
            own_.factors[2 * row] = rms_factor(all, query_size_, model_.epsilon);
            own_.factors[2 * row + 1] = rms_factor(all + query_size_, model_.num_kv_heads * dim_, model_.epsilon);
        }
        for (int64_t head = own_heads_.first; head < std::min(own_heads_.last, num_queries_and_keys); ++head) {
            const bool is_key = head >= model_.num_heads;
            const float* weight = is_key ? layer.key_norm + (head - model_.num_heads) * dim_
                                         : layer.query_norm + head * dim_;
            for (int64_t row = 0; row < rows_; ++row) {
                const float* one = shared_.unnormed.data() + (row * num_queries_and_keys + head) * dim_;
                const float factor = own_.factors[2 * row + is_key];
#pragma omp simd
                for (int64_t at = 0; at < dim_; ++at) heads[at] = one[at] * factor * weight[at];
                store_head(layer, head, row, heads);
            }
        }
    }

    // Applies the rotary embedding to a head of a row in place, and stores it with the queries or in the cache.
    void store_head(const Layer& layer, int64_t head, int64_t row, float* one) {
        const bool is_query = head < model_.num_heads,
                   is_key = !is_query && head < model_.num_heads + model_.num_kv_heads;
        if ((is_query || is_key) && layer.rotary >= 0)
            apply_rope(one, angles(layer.rotary, row), model_.rotary[layer.rotary]);
        if (is_query) {
            std::copy(one, one + dim_, shared_.queries.data() + row * query_size_ + head * dim_);
            return;
        }
        const int64_t kv_head = (head - model_.num_heads) % model_.num_kv_heads;
        const int64_t slot = step_.slots[layer.group][row];
        if (layer.key_scales)
            return store_int8(one, dim_, is_key, slot, kv_head, model_,
                              static_cast<int8_t*>(is_key ? layer.keys : layer.values),
                              is_key ? layer.key_scales : layer.value_scales);
        Cache* to = static_cast<Cache*>(is_key ? layer.keys : layer.values) +
                    (slot * model_.num_kv_heads + kv_head) * dim_;
        for (int64_t at = 0; at < dim_; at += kLanes) store(load<Floats>(one + at), to + at);
    }

    // Ends with a barrier.
    void attend(const Layer& layer) {
        const std::vector<AttentionTask>& tasks = shared_.tasks;
#pragma omp for schedule(dynamic) nowait
        for (size_t index = 0; index < tasks.size(); ++index) {
            const AttentionTask& task = tasks[index];
            if (task.num_rows > 1) attend_chunk(layer, task);
            else if (task.split == kAllSplits) attend_row(layer, task);
            else if (task.split < num_splits(layer, task.position))
                attend_row_split(layer, task, task.split, shared_.partials[index]);
        }
        barrier();
        if (!uses_split_kv(step_)) return;
#pragma omp for collapse(2) nowait
        for (size_t index = 0; index < tasks.size(); ++index)
            for (int64_t head = 0; head < model_.num_heads; ++head)
                if (tasks[index].split == 0)
                    combine_row(&shared_.partials[index], num_splits(layer, tasks[index].position), head,
                                tasks[index].row);
        barrier();
    }

    void attend_chunk(const Layer& layer, const AttentionTask& task) {
        const int64_t first = task.kv_head * (model_.num_heads / model_.num_kv_heads) * dim_;
        const float* queries = shared_.queries.data() + task.row * query_size_ + first;
        const auto store_output = [&](int64_t query, int64_t number, Floats attended) {
            store_attended(task.row + query, first + number, attended);
        };
        if (layer.key_scales) {
            const PagedKV<int8_t> cache(model_, layer, task.block_table, task.kv_head);
            SimdPrefillAttention<int8_t, Cache> prefill(model_, layer, cache, task.kv_head, task.position,
                                                        task.num_rows, own_.attention);
            return prefill.attend(queries, query_size_, store_output);
        }
        const PagedKV<Cache> cache(model_, layer, task.block_table, task.kv_head);
#ifdef DESKMATE_AMX
        if constexpr (std::is_same_v<Cache, bf16>)
            if (amx_available()) {
                PrefillAttention prefill(model_, layer, cache, task.kv_head, task.position, task.num_rows, own_.attention);
                return prefill.attend(queries, query_size_, tiles_, store_output);
            }
#endif
        SimdPrefillAttention<Cache> prefill(model_, layer, cache, task.kv_head, task.position, task.num_rows,
                                            own_.attention);
        prefill.attend(queries, query_size_, store_output);
    }

    void attend_row(const Layer& layer, const AttentionTask& task) {
        const int64_t splits = num_splits(layer, task.position);
        std::vector<PartialAttention>& partials = own_.partials;
        if (int64_t(partials.size()) < splits) partials.resize(splits);
        for (int64_t split = 0; split < splits; ++split) attend_row_split(layer, task, split, partials[split]);
        for (int64_t head = 0; head < model_.num_heads; ++head) combine_row(partials.data(), splits, head, task.row);
    }

    void attend_row_split(const Layer& layer, const AttentionTask& task, int64_t split, PartialAttention& partial) {
        const float* queries = shared_.queries.data() + task.row * query_size_;
        if (layer.key_scales)
            return attend_int8_split(model_, layer, task.block_table, task.position, split, queries, own_.attention,
                                     partial);
        const PagedKV<Cache> cache(model_, layer, task.block_table, 0);
        attend_split<Cache>(model_, layer, cache, task.position, split, queries, own_.attention, partial);
    }

    void combine_row(const PartialAttention* partials, int64_t splits, int64_t head, int64_t row) {
        combine_splits(partials, splits, head, dim_, own_.attention,
                       [&](int64_t d, Floats attended) { store_attended(row, head * dim_ + d, attended); });
    }

    void store_attended(int64_t row, int64_t number, Floats attended) {
        if constexpr (Rows::kIsDirect) shared_.attended_rows.store_lanes(attended, row, number);
        else store(attended, shared_.attended.data() + row * query_size_ + number);
    }

    void project_output(const Layer& layer) {
        Rows& input = pack_rows(shared_.attended_rows, shared_.attended, query_size_);
        add_to_x(layer.output, input, shrink(layer, &LoraLayer::output, input), layer.attention_output_norm,
                 layer.attention_multiplier);
    }

    // Multiplies rows with gate and up, this thread's outputs of the 2 * inner ones. Calls store_gated(row, number,
    // gated) with sixteen numbers, from number on.
    template <typename StoreGated>
    void gate_up(const PackedLinear& linear, Rows& input, int64_t inner, const StepUpdates& updates,
                 const StoreGated& store_gated) {
        alignas(64) float gates[kMaxRowBlock * kLanes];
        // Sixteen outputs of the gate come first for a block of rows, then the sixteen of up that they open.
        const Range own = share(2 * inner, 2 * kLanes);
        multiply(linear, input, own.first, own.last, updates, [&](int64_t row, int64_t output, Floats products) {
            float* gate = gates + row % kMaxRowBlock * kLanes;
            const bool is_gate = output / kLanes % 2 == 0;
            if (is_gate) return store(products, gate);
            store_gated(row, output / (2 * kLanes) * kLanes, gated(model_, load<Floats>(gate), products));
        });
    }

    void mlp(const Layer& layer) {
        if (layer.experts) return mix_experts(layer, *layer.experts);
        const int64_t inner = model_.intermediate;
        Rows& normed = norm_rows(layer.mlp_norm);
        gate_up(layer.gate_up, normed, inner, shrink(layer, &LoraLayer::gate_up, normed),
                [&](int64_t row, int64_t number, Floats numbers) {
                    if constexpr (Rows::kIsDirect) shared_.gated_rows.store_lanes(numbers, row, number);
                    else store(numbers, shared_.gated.data() + row * inner + number);
                });
        barrier();
        Rows& input = pack_rows(shared_.gated_rows, shared_.gated, inner);
        add_to_x(layer.down, input, shrink(layer, &LoraLayer::down, input), layer.mlp_output_norm,
                 layer.mlp_multiplier);
    }

    // The outputs of each expert's layers are divided among the threads, one expert after another.
    void mix_experts(const Layer& layer, const Experts& experts) {
        const float* rows = router_input(layer.mlp_norm);
        float* const scores = shared_.router_scores.data();
        const auto* router = static_cast<const Cache*>(experts.router);
        const Range own = share(rows_ * experts.count, 1);
        for (int64_t at = own.first; at < own.last; ++at) {
            const int64_t row = at / experts.count, expert = at % experts.count;
            scores[at] = dot(rows + row * hidden_, router + expert * hidden_, hidden_) +
                         (experts.router_bias ? experts.router_bias[expert] : 0);
        }
        barrier();
        Routing& routing = own_.routing;
        routing.choose(experts, scores, rows_);
        const int64_t inner = experts.intermediate;
        float* const gated = shared_.expert_gated.data();
        for (int64_t expert = 0; expert < experts.count; ++expert) {
            const int64_t first = routing.starts[expert], count = routing.starts[expert + 1] - first;
            if (count == 0) continue;
            Rows& input = pack_routes(count, hidden_, [&](int64_t at) {
                return rows + routing.routes[first + at].row * hidden_;
            });
            gate_up(experts.gate_up[expert], input, inner, StepUpdates(step_),
                    [&](int64_t at, int64_t number, Floats numbers) {
                        store(numbers, gated + (first + at) * inner + number);
                    });
        }
        float* const to = layer.mlp_output_norm ? shared_.branch.data() : x_;
        const float multiplier = layer.mlp_output_norm ? 1 : layer.mlp_multiplier;
        if (layer.mlp_output_norm)
            for (int64_t row = 0; row < rows_; ++row)
                std::fill(to + row * hidden_ + own_hidden_.first, to + row * hidden_ + own_hidden_.last, 0.0f);
        barrier();
        for (int64_t expert = 0; expert < experts.count; ++expert) {
            const int64_t first = routing.starts[expert], count = routing.starts[expert + 1] - first;
            if (count == 0) continue;
            Rows& input = pack_routes(count, inner, [&](int64_t at) { return gated + (first + at) * inner; });
            const auto add = [&](int64_t at, int64_t output, Floats products) {
                const Route& route = routing.routes[first + at];
                float* sum = to + route.row * hidden_ + output;
                store(load<Floats>(sum) + products * (route.weight * multiplier), sum);
            };
            gemm(experts.down[expert], input, own_hidden_.first, own_hidden_.last, tiles_, add);
        }
        if (!layer.mlp_output_norm) return;
        barrier();
        add_branch(layer.mlp_output_norm, layer.mlp_multiplier);
    }

    // Returns the rows of x, normed if there is a weight.
    const float* router_input(const float* weight) {
        if (!weight) return x_;
        const bool is_shared = rows_ >= kMinSharedRows;
        float* const to =
            is_shared ? shared_.router_input.data() : ensure_size(own_.router_input, kMinSharedRows * hidden_);
        const Range rows = is_shared ? own_rows_ : Range{0, rows_};
        for (int64_t row = rows.first; row < rows.last; ++row)
            rms_norm(x_ + row * hidden_, weight, hidden_, model_.epsilon, to + row * hidden_);
        if (is_shared) barrier();
        return to;
    }

    // Packs the rows of one expert; get_row(at) returns float32 [width].
    template <typename GetRow>
    Rows& pack_routes(int64_t count, int64_t width, const GetRow& get_row) {
        own_.expert_rows.resize(count, width);
        for (int64_t at = 0; at < count; ++at) own_.expert_rows.pack(get_row(at), width, at);
        return own_.expert_rows;
    }

    void compute_logits() {
        float* const final_hidden = shared_.final_hidden.data();
        const Range own_logits = share(step_.num_logits, 1);
        for (int64_t row = own_logits.first; row < own_logits.last; ++row)
            rms_norm(x_ + step_.logits_rows[row] * hidden_, model_.norm, hidden_, model_.epsilon,
                     final_hidden + row * hidden_);
        barrier();
        PackedRows<Head>& input =
            own_.final_input.pack(shared_.final_rows, step_.num_logits, hidden_, own_logits,
                                  [&](int64_t row) { return final_hidden + row * hidden_; }, [&] { barrier(); });
        const Range outputs = share(model_.lm_head.outputs, kLanes);
        const float scale = model_.logits_scale, softcap = model_.logits_softcap;
        const auto store_logits = [&](int64_t row, int64_t output, Floats products) {
            products *= scale;
            if (softcap) products = soft_cap(products, softcap);
            const int64_t count = std::min(kLanes, model_.vocab_size - output);  // the last panel may be padded
            std::memcpy(step_.logits + row * model_.vocab_size + output, &products, count * sizeof(float));
        };
        gemm(model_.lm_head, input, outputs.first, outputs.last, tiles_, store_logits);
    }

    // Prepares the adapters' updates of a group of linear layers that read these rows. Ends with a barrier if there are
    // any. A barrier lies between the use of the updates and the next call, because its rows depend on all products.
    StepUpdates shrink(const Layer& layer, const LoraLinear LoraLayer::*linear, Rows& input) {
        const StepUpdates updates(step_, linear, &layer - model_.layers, shared_.shrunk.data());
        if (!updates.is_needed()) return updates;
        const Range own = share(updates.num_parts(), 1);
        updates.shrink(input, own.first, own.last);
        barrier();
        return updates;
    }

    // Calls gemm(), with the adapters' updates added to the products.
    template <typename Epilogue>
    void multiply(const PackedLinear& linear, Rows& input, int64_t first, int64_t last, const StepUpdates& updates,
                  const Epilogue& epilogue) {
        const bool is_updated = updates.is_needed();
        gemm(linear, input, first, last, tiles_, [&](int64_t row, int64_t output, Floats products) {
            epilogue(row, output, is_updated ? updates.add(row, output, products) : products);
        });
    }

    // Returns the rows of x, packed, and normed if there is a weight.
    Rows& norm_rows(const float* weight) {
        float* const normed = own_.normed.data();
        return own_.input.pack(shared_.normed_rows, rows_, hidden_, own_rows_, [&](int64_t row) {
            if (!weight) return x_ + row * hidden_;
            rms_norm(x_ + row * hidden_, weight, hidden_, model_.epsilon, normed);
            return normed;
        }, [&] { barrier(); });
    }

    // Returns rows that were stored packed, or packs them now that they are complete: a quantized row needs all its
    // numbers.
    Rows& pack_rows(Rows& rows, const AlignedVector<float>& from, int64_t width) {
        if constexpr (Rows::kIsDirect) return rows;
        return own_.input.pack(rows, rows_, width, own_rows_, [&](int64_t row) { return from.data() + row * width; },
                               [&] { barrier(); });
    }

    // Adds the product to the residual stream, normed if there is a weight, and multiplied.
    void add_to_x(const PackedLinear& linear, Rows& input, const StepUpdates& updates, const float* weight,
                  float multiplier) {
        if (!weight) {
            const auto add = [&](int64_t row, int64_t output, Floats products) {
                float* to = x_ + row * hidden_ + output;
                store(load<Floats>(to) + products * multiplier, to);
            };
            return multiply(linear, input, own_hidden_.first, own_hidden_.last, updates, add);
        }
        float* const branch = shared_.branch.data();
        multiply(linear, input, own_hidden_.first, own_hidden_.last, updates,
                 [&](int64_t row, int64_t output, Floats products) {
                     store(products, branch + row * hidden_ + output);
                 });
        barrier();
        add_branch(weight, multiplier);
    }

    // Adds the output of attention or MLP to the residual stream, normed and multiplied: this thread's columns, or its
    // rows if they are many.
    void add_branch(const float* weight, float multiplier) {
        const bool by_rows = rows_ >= kMinSharedRows;
        const Range rows = by_rows ? own_rows_ : Range{0, rows_}, columns = by_rows ? Range{0, hidden_} : own_hidden_;
        for (int64_t row = rows.first; row < rows.last; ++row) {
            const float* from = shared_.branch.data() + row * hidden_;
            float* to = x_ + row * hidden_;
            const float factor = rms_factor(from, hidden_, model_.epsilon);
#pragma omp simd
            for (int64_t at = columns.first; at < columns.last; ++at)
                to[at] += from[at] * factor * weight[at] * multiplier;
        }
    }

    const Model& model_;
    const Step& step_;
    StepBuffers<Weight, Head>& shared_;
    ThreadBuffers<Weight, Head>& own_;
    const int64_t thread_, num_threads_;
    const int64_t rows_, hidden_, dim_, query_size_;
    const Range own_rows_, own_heads_, own_hidden_;  // this thread's shares
    float* const x_;
    TileConfig tiles_;
};

// Stores the keys and values of a step's rows, and computes its logits.
template <typename Weight, typename Head, typename Cache>
void forward(const Model& model, const Step& step) {
    static thread_local StepBuffers<Weight, Head> shared;  // of the thread that makes steps
    StepBuffers<Weight, Head>& step_buffers = shared;  // a reference, because the name means each thread's own
    step_buffers.resize(model, step);
#pragma omp parallel num_threads(step.num_threads)
    {
        static thread_local ThreadBuffers<Weight, Head> own;
        StepThread<Weight, Head, Cache>(model, step, step_buffers, own).run();
    }
}
