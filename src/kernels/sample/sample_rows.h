// The rows of the step sample, as functions; sample_table.cpp puts them into the table.
#pragma once

#include "kernels/sample/sample.h"

namespace moxie {

/// The definition: sorts the whole vocabulary and computes every probability in double.
void sample_reference(const SampleParams& params);

/// A few passes over each row, rows in parallel; the reference's tokens exactly.
void sample_any_f32_scan_portable(const SampleParams& params);
void sample_any_f32_scan_avx2(const SampleParams& params);
void sample_any_f32_scan_avx512(const SampleParams& params);
uint64_t sample_scan_workspace(const SampleParams& params);

/// Why a row that needs all of a row's logits cannot run; null if it can.
inline const char* refuses_part(const SampleParams& params) {
  return params.kind == LinkKind::kNone ? nullptr : "the logits are those of a rank's ids alone";
}

#if MOXIE_HAS_CUDA
/// A cluster of 8 blocks for each row of logits; the whole step in one launch, logits read once.
void sample_f32_gumbel_cuda(const SampleParams& params);
const char* sample_f32_gumbel_cuda_refuses(const SampleParams& params);
uint64_t sample_f32_gumbel_cuda_workspace(const SampleParams& params);

/// Plain rows of ranks that have a part of the ids each.
void sample_f32_gumbel_peers_cuda(const SampleParams& params);
const char* sample_f32_gumbel_peers_cuda_refuses(const SampleParams& params);
/// Plain rows, as `row`. The workspace is that of the row above, too.
void sample_plain(const char* row, const SampleParams& params);
uint64_t sample_plain_workspace(const SampleParams& params);
#endif

}  // namespace moxie
