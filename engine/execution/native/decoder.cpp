// Computes a whole step of a decoder with rotary attention, RMS norms and a gated MLP (Llama, arXiv 2302.13971, and
// similar models). In a short step, a framework spends more time between the operators than in them.
//
// Data read from memory once is used for all rows of the step. Between the products, numbers are float32.

#include <omp.h>

#include "prefill_attention.h"
#include "gemm.h"
#include "sampling.h"
#include "multi_step.h"

namespace {

// RMS norm (arXiv 1910.07467): to = x / sqrt(mean(x^2) + epsilon) * weight.
void rms_norm(const float* x, const float* weight, int64_t width, float epsilon, float* to) {
    float squares = 0;
#pragma omp simd reduction(+ : squares)
    for (int64_t at = 0; at < width; ++at) squares += x[at] * x[at];
    float factor = 1 / std::sqrt(squares / float(width) + epsilon);
#pragma omp simd
    for (int64_t at = 0; at < width; ++at) to[at] = x[at] * factor * weight[at];
}

// Rotary position embedding (arXiv 2104.09864) of a head whose two halves form the pairs. angles: [cosines, sines].
void apply_rope(float* head, const float* angles, int64_t head_dim) {
    const int64_t half = head_dim / 2;
#pragma omp simd
    for (int64_t at = 0; at < half; ++at) {
        float a = head[at], b = head[at + half];
        head[at] = a * angles[at] - b * angles[at + half];
        head[at + half] = b * angles[at] + a * angles[at + half];
    }
}

struct Range {
    int64_t first, last;
};

// Returns a thread's share of count items, in whole units.
Range thread_range(int64_t count, int64_t unit, int64_t thread, int64_t num_threads) {
    const int64_t units = (count + unit - 1) / unit;
    return {std::min(count, units * thread / num_threads * unit), std::min(count, units * (thread + 1) / num_threads * unit)};
}

// Prepares the rows that the next product reads. Each thread prepares a small number of rows for itself, which is
// faster than a barrier; from kMinSharedRows on, the threads share the work.
constexpr int64_t kMinSharedRows = 17;

template <typename Weight>
class GemmInput {
   public:
    PackedRows<Weight> own;

