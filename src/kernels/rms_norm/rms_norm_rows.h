// The rows of rms_norm, as functions; rms_norm_table.cpp puts them into the table.
#pragma once

#include "kernels/rms_norm/rms_norm.h"

namespace moxie {

/// Double precision, on one thread.
void rms_norm_reference(const RmsNormParams& params);

/// Tokens in parallel.
void rms_norm_f32_portable(const RmsNormParams& params);

/// A block a token.
const char* rms_norm_any_f32_cuda_refuses(const RmsNormParams& params);
void rms_norm_any_f32_cuda(const RmsNormParams& params);

}  // namespace moxie
