// Kernels that stage activations for products over many tokens (staged.cuh): F32 values, or the
// residual stream's norm, rounded to BF16 or E4M3. Limited by memory; one block a token.
//
// Widths are multiples of 4, at most the limits below, and the pointers are aligned to 16 bytes.
// Each kernel may start before the previous one has ended (core/cuda_launch.cuh).
#pragma once

#include "kernels/gemm/staged.cuh"
#include "kernels/step.h"

namespace moxie::gemm {

inline constexpr int32_t kMaxStagedWidth = 12288;        // of rows that are normed, and of slots
inline constexpr int32_t kMaxStagedFloatsWidth = 18432;  // of stage_floats

/// Row r = RMSNorm(x of token row_idx[r], or r without row_idx), times the weight in F32.
struct StageNormed {
  int32_t num_rows = 0;
  float rms_eps = 1e-5f;
  const float* x = nullptr;            // [tokens, width] of two floats (residual.cuh)
  bool x_is_single = false;            // one float (residual.cuh)
  const int32_t* row_idx = nullptr;    // [rows], or null
  const float* norm_weight = nullptr;  // [width]
  StagedView to;
};
void stage_normed(const StageNormed& step, Stream* stream);

/// Row r = values of row r.
struct StageFloats {
  int32_t num_rows = 0;
  const float* values = nullptr;  // [rows, width]
  StagedView to;
};
void stage_floats(const StageFloats& step, Stream* stream);

/// Rows slot_of_pair[token * top_k + k], k < top_k, = values of the token; slot -1 is no row. With
/// norm_weight, `values` is x, and the rows are RMSNorm(x).
struct StageSlots {
  int32_t num_tokens = 0, top_k = 0;
  const float* values = nullptr;          // [tokens, width]
  const float* norm_weight = nullptr;     // [width], or null
  float rms_eps = 1e-5f;                  // with norm_weight
  bool x_is_single = false;               // with norm_weight (residual.cuh)
  const int32_t* slot_of_pair = nullptr;  // [tokens, top_k]
  float scale = 1.0f;                     // of what is staged, a power of two; BF16 alone
  StagedView to;
};
void stage_slots(const StageSlots& step, Stream* stream);

/// StageSlots in E4M3: a token's values are divided by a power of two, so that the greatest is in
/// 224 .. 448. That power is slot_scale[slot] of each of the token's slots.
void stage_slots_e4m3(const StageSlots& step, float* slot_scale, Stream* stream);

/// StageSlots in an MX format of activations (kMXFP8, kMXFP6, kMXFP6E3M2 or kMXFP4): OCP MX v1.0, a
/// scale for each block of 32 columns; NaN for a block with a value that is no finite number.
void stage_slots_mx(const StageSlots& step, DType format, Stream* stream);

}  // namespace moxie::gemm
