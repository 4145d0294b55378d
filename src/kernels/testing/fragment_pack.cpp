// Goes through a stored form that holds every format's values exactly.
#include "kernels/testing/fragment_pack.h"

#include <cstring>

namespace moxie::testing {

PackedTensor to_fragment(const PackedMatrix& cpu, DType format,
                         const std::function<int32_t(int32_t)>& source_row) {
  PackedTensor result;
  result.matrix = cpu;
  result.matrix.format = format;
  result.matrix.layout = PackedLayout::kFragment16x32;
  result.memory.resize(static_cast<size_t>(result.matrix.bytes()));
  result.matrix.data = result.memory.data();
  const bool is_q8 = format == DType::kQ8_0;
  for (int32_t e = 0; e < cpu.num_experts; ++e) {
    const PackedMatrix from = cpu.expert(e), to = result.matrix.expert(e);
    // MXFP4 values quantise back to themselves; Q8_0 keeps its codes and scales.
    std::vector<float> values(static_cast<size_t>(from.rows) * from.cols);
    std::vector<double> row(static_cast<size_t>(from.cols));
    std::vector<std::byte> blocks(is_q8 ? static_cast<size_t>(from.rows) * (from.cols / 32) * 34
                                        : 0);
    for (int32_t r = 0; r < from.rows; ++r) {
      read_packed_row(from, r, row.data());
      for (int32_t k = 0; k < from.cols; ++k)
        values[static_cast<size_t>(r) * from.cols + k] = static_cast<float>(row[k]);
      for (int32_t b = 0; is_q8 && b < from.cols / 32; ++b) {
        const std::byte* tile = from.tile(0, r / 16) + int64_t{544} * b;
        std::byte* block = &blocks[(static_cast<size_t>(r) * (from.cols / 32) + b) * 34];
        std::memcpy(block, tile + 2 * (r % 16), 2);
        for (int k = 0; k < 32; ++k) block[2 + k] = tile[32 + 64 * (k / 4) + 4 * (r % 16) + k % 4];
      }
    }
    StoredRows stored{.kind = StoredRows::Kind::kF32,
                      .data = reinterpret_cast<const std::byte*>(values.data()),
                      .row_stride_bytes = int64_t{4} * from.cols,
                      .cols = from.cols};
    if (is_q8) {
      stored.kind = StoredRows::Kind::kQ8_0;
      stored.data = blocks.data();
      stored.row_stride_bytes = int64_t{34} * (from.cols / 32);
    }
    for (int32_t tile = 0; tile < to.num_tiles(); ++tile) {
      int64_t lanes[16];
      for (int32_t i = 0; i < 16; ++i) {
        const int32_t source = 16 * tile + i < to.rows ? source_row(16 * tile + i) : -1;
        lanes[i] = source < from.rows ? source : -1;
      }
      pack_tile_fragment(stored, lanes, tile, to);
    }
  }
  return result;
}

void round_to_mxfp8(PackedTensor& tensor) {
  const PackedMatrix& matrix = tensor.matrix;
  CHECK(matrix.format == DType::kF32 && matrix.cols % 32 == 0);
  for (int32_t e = 0; e < matrix.num_experts; ++e) {
    for (int32_t r = 0; r < matrix.num_tiles() * 16; ++r) {
      std::byte* tile = tensor.memory.data() + (matrix.tile(e, r / 16) - matrix.data);
      for (int32_t block = 0; block < matrix.cols / 32; ++block) {
        float values[32];
        uint8_t codes[32];
        const auto at = [&](int k) { return tile + int64_t{64} * (32 * block + k) + 4 * (r % 16); };
        for (int k = 0; k < 32; ++k) std::memcpy(&values[k], at(k), 4);
        const float scale = e8m0_to_f32(quantize_mxfp8(values, codes));
        for (int k = 0; k < 32; ++k) {
          const float rounded = e4m3_to_f32(codes[k]) * scale;
          std::memcpy(at(k), &rounded, 4);
        }
      }
    }
  }
}

}  // namespace moxie::testing
