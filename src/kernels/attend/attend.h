// attend: paged attention, causal, with an optional window and a sink per query head.
//
// Token at position p sees keys max(0, p - window + 1) .. p of its sequence (window 0: all). The
// sink is a raw logit in the denominator only: not scaled, no value, in every layer, added once.
//   l_j = scale (q . k_j);  M = max(max_j l_j, sink);
//   a = sum_j exp(l_j - M) v_j / (sum_j exp(l_j - M) + exp(sink - M))
// Query head h reads KV head h / (num_heads / num_kv_heads).
#pragma once

#include "kernels/registry.h"

namespace moxie {

struct AttendParams {
  Launch launch;
  Ragged batch;
  int32_t num_heads = 0, num_kv_heads = 0, head_dim = 0;
  int32_t window = 0;            // keys seen, self included; 0: all
  float scale = 0.125f;          // 1 / sqrt(head_dim)
  const float* q = nullptr;      // [tokens, heads, head_dim]
  KvLayer kv;                    // this launch's tokens are already in it
  const float* sinks = nullptr;  // [heads]; null: no sinks (a test switch)
  float* a = nullptr;  // [tokens, heads, head_dim], written; staged: tokens rounded up to 8
  Forms forms;         // of q, read, and of a
  /// All tokens of a sequence see the same keys, also those of one another: batch.positions hold
  /// the last position that each sees and do not rise by one from token to token.
  bool is_block = false;

  /// Staged queries have the factor with which a weight is 2^logit.
  float q_factor() const { return scale * kLog2E; }
  static constexpr float kLog2E = 1.4426950408889634f;
};

/// From this many tokens on, staged outputs take no more memory than F32 outputs.
inline constexpr int32_t kLeastStagedTokens = 8;

/// The least heads times head size at which attention on the CPU may round to BF16 unasked: queries
/// and weights of prompts, and a small cache. Rounding shows most in narrower models.
inline constexpr int64_t kLeastBf16AttendWidth = 2048;

template <>
struct Op<AttendParams> {
  static constexpr OpInfo info{"attend"};
  static std::span<const Row<AttendParams>> rows();
  static Work work(const AttendParams& params);
};

}  // namespace moxie
