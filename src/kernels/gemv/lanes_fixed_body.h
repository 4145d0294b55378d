// What the variants with activations in 16-bit fixed point share: the form of the activations and
// the loops over tokens and tiles. Include it only in such a variant's lanes_<variant>.cpp, which
// defines prepare and add_block.
//
// A block of 32 activations becomes a scale and integers of 16 bits, each two signed bytes:
// v = 256 hi + lo. Weights become bytes too, twice their value, so that an instruction for four
// products of bytes does the work, and a block's product is exact in integers: at most 32 * 12 *
// 32512, which F32 holds. The error is the rounding of an activation to 2^-16 of the greatest of
// its block: less than a hundredth of what BF16 activations lose.
#pragma once

#include "kernels/gemv/lanes_body.h"

namespace moxie {
namespace {

// A prepared block, kPreparedFloats floats.
struct PreparedBlock {
  float half_scale;    // half of the activations' scale: the weights are doubled
  int32_t correction;  // -12 sum v, for weights made unsigned by adding 12
  int8_t hi[32];       // in order of the columns
  int8_t lo[32];
};
static_assert(sizeof(PreparedBlock) == 4 * kPreparedFloats);

constexpr float kGreatestFixed = 32512.0f;  // 127 * 256: hi stays within a signed byte

// sums[n * kParts + part] += block i of a tile times token n.
template <int32_t N>
MOXIE_INLINE void add_block(const std::byte* block, const float* const* x, int32_t i, Vec* sums);

// T tiles side by side, a block of each in turn.
template <int32_t N, int32_t T>
MOXIE_INLINE void fixed_product_of(const std::byte* tiles, int64_t tile_bytes, int32_t cols,
                                   const float* const* x, float* y) {
  Vec sums[T][N * kParts] = {};
  const std::byte* block = tiles;
  for (int32_t i = 0; i < cols / 32; ++i, block += Mxfp4Format::kBlockBytes) {
    const int64_t ahead = prefetch_offset<T>(block - tiles, tile_bytes);
#pragma GCC unroll 8
    for (int32_t t = 0; t < T; ++t) {
      prefetch_block<Mxfp4Format>(block + t * tile_bytes + ahead);
      add_block<N>(block + t * tile_bytes, x, i, sums[t]);
    }
  }
#pragma GCC unroll 8
  for (int32_t t = 0; t < T; ++t) {
#pragma GCC unroll 32
    for (int32_t n = 0; n < N * kParts; ++n) store(y + 16 * N * t + kLanes * n, sums[t][n]);
  }
}

// Where registers suffice all tokens share one decoding; elsewhere four do.
void fixed_product(const std::byte* tile, int32_t cols, const float* const* x, int32_t num_tokens,
                   float* y) {
  if constexpr (kChains >= 8) {
    switch (num_tokens) {
      case 8:
        return fixed_product_of<8, 1>(tile, 0, cols, x, y);
      case 7:
        return fixed_product_of<7, 1>(tile, 0, cols, x, y);
      case 6:
        return fixed_product_of<6, 1>(tile, 0, cols, x, y);
      case 5:
        return fixed_product_of<5, 1>(tile, 0, cols, x, y);
      case 3:
        return fixed_product_of<3, 1>(tile, 0, cols, x, y);
    }
  }
  int32_t token = 0;
  for (; token + 4 <= num_tokens; token += 4) {
    fixed_product_of<4, 1>(tile, 0, cols, x + token, y + 16 * token);
  }
  for (; token + 2 <= num_tokens; token += 2) {
    fixed_product_of<2, 1>(tile, 0, cols, x + token, y + 16 * token);
  }
  if (token < num_tokens) fixed_product_of<1, 1>(tile, 0, cols, x + token, y + 16 * token);
}

void fixed_streams(const std::byte* tiles, int64_t tile_bytes, int32_t cols, const float* const* x,
                   int32_t num_tokens, float* y) {
  switch (num_tokens) {
    case 1:
      return fixed_product_of<1, kTileStreams>(tiles, tile_bytes, cols, x, y);
    case 2:
      return fixed_product_of<2, kTileStreams>(tiles, tile_bytes, cols, x, y);
    case 3:
      return fixed_product_of<3, kTileStreams>(tiles, tile_bytes, cols, x, y);
    default:
      return fixed_product_of<4, kTileStreams>(tiles, tile_bytes, cols, x, y);
  }
}

}  // namespace
}  // namespace moxie
