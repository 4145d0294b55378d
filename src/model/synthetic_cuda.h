// Random weights made on the device, in its layout, at the speed of its memory: the same values as
// weights/synthetic.h makes for the CPU, so that one seed names one model.
#pragma once

#include "core/device.h"
#include "model/repack_cuda.h"

namespace moxie {

/// Fills kBF16, kMXFP4 or kMXFP8 (the BF16 values, quantised). Builds without CUDA have no stream
/// to call these with; they CHECK.
void fill_random_matrix_cuda(const PackedMatrix& target, PackedRowOrder order, int32_t head_dim,
                             double deviation, uint64_t seed, Stream& stream);
/// A table of BF16 rows.
void fill_random_table_cuda(const RowTable& target, double deviation, uint64_t seed,
                            Stream& stream);
Status fill_vector_cuda(float* out, int64_t count, float value, Stream& stream);

}  // namespace moxie
