// A grouped product on sm_100a by CUTLASS's templates of block-scaled products (tcgen05): for each
// group of slots (blocked_mx_cuda.h), activations in MXFP8 times the weights of the group's expert
// in MXFP4, in F32 sums. Compiled only: it has run on no hardware.
#pragma once

#include "kernels/gemm/blocked_mx_cuda.h"

namespace moxie::gemm {

/// outputs = activations times weights^T. Row s of `outputs` belongs to slot s; rows of slots
/// without a pair are not written. `rows` is a multiple of 8.
struct GroupedMx {
  const SlotTile* tiles = nullptr;     ///< [num_tiles], whole groups
  const int32_t* num_tiles = nullptr;  ///< [1]
  int32_t most_groups = 0;
  BlockedView activations;      ///< MXFP8, [slots, columns]
  BlockedView weights;          ///< MXFP4 of each group, [rows, columns / 2], one behind another
  int32_t rows = 0;             ///< of the weights
  uint16_t* outputs = nullptr;  ///< [slots, rows] in BF16, aligned to 128
  std::byte* memory = nullptr;  ///< grouped_mx_bytes(), aligned to 128
  int32_t num_sms = 0;
};
/// Memory for the groups' descriptions, which a kernel writes on the device.
uint64_t grouped_mx_bytes(int32_t most_groups);
/// `row`: the row that runs it. Two kernels.
void grouped_mx_product(const char* row, const GroupedMx& step, Stream* stream);

}  // namespace moxie::gemm
