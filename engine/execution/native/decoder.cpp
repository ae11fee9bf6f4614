// The C entry points of the decoder, which engine/execution/native/decoder.py and sampling.py call through ctypes.
//
// What they compute is in the headers:
//   forward.h            a whole step; elementwise.h has its norms, rotary embedding and activation, routing.h the choice
//                        of experts
//   gemm.h               matrix products; packed_rows.h has their number formats and inputs, microkernel.h the loop
//   block_gemm.h         those of GGML's block formats; block_formats.h, block_rows.h, block_packing.h
//   lora.h               low-rank updates of adapters, which are added to the products
//   attention_tasks.h    attention, divided among threads; decode_attention.h, attention.h,
//                        prefill_attention.h, prefill_attention_simd.h; int8_cache.h, int8_attention.h
//   sampling.h           tokens from logits, score_adjustments.h penalties before; multi_step.h repeats steps without Python
//   model.h, step.h      the structures that Python fills in
//   simd.h, amx.h, aligned_vector.h  vectors, tiles, memory
//
// Pointers are valid for the duration of a call. Nothing throws but for lack of memory, which ends the process.
// Threads: a call uses OpenMP's team of num_threads threads and returns when all are done.

#include "block_packing.h"
#include "forward.h"
#include "model.h"
#include "multi_step.h"
#include "sampling.h"
#include "step.h"

extern "C" {

// For each number format:
//   deskmate_step_NAME   computes one step
//   deskmate_steps_NAME  computes several, and samples from them; see run_multi_step
#define DESKMATE_STEPS(NAME, WEIGHT, HEAD, CACHE)                                                                    \
    void deskmate_step_##NAME(const Model* model, const Step* step) { forward<WEIGHT, HEAD, CACHE>(*model, *step); } \
    int64_t deskmate_steps_##NAME(const Model* model, const Step* first, const DecodeRequest* requests,              \
                                  int64_t num_groups, int64_t max_steps, HostStep host, int64_t* tokens,             \
                                  double* seconds) {                                                                 \
        return run_multi_step(forward<WEIGHT, HEAD, CACHE>, *model, *first, requests, num_groups, max_steps, host,   \
                              tokens, seconds);                                                                      \
    }

DESKMATE_STEPS(float32, float, float, float)
DESKMATE_STEPS(bfloat16, bf16, bf16, bf16)
DESKMATE_STEPS(int8, int8_t, int8_t, bf16)
DESKMATE_STEPS(int4, int4, int8_t, bf16)
DESKMATE_STEPS(blocks, blocks, blocks, bf16)

// Packs a matrix in one of GGML's block formats; see pack_panels.
void deskmate_pack_blocks(const Panel* panels, int64_t panel_stride, const uint8_t* rows, int64_t outputs,
                          int64_t row_bytes, const int64_t* row_order, int64_t num_threads) {
    pack_panels(panels, panel_stride, rows, outputs, row_bytes, row_order, num_threads);
}

// Dequantizes the weights of the outputs first to last - 1: to [last - first, inputs].
void deskmate_dequantize_blocks(const Panel* panels, int64_t inputs, int64_t first, int64_t last, float* to,
                                int64_t num_threads) {
#pragma omp parallel for num_threads(num_threads) if (num_threads > 1)
    for (int64_t output = first; output < last; ++output)
        dequantize_output(panels, output, inputs, to + (output - first) * inputs);
}

// Finds the token with the highest score of each row, the first of equals, and that score.
//   scores   [rows, count]
//   tokens   [rows]; 0 for a row with NaN
//   highest  [rows]; NaN for a row with NaN
void deskmate_argmax(const float* scores, int64_t rows, int64_t count, int64_t num_threads, int64_t* tokens,
                     float* highest) {
#pragma omp parallel for num_threads(num_threads) if (num_threads > 1 && rows > 1)
    for (int64_t row = 0; row < rows; ++row) {
        const float* own = scores + row * count;
        highest[row] = highest_score(own, count);
        tokens[row] = std::isnan(highest[row]) ? 0 : first_highest(own, count, highest[row]);
    }
}

// Copies scores, with -inf for the tokens that a row's mask leaves out.
//   scores  [rows, count]
//   masks   [rows]; of each row a bit for each token, the lowest of the first byte first, set if the token may follow;
//           null for a row without
//   masked  [rows, count]
void deskmate_mask(const float* scores, int64_t rows, int64_t count, int64_t num_threads, const uint8_t* const* masks,
                   float* masked) {
#pragma omp parallel for num_threads(num_threads) if (num_threads > 1 && rows > 1)
    for (int64_t row = 0; row < rows; ++row)
        copy_allowed(scores + row * count, count, masks[row], masked + row * count);
}

// Draws one token for each row. scores: [rows, count]; filters and tokens: [rows].
void deskmate_draw(const float* scores, int64_t rows, int64_t count, int64_t num_threads, const Filters* filters,
                   int64_t* tokens) {
#pragma omp parallel num_threads(num_threads) if (num_threads > 1 && rows > 1)
    {
        SamplingBuffers buffers;
#pragma omp for
        for (int64_t row = 0; row < rows; ++row) tokens[row] = draw(scores + row * count, count, filters[row], buffers);
    }
}

// Sizes of the structures that Python packs, for it to compare with its own.
int64_t deskmate_filters_size() { return sizeof(Filters); }
int64_t deskmate_decode_request_size() { return sizeof(DecodeRequest); }

// Whether the kernels of this instruction set make steps of many rows fast, too.
bool deskmate_has_fast_prefill() {
#if defined(__AVX2__) || defined(__aarch64__)
    return true;
#else
    return false;
#endif
}
}
