// Products with weights in block formats, alone: test_block_products.py compiles it for several instruction sets.
#include <omp.h>

#include "block_gemm.h"
#include "block_packing.h"

extern "C" {

void pack(const Panel* panels, int64_t panel_stride, const uint8_t* rows, int64_t outputs, int64_t row_bytes,
          const int64_t* row_order, int64_t num_threads) {
    pack_panels(panels, panel_stride, rows, outputs, row_bytes, row_order, num_threads);
}

void dequantize(const Panel* panels, int64_t inputs, int64_t first, int64_t last, float* to, int64_t) {
    for (int64_t output = first; output < last; ++output)
        dequantize_output(panels, output, inputs, to + (output - first) * inputs);
}

// rows: [num_rows, inputs]; products: [num_rows, outputs].
void multiply(const Panel* panels, const float* bias, const float* rows, int64_t num_rows, int64_t inputs,
              int64_t outputs, int64_t num_threads, float* products) {
    const PackedLinear linear{panels, nullptr, nullptr, bias, outputs};
    PackedRows<blocks> packed;
    packed.resize(num_rows, inputs);
    for (int64_t row = 0; row < num_rows; ++row) packed.pack(rows + row * inputs, inputs, row);
#pragma omp parallel num_threads(num_threads)
    {
        TileConfig tiles;
        const int64_t num_panels = outputs / kLanes, thread = omp_get_thread_num();
        gemm(linear, packed, num_panels * thread / num_threads * kLanes,
             num_panels * (thread + 1) / num_threads * kLanes, tiles,
             [&](int64_t row, int64_t output, Floats sums) { store(sums, products + row * outputs + output); });
    }
}
}
