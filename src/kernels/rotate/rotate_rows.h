// The rows of rotate, as functions; rotate_table.cpp puts them into the table.
#pragma once

#include "kernels/rotate/rotate.h"

namespace moxie {

/// Norms and angles in double precision, on one thread.
void rotate_reference(const RotateParams& params);

/// Tokens in parallel.
void rotate_f32_portable(const RotateParams& params);
const char* rotate_f32_portable_refuses(const RotateParams& params);

/// A warp a head.
void rotate_any_f32_cuda(const RotateParams& params);

}  // namespace moxie
