// Data types, shapes and views. A TensorView never owns memory: buffers and arenas do.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

#include "core/base.h"
#include "core/formats.h"

namespace moxie {

/// Element types of tensors and of packed weights. kMXFP4, kMXFP8 (E4M3 elements) and kQ8_0 are
/// block formats: 32 elements with one scale (E8M0, E8M0 and FP16). kMXFP6 (E2M3) and kMXFP6E3M2
/// are formats of activations only.
enum class DType : uint8_t {
  kF32,
  kF16,
  kBF16,
  kF8E4M3,
  kI8,
  kU8,
  kI32,
  kI64,
  kF64,
  kMXFP4,
  kMXFP8,
  kQ8_0,
  kMXFP6,
  kMXFP6E3M2
};

/// The elements of a format of activations: kMXFP8, kMXFP6, kMXFP6E3M2 or kMXFP4.
constexpr MxElement mx_element_of(DType format) {
  return format == DType::kMXFP8       ? MxElement::kE4M3
         : format == DType::kMXFP6     ? MxElement::kE2M3
         : format == DType::kMXFP6E3M2 ? MxElement::kE3M2
                                       : MxElement::kE2M1;
}

/// "f32", "bf16", "mxfp4", ... as printed and as taken by flags.
std::string_view dtype_name(DType dtype);

/// Bits of one element, block scales included (MXFP4: 4.25, MXFP8: 8.25, Q8_0: 8.5).
double dtype_bits(DType dtype);

/// Bytes of `num_elements` (a multiple of 32 for block formats).
uint64_t dtype_bytes(DType dtype, uint64_t num_elements);

/// Up to five dimensions, outermost first.
struct Shape {
  static constexpr int kMaxRank = 5;
  int64_t dims[kMaxRank] = {};
  int rank = 0;

  Shape() = default;
  Shape(std::initializer_list<int64_t> list) {
    CHECK(list.size() <= kMaxRank);
    for (int64_t dim : list) dims[rank++] = dim;
  }
  int64_t operator[](int i) const { return dims[i]; }
  /// Product of the dimensions; 1 for rank 0. Callers that take shapes from files check first.
  int64_t num_elements() const {
    int64_t product = 1;
    for (int i = 0; i < rank; ++i) product *= dims[i];
    return product;
  }
  bool operator==(const Shape& other) const {
    if (rank != other.rank) return false;
    for (int i = 0; i < rank; ++i)
      if (dims[i] != other.dims[i]) return false;
    return true;
  }
  /// "[4096, 2880]"
  std::string to_string() const;
};

/// Contiguous, row-major, not owning.
struct TensorView {
  std::byte* data = nullptr;
  DType dtype = DType::kF32;
  Shape shape;

  uint64_t bytes() const { return dtype_bytes(dtype, static_cast<uint64_t>(shape.num_elements())); }
};

/// How a weight matrix lies in the memory of the device whose rows read it (docs/formats.md).
enum class PackedLayout : uint8_t {
  kRows16,        ///< CPU: tiles of 16 rows, interleaved so that a row is a SIMD lane
  kFragment16x32  ///< CUDA: 16 rows x 32 columns in mma fragment order (core/fragment.h)
};

/// A weight matrix, or one per expert, in a packed layout. Plain data: passed by value to kernels.
struct PackedMatrix {
  const std::byte* data = nullptr;
  DType format = DType::kBF16;  ///< kF32, kBF16, kQ8_0, kMXFP4 or (CUDA) kMXFP8
  PackedLayout layout = PackedLayout::kRows16;
  int32_t num_experts = 1;
  int32_t rows = 0;  ///< outputs, before padding to a multiple of 16
  int32_t cols = 0;  ///< inputs (K): even for BF16, a multiple of 32 for block formats
  /// CUDA, MXFP4: [num_experts, 16 * num_tiles] the greatest scale code of a row's blocks that are
  /// not zero, for rows that fold scales into 8-bit operands (gemm/greatest_scales_cuda.h); null:
  /// not known.
  const uint8_t* greatest_scales = nullptr;
  /// CUDA: the rows in 8-bit integers and their scales, for rows that multiply those
  /// (gemm/i8_rows_cuda.h); null: not laid out.
  const std::byte* integers = nullptr;
  const float* integer_scales = nullptr;

  int32_t num_tiles() const { return ceil_div(rows, 16); }
  int64_t tile_bytes() const {  ///< 16 rows x cols; kRows16
    switch (format) {
      case DType::kF32:
        return int64_t{64} * cols;
      case DType::kBF16:
        return int64_t{32} * cols;
      case DType::kQ8_0:
        return int64_t{544} * (cols / 32);
      case DType::kMXFP4:
        return int64_t{272} * (cols / 32);
      default:
        return 0;
    }
  }
  /// kFragment16x32: units of 16 rows x 64 columns; columns past the end are zeros.
  int32_t num_units() const { return ceil_div(cols, 64); }
  int32_t unit_code_bytes() const {
    switch (format) {
      case DType::kF32:
        return 4096;
      case DType::kBF16:
        return 2048;
      case DType::kQ8_0:
      case DType::kMXFP8:
        return 1024;
      case DType::kMXFP4:
        return 512;
      default:
        return 0;
    }
  }
  int32_t unit_scale_bytes() const {
    if (format == DType::kQ8_0) return 64;
    return format == DType::kMXFP4 || format == DType::kMXFP8 ? 32 : 0;
  }
  /// A unit's scales lie behind its codes.
  int32_t unit_bytes() const { return unit_code_bytes() + unit_scale_bytes(); }
  int64_t units_bytes() const { return int64_t{num_tiles()} * num_units() * unit_bytes(); }
  int64_t expert_bytes() const {
    if (layout == PackedLayout::kRows16) return num_tiles() * tile_bytes();
    return round_up<int64_t>(units_bytes(), 256);
  }
  int64_t bytes() const { return num_experts * expert_bytes(); }
  const std::byte* tile(int32_t expert, int32_t tile_idx) const {
    return data + expert * expert_bytes() + tile_idx * tile_bytes();
  }
  /// One expert's matrix as a matrix of its own.
  PackedMatrix expert(int32_t expert_idx) const {
    PackedMatrix one = *this;
    one.data = data + expert_idx * expert_bytes();
    one.num_experts = 1;
    return one;
  }
};

/// Rows gathered by index (the embedding): row-major, not packed. Q8_0 rows are GGUF blocks
/// (FP16 scale, 32 int8).
struct RowTable {
  const std::byte* data = nullptr;
  DType format = DType::kBF16;  ///< kF32, kBF16 or kQ8_0
  int32_t rows = 0;
  int32_t cols = 0;

  int64_t row_bytes() const {
    return static_cast<int64_t>(dtype_bytes(format, static_cast<uint64_t>(cols)));
  }
  int64_t bytes() const { return rows * row_bytes(); }
};

}  // namespace moxie
