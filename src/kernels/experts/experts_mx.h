// What rows of experts share about activations in MX formats (ExpertsParams::activation).
#pragma once

#include <algorithm>

#include "core/formats.h"
#include "kernels/experts/experts.h"

namespace moxie {

inline bool has_mx_activations(const ExpertsParams& p) { return p.activation != DType::kBF16; }

/// Why a row that does not round its activations cannot run; null if it can.
inline const char* refuses_mx(const ExpertsParams& p) {
  return has_mx_activations(p) ? "activations in an MX format are asked for" : nullptr;
}
/// The same of a row that does.
inline const char* refuses_without_mx(const ExpertsParams& p) {
  return has_mx_activations(p)
             ? nullptr
             : "activations in an MX format: --activation mxfp8, mxfp6 or mxfp4 asks for them";
}

/// A row's values as what their blocks of 32 are in the format.
inline void round_row_to_mx(DType format, float* values, int32_t width) {
  for (int32_t i = 0; i < width; i += kMxBlock)
    round_to_mx(mx_element_of(format), values + i, std::min(kMxBlock, width - i));
}

}  // namespace moxie
