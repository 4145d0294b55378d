// Runs the atoms of gemm/mx_atom.cuh on fragments that a test lays out, a warp a case.
#pragma once

#include <cstdint>
#include <vector>

#include "core/device.h"
#include "core/formats.h"

namespace moxie::testing {

/// What a warp's lanes hold.
struct MxFragments {
  uint32_t a[32][4], b[32][2];
  uint32_t scale_a[32], scale_b[32];
  float sums[32][4];  ///< read and written
};

/// `cases` is on the device. In k32 byte `byte_id` (0 to 3) of scale_a and byte 3 - byte_id of
/// scale_b are the scales.
void run_mx_k32(MxElement element, int byte_id, MxFragments* cases, int num_cases, Stream* stream);
void run_mx_k64(MxFragments* cases, int num_cases, Stream* stream);

}  // namespace moxie::testing
