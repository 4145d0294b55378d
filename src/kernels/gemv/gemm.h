// The instruction-set part of the linear steps for many tokens: BF16 matrix products over groups of
// 16 tokens by 32 outputs (a pair of kRows16 tiles). gemm_product.h has the code around it.
//
// Activations are packed in groups of 16 tokens: for each 32 columns a block of 16 rows x 32 BF16
// (1 KiB), blocks in the order of the columns; columns past the last are zeros. Weights are read as
// panels: for each 32 columns a block of 16 column pairs x 16 outputs (1 KiB), which is kRows16's
// layout of BF16. MXFP4 is decoded to panels with the scales applied, exactly, except that scales
// below 2^-125 count as zero.
//
// Traps: as lanes.h explains, nothing here may be inline, and variants include nothing else.
#pragma once

#include <cstddef>
#include <cstdint>

namespace moxie {

/// Tokens of a group, and the most groups of one call of multiply.
inline constexpr int32_t kGroupTokens = 16;
inline constexpr int32_t kMaxGroups = 16;
/// Floats that multiply writes for each group: [16 tokens, 32 outputs].
inline constexpr int32_t kGroupSums = kGroupTokens * 32;

/// Two neighbouring kRows16 tiles, MXFP4 or BF16.
struct GemmTiles {
  const std::byte* tile[2] = {};  ///< the second may be null: zeros
  bool is_mxfp4 = false;
  int32_t cols = 0;  ///< a multiple of 32 for MXFP4, even for BF16
  /// Read after these tiles; prefetched into the cache meanwhile.
  const std::byte* next = nullptr;
  int64_t next_bytes = 0;
};

struct GemmKernels {
  const char* name;  ///< "amx", "avx512_bf16"
  /// Rounds 1..16 rows of F32 activations to BF16 (nearest even) and packs them as one group,
  /// padded with zeros to 16 rows. `out` holds 16 * round_up(cols, 32) values.
  void (*pack_group)(const float* const* rows, int32_t num_rows, int32_t cols, uint16_t* out);
  /// sums[group][token][32] = products of the first num_tokens tokens of 1..kMaxGroups groups with
  /// the tiles; it also writes sums of tokens past them, which must not be used. Each token's sum
  /// runs over the columns in order, whatever the other tokens are.
  void (*multiply)(const GemmTiles& tiles, const uint16_t* groups, int32_t num_tokens, float* sums);
  /// The clamped SwiGLU (experts.h) of a group's first num_tokens sums, gates in outputs 0..15 and
  /// ups in 16..31, rounded to columns first..first + 15 of a packed group.
  void (*swiglu_group)(const float* sums, int32_t num_tokens, const float* gate_bias,
                       const float* up_bias, float alpha, float limit, int32_t first,
                       uint16_t* group);
  /// As in LaneKernels (lanes.h).
  void (*add_scaled)(const float* y, const float* bias, float weight, int32_t n, float* x);
  /// out = x / sqrt(mean(x^2) + eps) * weight.
  void (*rms_norm)(const float* x, const float* weight, int32_t n, float eps, float* out);
  /// Cost model, nanoseconds of one thread a weight: for decoding it, and for applying it to one
  /// token.
  double decode_ns = 0;
  double apply_ns = 0;
  int32_t least_pairs = 0;  ///< tokens an expert below which rounding gains too little
};

extern const GemmKernels kGemmAmx;         ///< AMX BF16, with AVX-512 F, BW, DQ, VL and BF16
extern const GemmKernels kGemmAvx512Bf16;  ///< AVX-512 F, BW, DQ, VL and BF16

}  // namespace moxie
