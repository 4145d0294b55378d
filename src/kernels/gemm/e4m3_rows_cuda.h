// Matrices in E4M3 for products that read both operands from shared memory (dense_e4m3_sm90.cuh):
// rows of bytes in the order of their columns, each with a scale of its own, a power of two.
//
// A row's greatest value becomes 224 .. 448, so that values down to 2^-15 of it keep E4M3's four
// bits: scales of MXFP4 fold exactly down to 14 octaves below the row's greatest value, those of
// MXFP8 to 15 without the codes' own exponents. Each kernel may start before the previous one has
// ended.
#pragma once

#include "core/tensor.h"
#include "kernels/gemm/stage_cuda.h"
#include "kernels/scratch.h"

namespace moxie::gemm {

inline constexpr int32_t kE4m3Unit = 128;          ///< columns of a stage; rows are padded to it
inline constexpr int32_t kMostE4m3Columns = 4096;  ///< that the kernels below take

/// Value (r, c) is scales[r] times the byte at r * stride + c, c < stride; 0 past the columns.
struct E4m3Rows {
  std::byte* data = nullptr;
  float* scales = nullptr;
  int32_t rows = 0, stride = 0;

  E4m3Rows(int32_t num_rows, int32_t columns, Scratch& scratch)
      : rows(num_rows), stride(round_up(columns, kE4m3Unit)) {
    data = scratch.take<std::byte>(int64_t{rows} * stride);
    scales = scratch.take<float>(rows);
  }
};

/// The rows of a BF16, MXFP8 or MXFP4 matrix in kFragment16x32, in their packed order.
void lay_weights_e4m3(const PackedMatrix& weight, const E4m3Rows& to, Stream* stream);

/// Row r = token r's RMSNorm(x), times the weight; without a weight, values of row r.
struct LayNormed {
  const float* x = nullptr;            // [rows, width]
  const float* norm_weight = nullptr;  // [width], or null
  bool x_is_single = true;             // (residual.cuh); without a weight always
  float rms_eps = 1e-5f;
  int32_t width = 0;
};
void lay_normed_e4m3(const LayNormed& step, const E4m3Rows& to, Stream* stream);

/// Row r = row r of values staged in BF16.
void lay_staged_e4m3(const StagedView& from, const E4m3Rows& to, Stream* stream);

}  // namespace moxie::gemm
