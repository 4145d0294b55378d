// Random weights: stored rows first, then packed as a loader would.
#include "kernels/testing/packed.h"

#include <algorithm>
#include <cmath>

namespace moxie::testing {
namespace {

// Rows of a longer matrix repeat, so that a whole vocabulary is made in seconds.
constexpr int32_t kMostDifferentRows = 8192;

// One expert's rows in a stored form; keeps the bytes that the view points at.
struct RandomRows {
  std::vector<float> values;
  std::vector<uint8_t> blocks, scales;
  StoredRows rows;

  RandomRows(DType format, int32_t num_rows, int32_t cols, Random& random) {
    rows.cols = cols;
    const double size = 1.0 / std::sqrt(static_cast<double>(cols));
    if (format != DType::kMXFP4) {
      values = random.uniforms(int64_t{num_rows} * cols, static_cast<float>(1.7 * size));
      rows.kind = StoredRows::Kind::kF32;
      rows.data = reinterpret_cast<const std::byte*>(values.data());
      rows.row_stride_bytes = int64_t{4} * cols;
      return;
    }
    // E2M1 codes taken evenly have an RMS of about 2.9.
    const int32_t middle = 127 + static_cast<int32_t>(std::lround(std::log2(size / 2.9)));
    blocks.resize(static_cast<size_t>(num_rows) * static_cast<size_t>(cols / 2));
    scales.resize(static_cast<size_t>(num_rows) * static_cast<size_t>(cols / 32));
    for (uint8_t& byte : blocks) byte = static_cast<uint8_t>(random.below(256));
    for (uint8_t& code : scales) code = static_cast<uint8_t>(middle - 2 + random.below(4));
    rows.kind = StoredRows::Kind::kMxfp4Split;
    rows.data = reinterpret_cast<const std::byte*>(blocks.data());
    rows.scales = reinterpret_cast<const std::byte*>(scales.data());
    rows.row_stride_bytes = cols / 2;
    rows.scale_stride_bytes = cols / 32;
  }
};

}  // namespace

std::vector<float> Random::uniforms(int64_t n, float scale) {
  std::vector<float> values(static_cast<size_t>(n));
  for (float& value : values) value = scale * uniform();
  return values;
}

PackedTensor random_packed(DType format, int32_t num_experts, int32_t rows, int32_t cols,
                           Random& random, int32_t gate_up_outputs) {
  PackedTensor tensor;
  tensor.matrix = {.format = format, .num_experts = num_experts, .rows = rows, .cols = cols};
  tensor.memory.resize(static_cast<size_t>(tensor.matrix.bytes()));
  tensor.matrix.data = tensor.memory.data();
  for (int32_t e = 0; e < num_experts; ++e) {
    const RandomRows stored(format, std::min(rows, kMostDifferentRows), cols, random);
    for (int32_t tile = 0; tile < tensor.matrix.num_tiles(); ++tile) {
      int64_t lanes[16];
      for (int32_t lane = 0; lane < 16; ++lane) {
        const int32_t row = tile * 16 + lane, output = tile / 2 * 16 + lane;
        const bool padding = row >= rows || (gate_up_outputs > 0 && output >= gate_up_outputs);
        lanes[lane] = padding ? -1 : row % kMostDifferentRows;
      }
      pack_tile_rows16(stored.rows, lanes, format,
                       tensor.memory.data() + (tensor.matrix.tile(e, tile) - tensor.matrix.data));
    }
  }
  return tensor;
}

}  // namespace moxie::testing
