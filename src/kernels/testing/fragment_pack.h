// A matrix of the CPU's packed layout in CUDA's, value for value, for tests of CUDA rows.
#pragma once

#include <functional>
#include <vector>

#include "core/fragment.h"
#include "kernels/testing/packed.h"

namespace moxie::testing {

/// `source_row` gives the CPU's packed row of each packed row of the result (-1: padding). `format`
/// is the matrix's own, or kMXFP8 for an F32 matrix that holds values of that format.
PackedTensor to_fragment(const PackedMatrix& cpu, DType format,
                         const std::function<int32_t(int32_t)>& source_row);

/// Rounds an F32 matrix in the CPU's layout to the values that MXFP8 can hold.
void round_to_mxfp8(PackedTensor& tensor);

}  // namespace moxie::testing
