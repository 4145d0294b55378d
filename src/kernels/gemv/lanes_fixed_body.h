// What the variants with activations in fixed point share: the form of the activations and the
// loops over tokens and tiles. Include this file only in such a variant's lanes_<variant>.cpp,
// which defines add_block.
//
// A block of 32 activations becomes a scale and integers of W signed bytes, the upper byte first:
// with two bytes v = 256 hi + lo, with one v is the byte. Weights become bytes too, twice their
// value. So byte products do the work, and a block's product is exact in integers: at most 32 * 12
// * 32512, which F32 holds. The error is the rounding of an activation: with two bytes 2^-16 of the
// greatest in its block, less than a hundredth of the error of BF16 activations; with one byte 2^-8
// of it, about five times that of BF16.
#pragma once

#include "kernels/gemv/lanes_body.h"

namespace moxie {
namespace {

// 32 activations, PreparedBlock<W>.
template <int32_t W>
struct PreparedBlock {
  float half_scale;     // half of the activations' scale: the weights are doubled
  int32_t correction;   // -offset sum v, for weights made unsigned by adding an offset
  int8_t bytes[W][32];  // in order of the columns
};
template <int32_t W>
constexpr int32_t kPreparedFloats = sizeof(PreparedBlock<W>) / 4;

// The greatest integer: within a signed byte, or 256 times as much: the upper byte stays a signed
// byte.
template <int32_t W>
constexpr float kGreatestFixed = W == 2 ? 127.0f * 256.0f : 127.0f;

// Four activations, repeated in all lanes of a vector.
MOXIE_INLINE int32_t four_bytes(const int8_t* at) {
  int32_t word;
  __builtin_memcpy(&word, at, 4);
  return word;
}

// sums[n * kParts + part] += block i of a tile times token n.
template <int32_t W, int32_t N>
MOXIE_INLINE void add_block(const std::byte* block, const float* const* x, int32_t i, Vec* sums);

template <int32_t W, int32_t kWeightOffset>
void prepare(const float* x, int32_t cols, float* out) {
  typedef int8_t Bytes __attribute__((vector_size(kLanes)));
  typedef int8_t StoredBytes __attribute__((vector_size(kLanes), aligned(1), may_alias));
  constexpr float kRounder = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  constexpr int32_t kVecs = 32 / kLanes;
  auto* block = reinterpret_cast<PreparedBlock<W>*>(out);
  for (int32_t k = 0; k < cols; k += 32, ++block) {
    Vec v[kVecs];
    IntVec greatest = {};  // as bits, which rise with the magnitude
#pragma GCC unroll 8
    for (int32_t i = 0; i < kVecs; ++i) {
      load(x + k + kLanes * i, v[i]);
      const IntVec magnitude = reinterpret_cast<IntVec>(v[i]) & 0x7FFFFFFF;
      greatest = magnitude > greatest ? magnitude : greatest;
    }
    alignas(64) int32_t lanes[kLanes];
    *reinterpret_cast<StoredIntVec*>(lanes) = greatest;
    int32_t bits = 0;
    for (int32_t lane = 0; lane < kLanes; ++lane) bits = lanes[lane] > bits ? lanes[lane] : bits;
    float amax;
    __builtin_memcpy(&amax, &bits, 4);
    const float inverse = amax > 0 ? kGreatestFixed<W> / amax : 0.0f;
    IntVec sum = {};
#pragma GCC unroll 8
    for (int32_t i = 0; i < kVecs; ++i) {
      const IntVec fixed = reinterpret_cast<IntVec>(v[i] * inverse + kRounder) - 0x4B400000;
      sum += fixed;
      const IntVec low = (fixed << 24) >> 24;
      if constexpr (W == 2) {
        *reinterpret_cast<StoredBytes*>(block->bytes[0] + kLanes * i) =
            __builtin_convertvector((fixed - low) >> 8, Bytes);
      }
      *reinterpret_cast<StoredBytes*>(block->bytes[W - 1] + kLanes * i) =
          __builtin_convertvector(low, Bytes);
    }
    *reinterpret_cast<StoredIntVec*>(lanes) = sum;
    int32_t total = 0;
    for (int32_t lane = 0; lane < kLanes; ++lane) total += lanes[lane];
    block->half_scale = amax * (0.5f / kGreatestFixed<W>);
    block->correction = -kWeightOffset * total;
  }
}

// T tiles side by side, a block of each in turn.
template <int32_t W, int32_t N, int32_t T>
MOXIE_INLINE void fixed_product_of(const std::byte* tiles, int64_t tile_bytes, int32_t cols,
                                   const float* const* x, float* y) {
  Vec sums[T][N * kParts] = {};
  const std::byte* block = tiles;
  for (int32_t i = 0; i < cols / 32; ++i, block += Mxfp4Format::kBlockBytes) {
    const int64_t ahead = prefetch_offset<T>(block - tiles, tile_bytes);
#pragma GCC unroll 8
    for (int32_t t = 0; t < T; ++t) {
      prefetch_block<Mxfp4Format>(block + t * tile_bytes + ahead);
      add_block<W, N>(block + t * tile_bytes, x, i, sums[t]);
    }
  }
#pragma GCC unroll 8
  for (int32_t t = 0; t < T; ++t) {
#pragma GCC unroll 32
    for (int32_t n = 0; n < N * kParts; ++n) store(y + 16 * N * t + kLanes * n, sums[t][n]);
  }
}

// If there are enough registers all tokens share one decoding; otherwise four do.
template <int32_t W>
void fixed_product(const std::byte* tile, int32_t cols, const float* const* x, int32_t num_tokens,
                   float* y) {
  if constexpr (kChains >= 8) {
    switch (num_tokens) {
      case 8:
        return fixed_product_of<W, 8, 1>(tile, 0, cols, x, y);
      case 7:
        return fixed_product_of<W, 7, 1>(tile, 0, cols, x, y);
      case 6:
        return fixed_product_of<W, 6, 1>(tile, 0, cols, x, y);
      case 5:
        return fixed_product_of<W, 5, 1>(tile, 0, cols, x, y);
      case 3:
        return fixed_product_of<W, 3, 1>(tile, 0, cols, x, y);
      default:
        break;
    }
  }
  int32_t token = 0;
  for (; token + 4 <= num_tokens; token += 4) {
    fixed_product_of<W, 4, 1>(tile, 0, cols, x + token, y + 16 * token);
  }
  for (; token + 2 <= num_tokens; token += 2) {
    fixed_product_of<W, 2, 1>(tile, 0, cols, x + token, y + 16 * token);
  }
  if (token < num_tokens) fixed_product_of<W, 1, 1>(tile, 0, cols, x + token, y + 16 * token);
}

template <int32_t W>
void fixed_streams(const std::byte* tiles, int64_t tile_bytes, int32_t cols, const float* const* x,
                   int32_t num_tokens, float* y) {
  switch (num_tokens) {
    case 1:
      return fixed_product_of<W, 1, kTileStreams>(tiles, tile_bytes, cols, x, y);
    case 2:
      return fixed_product_of<W, 2, kTileStreams>(tiles, tile_bytes, cols, x, y);
    case 3:
      return fixed_product_of<W, 3, kTileStreams>(tiles, tile_bytes, cols, x, y);
    default:
      return fixed_product_of<W, 4, kTileStreams>(tiles, tile_bytes, cols, x, y);
  }
}

// The set of a variant: activations of W bytes, weights made unsigned by adding kWeightOffset.
template <int32_t W, int32_t kWeightOffset>
constexpr LaneKernels fixed_lanes(const char* name, int32_t most_stream_tokens, double decode_ns,
                                  double apply_ns) {
  return {.name = name,
          .prepare = prepare<W, kWeightOffset>,
          .prepared_floats = kPreparedFloats<W>,
          .f32 = {},
          .bf16 = {},
          .q8_0 = {},
          .mxfp4 = {.tile = fixed_product<W>,
                    .streams = fixed_streams<W>,
                    .most_stream_tokens = most_stream_tokens},
          .rms_norm = rms_norm,
          .swiglu = swiglu,
          .add_scaled = add_scaled,
          .decode_ns = decode_ns,
          .apply_ns = apply_ns};
}

}  // namespace
}  // namespace moxie
