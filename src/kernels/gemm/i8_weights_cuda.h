// The weights of dense layers in 8-bit integers (i8_rows_cuda.h).
#pragma once

#include "kernels/gemm/i8_rows_cuda.h"

namespace moxie::gemm {

/// Whether a matrix can be laid out.
inline bool lays_i8(const PackedMatrix& matrix) {
  const DType format = matrix.format;
  return matrix.layout == PackedLayout::kFragment16x32 && matrix.cols % 4 == 0 &&
         matrix.cols <= kMostI8Columns &&
         (format == DType::kBF16 || format == DType::kMXFP8 || format == DType::kMXFP4);
}
/// The rows of a BF16, MXFP8 or MXFP4 matrix in kFragment16x32, in their packed order; once, when a
/// model is loaded.
void lay_weights_i8(const PackedMatrix& weight, const I8Rows& to, Stream* stream);

}  // namespace moxie::gemm
