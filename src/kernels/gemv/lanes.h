// The instruction-set part of the CPU's linear steps: small functions over 16 rows at once, one set
// a variant. Everything around them (threads, grouping, rotary, the cache) is common code that
// calls through this table.
//
// Traps: a variant's file is compiled with its own flags, and the linker keeps one copy of each
// inline function for the whole program. So these files include only this header, lanes_body.h
// (anonymous namespace) and the compiler's intrinsics, and nothing here is inline.
#pragma once

#include <cstddef>
#include <cstdint>

namespace moxie {

/// The most tokens of one call of a tile product.
inline constexpr int32_t kMaxTileTokens = 8;

/// y[token * 16 + lane] = sum over k of W[lane, k] x[token][k] for one kRows16 tile of `cols`
/// columns and 1..kMaxTileTokens tokens. The order of a sum depends on `cols` only, so that a
/// token's result does not depend on its neighbours in x.
using TileProduct = void (*)(const std::byte* tile, int32_t cols, const float* const* x,
                             int32_t num_tokens, float* y);

/// The same for kTileStreams tiles, `tile_bytes` apart, read side by side, since most cores get
/// more of the memory's bandwidth over several streams than over one (not all: reads_in_order()).
/// y[(stream * num_tokens + token) * 16 + lane]; each result is the same, to the bit, as that of
/// TileProduct.
inline constexpr int32_t kTileStreams = 4;
using StreamsProduct = void (*)(const std::byte* tiles, int64_t tile_bytes, int32_t cols,
                                const float* const* x, int32_t num_tokens, float* y);
/// The most tokens of one call.
inline constexpr int32_t kMaxStreamTokens = 4;

/// The products with weights of one format; null if the set has none.
struct LaneProducts {
  TileProduct tile = nullptr;
  StreamsProduct streams = nullptr;
  /// The numbers of tokens for which `streams` is faster: with more, arithmetic and not memory
  /// limits.
  int32_t least_stream_tokens = 1, most_stream_tokens = kMaxTileTokens;
};

struct LaneKernels {
  const char* name;  ///< "portable", "avx2", "avx512", "avx2_i16", "avx512vnni_i8", ...
  /// Null: the products take F32. Otherwise they take rows written by this function,
  /// `prepared_floats` floats for each 32 columns (cols is a multiple of 32). Only the products
  /// know the content.
  void (*prepare)(const float* x, int32_t cols, float* out);
  int32_t prepared_floats = 0;
  LaneProducts f32, bf16, q8_0, mxfp4;  ///< by format of the weights
  /// out = x / sqrt(mean(x^2) + eps) * weight.
  void (*rms_norm)(const float* x, const float* weight, int32_t n, float eps, float* out);
  /// The clamped SwiGLU (experts.h) of 16 gates and 16 ups, biases already added.
  void (*swiglu)(const float* gate, const float* up, float alpha, float limit, float* out);
  /// x[i] += weight * (y[i] + bias[i]) for n outputs of one token.
  void (*add_scaled)(const float* y, const float* bias, float weight, int32_t n, float* x);
  /// Cost model, nanoseconds of one thread a weight: for decoding it, and for applying it to one
  /// token.
  double decode_ns = 0;
  double apply_ns = 0;
};

extern const LaneKernels kLanesPortable;
extern const LaneKernels kLanesAvx2;    ///< AVX2, FMA, F16C
extern const LaneKernels kLanesAvx512;  ///< AVX-512 F, BW, DQ, VL

// MXFP4 only, activations in fixed point by blocks of 32 (lanes_fixed_body.h), of 16 bits or of 8.
extern const LaneKernels kLanesAvx2I16, kLanesAvx2I8;              ///< as kLanesAvx2
extern const LaneKernels kLanesAvxVnniI16, kLanesAvxVnniI8;        ///< with AVX-VNNI
extern const LaneKernels kLanesAvx512VnniI16, kLanesAvx512VnniI8;  ///< AVX-512 with VNNI
/// NEON with the dot product of bytes. Empty where it is not compiled, so that its rows are in the
/// table of every build.
extern const LaneKernels kLanesNeonDotI16, kLanesNeonDotI8;

}  // namespace moxie
