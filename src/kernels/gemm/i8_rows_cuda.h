// Matrices in 8-bit integers for products that read both operands from shared memory
// (dense_i8_sm90.cuh): rows of bytes in the order of their columns, each with a scale of its own.
//
// A row's greatest value becomes 127; of MXFP4 it becomes 64 or 96 by a power of two, so that
// blocks whose scale is at most three octaves below the row's greatest keep their values. A row
// with a value that is no finite number has NaN for its scale, so that the fault stays visible.
// Kernels of activations may start before the previous one has ended.
#pragma once

#include "core/tensor.h"
#include "kernels/gemm/stage_cuda.h"
#include "kernels/scratch.h"

namespace moxie::gemm {

inline constexpr int32_t kI8Unit = 128;          ///< columns of a stage; rows are padded to it
inline constexpr int32_t kMostI8Columns = 4096;  ///< that the kernels below take

/// Value (r, c) is scales[r] times the byte at r * stride + c, c < stride; 0 past the columns.
struct I8Rows {
  std::byte* data = nullptr;
  float* scales = nullptr;
  int32_t rows = 0, stride = 0;

  I8Rows(int32_t num_rows, int32_t columns, Scratch& scratch)
      : rows(num_rows), stride(round_up(columns, kI8Unit)) {
    data = scratch.take<std::byte>(int64_t{rows} * stride);
    scales = scratch.take<float>(rows);
  }
  /// Those of a matrix, laid out before; not written.
  explicit I8Rows(const PackedMatrix& of)
      : data(const_cast<std::byte*>(of.integers)),
        scales(const_cast<float*>(of.integer_scales)),
        rows(of.rows),
        stride(round_up(of.cols, kI8Unit)) {}
};

/// Row r = token r's RMSNorm(x), times the weight; without a weight, values of row r.
struct LayNormed {
  const float* x = nullptr;            // [rows, width]
  const float* norm_weight = nullptr;  // [width], or null
  bool x_is_single = true;             // (residual.cuh); without a weight always
  float rms_eps = 1e-5f;
  int32_t width = 0;
};
void lay_normed_i8(const LayNormed& step, const I8Rows& to, Stream* stream);

/// Row r = row r of values staged in BF16.
void lay_staged_i8(const StagedView& from, const I8Rows& to, Stream* stream);

}  // namespace moxie::gemm
