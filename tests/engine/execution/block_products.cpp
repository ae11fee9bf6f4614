// Products with weights in block formats, alone: test_block_products.py compiles it for several instruction sets, as a
// library, or as a program that another processor runs.
#include <omp.h>

#include <cstdio>
#include <cstdlib>

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

// Arguments: GGML's number of the format; bytes of a block of 16 outputs' codes, and of its scales; blocks of an output;
// outputs; rows; inputs. Reads the blocks and the rows, writes the weights and the products.
int main(int, char** arguments) {
    int64_t sizes[7];
    for (int64_t at = 0; at < 7; ++at) sizes[at] = std::atoll(arguments[at + 1]);
    const auto [format, code_bytes, scale_bytes, num_blocks, outputs, num_rows, inputs] = sizes;
    const int64_t num_panels = outputs / kLanes, row_bytes = (code_bytes + scale_bytes) / kLanes * num_blocks;
    AlignedVector<uint8_t> blocks_of_file(outputs * row_bytes), codes(num_panels * num_blocks * code_bytes),
        scales(num_panels * num_blocks * scale_bytes);
    std::vector<float> rows(num_rows * inputs), weights(outputs * inputs), products(num_rows * outputs);
    if (std::fread(blocks_of_file.data(), 1, blocks_of_file.size(), stdin) != blocks_of_file.size()) return 1;
    if (std::fread(rows.data(), sizeof(float), rows.size(), stdin) != rows.size()) return 1;
    std::vector<Panel> panels;
    for (int64_t panel = 0; panel < num_panels; ++panel)
        panels.push_back({&codes[panel * num_blocks * code_bytes], &scales[panel * num_blocks * scale_bytes], format});
    pack(panels.data(), 1, blocks_of_file.data(), outputs, row_bytes, nullptr, 1);
    dequantize(panels.data(), inputs, 0, outputs, weights.data(), 1);
    multiply(panels.data(), nullptr, rows.data(), num_rows, inputs, outputs, 1, products.data());
    std::fwrite(weights.data(), sizeof(float), weights.size(), stdout);
    std::fwrite(products.data(), sizeof(float), products.size(), stdout);
    return 0;
}
