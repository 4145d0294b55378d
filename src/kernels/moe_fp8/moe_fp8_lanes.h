// The instruction-set part of moe_fp8_block_scale on the CPU: products of E4M3 weights, 32 rows at
// a time, with packed groups of 16 tokens, and of a few tokens alone. moe_fp8_gemm.cpp has the code
// around it.
//
// A packed group holds, in F32, for each column 16 tokens; in BF16, for each pair of columns 16
// tokens of two values. Missing tokens are zeros. A few tokens lie row by row.
//
// Traps: as gemv/lanes.h explains, nothing here may be inline, and variants include nothing else
// but files whose code is in an anonymous namespace.
#pragma once

#include <cstddef>
#include <cstdint>

namespace moxie {

/// Tokens of a group, weight rows of a strip, the most groups of one product, floats of the sums of
/// one group: [32 rows, 16 tokens].
inline constexpr int32_t kMoeFp8Group = 16, kMoeFp8Strip = 32, kMoeFp8MaxGroups = 16;
inline constexpr int32_t kMoeFp8GroupSums = kMoeFp8Strip * kMoeFp8Group;
/// Up to `most_few` tokens, an expert's weights are decoded in registers and used at once, four
/// rows at a time.
inline constexpr int32_t kMoeFp8MostFew = 4, kMoeFp8FewRows = 4;

/// Two times 16 rows of weights, each with the scales of its row of blocks.
struct MoeFp8Strip {
  const uint8_t* half[2] = {};
  const float* scales[2] = {};  ///< [cols / 128]
  int32_t cols = 0;             ///< a multiple of 128
  int32_t rows_ahead = 16;      ///< where the rows lie that are multiplied next: prefetched
};

/// Packed groups, one after another.
struct MoeFp8Groups {
  const std::byte* packed = nullptr;
  int64_t group_bytes = 0;
  /// BF16 only: [groups, cols / 128, 16] scales of the activations; null: 1.
  const float* scales = nullptr;
  int32_t num_parts = 1;   ///< BF16 only: of each value; a group's second part follows its first
  int32_t num_tokens = 0;  ///< of all groups
};

/// A few tokens, one after another: [parts, cols] values of each.
struct MoeFp8Few {
  const std::byte* packed = nullptr;
  const float* scales = nullptr;  ///< BF16 only: [tokens, cols / 128] of the values; null: 1
  int32_t num_parts = 1;          ///< BF16 only: of each value
  int32_t num_tokens = 0;         ///< 1..most_few
};

struct MoeFp8Kernels {
  const char* name;
  bool is_bf16 = false;  ///< of packed values; otherwise F32, with the scales applied
  bool is_dot = false;   ///< products by vdpbf16ps
  int32_t most_few = 2;  ///< tokens of an expert: kMoeFp8MostFew or less
  /// sums[group][row][token] = products of a strip with 1..kMoeFp8MaxGroups groups.
  void (*multiply)(const MoeFp8Strip& strip, const MoeFp8Groups& groups, float* sums);
  /// y[row * num_tokens + token] = products of kMoeFp8FewRows rows, one after another, with a few
  /// tokens. `next` is read after these rows and prefetched.
  void (*multiply_few)(const uint8_t* rows, const float* scales, int32_t cols, const MoeFp8Few& few,
                       const uint8_t* next, float* y);
  /// silu(gate) * up of a group's sums, ups in rows 0..15 and gates in 16..31, into columns
  /// first..first + 15 of a packed group; BF16: in two parts, of `cols` columns each.
  void (*swiglu)(const float* sums, int32_t first, int32_t cols, std::byte* packed);
  /// out[token][row] += weights[token] * sums[row][token] of the group's first num_tokens.
  void (*add_outputs)(const float* sums, const float* weights, int32_t num_tokens,
                      float* const* out);
  /// Cost model, nanoseconds of one thread a weight: for decoding it, and for applying it to one
  /// token.
  double decode_ns = 0, apply_ns = 0;
};

extern const MoeFp8Kernels kMoeFp8Avx2;        ///< AVX2, FMA, F16C
extern const MoeFp8Kernels kMoeFp8Avx512;      ///< AVX-512 F, BW, DQ, VL
extern const MoeFp8Kernels kMoeFp8Avx512Bf16;  ///< with AVX-512 BF16 and VBMI
extern const MoeFp8Kernels kMoeFp8Amx;         ///< with AMX BF16

}  // namespace moxie