    // from(row) returns a row, [width]; common is already resized.
    template <typename From>
    PackedRows<Weight>& prepare(PackedRows<Weight>& common, int64_t count, int64_t width, Range mine, const From& from) {
        if (count < kMinSharedRows) {
            own.resize(count, width);
            for (int64_t row = 0; row < count; ++row) own.fill(from(row), width, row);
            return own;
        }
        for (int64_t row = mine.first; row < mine.last; ++row) common.fill(from(row), width, row);
#pragma omp barrier
        return common;
    }
};

// One unit of attention work: a row with all its keys or one split of them, or one kv head of a prefill chunk.
constexpr int64_t kAllSplits = -1;

struct AttentionTask {
    int64_t row, count, position, kv_head, part;
    const int32_t* table;
};

// A step's intermediate buffers, kept for the next step: fresh memory costs more than the computation.
template <typename Weight, typename Head>
struct StepWorkspace {
    AlignedVector<float> x, queries, attended, gated, angles, last;
    PackedRows<Weight> normed_rows, attended_rows, gated_rows;
    PackedRows<Head> last_rows;
    std::vector<AttentionTask> tasks;
    std::vector<PartialAttention> parts;  // the result of each task, if rows are split
};

template <typename Weight, typename Head>
struct ThreadWorkspace {
    AlignedVector<float> normed, head;
    GemmInput<Weight> input;
    GemmInput<Head> last_input;
    Scratch scratch;
    std::vector<PartialAttention> parts;
};

template <typename Cache>
int64_t min_prefill_queries() {
#ifdef DESKMATE_AMX
    if (std::is_same_v<Cache, bf16> && amx_available()) return kMinPrefillQueries;
#endif
    return INT64_MAX;
}

// Threads divide many rows among themselves, or the keys of each row if there are few.
bool uses_split_kv(const Step& step) { return step.num_rows < 2 * step.num_threads; }

// Lists the attention tasks of a step, long chunks first, so that short ones balance the load between the threads.
template <typename Cache>
void list_tasks(const Model& model, const Step& step, int64_t group, std::vector<AttentionTask>& tasks) {
    tasks.clear();
    for (int64_t sequence = 0, row = 0; sequence < step.num_sequences; row += step.query_lens[sequence++]) {
        const int64_t length = step.query_lens[sequence];
        const int32_t* table = step.block_tables[group] + step.table_offsets[group][sequence];
        const bool is_prefill = length >= min_prefill_queries<Cache>();
        if (is_prefill)
            for (int64_t head = 0; head < model.num_kv_heads; ++head) tasks.push_back({row, length, step.positions[row], head, kAllSplits, table});
        else
            for (int64_t at = row; at < row + length; ++at) {
                const int64_t position = step.positions[at];
                if (!uses_split_kv(step)) tasks.push_back({at, 1, position, 0, kAllSplits, table});
                else for (int64_t part = 0; part <= position / kKeysPerSplit; ++part) tasks.push_back({at, 1, position, 0, part, table});
            }
    }
    std::stable_sort(tasks.begin(), tasks.end(), [](const AttentionTask& a, const AttentionTask& b) { return a.count > b.count; });
}

template <typename Weight, typename Head, typename Cache>
void forward(const Model& model, const Step& step) {
    static thread_local StepWorkspace<Weight, Head> own_step;
    StepWorkspace<Weight, Head>& space = own_step;
    const int64_t rows = step.num_rows, hidden = model.hidden, dim = model.head_dim, inner = model.intermediate;
    const int64_t query_size = model.num_heads * dim, group = model.num_heads / model.num_kv_heads;
    float* const x = ensure_size(space.x, rows * hidden);
    float* const queries = ensure_size(space.queries, rows * query_size);
    float* const attended = ensure_size(space.attended, PackedRows<Weight>::kDirect ? 0 : rows * query_size);
    float* const gated = ensure_size(space.gated, PackedRows<Weight>::kDirect ? 0 : rows * inner);
    float* const angles = ensure_size(space.angles, rows * dim);
    float* const last = ensure_size(space.last, step.num_logits * hidden);
    std::vector<AttentionTask>& tasks = space.tasks;
    space.normed_rows.resize(rows, hidden);
    space.attended_rows.resize(rows, query_size);
    space.gated_rows.resize(rows, inner);
    space.last_rows.resize(step.num_logits, hidden);
    const auto* embedding = static_cast<const Cache*>(model.embedding);

#pragma omp parallel num_threads(step.num_threads)
    {
        static thread_local ThreadWorkspace<Weight, Head> own_space;
        GemmInput<Weight>& input = own_space.input;
        const int64_t thread = omp_get_thread_num(), threads = omp_get_num_threads();
        float* const normed = ensure_size(own_space.normed, hidden);
        float* const heads = ensure_size(own_space.head, rows * dim);
        TileConfig tiles;
        const Range own_rows = thread_range(rows, 1, thread, threads);
        const Range own_heads = thread_range(model.num_heads + 2 * model.num_kv_heads, 1, thread, threads);
        const Range own_hidden = thread_range(hidden, kLanes, thread, threads), own_inner = thread_range(2 * inner, 2 * kLanes, thread, threads);
        const auto normed_rows = [&](const float* weight) -> PackedRows<Weight>& {
            return input.prepare(space.normed_rows, rows, hidden, own_rows, [&](int64_t row) {
                rms_norm(x + row * hidden, weight, hidden, model.epsilon, normed);
                return normed;
            });
        };
        // Returns rows that were stored directly, or packs them now that they are complete.
        const auto written_rows = [&](PackedRows<Weight>& direct, const float* from, int64_t width) -> PackedRows<Weight>& {
            if constexpr (PackedRows<Weight>::kDirect) return direct;
            return input.prepare(direct, rows, width, own_rows, [&](int64_t row) { return from + row * width; });
        };
        alignas(64) float gates[kMaxRowBlock * kLanes];
        const auto gate = [&](int64_t row, int64_t output, Floats products) {  // SwiGLU (arXiv 2002.05202)
            float* own = gates + row % kMaxRowBlock * kLanes;
            if (output / kLanes % 2 == 0) return store(products, own);
            const Floats opening = load<Floats>(own), numbers = opening / (1 + exponential(-opening)) * products;
            const int64_t number = output / (2 * kLanes) * kLanes;
            if constexpr (PackedRows<Weight>::kDirect) space.gated_rows.store_lanes(numbers, row, number);
            else store(numbers, gated + row * inner + number);
        };
        const auto add = [&](int64_t row, int64_t output, Floats products) {
            float* to = x + row * hidden + output;
            store(load<Floats>(to) + products, to);
        };

        const auto keep = [&](int64_t row, int64_t number, Floats numbers) {  // stores attention output
            if constexpr (PackedRows<Weight>::kDirect) space.attended_rows.store_lanes(numbers, row, number);
            else store(numbers, attended + row * query_size + number);
        };

        for (int64_t row = own_rows.first; row < own_rows.last; ++row) {
            const Cache* token = embedding + step.tokens[row] * hidden;
            for (int64_t at = 0; at < hidden; at += kLanes) store(widen(token + at), x + row * hidden + at);
            for (int64_t at = 0; at < dim / 2; ++at) {
                const float angle = float(step.positions[row]) * model.inv_freq[at];
                angles[row * dim + at] = std::cos(angle) * model.rotary_scale;
                angles[row * dim + dim / 2 + at] = std::sin(angle) * model.rotary_scale;
            }
            if constexpr (PackedRows<Weight>::kDirect) {
                space.attended_rows.pad(query_size, row);
                space.gated_rows.pad(inner, row);
            }
        }
#pragma omp barrier

        for (int64_t index = 0; index < model.num_layers; ++index) {
            const Layer& layer = model.layers[index];
            auto* keys = static_cast<Cache*>(layer.keys);
            auto* values = static_cast<Cache*>(layer.values);
            const int64_t* slots = step.slots[layer.group];

#pragma omp single nowait
            if (index == 0 || layer.group != model.layers[index - 1].group) {
                list_tasks<Cache>(model, step, layer.group, tasks);
                if (space.parts.size() < tasks.size()) space.parts.resize(tasks.size());
            }
            PackedRows<Weight>& before_attention = normed_rows(layer.attention_norm);
            for (int64_t head = own_heads.first; head < own_heads.last; ++head) {
                const int64_t first = head * dim;
                gemm(layer.qkv, before_attention, first, first + dim, [&](int64_t row, int64_t output, Floats products) {
                    store(products, heads + row * dim + output - first);
                }, tiles);
                const bool is_query = head < model.num_heads, is_key = !is_query && head < model.num_heads + model.num_kv_heads;
                const float* weight = is_query ? layer.query_norm : is_key ? layer.key_norm : nullptr;
                for (int64_t row = 0; row < rows; ++row) {
                    float* one = heads + row * dim;
                    if (weight) rms_norm(one, weight, dim, model.epsilon, one);
                    if (is_query || is_key) apply_rope(one, angles + row * dim, dim);
                    if (is_query) {
                        std::copy(one, one + dim, queries + row * query_size + head * dim);
                    } else {
                        const int64_t kv_head = (head - model.num_heads) % model.num_kv_heads;
                        Cache* to = (is_key ? keys : values) + (slots[row] * model.num_kv_heads + kv_head) * dim;
                        for (int64_t at = 0; at < dim; at += kLanes) store(load<Floats>(one + at), to + at);
                    }
                }
            }
#pragma omp barrier
#pragma omp for schedule(dynamic)
            for (size_t at = 0; at < tasks.size(); ++at) {
                const AttentionTask& task = tasks[at];
                const HeadCache<Cache> cache(model, layer, task.table, task.kv_head);
#ifdef DESKMATE_AMX
                if constexpr (std::is_same_v<Cache, bf16>)
                    if (task.count > 1) {
                        const int64_t start = task.kv_head * group * dim;
                        PrefillAttention prefill(model, layer, cache, task.position, task.count, own_space.scratch);
                        prefill.attend(queries + task.row * query_size + start, query_size, tiles, [&](int64_t query, int64_t number, Floats numbers) {
                            keep(task.row + query, start + number, numbers);
                        });
                        continue;
                    }
#endif
                const int64_t parts = num_splits(layer, task.position);
                const auto attend_to = [&](int64_t number, PartialAttention& part) {
                    attend<Cache>(model, layer, cache, task.position, number, queries + task.row * query_size, own_space.scratch, part);
                };
                if (task.part != kAllSplits) {
                    if (task.part < parts) attend_to(task.part, space.parts[at]);  // a window may leave fewer splits
                    continue;
                }
                if (int64_t(own_space.parts.size()) < parts) own_space.parts.resize(parts);
                for (int64_t number = 0; number < parts; ++number) attend_to(number, own_space.parts[number]);
                for (int64_t head = 0; head < model.num_heads; ++head)
                    combine_splits(own_space.parts.data(), parts, head, dim, own_space.scratch, [&](int64_t number, Floats numbers) {
                        keep(task.row, head * dim + number, numbers);
                    });
            }
            if (uses_split_kv(step)) {
#pragma omp for collapse(2)
                for (size_t at = 0; at < tasks.size(); ++at)
                    for (int64_t head = 0; head < model.num_heads; ++head) {
                        const AttentionTask& task = tasks[at];
                        if (task.part != 0) continue;
                        combine_splits(&space.parts[at], num_splits(layer, task.position), head, dim, own_space.scratch, [&](int64_t number, Floats numbers) {
                            keep(task.row, head * dim + number, numbers);
                        });
                    }
            }
            gemm(layer.output, written_rows(space.attended_rows, attended, query_size), own_hidden.first, own_hidden.last, add, tiles);
#pragma omp barrier
            gemm(layer.gate_up, normed_rows(layer.mlp_norm), own_inner.first, own_inner.last, gate, tiles);
#pragma omp barrier
            gemm(layer.down, written_rows(space.gated_rows, gated, inner), own_hidden.first, own_hidden.last, add, tiles);
#pragma omp barrier
        }

#pragma omp for
        for (int64_t row = 0; row < step.num_logits; ++row)
            rms_norm(x + step.logits_rows[row] * hidden, model.norm, hidden, model.epsilon, last + row * hidden);
        PackedRows<Head>& before_head = own_space.last_input.prepare(
            space.last_rows, step.num_logits, hidden, thread_range(step.num_logits, 1, thread, threads), [&](int64_t row) { return last + row * hidden; });
        const Range words = thread_range(model.lm_head.outputs, kLanes, thread, threads);
        gemm(model.lm_head, before_head, words.first, words.last, [&](int64_t row, int64_t output, Floats products) {
            const int64_t count = std::min(kLanes, model.vocab_size - output);
            std::memcpy(step.logits + row * model.vocab_size + output, &products, count * sizeof(float));
        }, tiles);
    }
}

}  // namespace

