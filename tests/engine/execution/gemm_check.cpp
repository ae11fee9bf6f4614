// Matrix products of every number format against a slow reference, in a program of its own: it runs under QEMU, too, as
// processors that are not here. Prints the largest error of each format; exit status 1 if one is too large, if a row's
// bits depend on the rows beside it, or if a number that is not finite does not stay in its row.
#include <cstdio>
#include <random>

#include "gemm.h"

namespace {

std::mt19937 dice(1);

float draw() { return std::normal_distribution<float>()(dice); }

bf16 round_to_bf16(float value) {
    const Halves rounded = to_bf16(Floats{} + value);
    return rounded[0];
}

// A linear layer's weights, plain and packed as engine/execution/native/weights.py packs them.
template <typename Weight>
struct Layer {
    int64_t outputs, inputs;
    std::vector<double> weight;  // [outputs, inputs], what the packed numbers stand for
    AlignedVector<int32_t> words;
    AlignedVector<float> scales, bias;
    AlignedVector<bf16> group_scales;
    AlignedVector<int32_t> sums;
    PackedLinear packed{};

    Layer(int64_t outputs, int64_t inputs) : outputs(outputs), inputs(inputs), weight(outputs * inputs) {
        constexpr int64_t kPerWord = WeightFormat<Weight>::kPerWord;
        const int64_t tile = kTileWords * kPerWord, width = (inputs + tile - 1) / tile * kTileWords;
        words.resize(outputs * width);
        bias.resize(outputs), scales.resize(outputs), sums.resize(outputs);
        group_scales.resize(outputs * width / kInt4GroupWords);
        auto* bytes = reinterpret_cast<uint8_t*>(words.data());
        for (int64_t output = 0; output < outputs; ++output) {
            bias[output] = draw();
            scales[output] = 0.01f + std::fabs(draw()) / 100;
            const int64_t panel = output / kLanes, lane = output % kLanes;
            for (int64_t input = 0; input < inputs; ++input) {
                double& number = weight[output * inputs + input];
                const int64_t word = (panel * width + input / kPerWord) * kLanes + lane;
                if constexpr (std::is_same_v<Weight, float>) {
                    const float value = draw();
                    std::memcpy(&words[word], &value, sizeof value);
                    number = value;
                } else if constexpr (std::is_same_v<Weight, bf16>) {
                    const bf16 value = round_to_bf16(draw());
                    std::memcpy(bytes + word * 4 + input % 2 * 2, &value, sizeof value);
                    number = widen_one(value);
                } else if constexpr (std::is_same_v<Weight, int8_t>) {
                    const auto value = int8_t(int64_t(dice() % 256) - 128);
                    bytes[word * 4 + input % 4] = uint8_t(value);
                    sums[output] += value;
                    number = double(value) * scales[output];
                } else {
                    const int64_t group = input / kInt4Group, inside = input % kInt4Group;
                    bf16& scale = group_scales[(panel * width / kInt4GroupWords + group) * kLanes + lane];
                    if (inside == 0) scale = round_to_bf16(0.01f + std::fabs(draw()) / 100);
                    const auto value = uint8_t(dice() % 16);
                    const int64_t at = (panel * width / 2 + group * kInt4GroupWords / 2 + inside % 16 / 4) * kLanes + lane;
                    bytes[at * 4 + inside % 4] |= inside < 16 ? value : value << 4;
                    number = (int(value) - 8) * double(widen_one(scale));
                }
            }
        }
        packed.weight = words.data();
        packed.bias = bias.data();
        packed.outputs = outputs;
        packed.weight_sums = sums.data();
        packed.scales = std::is_same_v<Weight, int4> ? static_cast<const void*>(group_scales.data()) : scales.data();
    }
};

// Returns the products [num_rows, outputs] of float32 rows [num_rows, inputs], with sixteen numbers of any kind after.
template <typename Weight>
std::vector<float> multiply(const Layer<Weight>& layer, const float* numbers, int64_t num_rows) {
    PackedRows<Weight> rows;
    rows.resize(num_rows, layer.inputs);
    for (int64_t row = 0; row < num_rows; ++row) rows.pack(numbers + row * layer.inputs, layer.inputs, row);
    std::vector<float> found(num_rows * layer.outputs);
    TileConfig tiles;
    gemm(layer.packed, rows, 0, layer.outputs, tiles, [&](int64_t row, int64_t output, Floats products) {
        store(products, &found[row * layer.outputs + output]);
    });
    return found;
}

bool same_bits(const float* a, const float* b, int64_t count) { return std::memcmp(a, b, count * sizeof *a) == 0; }

// Whether infinities and NaN in one row change no other row, and whether float formats compute with them as the
// reference does.
template <typename Weight>
bool keeps_to_its_row(const Layer<Weight>& layer, std::vector<float> numbers, const std::vector<float>& clean) {
    const int64_t inputs = layer.inputs, outputs = layer.outputs, num_rows = int64_t(clean.size()) / outputs;
    for (const float bad : {INFINITY, -INFINITY, NAN}) {
        const int64_t row = int64_t(dice() % num_rows);
        numbers[row * inputs + dice() % inputs] = bad;  // after the first time, several of a row
        const std::vector<float> found = multiply(layer, numbers.data(), num_rows);
        for (int64_t r = 0; r < num_rows; ++r) {
            const float *own = &numbers[r * inputs], *products = &found[r * outputs];
            if (std::all_of(own, own + inputs, [](float x) { return std::isfinite(x); })) {
                if (!same_bits(products, &clean[r * outputs], outputs)) return false;
                continue;
            }
            for (int64_t output = 0; PackedRows<Weight>::kIsDirect && output < outputs; ++output) {
                double sum = 0;
                for (int64_t i = 0; i < inputs; ++i) sum += double(own[i]) * layer.weight[output * inputs + i];
                if (std::isnan(sum) != std::isnan(products[output])) return false;
                if (!std::isnan(sum) && sum != double(products[output])) return false;
            }
        }
    }
    return true;
}

// Returns the largest error, relative to the size of an output; infinity if a row is changed by others.
template <typename Weight>
double largest_error(int64_t num_rows, int64_t inputs, int64_t outputs) {
    const Layer<Weight> layer(outputs, inputs);
    std::vector<float> numbers(num_rows * inputs + kLanes);
    std::vector<double> exact(num_rows * inputs);
    for (int64_t row = 0; row < num_rows; ++row) {
        float* from = &numbers[row * inputs];
        float largest = 1e-12f;
        for (int64_t i = 0; i < inputs; ++i) largest = std::max(largest, std::fabs(from[i] = draw()));
        for (int64_t i = 0; i < inputs; ++i) {
            double& number = exact[row * inputs + i] = from[i];
            if constexpr (std::is_same_v<Weight, bf16>) number = widen_one(round_to_bf16(from[i]));
            if constexpr (!PackedRows<Weight>::kIsDirect)
                number = std::nearbyint(from[i] * (127 / largest)) * double(largest / 127);
        }
    }
    const std::vector<float> found = multiply(layer, numbers.data(), num_rows);
    double error = 0, size = 0;
    for (int64_t row = 0; row < num_rows; ++row) {
        const std::vector<float> alone = multiply(layer, &numbers[row * inputs], 1);
        if (!same_bits(alone.data(), &found[row * outputs], outputs)) return INFINITY;
        for (int64_t output = 0; output < outputs; ++output) {
            double sum = layer.bias[output];
            for (int64_t i = 0; i < inputs; ++i) sum += exact[row * inputs + i] * layer.weight[output * inputs + i];
            error = std::max(error, std::fabs(sum - found[row * outputs + output]));
            size += sum * sum;
        }
    }
    if (!keeps_to_its_row(layer, numbers, found)) return INFINITY;
    return error / std::sqrt(size / double(num_rows * outputs));
}

template <typename Weight>
bool check(const char* name, double limit) {
    double error = 0;
    for (int64_t rows : {1, 2, 3, 4, 5, 8, 9, 12, 17, 33})
        for (int64_t inputs : {16, 96, 160})
            for (int64_t outputs : {16, 48, 160}) error = std::max(error, largest_error<Weight>(rows, inputs, outputs));
    for (int64_t shape = 0; shape < 40; ++shape) {
        const int64_t inputs = kLanes * int64_t(1 + dice() % 40), outputs = kLanes * int64_t(1 + dice() % 12);
        error = std::max(error, largest_error<Weight>(int64_t(1 + dice() % 40), inputs, outputs));
    }
    std::printf("%s %.1e\n", name, error);
    return error < limit;
}

}  // namespace

int main() {
    bool is_right = check<float>("float32", 1e-5);
    is_right &= check<bf16>("bfloat16", 1e-5);
    is_right &= check<int8_t>("int8", 1e-5);
    is_right &= check<int4>("int4", 1e-5);
    return is_right ? 0 : 1;
}
