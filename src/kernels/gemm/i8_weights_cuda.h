// The weights of dense layers in 8-bit integers (i8_rows_cuda.h).
#pragma once

#include "kernels/gemm/i8_rows_cuda.h"

namespace moxie::gemm {

/// The memory of a matrix' integers and their scales; 0 if it cannot be laid out.
uint64_t i8_weights_bytes(const PackedMatrix& weight);
/// Writes the rows of a BF16, MXFP8 or MXFP4 matrix in kFragment16x32, in their packed order, to
/// i8_weights_bytes() of `memory`, and names them in `weight`; once, when a model is loaded.
void lay_weights_i8(PackedMatrix& weight, std::byte* memory, Stream* stream);

}  // namespace moxie::gemm
