// Repacking stored bytes into the layout of CUDA rows (core/fragment.h), on the device. The structs
// describe the repacking of a piece of a matrix, vector or table as plain data.
//
// The host's functions do the same in host memory with core/fragment.h's packer. They are the
// definition that the kernels are compared with byte by byte, and serve devices whose memory is the
// host's (tests).
#pragma once

#include <cstdint>

#include "core/device.h"
#include "core/fragment.h"

namespace moxie {

/// Which row of the model a packed row holds.
enum class PackedRowOrder : uint8_t {
  kNatural,
  kQkv,    ///< fragment_qkv_row
  kGateUp  ///< fragment_gate_up_row; source 0 is gate, source 1 is up
};

/// Rows of one stored tensor in memory: row r is stored row first + r * step. rows.data (and
/// rows.scales) begin with stored row `loaded_first`. Transposed: a whole matrix, loaded_first 0.
struct RepackSource {
  StoredRows rows;
  int64_t loaded_first = 0;
  int32_t first = 0, step = 1, num_rows = 0;
};

/// Tiles [first_tile, first_tile + num_tiles) of one expert's matrix.
struct MatrixRepack {
  RepackSource sources[2];  ///< kGateUp uses both
  PackedMatrix target;      ///< one expert, kFragment16x32
  PackedRowOrder order = PackedRowOrder::kNatural;
  int32_t head_dim = 64;  ///< kQkv
  int32_t part_row = 0;   ///< the model's row that row 0 of source 0 holds
  int32_t first_tile = 0, num_tiles = 0;
  /// Lowered to the stored row of a NaN scale (byte 255), if there is one; null: not checked.
  int32_t* nan_row = nullptr;
};
inline constexpr int32_t kNoNanRow = 0x7F7F7F7F;  ///< initial value of *nan_row: bytes 0x7F

/// Elements to F32: element i of expert e goes to out[e * out_stride + place(i)], where place(i) is
/// i, or fragment_gate_up_row(i, half) where half is 0 or 1.
struct VectorRepack {
  StoredRows::Kind kind = StoredRows::Kind::kF32;  ///< kF32, kF16 or kBF16
  const std::byte* data = nullptr;                 ///< element 0 of the first expert
  int64_t expert_stride_bytes = 0;
  int32_t num_experts = 1, count = 0, step = 1;
  float* out = nullptr;
  int64_t out_stride = 0;
  int32_t half = -1;
};

/// Rows of a table whose stored format differs from its own (F32 or BF16): target rows first_row on
/// from source rows 0 on.
struct TableRepack {
  RepackSource source;
  RowTable target;
  int32_t first_row = 0, num_rows = 0;
};

/// The row of `sources[source]` that row i (0..15) of a tile holds; -1 for padding.
struct PackedRowSource {
  int32_t source = 0, row = -1;
};
constexpr PackedRowSource packed_row_source(const MatrixRepack& repack, int32_t tile, int32_t i) {
  const int32_t packed = 16 * tile + i;
  PackedRowSource place;
  if (repack.order == PackedRowOrder::kGateUp) {
    place.source = i / 8;
    place.row = 8 * tile + i % 8;
  } else if (repack.order == PackedRowOrder::kQkv) {
    place.row = fragment_qkv_row(packed, repack.head_dim) - repack.part_row;
  } else {
    place.row = packed - repack.part_row;
  }
  if (place.row >= repack.sources[place.source].num_rows) place.row = -1;
  return place;
}

/// All pointers point to memory of the stream's device; ordered on the stream.
void repack_on_device(const MatrixRepack& repack, Stream& stream);
void repack_on_device(const VectorRepack& repack, Stream& stream);
void repack_on_device(const TableRepack& repack, Stream& stream);

/// All pointers point to host memory.
bool has_nan_scale(const StoredRows& rows, int64_t row);
void repack_on_host(const MatrixRepack& repack);
void repack_on_host(const VectorRepack& repack);
void repack_on_host(const TableRepack& repack);

}  // namespace moxie