extern "C" {

#define DESKMATE_STEPS(NAME, ...)                                                                                     \
    void deskmate_step_##NAME(const Model* model, const Step* step) { forward<__VA_ARGS__>(*model, *step); }              \
    int64_t deskmate_steps_##NAME(const Model* model, const Step* first, const DecodeRequest* requests, int64_t num_groups,    \
                                  int64_t max_steps, int64_t* tokens, double* seconds) {                             \
        return run_multi_step(forward<__VA_ARGS__>, *model, *first, requests, num_groups, max_steps, tokens, seconds);     \
    }

DESKMATE_STEPS(float32, float, float, float)
DESKMATE_STEPS(bfloat16, bf16, bf16, bf16)
DESKMATE_STEPS(int8, int8_t, int8_t, bf16)
DESKMATE_STEPS(int4, int4, int8_t, bf16)

// Finds the token with the highest score of each row, the first of equals, and that score.
void deskmate_argmax(const float* scores, int64_t rows, int64_t count, int64_t threads, int64_t* tokens, float* highest) {
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t row = 0; row < rows; ++row) {
        const float* own = scores + row * count;
        highest[row] = highest_score(own, count);
        tokens[row] = std::isnan(highest[row]) ? 0 : std::find(own, own + count, highest[row]) - own;
    }
}

// Samples one token for each row with its own filters.
void deskmate_draw(const float* scores, int64_t rows, int64_t count, int64_t threads, const Filters* filters, int64_t* tokens) {
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        Candidates found;
#pragma omp for
        for (int64_t row = 0; row < rows; ++row) tokens[row] = draw(scores + row * count, count, filters[row], found);
    }
}

// Sizes of the structures that Python packs, for it to compare with its own.
int64_t deskmate_filters_size() { return sizeof(Filters); }
int64_t deskmate_decode_request_size() { return sizeof(DecodeRequest); }

// Whether steps of many rows are fast, too.
bool deskmate_has_amx() { return amx_available(); }
}
