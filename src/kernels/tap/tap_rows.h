// The rows of tap, as functions; tap_table.cpp puts them into the table.
#pragma once

#include "kernels/tap/tap.h"

namespace moxie {

/// Value after value, on one thread.
void tap_reference(const TapParams& params);

/// Tokens in parallel, whole rows at a time.
void tap_f32_copy_portable(const TapParams& params);

#if MOXIE_HAS_CUDA
/// One block a token; rows of a multiple of 4 columns.
void tap_any_copy_cuda(const TapParams& params);
#endif

}  // namespace moxie
