// Repacking on the host, tile by tile and row by row.
#include <cstring>
#include <vector>

#include "model/repack_cuda.h"

namespace moxie {
namespace {

// Rows i of one source only; the others as padding.
void rows_of(const MatrixRepack& repack, int32_t tile, int32_t source, int64_t rows[16]) {
  const RepackSource& from = repack.sources[source];
  for (int32_t i = 0; i < 16; ++i) {
    const PackedRowSource place = packed_row_source(repack, tile, i);
    rows[i] = place.row < 0 || place.source != source
                  ? -1
                  : from.first + int64_t{place.row} * from.step - from.loaded_first;
  }
}

// Gate and up are two sources, but a tile is packed from one: each source is packed with the other
// half as padding, and the two tiles are merged. Padding is zeros, or 127 for E8M0 scales.
void merge_tile(const PackedMatrix& up, int32_t tile, const PackedMatrix& expert) {
  auto* out = const_cast<std::byte*>(expert.data);
  const int64_t first_unit = int64_t{tile} * expert.num_units();
  const int32_t scale_bytes = expert.format == DType::kQ8_0 ? 2 : 1;
  for (int64_t unit = first_unit; unit < first_unit + expert.num_units(); ++unit) {
    const int64_t codes = unit * expert.unit_bytes(), scales = codes + expert.unit_code_bytes();
    for (int64_t i = codes; i < scales; ++i) out[i] |= up.data[i];
    for (int32_t i = 0; i < expert.unit_scale_bytes(); ++i)
      if (i / scale_bytes % 2 == 1) out[scales + i] = up.data[scales + i];
  }
}

}  // namespace

bool has_nan_scale(const StoredRows& rows, int64_t row) {
  const int32_t num_blocks = rows.cols / kMxBlock;
  if (rows.kind == StoredRows::Kind::kMxfp4Split) {
    return std::memchr(rows.scales + row * rows.scale_stride_bytes, 255,
                       static_cast<size_t>(num_blocks)) != nullptr;
  }
  if (rows.kind != StoredRows::Kind::kMxfp4Gguf) return false;
  const std::byte* at = rows.data + row * rows.row_stride_bytes;
  for (int32_t block = 0; block < num_blocks; ++block)
    if (at[17 * block] == std::byte{255}) return true;
  return false;
}

void repack_on_host(const MatrixRepack& repack) {
  const bool is_gate_up = repack.order == PackedRowOrder::kGateUp;
  std::vector<std::byte> up_memory;
  PackedMatrix up = repack.target;
  if (is_gate_up) {
    up_memory.resize(static_cast<size_t>(repack.target.bytes()));
    up.data = up_memory.data();
  }
  for (int32_t tile = repack.first_tile; tile < repack.first_tile + repack.num_tiles; ++tile) {
    for (int32_t source = 0; source < (is_gate_up ? 2 : 1); ++source) {
      const RepackSource& from = repack.sources[source];
      int64_t rows[16];
      rows_of(repack, tile, source, rows);
      for (const int64_t row : rows) {
        if (repack.nan_row == nullptr || row < 0 || !has_nan_scale(from.rows, row)) continue;
        *repack.nan_row = std::min(*repack.nan_row, static_cast<int32_t>(row + from.loaded_first));
      }
      pack_tile_fragment(from.rows, rows, tile, source == 0 ? repack.target : up);
    }
    if (is_gate_up) merge_tile(up, tile, repack.target);
  }
}

void repack_on_host(const VectorRepack& repack) {
  const int64_t element_bytes = repack.kind == StoredRows::Kind::kF32 ? 4 : 2;
  for (int32_t e = 0; e < repack.num_experts; ++e) {
    const StoredRows rows{.kind = repack.kind,
                          .data = repack.data + e * repack.expert_stride_bytes,
                          .row_stride_bytes = element_bytes * repack.step,
                          .cols = 1};
    for (int32_t i = 0; i < repack.count; ++i) {
      const int32_t place = repack.half < 0 ? i : fragment_gate_up_row(i, repack.half);
      rows.read_row(i, repack.out + e * repack.out_stride + place);
    }
  }
}

void repack_on_host(const TableRepack& repack) {
  const RowTable& table = repack.target;
  const RepackSource& from = repack.source;
  std::vector<float> row(static_cast<size_t>(table.cols));
  for (int32_t r = 0; r < repack.num_rows; ++r) {
    from.rows.read_row(from.first + int64_t{r} * from.step - from.loaded_first, row.data());
    auto* out = const_cast<std::byte*>(table.data) + (repack.first_row + r) * table.row_bytes();
    for (size_t k = 0; k < row.size(); ++k) {
      const uint16_t half = f32_to_bf16(row[k]);
      if (table.format == DType::kF32)
        std::memcpy(out + 4 * k, &row[k], 4);
      else
        std::memcpy(out + 2 * k, &half, 2);
    }
  }
}

}  // namespace moxie
